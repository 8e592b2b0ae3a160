//! The report as Markdown, for a job's summary.

use std::fmt::Write;

use super::super::baseline::Flipped;
use super::super::totals::{Failure, Group};
use super::Report;

/// Failed rows that are shown.
const MAX_FAILURES: usize = 20;

impl Report {
    /// The whole document.
    pub fn markdown(&self) -> String {
        let mut text = format!("# Evaluation\n\n{}\n", self.totals.all.said());
        let [prompt, completion] = self.totals.all.tokens;
        let _ = writeln!(text, "\nTokens: {prompt} of prompts, {completion} of answers.");
        if let Some(cut) = self.totals.all.cut() {
            let _ = writeln!(text, "{cut}.");
        }
        if let Some(model) = self.origin["model_name"].as_str() {
            let _ = writeln!(text, "\nModel: {}", cell(model));
        }
        if let Some(flags) = self.origin["settings"].as_object() {
            let flags = flags.iter().map(|(name, value)| {
                format!("{} {}", cell(name), cell(value.as_str().unwrap_or_default()))
            });
            let _ = writeln!(text, "\nSettings: {}", flags.collect::<Vec<_>>().join(", "));
        }
        if !self.outcomes.is_empty() {
            text.push_str("\n| gate | value | |\n|---|---:|---|\n");
            for outcome in &self.outcomes {
                let said = if outcome.holds() { "holds" } else { "**fails**" };
                let gate = cell(outcome.gate());
                let _ = writeln!(text, "| {gate} | {:.4} | {said} |", outcome.value());
            }
        }
        text.push_str("\n| group | metric | value | stderr | 95% interval | rows |\n");
        text.push_str("|---|---|---:|---:|---|---:|\n");
        self.rows(&mut text, "", &self.totals.all);
        for (name, group) in &self.totals.groups {
            self.rows(&mut text, &cell(name), group);
        }
        if let Some(baseline) = &self.baseline {
            let _ = writeln!(text, "\n{}", cell(&baseline.said()));
            flipped(&mut text, baseline.newly_wrong(), baseline.num_wrong());
        }
        let all = self.totals.all.num_failed + self.totals.all.num_errors;
        failures(&mut text, "Failed rows", &self.totals.failures, all);
        text
    }

    fn rows(&self, text: &mut String, name: &str, group: &Group) {
        for (metric, measure) in self.totals.shown(group) {
            let stderr = measure.stderr().map(|error| format!("{error:.4}")).unwrap_or_default();
            let interval = measure.interval();
            let interval = interval.map(|(low, high)| format!("{low:.4} to {high:.4}"));
            let _ = writeln!(
                text,
                "| {name} | {} | {:.4} | {stderr} | {} | {} |",
                cell(&metric),
                measure.mean(),
                interval.unwrap_or_default(),
                measure.num_rows()
            );
        }
        for (metric, value) in group.of_texts() {
            let _ = writeln!(text, "| {name} | {metric} | {value:.4} | | | |");
        }
    }
}

/// The first of `all` rows that became wrong, with both answers.
fn flipped(text: &mut String, rows: &[Flipped], all: u64) {
    if rows.is_empty() {
        return;
    }
    text.push_str("\n## Newly wrong rows\n\n| row | question | expected | then | now |\n");
    text.push_str("|---|---|---|---|---|\n");
    for Flipped { now, then } in rows.iter().take(MAX_FAILURES) {
        let answer = now.row.error.as_ref().unwrap_or(&now.row.answer);
        let cells = [&now.name(), &now.row.question, &now.row.expected, then, answer];
        let cells = cells.map(|text| cell(text));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let left = all.saturating_sub(MAX_FAILURES as u64);
    if left > 0 {
        let _ = writeln!(text, "\nand {left} more");
    }
}

/// The first of `all` rows.
fn failures(text: &mut String, title: &str, failures: &[Failure], all: u64) {
    if failures.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n## {title}\n\n| row | question | what |\n|---|---|---|");
    for failure in failures.iter().take(MAX_FAILURES) {
        let [name, said] = [failure.name(), failure.said()].map(|text| cell(&text));
        let _ = writeln!(text, "| {name} | {} | {said} |", cell(&failure.row.question));
    }
    let left = all.saturating_sub(MAX_FAILURES as u64);
    if left > 0 {
        let _ = writeln!(text, "\nand {left} more");
    }
}

/// Text of a row within a cell: nothing in it is markup.
fn cell(text: &str) -> String {
    let mut cell = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => cell.push(' '),
            '&' => cell.push_str("&amp;"),
            '<' => cell.push_str("&lt;"),
            '>' => cell.push_str("&gt;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '!' | '#' | '~' | '@' | ':' => {
                let _ = write!(cell, "&#{};", c as u32);
            }
            c if c.is_control() => {}
            c => cell.push(c),
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_rows_is_no_markup() {
        let text = "a|b\n<b>*x*</b> [l](http://h) `c` @me \u{7}";
        let cell = cell(text);
        for sign in ["|", "\n", "<", "*", "[", "`", "@", "\u{7}"] {
            assert!(!cell.contains(sign), "{sign:?} in {cell}");
        }
    }
}
