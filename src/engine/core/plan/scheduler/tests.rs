//! Targeted tests of single decisions. The whole is tested by `tests/engine/simulation`.

mod aborts;
mod classes;
mod drafts;
mod look_ahead;
mod loras;
mod media;

use std::sync::Arc;

use super::*;
use crate::request::StopIds;
use vllm_batch_api::request::{
    Asked, ChoiceTexts, FinishReason, KnownText, NumLogprobs, Precedence, RowKey, SamplingParams,
    Scored, StopReason, TokenLogprob,
};

/// (max_num_seqs, max_num_batched_tokens, num_blocks); blocks of 4 tokens, contexts of 64; first
/// come, first served.
fn scheduler(max_num_seqs: usize, max_num_batched_tokens: usize, num_blocks: usize) -> Scheduler {
    let sizes = StepSizes {
        max_num_seqs,
        max_num_batched_tokens,
        max_num_prompt_logits: 4,
        max_num_drafts: 0,
        max_loras: 1,
        look_ahead: 0,
    };
    Scheduler::new(&sizes, BlockPool::new(num_blocks, 4, true), 64, 0, None)
}

fn request(request_id: u64, prompt_token_ids: Vec<u32>, params: SamplingParams) -> Request {
    let stop_ids = StopIds { eos_token_id: Some(9), stop_token_ids: vec![8] };
    let params = Arc::new(params);
    let row_key = RowKey(request_id);
    let bad_words_token_ids = Vec::new();
    let guidance = None;
    Request {
        request_id,
        prompt_token_ids,
        media: Vec::new(),
        asked: Asked::Completions,
        params,
        stop_ids,
        bad_words_token_ids,
        row_key,
        guidance,
        lora: None,
        eos_after: None,
        precedence: Precedence::default(),
    }
}

/// A prompt of its own, shared with no other request.
fn add(scheduler: &mut Scheduler, request_id: u64, num_prompt_tokens: usize, max_tokens: u32) {
    let prompt = vec![100 + request_id as u32; num_prompt_tokens];
    let params = SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() };
    scheduler.add_request(request(request_id, prompt, params));
}

fn logprob(token_id: u32) -> PositionLogprobs {
    let token = TokenLogprob { token_id, logprob: -1.5, rank: 2 };
    PositionLogprobs { token, top: Vec::new() }
}

/// Ends a step; every sequence at its end gets `token_id`.
fn end_step(scheduler: &mut Scheduler, step: &Scheduled, token_id: u32) -> Vec<RequestOutput> {
    let results = results_of(scheduler, step, token_id);
    take_in(scheduler, step, results)
}

/// What the device gives for a step, of which no step ahead is decided yet.
fn results_of(scheduler: &Scheduler, step: &Scheduled, token_id: u32) -> Vec<RowResult> {
    let batch = scheduler.batch(step);
    let result = |task: &RowTask| match task {
        RowTask::PromptLogprobs { target, .. } => RowResult::PromptLogprobs(logprob(*target)),
        RowTask::Sample(task) => {
            let logprobs = task.params.logprobs.map(|_| logprob(token_id));
            RowResult::Sampled { token_id, logprobs }
        }
        RowTask::Later => RowResult::Later,
    };
    let results: Vec<_> = scheduler.row_tasks(step).map(|task| result(&task)).collect();
    assert_eq!(results.len(), batch.logits_indices.len());
    results
}

fn take_in(
    scheduler: &mut Scheduler,
    step: &Scheduled,
    results: Vec<RowResult>,
) -> Vec<RequestOutput> {
    let outputs = scheduler.update(step, results);
    scheduler.assert_consistent();
    outputs
}

/// (request id, tokens) of each sequence of a step.
fn who(scheduler: &Scheduler, step: &Scheduled) -> Vec<(u64, usize)> {
    let id = |s: &ScheduledSeq| (scheduler.seq(s.slot).request.request_id, s.num_tokens);
    step.seqs.iter().map(id).collect()
}

/// Runs steps until a request is finished, all tokens being `token_id`.
fn run(scheduler: &mut Scheduler, token_id: u32) -> Vec<RequestOutput> {
    for _ in 0..1000 {
        let step = scheduler.schedule();
        let outputs = end_step(scheduler, &step, token_id);
        if !outputs.is_empty() {
            return outputs;
        }
    }
    panic!("no request finishes");
}

#[test]
fn a_long_prompt_is_computed_in_chunks_beside_others() {
    let mut s = scheduler(4, 10, 16);
    add(&mut s, 1, 14, 4);
    add(&mut s, 2, 3, 4);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 10)]);
    assert!(!step.seqs[0].samples, "a chunk short of the end gives no token");
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 4), (2, 3)]);
    let batch = s.batch(&step);
    assert_eq!(batch.positions, [10, 11, 12, 13, 0, 1, 2]);
    assert_eq!(batch.query_start_loc, [0, 4, 7]);
    assert_eq!(batch.seq_lens, [14, 3]);
    assert_eq!(batch.logits_indices, [3, 6]);
    assert_eq!(batch.max_blocks_per_seq, 4);
    assert_eq!(batch.block_table(0), [0, 1, 2, 3]);
    assert_eq!(batch.block_table(1), [4, 0, 0, 0]);
    assert_eq!(batch.slot_mapping, [10, 11, 12, 13, 16, 17, 18]);
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 1), (2, 1)]);
}

#[test]
fn the_youngest_is_preempted_and_is_first_to_come_back() {
    let mut s = scheduler(4, 64, 6);
    for id in 1..=3 {
        add(&mut s, id, 8, 12);
    }
    add(&mut s, 4, 4, 12);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 8), (2, 8), (3, 8)], "no block is left for the fourth");
    end_step(&mut s, &step, 5);
    // All three need a third block: 3 gives its two to 1 and 2, and nobody is admitted.
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 1), (2, 1)]);
    assert_eq!(s.stats().num_preemptions, 1);
    let next = s.seq(s.waiting.slots().next().expect("it waits"));
    assert_eq!((next.request.request_id, next.status), (3, RequestStatus::Preempted));
    assert_eq!(next.token_ids.len(), 9, "its token is kept");
    end_step(&mut s, &step, 5);
    let outputs: Vec<_> = (0..4)
        .flat_map(|_| if s.has_unfinished_requests() { run(&mut s, 5) } else { Vec::new() })
        .collect();
    let order: Vec<_> = outputs.iter().map(|o| o.request_id).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    assert!(outputs.iter().all(|o| o.outputs[0].token_ids == [5; 12]));
    assert_eq!(s.stats().num_used_blocks, 0);
}

#[test]
fn a_preempted_sequence_finds_its_own_blocks_again() {
    let mut s = scheduler(2, 64, 5);
    add(&mut s, 1, 8, 3);
    add(&mut s, 2, 8, 3);
    let step = s.schedule();
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 1)], "one block is left, for the older one");
    end_step(&mut s, &step, 5);
    assert_eq!(run(&mut s, 5)[0].request_id, 1);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 1)], "both prompt blocks are hits, the ninth token is not");
    assert_eq!(s.stats().num_cached_tokens, 0, "no prompt token was saved at first");
}

#[test]
fn siblings_share_the_prompt_within_one_step() {
    let mut s = scheduler(4, 64, 16);
    let params = SamplingParams { n: 3, max_tokens: Some(2), ..SamplingParams::default() };
    s.add_request(request(1, (0..10).collect(), params));
    let step = s.schedule();
    // Two full blocks of 4 are shared; the third is computed by each.
    assert_eq!(who(&s, &step), [(1, 10), (1, 2), (1, 2)]);
    let batch = s.batch(&step);
    assert_eq!(batch.block_table(1)[..2], batch.block_table(0)[..2]);
    assert_ne!(batch.block_table(1)[2], batch.block_table(0)[2]);
    assert_eq!(s.stats().num_used_blocks, 2 + 3);
    end_step(&mut s, &step, 5);
    let outputs = run(&mut s, 6);
    assert_eq!(outputs.len(), 1);
    assert_eq!(outputs[0].prompt_token_ids, (0..10).collect::<Vec<_>>());
    assert_eq!(outputs[0].outputs.iter().map(|o| o.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(outputs[0].num_cached_tokens, 0);
}

#[test]
fn a_fully_cached_prompt_recomputes_its_last_block() {
    let mut s = scheduler(4, 64, 16);
    add(&mut s, 1, 8, 1);
    run(&mut s, 5);
    let params = SamplingParams { max_tokens: Some(1), ..SamplingParams::default() };
    s.add_request(request(2, vec![101; 8], params));
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 4)], "hits stop before the last token");
    assert_eq!(end_step(&mut s, &step, 5)[0].num_cached_tokens, 4);
}

#[test]
fn generated_tokens_are_found_by_a_longer_prompt() {
    let mut s = scheduler(4, 64, 16);
    add(&mut s, 1, 6, 7);
    run(&mut s, 5);
    // 6 + 7 tokens, of which the last was never computed: three full blocks.
    let prompt = [[101; 6].as_slice(), &[5; 7], &[1]].concat();
    s.add_request(request(2, prompt, SamplingParams::default()));
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 2)]);
    end_step(&mut s, &step, 5);
}

#[test]
fn prompt_logprobs_skip_the_cache_and_keep_to_the_limit_of_a_step() {
    let mut s = scheduler(4, 64, 16);
    add(&mut s, 1, 11, 1);
    run(&mut s, 5);
    let prompt_logprobs = Some(NumLogprobs::Top(0));
    let params = SamplingParams { prompt_logprobs, max_tokens: Some(1), ..Default::default() };
    s.add_request(request(2, vec![101; 11], params.clone()));
    s.add_request(request(3, vec![101; 11], SamplingParams::default()));
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 4), (3, 3)], "four logits rows fit in a step");
    assert_eq!(s.batch(&step).logits_indices, [0, 1, 2, 3, 6]);
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 4), (3, 1)]);
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 3), (3, 1)]);
    let outputs = end_step(&mut s, &step, 5);
    let entries = outputs[0].prompt_logprobs.as_ref().expect("they were asked for");
    assert_eq!(entries.len(), 11);
    assert!(entries[0].is_none() && entries[1..].iter().all(Option::is_some));
}

#[test]
fn the_last_prompt_logprobs_are_computed_after_what_is_cached() {
    let mut s = scheduler(4, 64, 16);
    let params = SamplingParams {
        prompt_logprobs: Some(NumLogprobs::Top(0)),
        prompt_logprobs_last: Some(2),
        max_tokens: Some(0),
        ..Default::default()
    };
    for (id, num_computed) in [(1, 10), (2, 2)] {
        s.add_request(request(id, vec![1; 11], params.clone()));
        let step = s.schedule();
        assert_eq!(who(&s, &step), [(id, num_computed)], "nothing follows the last token");
        let first_logits = num_computed as u32 - 2;
        assert_eq!(s.batch(&step).logits_indices, [first_logits, first_logits + 1]);
        let outputs = end_step(&mut s, &step, 5);
        let entries = outputs[0].prompt_logprobs.as_ref().expect("they were asked for");
        assert!(entries.len() == 2 && entries.iter().all(Option::is_some));
        let [only] = &outputs[0].outputs[..] else { panic!("{outputs:?}") };
        assert_eq!((only.finish_reason, only.token_ids.len()), (FinishReason::Length, 0));
    }
    let whole = SamplingParams { prompt_logprobs_last: Some(9), ..params };
    s.add_request(request(3, vec![1], whole));
    let outputs = run(&mut s, 5);
    assert_eq!(outputs[0].prompt_logprobs, Some(vec![None]), "nothing is computed of one token");
    assert_eq!(s.stats().num_computed_tokens, 12);
}

#[test]
fn what_choices_share_is_computed_once() {
    let mut s = scheduler(4, 64, 16);
    let text = |ending: &[u32]| KnownText {
        token_ids: [&[1; 9], ending].concat(),
        num_scored: ending.len(),
    };
    let ask = |s: &mut Scheduler, id: u64| {
        let texts = vec![text(&[2]), text(&[3, 4]), text(&[2, 2, 5, 6])];
        let asked = Asked::Choices(ChoiceTexts::new(texts));
        let base = request(id, vec![1; 9], SamplingParams::default());
        s.add_request(Request { asked, ..base });
    };
    ask(&mut s, 1);
    for (num_tokens, finishes) in [(9, false), (2, false), (4, true)] {
        let step = s.schedule();
        assert_eq!(
            who(&s, &step),
            [(1, num_tokens)],
            "the last token of the prompt is computed anew"
        );
        let outputs = end_step(&mut s, &step, 5);
        assert_eq!(!outputs.is_empty(), finishes);
        let Some(output) = outputs.first() else { continue };
        let likelihood = |num_tokens: usize| Likelihood {
            logprob: -1.5 * num_tokens as f64,
            is_greedy: false,
            num_tokens,
        };
        let expected = [1, 2, 4].map(likelihood).to_vec();
        assert_eq!(output.scored, Some(Scored::Choices(expected)));
        assert_eq!((output.outputs.len(), output.num_prompt_tokens()), (1, 16));
    }
    // Two blocks of four are known by now, and none that was written more than once.
    ask(&mut s, 2);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 1)]);
    assert_eq!(s.stats().num_cached_tokens, 8);
    end_step(&mut s, &step, 5);
}

#[test]
fn a_prompt_larger_than_the_pool_is_an_error_and_blocks_nobody() {
    let mut s = scheduler(4, 64, 2);
    add(&mut s, 1, 9, 1);
    add(&mut s, 2, 8, 1);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(2, 8)]);
    let outputs = end_step(&mut s, &step, 5);
    assert_eq!(outputs.iter().map(|o| o.request_id).collect::<Vec<_>>(), [1, 2]);
    let failed = &outputs[0].outputs[0];
    assert_eq!(failed.finish_reason, FinishReason::Error);
    assert_eq!(failed.error.as_ref().map(|e| e.code), Some("kv_cache_too_small"));
    assert!(!s.has_unfinished_requests());
}

#[test]
fn a_sequence_that_outgrows_the_pool_is_an_error_with_what_it_has() {
    let mut s = scheduler(4, 64, 2);
    add(&mut s, 1, 6, 10);
    let step = s.schedule();
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    end_step(&mut s, &step, 5);
    let step = s.schedule();
    assert!(step.is_empty());
    assert!(s.has_unfinished_requests(), "its output is still due");
    let outputs = end_step(&mut s, &step, 5);
    assert_eq!(outputs[0].outputs[0].token_ids, [5, 5, 5]);
    assert_eq!(outputs[0].outputs[0].error.as_ref().map(|e| e.code), Some("kv_cache_too_small"));
    assert_eq!(s.stats().num_used_blocks, 0);
}

#[test]
fn stops_are_checked_in_vllms_order() {
    let finish = |token_id: u32, max_tokens: u32| {
        let mut s = scheduler(1, 64, 16);
        add(&mut s, 1, 4, max_tokens);
        let output = run(&mut s, token_id).remove(0).outputs.remove(0);
        (output.finish_reason, output.stop_reason, output.token_ids.len())
    };
    assert_eq!(finish(9, 1), (FinishReason::Stop, None, 1), "EOS as the last allowed token");
    let stop_token = Some(StopReason::TokenId(8));
    assert_eq!(finish(8, 1), (FinishReason::Stop, stop_token, 1));
    assert_eq!(finish(5, 3), (FinishReason::Length, None, 3));
    assert_eq!(finish(5, 1000), (FinishReason::Length, None, 60), "the context has 64 tokens");
}

#[test]
fn non_finite_logits_fail_their_row_only() {
    let mut s = scheduler(4, 64, 16);
    let prompt_logprobs = Some(NumLogprobs::Top(0));
    let params = SamplingParams { prompt_logprobs, ..Default::default() };
    s.add_request(request(1, vec![1, 2, 3], params));
    add(&mut s, 2, 3, 4);
    let step = s.schedule();
    let sampled = || RowResult::Sampled { token_id: 5, logprobs: None };
    let row = RowResult::PromptLogprobs(logprob(2));
    let outputs = s.update(&step, vec![row, RowResult::NonFinite, sampled(), sampled()]);
    s.assert_consistent();
    assert_eq!(outputs.len(), 1);
    assert_eq!(outputs[0].request_id, 1);
    let error = outputs[0].outputs[0].error.as_ref().expect("the row failed");
    assert_eq!(error.code, "non_finite_logits");
    assert_eq!(run(&mut s, 5)[0].request_id, 2);
}

#[test]
fn parameters_that_forbid_every_token_fail_their_row_only() {
    let mut s = scheduler(4, 64, 16);
    add(&mut s, 1, 3, 4);
    add(&mut s, 2, 3, 4);
    let step = s.schedule();
    let sampled = RowResult::Sampled { token_id: 5, logprobs: None };
    let outputs = s.update(&step, vec![RowResult::NoTokenAllowed, sampled]);
    assert_eq!(outputs[0].outputs[0].error.as_ref().map(|e| e.code), Some("no_token_allowed"));
    assert_eq!(run(&mut s, 5)[0].request_id, 2);
}

/// A device counts the tokens that it samples, but knows no other tokens before the host does.
#[test]
fn a_step_of_rows_with_penalties_is_scheduled_ahead() {
    let penalties = SamplingParams {
        repetition_penalty: 1.2,
        frequency_penalty: 0.5,
        presence_penalty: 0.5,
        max_tokens: Some(4),
        ..SamplingParams::default()
    };
    let biased = SamplingParams { logit_bias: vec![(3, 1.0)], ..penalties.clone() };
    for (params, expected) in [(penalties, true), (biased, false)] {
        let mut s = scheduler(4, 10, 16);
        s.add_request(request(1, vec![3, 4], params));
        let step = s.schedule();
        let Some(ahead) = s.schedule_ahead(&step, |place| place + 7) else {
            assert!(!expected);
            continue;
        };
        assert!(expected);
        let tasks: Vec<_> = s.row_tasks(&ahead.scheduled).collect();
        let [RowTask::Sample(task)] = tasks[..] else { panic!("{} tasks", tasks.len()) };
        assert_eq!((task.request_id, task.sampled_row, task.num_output_tokens()), (1, Some(7), 1));
    }
}

#[test]
fn a_step_is_scheduled_ahead_with_as_many_logprobs_as_a_gpu_ranks() {
    let top = |count| Some(NumLogprobs::Top(count));
    let most = NumLogprobs::MAX_ON_GPU;
    let cases = [
        (None, true),
        (top(0), true),
        (top(most), true),
        (top(most + 1), false),
        (top(999), false),
    ];
    for (logprobs, expected) in cases.into_iter().chain([(Some(NumLogprobs::All), false)]) {
        let mut s = scheduler(4, 10, 16);
        let params = SamplingParams { max_tokens: Some(4), logprobs, ..SamplingParams::default() };
        s.add_request(request(1, vec![3, 4], params));
        let step = s.schedule();
        let results = results_of(&s, &step, 5);
        let ahead = s.schedule_ahead(&step, |place| place);
        assert_eq!(ahead.is_some(), expected, "{logprobs:?}");
        take_in(&mut s, &step, results);
        if let Some(ahead) = ahead {
            let (adopted, rows) = s.adopt(ahead);
            assert_eq!((who(&s, &adopted), rows), (vec![(1, 1)], vec![0]));
            end_step(&mut s, &adopted, 6);
        }
    }
}
