//! The text of a progress line: tqdm's `format_meter`, to the byte, with vLLM's prefix and postfix.

/// Eighths of a full cell, as tqdm's `Bar.UTF`.
const CELLS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// Cells of the bar where the width of the terminal is unknown.
const DEFAULT_CELLS: usize = 10;

/// What a line shows.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Rows done.
    pub done: u64,
    /// Rows that were done at the start, tqdm's `initial`: no part of the rate.
    pub initial: u64,
    /// Rows of the input, when known.
    pub total: Option<u64>,
    /// Seconds since the start.
    pub elapsed: f64,
    /// Prompt tokens per second.
    pub input_speed: f64,
    /// Generated tokens per second.
    pub output_speed: f64,
}

impl Meter {
    /// Rows per second since the start; None before there is one.
    pub fn rate(&self) -> Option<f64> {
        Some((self.done - self.initial.min(self.done)) as f64 / self.elapsed)
            .filter(|rate| rate.is_finite() && *rate > 0.0)
    }

    /// The line, as wide as the terminal (`columns`), with `suffix` at its end where there is room
    /// for it.
    pub fn line(&self, columns: Option<usize>, suffix: &str) -> String {
        let room = columns.map(|columns| columns.saturating_sub(suffix.chars().count()));
        let text = self.tqdm(room);
        match columns {
            Some(columns) if text.chars().count() + suffix.chars().count() > columns => {
                self.tqdm(Some(columns)).chars().take(columns).collect()
            }
            _ => text + suffix,
        }
    }

    /// tqdm's text before it is cut to the width.
    fn tqdm(&self, columns: Option<usize>) -> String {
        let stats = format!(
            "{}, est. speed input: {:.2} toks/s, output: {:.2} toks/s]",
            format_rate(self.rate()),
            self.input_speed,
            self.output_speed
        );
        let done = self.done;
        let elapsed = format_interval(self.elapsed);
        // As tqdm: a total that was wrong is forgotten.
        let Some(total) = self.total.filter(|total| *total > 0 && done <= *total) else {
            return format!("Processed prompts: {done}it [{elapsed}, {stats}");
        };
        let share = done as f64 / total as f64;
        let remaining = match self.rate() {
            Some(rate) => format_interval((total - done) as f64 / rate),
            None => "?".to_owned(),
        };
        let left = format!("Processed prompts: {:3.0}%|", share * 100.0);
        let right = format!("| {done}/{total} [{elapsed}<{remaining}, {stats}");
        let used = left.chars().count() + right.chars().count();
        let cells = columns.map_or(DEFAULT_CELLS, |columns| columns.saturating_sub(used).max(1));
        format!("{left}{}{right}", format_bar(share, cells))
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

/// Rows per second, or seconds per row below one.
fn format_rate(rate: Option<f64>) -> String {
    match rate {
        None => "?it/s".to_owned(),
        Some(rate) if 1.0 / rate > 1.0 => format!("{:5.2}s/it", 1.0 / rate),
        Some(rate) => format!("{rate:5.2}it/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(done: u64, total: Option<u64>, elapsed: f64) -> Meter {
        Meter { done, initial: 0, total, elapsed, input_speed: 5310.2, output_speed: 1702.11 }
    }

    /// Expected texts were printed by tqdm 4.70.1's `format_meter`.
    #[test]
    fn lines_are_tqdms() {
        let speeds = "est. speed input: 5310.20 toks/s, output: 1702.11 toks/s]";
        for (done, total, elapsed, text) in [
            (412, Some(1000), 31.0, " 41%|████      | 412/1000 [00:31<00:44, 13.29it/s, "),
            (0, Some(10), 0.0, "  0%|          | 0/10 [00:00<?, ?it/s, "),
            (1, Some(3), 8.0, " 33%|███▎      | 1/3 [00:08<00:16,  8.00s/it, "),
            (10, Some(10), 3725.6, "100%|██████████| 10/10 [1:02:05<00:00, 372.56s/it, "),
            (999, Some(1000), 666.0, "100%|█████████▉| 999/1000 [11:06<00:00,  1.50it/s, "),
            (412, None, 31.0, "412it [00:31, 13.29it/s, "),
            (3, None, 0.0, "3it [00:00, ?it/s, "),
            (12, Some(10), 8.0, "12it [00:08,  1.50it/s, "),
        ] {
            let line = meter(done, total, elapsed).line(None, "");
            assert_eq!(line, format!("Processed prompts: {text}{speeds}"));
        }
    }

    #[test]
    fn the_bar_fills_the_terminal() {
        let line = meter(412, Some(1000), 31.0).line(Some(160), "");
        assert_eq!(line.chars().count(), 160);
        assert!(line.starts_with("Processed prompts:  41%|█████████████████▋     "), "{line}");
        let line = meter(412, Some(1000), 31.0).line(Some(60), " running 1");
        assert_eq!(line, "Processed prompts:  41%|▍| 412/1000 [00:31<00:44, 13.29it/s,");
    }

    #[test]
    fn the_suffix_gives_way_before_the_line_does() {
        let suffix = " running 64 waiting 512 kv 59%";
        let wide = meter(412, Some(1000), 31.0).line(Some(160), suffix);
        assert!(wide.ends_with(suffix) && wide.chars().count() == 160, "{wide}");
        let narrow = meter(412, Some(1000), 31.0).line(Some(125), suffix);
        assert!(narrow.ends_with("toks/s]") && narrow.chars().count() == 125, "{narrow}");
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
