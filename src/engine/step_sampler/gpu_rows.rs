//! From row tasks to what a GPU's sampler takes: numbers per row, and edits per token.

use std::collections::BTreeMap;

use crate::engine::ops::sample::{Edit, SampleRow};
use crate::engine::sampler::{RowTask, SampleTask, draw};

/// The rows of a step. Reused by every step.
#[derive(Debug, Default)]
pub(super) struct GpuRows {
    /// One per task; those that the host takes say `SKIP`.
    pub rows: Vec<SampleRow>,
    /// What masks, biases and penalties do to tokens, row after row.
    pub edits: Vec<Edit>,
}

impl GpuRows {
    /// Replaces the contents by another step's.
    pub(super) fn refill(&mut self, tasks: &[RowTask<'_>]) {
        self.rows.clear();
        self.edits.clear();
        for (index, task) in tasks.iter().enumerate() {
            let mut row = match task {
                RowTask::Sample(task) if task.params.logprobs.is_none() => self.row(task),
                _ => SampleRow { flags: SampleRow::SKIP, ..SampleRow::default() },
            };
            row.logits_row = index as u32;
            self.rows.push(row);
        }
    }

    /// Replaces the contents by those of a step ahead: of tasks that lack the last token of their
    /// outputs, and have no edits.
    pub(super) fn refill_ahead(&mut self, tasks: &[SampleTask<'_>]) {
        self.rows.clear();
        self.edits.clear();
        for (index, task) in tasks.iter().enumerate() {
            let mut row = self.row(task);
            // The position in the random stream, which is the number of output tokens.
            row.counter[0] += 1;
            row.logits_row = index as u32;
            // At most the stop ids that `min_tokens` forbade until the missing token.
            (row.edit_start, row.edit_end) = (0, 0);
            self.rows.push(row);
        }
        self.edits.clear();
    }

    fn row(&mut self, task: &SampleTask<'_>) -> SampleRow {
        let params = task.params;
        let (counter, key) = draw::random_block_of(task);
        let edit_start = self.edits.len() as u32;
        self.edits.extend(edits(task).into_values());
        let only_allowed = params.allowed_token_ids.is_some();
        SampleRow {
            temperature: if params.is_greedy() { 0.0 } else { params.temperature },
            top_p: params.top_p,
            min_p: params.min_p,
            top_k: params.top_k,
            counter,
            key,
            edit_start,
            edit_end: self.edits.len() as u32,
            flags: if only_allowed { SampleRow::ONLY_ALLOWED } else { 0 },
            repetition_penalty: params.repetition_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            ..SampleRow::default()
        }
    }
}

/// What the parameters do to each token that they name; the rules are `sampler::masks`' and
/// `sampler::penalties`'.
fn edits(task: &SampleTask<'_>) -> BTreeMap<u32, Edit> {
    let params = task.params;
    let mut edits = BTreeMap::new();
    let output = task.output_token_ids;
    for &id in params.allowed_token_ids.iter().flatten() {
        edit(&mut edits, id).flags |= Edit::ALLOWED;
    }
    for word in task.bad_words_token_ids {
        if let Some((&last, before)) = word.split_last()
            && output.ends_with(before)
        {
            edit(&mut edits, last).flags |= Edit::FORBIDDEN;
        }
    }
    if output.len() < params.min_tokens as usize {
        for &id in task.stop_ids.eos_token_id.iter().chain(&task.stop_ids.stop_token_ids) {
            edit(&mut edits, id).flags |= Edit::FORBIDDEN;
        }
    }
    for &(id, bias) in &params.logit_bias {
        edit(&mut edits, id).bias += bias;
    }
    let repeats = params.repetition_penalty != 1.0;
    if repeats {
        for &id in task.prompt_token_ids {
            edit(&mut edits, id).flags |= Edit::IN_PROMPT;
        }
    }
    if repeats || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0 {
        for &id in output {
            edit(&mut edits, id).num_output += 1;
        }
    }
    edits
}

fn edit(edits: &mut BTreeMap<u32, Edit>, token: u32) -> &mut Edit {
    edits.entry(token).or_insert(Edit { token, ..Edit::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::{NumLogprobs, RowKey, SamplingParams, StopIds};

    #[test]
    fn every_parameter_that_names_tokens_is_an_edit() {
        let params = SamplingParams {
            temperature: 0.0,
            min_tokens: 4,
            allowed_token_ids: Some(vec![9, 2]),
            logit_bias: vec![(2, 1.5), (5, -1.0)],
            repetition_penalty: 1.2,
            ..SamplingParams::default()
        };
        let stop_ids = StopIds { eos_token_id: Some(1), ..StopIds::default() };
        let words = [vec![7, 8], vec![6, 3]];
        let task = SampleTask {
            params: &params,
            prompt_token_ids: &[5, 5],
            output_token_ids: &[2, 7],
            stop_ids: &stop_ids,
            bad_words_token_ids: &words,
            row_key: RowKey(3),
            engine_seed: 0,
            sample_index: 0,
        };
        let mut rows = GpuRows::default();
        let logprobs = SamplingParams { logprobs: Some(NumLogprobs::Top(1)), ..params.clone() };
        let other = SampleTask { params: &logprobs, ..task };
        rows.refill(&[RowTask::Sample(other), RowTask::Sample(task)]);
        assert_eq!(rows.rows[0].flags, SampleRow::SKIP);
        assert_eq!((rows.rows[1].flags, rows.rows[1].logits_row), (SampleRow::ONLY_ALLOWED, 1));
        let of = |token, num_output, flags, bias| Edit { token, num_output, flags, bias };
        let expected = [
            of(1, 0, Edit::FORBIDDEN, 0.0),
            of(2, 1, Edit::ALLOWED, 1.5),
            of(5, 0, Edit::IN_PROMPT, -1.0),
            of(7, 1, 0, 0.0),
            of(8, 0, Edit::FORBIDDEN, 0.0),
            of(9, 0, Edit::ALLOWED, 0.0),
        ];
        assert_eq!(rows.edits, expected);
    }
}
