//! Repetition, frequency and presence penalties.

use super::SampleTask;

/// Marks a token of the prompt in the counts.
const IN_PROMPT: u32 = 1 << 31;

/// Occurrence counts of one row; all zero between rows.
#[derive(Debug, Default)]
pub(super) struct Occurrences {
    /// (vocab_size) occurrences in the output, plus `IN_PROMPT`.
    counts: Vec<u32>,
    /// Ids whose count is not zero, in order of first occurrence.
    touched: Vec<u32>,
}

impl Occurrences {
    fn add(&mut self, id: u32, amount: u32) {
        // Ids beyond the row have no logit to penalize.
        if let Some(count) = self.counts.get_mut(id as usize) {
            if *count == 0 {
                self.touched.push(id);
            }
            *count = if amount == IN_PROMPT { *count | IN_PROMPT } else { *count + amount };
        }
    }
}

/// Repetition over prompt and output, then frequency and presence over the output, in place.
/// False when all three are neutral.
pub(super) fn apply_penalties(
    logits: &mut [f32],
    task: &SampleTask,
    occurrences: &mut Occurrences,
) -> bool {
    let repetition = task.params.repetition_penalty;
    let frequency = task.params.frequency_penalty;
    let presence = task.params.presence_penalty;
    if !task.params.has_penalties() {
        return false;
    }
    occurrences.counts.resize(logits.len(), 0);
    if repetition != 1.0 {
        task.prompt_token_ids.iter().for_each(|&id| occurrences.add(id, IN_PROMPT));
    }
    task.output_token_ids.iter().for_each(|&id| occurrences.add(id, 1));
    for id in occurrences.touched.drain(..) {
        let count = std::mem::take(&mut occurrences.counts[id as usize]) & !IN_PROMPT;
        let logit = &mut logits[id as usize];
        if repetition != 1.0 {
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
        }
        *logit -= frequency * count as f32;
        if count > 0 {
            *logit -= presence;
        }
    }
    true
}
