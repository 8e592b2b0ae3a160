//! Requests that somebody waits for beside rows of a batch, and priorities.

use std::collections::HashMap;

use super::*;
use crate::media_table::tests::{medium, table};
use crate::request::{MediaRun, Whole};
use vllm_batch_api::request::{BeamSearchParams, LoraId};

const ONLINE: Precedence = Precedence { class: RequestClass::Online, priority: 0 };
const BATCH: Precedence = Precedence::BATCH;

fn add_as(s: &mut Scheduler, precedence: Precedence, id: u64, num_prompt: usize, max_tokens: u32) {
    let prompt = vec![100 + id as u32; num_prompt];
    let params = SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() };
    s.add_request(Request { precedence, ..request(id, prompt, params) });
}

/// A step, and who was in it.
fn step(s: &mut Scheduler) -> Vec<(u64, usize)> {
    let step = s.schedule();
    let who = who(s, &step);
    end_step(s, &step, 5);
    who
}

/// Runs to the end; the numbers of the requests in the order in which they finish.
fn finish_all(s: &mut Scheduler) -> Vec<u64> {
    let mut order = Vec::new();
    while s.has_unfinished_requests() {
        order.extend(run(s, 5).into_iter().map(|output| {
            assert!(output.outputs.iter().all(|o| o.finish_reason == FinishReason::Length));
            output.request_id
        }));
    }
    assert_eq!(s.stats().num_used_blocks, 0);
    order
}

#[test]
fn the_class_goes_before_the_priority_and_that_before_the_order_of_arrival() {
    let mut s = scheduler(1, 64, 16);
    let batch_first = BATCH.with_priority(-9);
    for (id, precedence) in [
        (1, BATCH),
        (2, ONLINE.with_priority(5)),
        (3, batch_first),
        (4, ONLINE),
        (5, ONLINE.with_priority(-1)),
        (6, ONLINE),
        (7, batch_first),
    ] {
        add_as(&mut s, precedence, id, 4, 1);
    }
    assert_eq!((s.stats().num_waiting, s.stats().num_waiting_batch), (7, 3));
    assert_eq!(finish_all(&mut s), [5, 4, 6, 2, 3, 7, 1]);
    assert_eq!(s.stats().num_preemptions, 0);
}

#[test]
fn rows_of_a_batch_give_their_places_the_last_one_first() {
    let mut s = scheduler(3, 64, 16);
    (1..=3).for_each(|id| add_as(&mut s, BATCH, id, 4, 6));
    assert_eq!(step(&mut s), [(1, 4), (2, 4), (3, 4)]);
    add_as(&mut s, ONLINE, 9, 4, 2);
    assert_eq!(step(&mut s), [(9, 4), (1, 1), (2, 1)]);
    let EngineStats { num_batch_preemptions, num_running_batch, num_waiting_batch, .. } = s.stats();
    assert_eq!((num_batch_preemptions, num_running_batch, num_waiting_batch), (1, 2, 1));
    // The third comes back before the fourth, with the tokens that it has.
    add_as(&mut s, BATCH, 4, 4, 6);
    assert_eq!(step(&mut s), [(9, 1), (1, 1), (2, 1)]);
    assert_eq!(step(&mut s), [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(finish_all(&mut s), [1, 2, 3, 4]);
}

#[test]
fn a_lower_priority_of_the_same_class_gives_no_place_and_is_the_first_to_lose_its_blocks() {
    let mut s = scheduler(2, 64, 5);
    add_as(&mut s, ONLINE.with_priority(1), 1, 8, 3);
    add_as(&mut s, ONLINE.with_priority(1), 2, 8, 3);
    step(&mut s);
    add_as(&mut s, ONLINE, 3, 4, 3);
    assert_eq!(step(&mut s), [(1, 1)], "both need a third block, and one is left");
    assert_eq!(step(&mut s), [(1, 1), (3, 4)], "it goes before the one that was preempted");
    let ids: Vec<_> = step(&mut s).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [3, 2]);
    assert_eq!(finish_all(&mut s), [3, 2]);
}

#[test]
fn rows_of_a_batch_give_their_blocks_where_that_suffices() {
    let mut s = scheduler(8, 64, 8);
    (1..=3).for_each(|id| add_as(&mut s, BATCH, id, 8, 4));
    step(&mut s);
    // Two blocks are free, and two rows of two have to go.
    add_as(&mut s, ONLINE, 9, 20, 1);
    assert_eq!(step(&mut s)[0], (9, 20));
    assert_eq!(s.stats().num_batch_preemptions, 2);
    assert_eq!(finish_all(&mut s), [1, 2, 3]);
    let mut s = scheduler(8, 64, 8);
    add_as(&mut s, ONLINE, 1, 16, 4);
    add_as(&mut s, BATCH, 2, 8, 4);
    step(&mut s);
    add_as(&mut s, ONLINE, 9, 20, 1);
    // All of the batch is too little beside the first, so it goes on until that is done.
    for _ in 0..3 {
        assert_eq!(step(&mut s), [(1, 1), (2, 1)]);
    }
    assert_eq!(s.stats().num_batch_preemptions, 0);
    assert_eq!(finish_all(&mut s), [9]);
}

#[test]
fn whoever_is_waited_for_takes_blocks_of_a_batch_as_it_grows() {
    let mut s = scheduler(4, 64, 5);
    add_as(&mut s, BATCH, 1, 8, 4);
    step(&mut s);
    add_as(&mut s, ONLINE, 2, 8, 6);
    step(&mut s);
    assert_eq!(step(&mut s), [(2, 1)], "no block is left for both");
    assert_eq!(finish_all(&mut s), [2, 1]);
}

#[test]
fn a_batch_gives_its_adapters() {
    let sizes = StepSizes {
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        max_num_prompt_logits: 4,
        max_num_drafts: 0,
        max_loras: 1,
        look_ahead: 0,
    };
    let mut s = Scheduler::new(&sizes, BlockPool::new(16, 4, true), 64, 0, None);
    let add = |s: &mut Scheduler, precedence, id: u64, lora: u32| {
        let params = SamplingParams { max_tokens: Some(4), ..SamplingParams::default() };
        let base = request(id, vec![id as u32; 4], params);
        s.add_request(Request { precedence, lora: Some(LoraId(lora)), ..base });
    };
    add(&mut s, BATCH, 1, 0);
    add(&mut s, BATCH, 2, 0);
    step(&mut s);
    add(&mut s, ONLINE, 3, 1);
    assert_eq!(step(&mut s), [(3, 4)]);
    assert_eq!(finish_all(&mut s), [3, 1, 2]);
}

/// What rows of a batch have of all tokens, while somebody else always asks for more.
fn share(s: &mut Scheduler, num_prompt: usize, max_tokens: u32, num_steps: usize) -> f64 {
    let (mut next, mut sums) = (0, HashMap::from([(true, 0), (false, 0)]));
    for _ in 0..num_steps {
        let EngineStats { num_waiting, num_waiting_batch, .. } = s.stats();
        for _ in num_waiting - num_waiting_batch..10 {
            next += 1;
            add_as(s, ONLINE, next, num_prompt, max_tokens);
        }
        for _ in num_waiting_batch..10 {
            next += 1;
            add_as(s, BATCH, next + 1_000_000, num_prompt, max_tokens);
        }
        for (id, num_tokens) in step(s) {
            *sums.get_mut(&(id > 1_000_000)).expect("both are there") += num_tokens;
        }
    }
    sums[&true] as f64 / (sums[&true] + sums[&false]) as f64
}

#[test]
fn a_batch_keeps_a_tenth_of_places_and_tokens_however_many_ask() {
    // Places are short; then tokens, of prompts.
    for (max_num_seqs, max_num_tokens, num_prompt, max_tokens) in
        [(20, 999, 1, 40), (4, 999, 1, 40), (1, 999, 1, 40), (20, 40, 50, 1)]
    {
        let mut s = scheduler(max_num_seqs, max_num_tokens, 1000);
        let share = share(&mut s, num_prompt, max_tokens, 2000);
        assert!((0.08..0.17).contains(&share), "{max_num_seqs} places: {share}");
    }
}

/// The first phase may have none of one place: in the last one the row has it until it goes on,
/// though its prompt takes many steps, nothing is cached and all blocks are taken.
#[test]
fn no_row_of_a_batch_starves() {
    for has_prefix_cache in [true, false] {
        let mut s = scheduler(1, 1, 16);
        s.block_pool = BlockPool::new(16, 4, has_prefix_cache);
        add_as(&mut s, BATCH, 1, 60, 3);
        let mut next = 1;
        let mut num_steps = 0;
        loop {
            while s.stats().num_waiting - s.stats().num_waiting_batch < 2 {
                next += 1;
                add_as(&mut s, ONLINE, next, 3, 30);
            }
            let step = s.schedule();
            assert!(!step.is_empty());
            if end_step(&mut s, &step, 5).iter().any(|output| output.request_id == 1) {
                break;
            }
            num_steps += 1;
            assert!(num_steps < 5 * 640, "it starves");
        }
        assert!(num_steps > 500, "it had its turn too early: {num_steps}");
    }
}

#[test]
fn one_class_is_scheduled_as_the_other() {
    let of = |precedence: Precedence| {
        let mut s = scheduler(4, 20, 12);
        let mut steps = Vec::new();
        for id in 0..30 {
            add_as(&mut s, precedence, id, 1 + (id * 7 % 13) as usize, 1 + (id * 5 % 17) as u32);
            steps.push(step(&mut s));
        }
        while s.has_unfinished_requests() {
            steps.push(step(&mut s));
        }
        assert!(s.stats().num_preemptions > 0);
        steps
    };
    assert_eq!(of(ONLINE), of(BATCH));
    assert_eq!(of(ONLINE), of(BATCH.with_priority(3)));
}

/// An image whose tokens see all of each other takes all of a step, which no class may keep from
/// the other for ever.
#[test]
fn an_image_that_needs_a_step_to_itself_gets_one_in_both_classes() {
    let placed = table(0).place(&[medium(1)]).unwrap();
    let with_image = |s: &mut Scheduler, precedence, id: u64| {
        let run = MediaRun {
            medium: Arc::clone(&placed[0]),
            positions: 0..4,
            first_token: 0,
            axis: None,
            whole: Whole::Unscored,
        };
        let params = SamplingParams { max_tokens: Some(1), ..SamplingParams::default() };
        let base = request(id, vec![7, 7, 7, 7, 3], params);
        s.add_request(Request { media: vec![run], precedence, ..base });
    };
    let mut s = scheduler(40, 4, 64);
    add_as(&mut s, BATCH, 1, 40, 20);
    step(&mut s);
    with_image(&mut s, ONLINE, 2);
    assert_eq!(step(&mut s), [(2, 4)]);
    finish_all(&mut s);
    with_image(&mut s, BATCH, 3);
    let mut next = 3;
    for num_steps in 0.. {
        while s.stats().num_waiting - s.stats().num_waiting_batch < 4 {
            next += 1;
            add_as(&mut s, ONLINE, next, 9, 1);
        }
        let step = s.schedule();
        if end_step(&mut s, &step, 5).iter().any(|output| output.request_id == 3) {
            assert!(num_steps > 500, "it had its turn too early: {num_steps}");
            break;
        }
        assert!(num_steps < 900, "it starves");
    }
}

#[test]
fn there_is_no_step_ahead_where_a_row_of_a_batch_has_to_give_way() {
    let mut s = scheduler(2, 64, 16);
    (1..=2).for_each(|id| add_as(&mut s, BATCH, id, 4, 9));
    let first = s.schedule();
    let results = results_of(&s, &first, 5);
    let ahead = s.schedule_ahead(&first, |row| row).expect("both go on");
    take_in(&mut s, &first, results);
    add_as(&mut s, ONLINE, 3, 4, 9);
    let (second, _) = s.adopt(ahead);
    let results = results_of(&s, &second, 5);
    assert!(s.schedule_ahead(&second, |row| row).is_none());
    take_in(&mut s, &second, results);
    let third = s.schedule();
    assert_eq!(who(&s, &third), [(3, 4), (1, 1)]);
    let results = results_of(&s, &third, 5);
    assert!(s.schedule_ahead(&third, |row| row).is_some(), "nobody waits who goes before them");
    take_in(&mut s, &third, results);
    assert_eq!(finish_all(&mut s), [1, 3, 2]);
}

/// Random workloads of both classes, begun in every phase: all ends, and nothing is left.
#[test]
fn all_requests_end_in_every_phase() {
    for seed in 0..400_u64 {
        let mut state = seed * 0x9E37_79B9 + 12345;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (seats, tokens) = (1 + random(12) as usize, 1 + random(20) as usize);
        let mut s = scheduler(seats, tokens, 4 + random(30) as usize);
        (0..seed % 10 * 64 + 30).for_each(|_| s.floor.count_step());
        let num_requests = 4 + random(20);
        let mut num_finished = 0;
        for id in 0..num_requests {
            let class = [ONLINE, BATCH][random(2) as usize];
            let beams = random(8) == 0;
            let params = SamplingParams {
                n: if beams { 3 } else { 1 + random(2) as u32 },
                beam_search: beams.then(|| BeamSearchParams::of_width(3)),
                prompt_logprobs: (!beams && random(4) == 0).then_some(NumLogprobs::Top(0)),
                max_tokens: Some(1 + random(9) as u32),
                ..SamplingParams::default()
            };
            let prompt = vec![(20 + random(2)) as u32; 1 + random(14) as usize];
            let precedence = class.with_priority(random(3) as i64 - 1);
            s.add_request(Request { precedence, ..request(id, prompt, params) });
            num_finished += random_step(&mut s);
        }
        for _ in 0..3000 {
            if s.has_unfinished_requests() {
                num_finished += random_step(&mut s);
            }
        }
        assert_eq!(num_finished, num_requests, "seed {seed}");
        assert_eq!(s.stats().num_used_blocks, 0);
    }
}

/// A step with candidates for beams; how many requests it finished.
fn random_step(s: &mut Scheduler) -> u64 {
    let step = s.schedule();
    let candidate = |token_id| TokenLogprob { token_id, logprob: -(token_id as f32), rank: 1 };
    let top: Vec<_> = (10..16).map(candidate).collect();
    let result = |task: RowTask<'_>| match task {
        RowTask::PromptLogprobs { .. } => {
            RowResult::PromptLogprobs(PositionLogprobs { token: top[0].clone(), top: top.clone() })
        }
        _ => RowResult::Sampled { token_id: 5, logprobs: None },
    };
    let results: Vec<_> = s.row_tasks(&step).map(result).collect();
    take_in(s, &step, results).len() as u64
}
