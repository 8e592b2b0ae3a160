//! Which tokens of rows with penalties a GPU counts, in which lists, and what it is told of them in
//! a step. The counts are exact whatever becomes of a sequence: they are of known tokens, which
//! nothing takes back, or of the one that the step before samples.
//!
//! A list that is not there, or has no room, is made anew of the row's tokens. So all lists may be
//! forgotten when their memory is full, and nobody has to say that a sequence has finished.

use std::collections::HashMap;
use std::ops::Range;

use super::places::Places;
use crate::sampler::SampleTask;
use vllm_batch_ops::token_counts::{CountChanges, CountTask, CountedToken};

/// Tokens that a list has room for beside its own, at least, where so many may come.
const MIN_ROOM: usize = 64;

/// The lists, and what a step adds to them.
#[derive(Debug, Default)]
pub(super) struct TokenCounts {
    /// By sequence: its request, and which of the request's completions it is.
    lists: HashMap<(u64, u32), List>,
    /// Entries that the device shall have room for.
    capacity: usize,
    /// Entries of all lists, with their room.
    end: usize,
    /// Lists that are made anew: entries from `start_of_new` on.
    new_entries: Vec<CountedToken>,
    /// Where the first of them begins.
    start_of_new: usize,
    /// What is counted in lists.
    tasks: Vec<CountTask>,
    /// Tokens that tasks count, and drafts of rows.
    tokens: Vec<u32>,
}

/// What is known of a list on the device.
#[derive(Clone, Copy, Debug)]
struct List {
    /// Its first entry, which says how many follow.
    start: usize,
    /// Tokens that it has room for.
    capacity: usize,
    /// Tokens that it has, at most.
    max_len: usize,
    /// Tokens of the output that it has counted.
    num_counted: usize,
}

impl TokenCounts {
    /// Begins a step.
    pub(super) fn clear(&mut self) {
        self.new_entries.clear();
        self.tasks.clear();
        self.tokens.clear();
        self.start_of_new = self.end;
    }

    /// Whether the lists of the step are more than the device has room for.
    pub(super) fn is_full(&self) -> bool {
        self.end > self.capacity
    }

    /// Whether the step made all lists that there are.
    pub(super) fn are_all_new(&self) -> bool {
        self.start_of_new == 0
    }

    /// Forgets all lists: the step is to be begun again, and makes those that it needs anew.
    pub(super) fn forget_all(&mut self) {
        self.lists.clear();
        self.end = 0;
    }

    /// Room for the lists of a step that made all of them, and for as many in later steps.
    pub(super) fn grow(&mut self) {
        if self.is_full() {
            self.capacity = 2 * self.end;
        }
    }

    /// What the step makes of the lists.
    pub(super) fn changes(&self) -> CountChanges<'_> {
        CountChanges {
            capacity: self.capacity,
            new_entries: &self.new_entries,
            start_of_new: self.start_of_new,
            tasks: &self.tasks,
            tokens: &self.tokens,
        }
    }

    /// Forgets the list of a sequence at its beginning: it may be of an earlier one.
    pub(super) fn begin_sequence(&mut self, task: &SampleTask<'_>) {
        if task.num_output_tokens() == 0 {
            self.lists.remove(&key_of(task));
        }
    }

    /// Where the list of a row begins. When the row is sampled it has counted the known tokens of
    /// the output, and the one that the step before samples.
    pub(super) fn list_of(&mut self, task: &SampleTask<'_>, places: &mut Places) -> u32 {
        let (known, sampled_row) = (task.known_output(), task.sampled_row);
        let num_known = known.len() + usize::from(sampled_row.is_some());
        let is_usable = |list: &List| {
            list.num_counted <= known.len()
                && list.max_len + num_known - list.num_counted <= list.capacity
        };
        let list = self.lists.get(&key_of(task)).copied().filter(is_usable);
        let mut list = list.unwrap_or_else(|| self.make(task, places));
        if list.num_counted < num_known {
            let token_start = self.tokens.len() as u32;
            let new = known[list.num_counted..].iter().filter(|token| places.has(**token));
            self.tokens.extend(new);
            self.tasks.push(CountTask {
                list: list.start as u32,
                token_start,
                token_end: self.tokens.len() as u32,
                sampled_row: sampled_row.map_or(CountTask::NO_ROW, |row| row as u32),
            });
            list.max_len += num_known - list.num_counted;
            list.num_counted = num_known;
        }
        self.lists.insert(key_of(task), list);
        list.start as u32
    }

    /// A list of the known tokens.
    fn make(&mut self, task: &SampleTask<'_>, places: &mut Places) -> List {
        let known = task.known_output();
        let list = self.new_entries.len();
        let entries = &mut self.new_entries;
        entries.push(CountedToken::default());
        let first = entries.len();
        let new = |token| move || CountedToken { token, num_output: 0 };
        if task.params.repetition_penalty != 1.0 {
            for &token in task.prompt_token_ids {
                places.entry(token, (entries, first), new(token));
            }
        }
        for &token in known {
            if let Some(counted) = places.entry(token, (entries, first), new(token)) {
                counted.num_output += 1;
            }
        }
        places.forget(entries[first..].iter().map(|counted| counted.token));
        let len = entries.len() - first;
        entries[list].token = len as u32;
        let to_come = task.params.max_tokens.map_or(usize::MAX, |max| max as usize);
        let to_come = to_come.saturating_sub(known.len());
        let capacity = len + to_come.clamp(1, MIN_ROOM.max(len));
        entries.resize(first + capacity, CountedToken::default());
        let start = self.start_of_new + list;
        self.end = self.start_of_new + entries.len();
        List { start, capacity, max_len: len, num_counted: known.len() }
    }

    /// Notes the drafts of a row: where they begin and end among the tokens.
    pub(super) fn add_drafts(&mut self, task: &SampleTask<'_>, places: &Places) -> Range<u32> {
        let start = self.tokens.len() as u32;
        self.tokens.extend(task.drafts().iter().filter(|token| places.has(**token)));
        start..self.tokens.len() as u32
    }
}

fn key_of(task: &SampleTask<'_>) -> (u64, u32) {
    (task.request_id, task.sample_index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::StopIds;
    use vllm_batch_api::request::{RowKey, SamplingParams};

    const VOCAB_SIZE: usize = 500;

    fn params(repetition_penalty: f32) -> SamplingParams {
        let (presence_penalty, max_tokens) = (0.5, Some(1000));
        SamplingParams { repetition_penalty, presence_penalty, max_tokens, ..Default::default() }
    }

    fn task<'a>(
        params: &'a SamplingParams,
        request_id: u64,
        output_token_ids: &'a [u32],
        num_drafts: usize,
    ) -> SampleTask<'a> {
        SampleTask {
            params,
            prompt_token_ids: &[7, 3, 7, 500],
            output_token_ids,
            num_drafts,
            sampled_row: None,
            stop_ids: const { &StopIds { eos_token_id: None, stop_token_ids: Vec::new() } },
            bad_words_token_ids: &[],
            row_key: RowKey(3),
            engine_seed: 0,
            request_id,
            sample_index: 0,
            token_mask: None,
        }
    }

    /// The lists of a step of these tasks, once more where there is no room.
    fn step(counts: &mut TokenCounts, places: &mut Places, tasks: &[SampleTask<'_>]) -> Vec<u32> {
        let mut fill = |counts: &mut TokenCounts| {
            counts.clear();
            let list = |task: &SampleTask<'_>| {
                counts.begin_sequence(task);
                counts.list_of(task, places)
            };
            tasks.iter().map(list).collect()
        };
        let lists = fill(counts);
        if !counts.is_full() {
            return lists;
        }
        counts.forget_all();
        let lists = fill(counts);
        counts.grow();
        lists
    }

    #[test]
    fn a_list_is_made_once_and_then_told_of_new_tokens_alone() {
        let (mut counts, mut places) = (TokenCounts::default(), Places::new(VOCAB_SIZE));
        let (plain, repetition) = (params(1.0), params(1.2));
        // In the middle of a sequence, as after a step that the host sampled.
        let output = [9, 7, 9, 499];
        let tasks = [task(&plain, 5, &output, 0), task(&repetition, 1, &output, 0)];
        let lists = step(&mut counts, &mut places, &tasks);
        let of = |token, num_output| CountedToken { token, num_output };
        let entries = |counts: &TokenCounts, list: u32| {
            let first = list as usize - counts.start_of_new;
            let len = counts.new_entries[first].token as usize;
            counts.new_entries[first + 1..first + 1 + len].to_vec()
        };
        assert_eq!(entries(&counts, lists[0]), [of(9, 2), of(7, 1), of(499, 1)]);
        assert_eq!(entries(&counts, lists[1]), [of(7, 1), of(3, 0), of(9, 2), of(499, 1)]);
        assert_eq!(counts.tasks, []);
        // A known token, guesses, and a token that the step before samples. 500 is no token.
        let (output, guessed) = ([9, 7, 9, 499, 500, 8], [9, 7, 9, 499, 500, 8, 4, 500]);
        let tasks = [
            task(&plain, 5, &output, 0),
            task(&plain, 5, &guessed, 2),
            SampleTask { sampled_row: Some(6), ..task(&repetition, 1, &output[..5], 0) },
        ];
        let again = step(&mut counts, &mut places, &tasks);
        assert_eq!(again, [lists[0], lists[0], lists[1]]);
        assert_eq!(counts.new_entries, []);
        let count = |list, tokens: Range<u32>, sampled_row| CountTask {
            list,
            token_start: tokens.start,
            token_end: tokens.end,
            sampled_row,
        };
        let expected = [count(lists[0], 0..1, CountTask::NO_ROW), count(lists[1], 1..1, 6)];
        assert_eq!((&counts.tasks[..], &counts.tokens[..]), (&expected[..], &[8][..]));
        assert_eq!(counts.add_drafts(&tasks[1], &places), 1..2);
        assert_eq!(counts.tokens, [8, 4]);
        // The sequence of that request has only begun: it is another one.
        step(&mut counts, &mut places, &[task(&plain, 5, &[], 0)]);
        assert_eq!(counts.new_entries[0].token, 0);
    }

    #[test]
    fn all_lists_are_made_anew_where_there_is_no_room_for_another() {
        let (mut counts, mut places) = (TokenCounts::default(), Places::new(VOCAB_SIZE));
        let params = params(1.2);
        let mut output = Vec::new();
        let (mut num_made, mut capacities) = (0, Vec::new());
        for token in 0..400u32 {
            let id = |sequence: u32| u64::from(token / 40 * 3 + sequence);
            let tasks = [0, 1, 2].map(|sequence| task(&params, id(sequence), &output, 0));
            let lists = step(&mut counts, &mut places, &tasks);
            assert!(counts.end <= counts.capacity && lists.iter().all(|list| lists[0] <= *list));
            num_made += usize::from(!counts.new_entries.is_empty());
            capacities.push(counts.capacity);
            output.push(token);
        }
        capacities.dedup();
        assert!(num_made < 40, "{num_made} steps made lists");
        assert!(*capacities.last().expect("steps") < 3 * 3 * 1000, "{capacities:?}");
    }
}
