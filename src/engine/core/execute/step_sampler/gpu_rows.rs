//! From row tasks to what a GPU's sampler takes: numbers per row, edits per token, rows of
//! logprobs; and from what it gives to results.

use std::ops::Range;

use super::places::Places;
use super::token_counts::TokenCounts;
use crate::sampler::{RowResult, RowTask, SampleTask, draw, forbidden_ids};
use vllm_batch_api::request::{PositionLogprobs, TokenLogprob};
use vllm_batch_api::sampling_params::NumLogprobs;
use vllm_batch_ops::logprobs::{LogprobEntry, LogprobRow};
use vllm_batch_ops::sample::{Edit, SampleResult, SampleRow};
use vllm_batch_ops::token_mask::MaskRow;

/// The rows of a step. Reused by every step.
#[derive(Debug)]
pub struct GpuRows {
    /// One per task; those that nothing is sampled from say `SKIP`.
    pub(super) rows: Vec<SampleRow>,
    /// What masks and biases do to tokens, row after row.
    pub(super) edits: Vec<Edit>,
    /// Rows of logits with a mask.
    pub(super) masks: Vec<MaskRow>,
    /// Their words, row after row.
    pub(super) mask_words: Vec<u32>,
    /// What logprobs are of, row after row.
    pub(super) logprobs: Vec<LogprobRow>,
    /// Rows of logits that sampling overwrites before their logprobs are taken.
    pub(super) kept: Vec<u32>,
    /// One after the other they have all the rows.
    pub(super) groups: Vec<Group>,
    /// One per task: what comes of it.
    pub(super) kinds: Vec<RowKind>,
    /// What penalties look at.
    pub(super) counts: TokenCounts,
    limits: Limits,
    places: Places,
}

/// What the buffers have room for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Width of a row of logits.
    pub vocab_size: usize,
    /// Rows of logits that are kept at a time.
    pub max_kept: usize,
}

/// Rows that are computed together: parts of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub rows: Range<usize>,
    pub logprobs: Range<usize>,
    pub kept: Range<usize>,
}

/// What comes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// The host takes it.
    OfHost,
    /// This token: nothing is sampled.
    Forced { token_id: u32 },
    /// A token.
    Token,
    /// A token with its logprobs.
    TokenWithLogprobs { num_top: u32 },
    /// Logprobs of a token that is known.
    Logprobs { num_top: u32 },
}

impl RowKind {
    fn num_top(self) -> Option<u32> {
        match self {
            RowKind::OfHost | RowKind::Forced { .. } | RowKind::Token => None,
            RowKind::TokenWithLogprobs { num_top } | RowKind::Logprobs { num_top } => Some(num_top),
        }
    }

    /// Logprobs that a GPU writes for it.
    fn num_entries(self) -> usize {
        self.num_top().map_or(0, |num_top| 1 + num_top as usize)
    }
}

impl GpuRows {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        let (rows, edits, logprobs) = (Vec::new(), Vec::new(), Vec::new());
        let (kept, groups, kinds) = (Vec::new(), Vec::new(), Vec::new());
        let (masks, mask_words) = (Vec::new(), Vec::new());
        let (counts, places) = (TokenCounts::default(), Places::new(limits.vocab_size));
        Self {
            rows,
            edits,
            masks,
            mask_words,
            logprobs,
            kept,
            groups,
            kinds,
            counts,
            limits,
            places,
        }
    }

    /// Replaces the contents by another step's.
    pub fn refill(&mut self, tasks: &[RowTask<'_>]) {
        self.with_room_for_counts(|rows| rows.fill(tasks));
    }

    /// Fills, and once more with all lists of counts anew where those had no room.
    fn with_room_for_counts(&mut self, fill: impl Fn(&mut Self)) {
        fill(self);
        if !self.counts.is_full() {
            return;
        }
        if !self.counts.are_all_new() {
            self.counts.forget_all();
            fill(self);
        }
        self.counts.grow();
    }

    fn fill(&mut self, tasks: &[RowTask<'_>]) {
        self.clear();
        for task in tasks {
            match task {
                RowTask::Sample(task) => self.push_sampled(task),
                RowTask::Later => panic!("a GPU verifies drafts in one round"),
                &RowTask::PromptLogprobs { target, num_logprobs } => {
                    let num_top = self.num_top(num_logprobs);
                    let kind =
                        num_top.map_or(RowKind::OfHost, |num_top| RowKind::Logprobs { num_top });
                    self.push(not_sampled(), kind, target);
                }
            }
        }
    }

    fn push_sampled(&mut self, task: &SampleTask<'_>) {
        self.counts.begin_sequence(task);
        match self.kind_of(task) {
            kind @ (RowKind::OfHost | RowKind::Forced { .. }) => {
                self.push(not_sampled(), kind, 0);
            }
            kind => {
                self.push_mask(task);
                let row = self.row(task);
                self.push(row, kind, LogprobRow::SAMPLED);
            }
        }
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.edits.clear();
        self.masks.clear();
        self.mask_words.clear();
        self.logprobs.clear();
        self.kept.clear();
        self.groups.clear();
        self.kinds.clear();
        self.counts.clear();
    }

    fn num_top(&self, num_logprobs: NumLogprobs) -> Option<u32> {
        num_logprobs.on_gpu().map(|num_top| num_top.min(self.limits.vocab_size as u32))
    }

    fn kind_of(&self, task: &SampleTask<'_>) -> RowKind {
        if let Some(token_id) = task.forced() {
            return RowKind::Forced { token_id };
        }
        if task.token_mask.is_some_and(|mask| mask.weighed.is_some()) {
            return RowKind::OfHost;
        }
        match task.params.logprobs.map(|num_logprobs| self.num_top(num_logprobs)) {
            None => RowKind::Token,
            Some(None) => RowKind::OfHost,
            Some(Some(num_top)) => RowKind::TokenWithLogprobs { num_top },
        }
    }

    /// The mask of the next row of logits.
    fn push_mask(&mut self, task: &SampleTask<'_>) {
        let Some(mask) = task.token_mask else { return };
        self.masks.push(MaskRow {
            logits_row: self.rows.len() as u32,
            first_word: self.mask_words.len() as u32,
            num_words: mask.words.len() as u32,
            ..MaskRow::default()
        });
        self.mask_words.extend_from_slice(mask.words);
    }

    /// Adds the next row of logits, and what logprobs of it are wanted.
    fn push(&mut self, row: SampleRow, kind: RowKind, token: u32) {
        let index = self.rows.len() as u32;
        let is_kept = kind.num_top().is_some() && row.overwrites_logits();
        let mut group = match self.groups.pop() {
            Some(group) if is_kept && group.kept.len() == self.limits.max_kept => {
                let next = Group {
                    rows: group.rows.end..group.rows.end,
                    logprobs: group.logprobs.end..group.logprobs.end,
                    kept: group.kept.end..group.kept.end,
                };
                self.groups.push(group);
                next
            }
            last => last.unwrap_or_default(),
        };
        let logits_row = if is_kept { group.kept.len() as u32 } else { index };
        if is_kept {
            self.kept.push(index);
        }
        if let Some(num_top) = kind.num_top() {
            let end = |last: &LogprobRow| last.first_entry + 1 + last.num_top;
            let first_entry = self.logprobs.last().map_or(0, end);
            let is_kept = u32::from(is_kept);
            let result_row = index;
            let row = LogprobRow { logits_row, token, num_top, result_row, first_entry, is_kept };
            self.logprobs.push(row);
        }
        self.rows.push(SampleRow { logits_row: index, ..row });
        self.kinds.push(kind);
        group.rows.end = self.rows.len();
        group.logprobs.end = self.logprobs.len();
        group.kept.end = self.kept.len();
        self.groups.push(group);
    }

    /// What decides the token of a task.
    fn row(&mut self, task: &SampleTask<'_>) -> SampleRow {
        let params = task.params;
        let (counter, key) = draw::random_block_of(task);
        let edit_start = self.edits.len() as u32;
        add_edits(task, &mut self.edits, &mut self.places);
        let mut flags = 0;
        if params.allowed_token_ids.is_some() {
            flags |= SampleRow::ONLY_ALLOWED;
        }
        let (mut list, mut drafts) = (0, 0..0);
        if params.has_penalties() {
            flags |= SampleRow::PENALIZED;
            list = self.counts.list_of(task, &mut self.places);
            drafts = self.counts.add_drafts(task, &self.places);
        }
        SampleRow {
            temperature: if params.is_greedy() { 0.0 } else { params.temperature },
            top_p: params.top_p,
            min_p: params.min_p,
            top_k: params.top_k,
            counter,
            key,
            edit_start,
            edit_end: self.edits.len() as u32,
            flags,
            repetition_penalty: params.repetition_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            list,
            draft_start: drafts.start,
            draft_end: drafts.end,
            ..SampleRow::default()
        }
    }
}

/// Logprobs that a GPU writes for rows of these kinds.
pub(super) fn num_entries(kinds: &[RowKind]) -> usize {
    kinds.iter().map(|kind| kind.num_entries()).sum()
}

fn not_sampled() -> SampleRow {
    SampleRow { flags: SampleRow::SKIP, ..SampleRow::default() }
}

/// One result per row; of a row that is the host's it means nothing.
pub(super) fn results(
    kinds: &[RowKind],
    sampled: &[SampleResult],
    mut entries: &[LogprobEntry],
) -> Vec<RowResult> {
    let mut results = Vec::with_capacity(kinds.len());
    for (kind, sampled) in kinds.iter().zip(sampled) {
        let (own, others) = entries.split_at(kind.num_entries());
        entries = others;
        results.push(match (sampled.status, kind) {
            (_, &RowKind::Forced { token_id }) => RowResult::Sampled { token_id, logprobs: None },
            (SampleResult::NON_FINITE, _) | (_, RowKind::OfHost) => RowResult::NonFinite,
            (SampleResult::NO_TOKEN, _) => RowResult::NoTokenAllowed,
            (_, RowKind::Logprobs { .. }) => RowResult::PromptLogprobs(position(own)),
            (_, RowKind::Token) => RowResult::Sampled { token_id: sampled.token, logprobs: None },
            (_, RowKind::TokenWithLogprobs { .. }) => {
                RowResult::Sampled { token_id: sampled.token, logprobs: Some(position(own)) }
            }
        });
    }
    results
}

fn position(entries: &[LogprobEntry]) -> PositionLogprobs {
    let logprob = |entry: &LogprobEntry| {
        let &LogprobEntry { token: token_id, logprob, rank } = entry;
        TokenLogprob { token_id, logprob, rank }
    };
    let (token, top) = entries.split_first().expect("the token has one");
    PositionLogprobs { token: logprob(token), top: top.iter().map(logprob).collect() }
}

/// Adds the edits of a row: one per token, in the order in which they come, which no result shows.
fn add_edits(task: &SampleTask<'_>, edits: &mut Vec<Edit>, places: &mut Places) {
    let (params, start) = (task.params, edits.len());
    let mut change = |token, change: &dyn Fn(&mut Edit)| {
        let new = || Edit { token, ..Edit::default() };
        if let Some(edit) = places.entry(token, (&mut *edits, start), new) {
            change(edit);
        }
    };
    for &id in params.allowed_token_ids.iter().flatten() {
        change(id, &|edit| edit.flags |= Edit::ALLOWED);
    }
    for id in forbidden_ids(task) {
        change(id, &|edit| edit.flags |= Edit::FORBIDDEN);
    }
    for &(id, bias) in &params.logit_bias {
        change(id, &|edit| edit.bias += bias);
    }
    places.forget(edits[start..].iter().map(|edit| edit.token));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::StopIds;
    use vllm_batch_api::request::{RowKey, SamplingParams};

    const LIMITS: Limits = Limits { vocab_size: 50, max_kept: 2 };

    /// A row at its beginning.
    fn task(params: &SamplingParams) -> SampleTask<'_> {
        SampleTask {
            params,
            prompt_token_ids: &[5, 5],
            output_token_ids: &[],
            num_drafts: 0,
            sampled_row: None,
            stop_ids: const { &StopIds { eos_token_id: None, stop_token_ids: Vec::new() } },
            bad_words_token_ids: &[],
            row_key: RowKey(3),
            engine_seed: 0,
            request_id: 0,
            sample_index: 0,
            token_mask: None,
        }
    }

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
            output_token_ids: &[2, 7],
            stop_ids: &stop_ids,
            bad_words_token_ids: &words,
            ..task(&params)
        };
        let mut rows = GpuRows::new(LIMITS);
        let logprobs = SamplingParams { logprobs: Some(NumLogprobs::All), ..params.clone() };
        let other = SampleTask { params: &logprobs, ..task };
        rows.refill(&[RowTask::Sample(other), RowTask::Sample(task)]);
        assert_eq!(rows.rows[0].flags, SampleRow::SKIP);
        let flags = SampleRow::ONLY_ALLOWED | SampleRow::PENALIZED;
        assert_eq!((rows.rows[1].flags, rows.rows[1].logits_row), (flags, 1));
        let of = |token, flags, bias| Edit { token, flags, bias };
        let expected = [
            of(1, Edit::FORBIDDEN, 0.0),
            of(2, Edit::ALLOWED, 1.5),
            of(5, 0, -1.0),
            of(8, Edit::FORBIDDEN, 0.0),
            of(9, Edit::ALLOWED, 0.0),
        ];
        rows.edits.sort_by_key(|edit| edit.token);
        assert_eq!(rows.edits, expected);
    }

    #[test]
    fn edits_of_a_row_do_not_depend_on_the_row_before() {
        // The last one is no token of the model.
        let params = |logit_bias| SamplingParams { logit_bias, ..SamplingParams::default() };
        let (long, short) =
            (params(vec![(3, 1.0), (7, 2.0), (3, 0.5), (50, 9.0)]), params(vec![(7, 4.0)]));
        let row = |params| RowTask::Sample(task(params));
        let mut rows = GpuRows::new(LIMITS);
        rows.refill(&[row(&long), row(&short), row(&long)]);
        let edits_of = |row: usize| -> Vec<(u32, f32)> {
            let SampleRow { edit_start, edit_end, .. } = rows.rows[row];
            let edits = &rows.edits[edit_start as usize..edit_end as usize];
            edits.iter().map(|edit| (edit.token, edit.bias)).collect()
        };
        assert_eq!(edits_of(0), [(3, 1.5), (7, 2.0)]);
        assert_eq!(edits_of(1), [(7, 4.0)]);
        assert_eq!(edits_of(2), edits_of(0));
    }

    #[test]
    fn a_step_is_filled_again_only_where_earlier_lists_take_the_room() {
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        let mut rows = GpuRows::new(LIMITS);
        let num_fills = std::cell::Cell::new(0);
        let mut fill = |ids: std::ops::Range<u64>| {
            num_fills.set(0);
            rows.with_room_for_counts(|rows| {
                num_fills.set(num_fills.get() + 1);
                let of =
                    |request_id| SampleTask { request_id, output_token_ids: &[7], ..task(&params) };
                rows.fill(&ids.clone().map(|id| RowTask::Sample(of(id))).collect::<Vec<_>>());
            });
            (num_fills.get(), rows.counts.changes().start_of_new)
        };
        assert_eq!(fill(0..2), (1, 0), "there is nothing to forget");
        assert_eq!(fill(0..3).0, 1, "there is room for twice as many");
        assert_eq!(fill(0..9), (2, 0), "lists 0 to 2 make room");
        assert_eq!(fill(0..9).0, 1);
    }

    #[test]
    fn rows_with_logprobs_are_kept_where_sampling_overwrites_them() {
        let plain = SamplingParams { logprobs: Some(NumLogprobs::Top(64)), ..Default::default() };
        let edited = SamplingParams { logit_bias: vec![(3, 1.0)], ..plain.clone() };
        let prompt = RowTask::PromptLogprobs { target: 7, num_logprobs: NumLogprobs::Top(0) };
        let (edited, plain) = (RowTask::Sample(task(&edited)), RowTask::Sample(task(&plain)));
        let mut rows = GpuRows::new(LIMITS);
        rows.refill(&[edited, prompt, edited, plain, edited]);
        assert_eq!(rows.kept, [0, 2, 4]);
        let group = |rows, logprobs, kept| Group { rows, logprobs, kept };
        assert_eq!(rows.groups, [group(0..4, 0..4, 0..2), group(4..5, 4..5, 2..3)]);
        let got: Vec<_> = rows.logprobs.iter().map(|r| (r.logits_row, r.is_kept)).collect();
        assert_eq!(got, [(0, 1), (1, 0), (1, 1), (3, 0), (0, 1)]);
        let got: Vec<_> = rows.logprobs.iter().map(|r| (r.token, r.first_entry)).collect();
        let sampled = LogprobRow::SAMPLED;
        let expected = [(sampled, 0), (7, 51), (sampled, 52), (sampled, 103), (sampled, 154)];
        assert_eq!(got, expected);
        assert_eq!(num_entries(&rows.kinds), 4 * 51 + 1);
    }
}
