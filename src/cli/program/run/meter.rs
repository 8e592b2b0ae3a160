//! The text of a progress line, as wide as the terminal: what is done, how long it took and will
//! take, and as much of the rest as there is room for.

use vllm_batch_dataset::terminal::numbers::num_rows;
use vllm_batch_dataset::terminal::style::Style;

/// Eighths of a full cell, as tqdm's `Bar.UTF`.
const CELLS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// Cells of the bar where the width of the terminal is unknown.
const DEFAULT_CELLS: usize = 10;

/// The least that a bar has: before the rest gets room, and where there is hardly any.
const MIN_CELLS: [usize; 2] = [10, 4];

/// What a line shows.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Rows done.
    pub done: u64,
    /// Rows that were done at the start: no part of the rate.
    pub initial: u64,
    /// Error rows among those that are done.
    pub failed: u64,
    /// Rows answered since the start: neither failed nor taken over.
    pub answered: u64,
    /// Rows of the input, when known.
    pub total: Option<u64>,
    /// Seconds since the start.
    pub elapsed: f64,
    /// Prompt tokens per second.
    pub input_speed: f64,
    /// Generated tokens per second.
    pub output_speed: f64,
    /// Generated tokens: of all rows of this run, and of those that are done.
    pub output_tokens: (u64, u64),
    /// The longest that an answer can be.
    pub max_tokens: Option<u64>,
}

impl Meter {
    /// Rows per second since the start; None before there is one.
    pub fn rate(&self) -> Option<f64> {
        Some(self.num_own() as f64 / self.elapsed).filter(|rate| rate.is_finite() && *rate > 0.0)
    }

    /// Rows done since the start.
    fn num_own(&self) -> u64 {
        self.done - self.initial.min(self.done)
    }

    /// As tqdm: a total that was wrong is forgotten.
    fn total(&self) -> Option<u64> {
        self.total.filter(|total| *total > 0 && self.done <= *total)
    }

    /// Seconds until the last row is done: by generated tokens and those to come, or by rows where
    /// none are generated. Before the first row is done, answers count as long as
    /// they can be. None where nothing says it.
    pub fn remaining(&self) -> Option<f64> {
        let total = self.total()?;
        let left = total - self.done;
        if left == 0 {
            return Some(0.0);
        }
        let (generated, of_done) = self.output_tokens;
        // Failed rows have no answer, and say nothing of those to come.
        let length = match self.answered {
            0 => self.max_tokens.map(|tokens| tokens as f64),
            rows => Some(of_done as f64 / rows as f64),
        };
        let by_tokens = length.filter(|_| generated > 0).map(|length| {
            let rows = self.answered + left;
            let wanted = (rows as f64 * length - generated as f64).max(left as f64);
            wanted * self.elapsed / generated as f64
        });
        by_tokens.or(self.rate().map(|rate| left as f64 / rate))
    }

    /// The line, with `load` of the engine where there is room for it.
    pub fn line(&self, columns: Option<usize>, load: &str, style: Style) -> String {
        let rest = [
            format_rate(self.rate()),
            format!("out {:.0} tok/s", self.output_speed),
            format!("in {:.0} tok/s", self.input_speed),
            load.to_owned(),
        ];
        let rest = rest.into_iter().filter(|piece| !piece.is_empty()).collect::<Vec<_>>();
        let failed = (self.failed > 0).then(|| format!("{} failed", self.failed));
        let elapsed = format_interval(self.elapsed);
        let Some(total) = self.total() else {
            let head = format!("{} [{elapsed}", num_rows(self.done));
            let head = Head { left: head, bar: None, right: String::new(), failed };
            return head.fitted(columns, &rest, style);
        };
        let share = self.done as f64 / total as f64;
        let remaining = self.remaining().map_or("?".to_owned(), format_interval);
        // Never 100 % before the last row.
        let percent = (share * 100.0).floor();
        let (done, left) = (self.done, format!("{percent:3.0}%|"));
        let right = format!("| {done}/{total} [{elapsed}<{remaining}");
        let head = Head { left, bar: Some(share), right, failed: failed.clone() };
        if columns.is_none_or(|columns| head.width() + MIN_CELLS[1] <= columns) {
            return head.fitted(columns, &rest, style);
        }
        let right = format!("| {done}/{total} [<{remaining}");
        let head = Head { right, ..head };
        if columns.is_none_or(|columns| head.width() + MIN_CELLS[1] <= columns) {
            return head.fitted(columns, &[], style);
        }
        // A very narrow terminal, or very many rows.
        let text = format!("{percent:3.0}% <{remaining}");
        let counts = format!("{done}/{total}");
        let pieces = [failed, Some(counts)].into_iter().flatten();
        let fits = |text: &str| columns.is_none_or(|columns| text.chars().count() <= columns);
        pieces.fold(text, |text, piece| {
            let longer = format!("{text} {piece}");
            if fits(&longer) { longer } else { text }
        })
    }
}

/// What a line has in any case.
struct Head {
    left: String,
    /// The share that is done.
    bar: Option<f64>,
    right: String,
    failed: Option<String>,
}

impl Head {
    /// Columns without the bar, its closing bracket counted.
    fn width(&self) -> usize {
        let failed = self.failed.as_ref().map_or(0, |failed| failed.len() + 2);
        self.left.chars().count() + self.right.chars().count() + failed + 1
    }

    /// The line with the pieces that have room, in their order, and a bar as wide as is left.
    fn fitted(&self, columns: Option<usize>, rest: &[String], style: Style) -> String {
        let min = if self.bar.is_some() { MIN_CELLS[0] } else { 0 };
        let (mut width, mut shown) = (self.width(), String::new());
        for piece in rest {
            let wider = width + piece.chars().count() + 2;
            if columns.is_some_and(|columns| wider + min > columns) {
                break;
            }
            width = wider;
            shown += &format!(", {piece}");
        }
        let room = columns.map_or(DEFAULT_CELLS, |columns| columns.saturating_sub(width));
        let bar = self.bar.map(|share| format_bar(share, room)).unwrap_or_default();
        let failed = self.failed.as_deref().map(|failed| format!(", {}", style.error(failed)));
        format!("{}{bar}{}{}{shown}]", self.left, self.right, failed.unwrap_or_default())
    }
}

fn format_bar(share: f64, cells: usize) -> String {
    let eighths = (share * cells as f64 * 8.0) as usize;
    let (full, rest) = (eighths / 8, eighths % 8);
    let mut bar: String = std::iter::repeat_n(CELLS[8], full.min(cells)).collect();
    if full < cells {
        bar.push(CELLS[rest]);
        bar.extend(std::iter::repeat_n(' ', cells - full - 1));
    }
    bar
}

/// `[H:]MM:SS`
fn format_interval(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes:02}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Rows per second, or seconds per row below one; nothing before there is a row.
fn format_rate(rate: Option<f64>) -> String {
    match rate {
        None => String::new(),
        Some(rate) if rate < 1.0 => format!("{:.2} s/row", 1.0 / rate),
        Some(rate) => format!("{rate:.2} rows/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(done: u64, total: Option<u64>, elapsed: f64) -> Meter {
        let (input_speed, output_speed) = (5310.2, 1702.11);
        Meter { done, total, elapsed, input_speed, output_speed, ..Meter::default() }
    }

    fn line(meter: &Meter, columns: usize) -> String {
        let line = meter.line(Some(columns), "running 64 waiting 512 kv 59%", Style::plain());
        assert!(line.chars().count() <= columns, "{columns}: {line}");
        line
    }

    #[test]
    fn a_line_of_unknown_width_has_all_of_it() {
        for (done, total, elapsed, text) in [
            (412, Some(1000), 31.0, " 41%|████      | 412/1000 [00:31<00:44, 13.29 rows/s, "),
            (0, Some(10), 0.0, "  0%|          | 0/10 [00:00<?, "),
            (1, Some(3), 8.0, " 33%|███▎      | 1/3 [00:08<00:16, 8.00 s/row, "),
            (10, Some(10), 3725.6, "100%|██████████| 10/10 [1:02:05<00:00, 372.56 s/row, "),
            (999, Some(1000), 666.0, " 99%|█████████▉| 999/1000 [11:06<00:00, 1.50 rows/s, "),
            (412, None, 31.0, "412 rows [00:31, 13.29 rows/s, "),
            (3, None, 0.0, "3 rows [00:00, "),
            (12, Some(10), 8.0, "12 rows [00:08, 1.50 rows/s, "),
        ] {
            let line = meter(done, total, elapsed).line(None, "", Style::plain());
            assert_eq!(line, format!("{text}out 1702 tok/s, in 5310 tok/s]"));
        }
    }

    #[test]
    fn a_bar_of_a_useful_width_comes_before_the_figures() {
        let meter = Meter { failed: 12, ..meter(1768, Some(3000), 31.0) };
        for (columns, text) in [
            (40, " 58%|██▎ | 1768/3000 [<00:21, 12 failed]"),
            (80, " 58%|████████▊      | 1768/3000 [00:31<00:21, 12 failed, 57.03 rows/s, out"),
            (120, " 58%|██████████"),
            (160, " 58%|██████████"),
        ] {
            let line = line(&meter, columns);
            let bar = line.split('|').nth(1).map_or(0, |bar| bar.chars().count());
            assert!(bar >= if columns < 80 { 4 } else { 10 }, "{columns}: {line}");
            assert!(line.contains("<00:21") && line.contains("12 failed"), "{columns}: {line}");
            assert!(line.contains("1768/3000") && line.ends_with(']'), "{columns}: {line}");
            let begins = text.chars().take(8).collect::<String>();
            assert!(line.starts_with(&begins), "{columns}: {line}");
        }
        assert!(line(&meter, 160).contains("kv 59%"));
        assert_eq!(line(&meter, 120).chars().count(), 120);
        let many = Meter { failed: 123_456, ..self::meter(1_768_000, Some(3_000_000), 40_000.0) };
        assert_eq!(line(&many, 40), " 58% <7:44:33 123456 failed");
        for columns in 1..200 {
            let shown = many.line(Some(columns), "kv 1%", Style::plain());
            assert!(columns < 13 || shown.chars().count() <= columns, "{columns}: {shown}");
            assert!(shown.contains("<7:44:33"), "{columns}: {shown}");
        }
    }

    #[test]
    fn failures_are_red_and_colours_take_no_room() {
        let environment = vllm_batch_dataset::terminal::style::Environment::default();
        let style =
            Style::new(vllm_batch_dataset::terminal::display::ColorArg::Always, &environment);
        let meter = Meter { failed: 12, ..meter(1768, Some(3000), 31.0) };
        let line = meter.line(Some(80), "", style);
        assert!(line.contains(&style.error("12 failed")) && line.contains('\x1b'), "{line}");
        let plain = meter.line(Some(80), "", Style::plain());
        assert_eq!(line.replace(&style.error("12 failed"), "12 failed"), plain);
        let none = Meter { failed: 0, ..meter };
        assert!(!none.line(Some(80), "", style).contains("failed"));
    }

    #[test]
    fn what_is_left_is_known_by_tokens_before_a_row_is_done() {
        // 100 rows of at most 500 tokens; 5,000 of 50,000 tokens after 10 seconds.
        let running =
            Meter { output_tokens: (5000, 0), max_tokens: Some(500), ..meter(0, Some(100), 10.0) };
        assert_eq!(running.remaining(), Some(90.0));
        assert!(running.line(Some(80), "", Style::plain()).contains("[00:10<01:30"));
        assert_eq!(Meter { max_tokens: None, ..running.clone() }.remaining(), None);
        // Rows turn out to have 100 tokens.
        let begun =
            Meter { done: 10, answered: 10, output_tokens: (5000, 1000), ..running.clone() };
        assert_eq!(begun.remaining(), Some(10.0));
        // Rows of the run before say nothing.
        let continued = Meter { done: 20, initial: 20, ..running };
        assert_eq!(continued.remaining(), Some(70.0));
        // Vectors have no tokens to be generated.
        assert_eq!(meter(50, Some(100), 10.0).remaining(), Some(10.0));
        assert_eq!(meter(100, Some(100), 10.0).remaining(), Some(0.0));
    }

    #[test]
    fn failed_rows_say_nothing_of_answers_to_come() {
        // 10 rows of 100 tokens are answered, 40 are left: 4,000 tokens at 100 tokens a second.
        let answered = Meter {
            answered: 10,
            output_tokens: (1000, 1000),
            max_tokens: Some(500),
            ..meter(10, Some(50), 10.0)
        };
        assert_eq!(answered.remaining(), Some(40.0));
        let failed = Meter { done: 60, failed: 50, total: Some(100), ..answered.clone() };
        assert_eq!(failed.remaining(), Some(40.0));
        // 50 error rows of the run before, and 20 answers.
        let taken_over = Meter { done: 80, initial: 70, total: Some(120), ..failed };
        assert_eq!(taken_over.remaining(), Some(40.0));
        // No answer yet: the longest that there can be, less what is generated.
        let none = Meter { answered: 0, done: 70, output_tokens: (1000, 0), ..taken_over };
        assert_eq!(none.remaining(), Some((50.0 * 500.0 - 1000.0) / 100.0));
    }

    #[test]
    fn bars_have_eighths() {
        for (percent, bar) in
            [(0, "          "), (7, "▋         "), (35, "███▌      "), (98, "█████████▊")]
        {
            assert_eq!(format_bar(f64::from(percent) / 100.0, 10), bar, "{percent}");
        }
    }
}
