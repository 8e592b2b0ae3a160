//! What a terminal shows of a report: measures in columns, gates, what the rows are.

use std::fmt::Write;

use super::super::measure::Measure;
use super::super::totals::Group;
use super::Report;
use vllm_batch_dataset::terminal::error::sanitized;
use vllm_batch_dataset::terminal::style::Style;

impl Report {
    /// The text for standard output.
    pub fn text(&self, style: Style) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}", style.strong(&self.totals.all.said()));
        if let Some(cut) = self.totals.all.cut() {
            let _ = writeln!(text, "{cut}");
        }
        self.table(&mut text, None, &self.totals.all);
        for (name, group) in &self.totals.groups {
            self.table(&mut text, Some(name), group);
        }
        if let Some(baseline) = &self.baseline {
            let _ = writeln!(text, "{}", baseline.said());
        }
        for outcome in &self.outcomes {
            let gate = format!("gate {}: {}", sanitized(outcome.gate()), outcome.value());
            let _ = match outcome.holds() {
                true => writeln!(text, "{gate} holds"),
                false => writeln!(text, "{}", style.error(&format!("{gate} FAILS"))),
            };
        }
        text
    }

    fn table(&self, text: &mut String, name: Option<&String>, group: &Group) {
        let of_group = name.map(|name| format!("[{}]", sanitized(name))).unwrap_or_default();
        for (metric, measure) in self.totals.shown(group) {
            let metric = format!("{}{of_group}", sanitized(&metric));
            let _ = writeln!(text, "  {metric:<24} {}", measure.said());
        }
        for (metric, value) in group.of_texts() {
            let metric = format!("{metric}{of_group}");
            let _ = writeln!(text, "  {metric:<24} {value:.4}");
        }
    }
}

impl Measure {
    /// The mean, with its error and interval where it has them.
    pub fn said(&self) -> String {
        let mut text = format!("{:.4}", self.mean());
        if let Some(stderr) = self.stderr() {
            let _ = write!(text, " ± {stderr:.4}");
        }
        if let Some((low, high)) = self.interval() {
            let _ = write!(text, "  95% in {low:.4} to {high:.4}");
        }
        let _ = write!(text, "  ({} rows)", self.num_rows());
        text
    }
}

impl Group {
    /// How many answers were cut, if some were.
    pub fn cut(&self) -> Option<String> {
        let cut = self.num_cut;
        (cut > 0).then(|| {
            format!("{cut} answers were cut by --max-tokens or the context (finish_reason length)")
        })
    }

    /// Rows by their fate.
    pub fn said(&self) -> String {
        let Self { num_rows, num_passed, num_failed, num_errors, .. } = self;
        let num_scored = num_rows - num_passed - num_failed - num_errors;
        let scored = match num_scored {
            0 => String::new(),
            _ => format!("{num_scored} with a score alone, "),
        };
        let judged = format!("{num_passed} passed, {num_failed} did not pass");
        format!("{num_rows} rows: {judged}, {scored}{num_errors} error rows")
    }
}
