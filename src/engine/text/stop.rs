//! Stop strings (placeholder until branch `text` is merged).

/// A stop string that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Which one.
    pub stop_index: usize,
    /// Bytes of the text to keep.
    pub truncate_to: usize,
}

/// Finds stop strings.
pub struct StopChecker;

impl StopChecker {
    /// Whether the last `num_new_bytes` of the text complete a stop string; the earliest completion
    /// wins, ties by list order.
    pub fn check(
        text: &str,
        num_new_bytes: usize,
        stop: &[String],
        include: bool,
    ) -> Option<StopMatch> {
        let mut best: Option<(usize, StopMatch)> = None;
        for (stop_index, s) in stop.iter().enumerate() {
            let mut from = (text.len() + 1).saturating_sub(num_new_bytes + s.len());
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            let Some(at) = text[from..].find(s.as_str()).map(|at| from + at) else { continue };
            let end = at + s.len();
            if best.is_none_or(|(best_end, _)| end < best_end) {
                best = Some((
                    end,
                    StopMatch { stop_index, truncate_to: if include { end } else { at } },
                ));
            }
        }
        best.map(|(_, found)| found)
    }
}
