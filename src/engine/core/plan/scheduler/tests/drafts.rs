//! What becomes of drafts: they are the first to go, and leave nothing behind.

use super::*;

const LIMITS: DraftLimits =
    DraftLimits { per_row: 4, per_step: 100, max_step_tokens: 100, in_rounds: true, paced: false };

/// Guesses the same token for all places of all rows; returns how many drafts each row has.
fn guess(s: &mut Scheduler, step: &mut Scheduled, limits: DraftLimits, token: u32) -> Vec<usize> {
    let mut drafts = s.draft_step(step, limits);
    for place in 0..drafts.num_seqs() {
        while drafts.push(place, token) {}
    }
    step.seqs.iter().map(|entry| entry.num_drafts).collect()
}

/// A step of guesses, all of which are `guessed`, and of sampled tokens that are all `sampled`;
/// returns the tokens that the row of a slot has then.
fn step(s: &mut Scheduler, guessed: u32, sampled: u32) -> Vec<u32> {
    let mut step = s.schedule();
    guess(s, &mut step, LIMITS, guessed);
    let slot = step.seqs[0].slot;
    end_step(s, &step, sampled);
    s.seqs[slot].as_ref().map_or(Vec::new(), |seq| seq.token_ids.clone())
}

#[test]
fn a_step_has_a_row_of_logits_for_the_last_token_and_each_draft() {
    let mut s = scheduler(4, 64, 32);
    add(&mut s, 1, 3, 20);
    add(&mut s, 2, 2, 20);
    let mut scheduled = s.schedule();
    let limits = DraftLimits { per_step: 3, per_row: 2, ..LIMITS };
    assert_eq!(guess(&mut s, &mut scheduled, limits, 7), [2, 1]);
    let batch = s.batch(&scheduled);
    assert_eq!(batch.input_ids, [101, 101, 101, 7, 7, 102, 102, 7]);
    assert_eq!(batch.logits_indices, [2, 3, 4, 6, 7]);
    assert_eq!(batch.seq_lens, [5, 3]);
    let lengths = s.row_tasks(&scheduled).map(|task| match task {
        RowTask::Sample(task) => task.output_token_ids.len(),
        _ => panic!("{task:?}"),
    });
    assert_eq!(lengths.collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
}

#[test]
fn drafts_count_up_to_the_first_wrong_one_and_the_token_in_its_place() {
    let mut s = scheduler(1, 64, 16);
    add(&mut s, 1, 3, 20);
    assert_eq!(step(&mut s, 7, 6), [101, 101, 101, 6]);
    assert_eq!(step(&mut s, 6, 6)[3..], [6; 6]);
    let stats = s.stats();
    let counts = (stats.num_drafted_rows, stats.num_draft_tokens, stats.num_accepted_tokens);
    assert_eq!(counts, (2, 8, 4));
    assert_eq!(stats.num_generation_tokens, 6);
}

#[test]
fn no_draft_goes_past_the_last_token_or_stands_for_the_end() {
    let mut s = scheduler(1, 64, 16);
    add(&mut s, 1, 3, 3);
    let mut scheduled = s.schedule();
    assert_eq!(guess(&mut s, &mut scheduled, LIMITS, 7), [2], "the third token is sampled");
    let outputs = end_step(&mut s, &scheduled, 7);
    assert_eq!(outputs[0].outputs[0].token_ids, [7; 3]);
    add(&mut s, 2, 3, 20);
    for end in [9, 8] {
        let mut scheduled = s.schedule();
        assert_eq!(guess(&mut s, &mut scheduled, LIMITS, end), [0]);
        end_step(&mut s, &scheduled, 7);
    }
}

#[test]
fn drafts_take_what_is_left_of_the_budget_and_no_block_that_another_row_holds() {
    let mut s = scheduler(4, 10, 3);
    add(&mut s, 1, 3, 20);
    add(&mut s, 2, 4, 20);
    let mut scheduled = s.schedule();
    // One token fits into the first row's block, then the pool is empty: the third block is there.
    assert_eq!(guess(&mut s, &mut scheduled, LIMITS, 7), [3, 0], "7 of 10 tokens are known");
    end_step(&mut s, &scheduled, 6);
    assert_eq!(s.stats().num_used_blocks, 2, "a block for wrong drafts alone was given back");
    let mut scheduled = s.schedule();
    assert_eq!(who(&s, &scheduled), [(1, 1), (2, 1)]);
    assert_eq!(guess(&mut s, &mut scheduled, LIMITS, 7), [0, 3], "the second needed the block");
    end_step(&mut s, &scheduled, 6);
    assert_eq!(s.stats().num_preemptions, 0);
}

#[test]
fn the_prefix_cache_has_what_was_said_and_not_what_was_guessed() {
    let mut s = scheduler(1, 64, 16);
    let params = SamplingParams { max_tokens: Some(6), ..SamplingParams::default() };
    s.add_request(request(1, vec![1, 2, 3], params.clone()));
    // The first block is filled by a guess, and then by what is said.
    while !step(&mut s, 7, 6).is_empty() {}
    let hits = |s: &mut Scheduler, id: u64, prompt: Vec<u32>| {
        let before = s.stats().num_cached_tokens;
        s.add_request(request(id, prompt, params.clone()));
        run(s, 6);
        s.stats().num_cached_tokens - before
    };
    assert_eq!(hits(&mut s, 2, vec![1, 2, 3, 7, 7, 7, 7, 7, 5]), 0);
    assert_eq!(hits(&mut s, 3, vec![1, 2, 3, 6, 6, 6, 6, 6, 5]), 8);
}
