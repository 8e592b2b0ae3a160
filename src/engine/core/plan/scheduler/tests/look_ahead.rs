//! Who is admitted next, by counts: order of admission, computed tokens, steps.

use super::*;

struct Limits {
    max_num_seqs: usize,
    num_blocks: usize,
    look_ahead: Option<usize>,
}

/// Blocks of 4 tokens, contexts of 256, room for all tokens of a step.
fn limited(limits: &Limits) -> Scheduler {
    let &Limits { max_num_seqs, num_blocks, look_ahead } = limits;
    let by_default = || StepSizes::default_look_ahead(max_num_seqs);
    let sizes = StepSizes {
        max_num_seqs,
        max_num_batched_tokens: 4096,
        max_num_prompt_logits: 4,
        max_num_drafts: 0,
        max_loras: 1,
        look_ahead: look_ahead.unwrap_or_else(by_default),
    };
    Scheduler::new(&sizes, BlockPool::new(num_blocks, 4, true), 256, 0, None)
}

/// A prompt of `prefix`, and of tokens that no other request has.
fn add_with_prefix(s: &mut Scheduler, id: u64, prefix: &[u32], max_tokens: u32) {
    let own = [1000 + id as u32; 4];
    let params = SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() };
    s.add_request(request(id, [prefix, &own].concat(), params));
}

fn prefix(group: u32, num_tokens: u32) -> Vec<u32> {
    (0..num_tokens).map(|i| 10_000 * (group + 1) + i).collect()
}

/// Runs all; returns the requests in the order of their first tokens.
fn run_all(s: &mut Scheduler) -> Vec<u64> {
    let mut order = Vec::new();
    while s.has_unfinished_requests() {
        let step = s.schedule();
        for (id, _) in who(s, &step) {
            if !order.contains(&id) {
                order.push(id);
            }
        }
        end_step(s, &step, 5);
    }
    order
}

#[test]
fn a_prefix_is_computed_once_by_the_rows_of_one_step() {
    let mut s = limited(&Limits { max_num_seqs: 48, num_blocks: 400, look_ahead: None });
    for id in 0..48 {
        add_with_prefix(&mut s, id, &prefix(0, 40), 1);
    }
    let step = s.schedule();
    assert_eq!((step.seqs.len(), step.num_tokens), (48, 44 + 47 * 4));
    end_step(&mut s, &step, 5);
    assert_eq!(s.stats().num_cached_tokens, 47 * 40);
}

#[test]
fn long_rows_go_first_and_equals_in_their_order() {
    let mut s = limited(&Limits { max_num_seqs: 1, num_blocks: 2000, look_ahead: None });
    for (id, max_tokens) in [(0, 2), (1, 3), (2, 40), (3, 36), (4, 3), (5, 100)] {
        add(&mut s, id, 4, max_tokens);
    }
    // 3 is 1.5 times 2 and longer, 40 is 1.1 times 36 and not.
    assert_eq!(run_all(&mut s), [5, 2, 3, 1, 4, 0]);
}

#[test]
fn rows_without_a_limit_are_as_long_as_their_context() {
    let mut s = limited(&Limits { max_num_seqs: 1, num_blocks: 2000, look_ahead: None });
    add(&mut s, 0, 4, 100);
    add(&mut s, 1, 250, 1000);
    s.add_request(request(
        2,
        vec![3; 4],
        SamplingParams { max_tokens: None, ..Default::default() },
    ));
    assert_eq!(run_all(&mut s), [2, 0, 1], "252 tokens, 100, and 6 up to the context's end");
}

#[test]
fn long_rows_keep_their_turn_where_they_would_be_preempted() {
    // 2 rows of 4 + 120 tokens take 62 blocks, the first two rows 33.
    let order = |num_blocks| {
        let mut s = limited(&Limits { max_num_seqs: 2, num_blocks, look_ahead: None });
        for (id, max_tokens) in [(0, 4), (1, 120), (2, 120), (3, 4)] {
            add(&mut s, id, 4, max_tokens);
        }
        let order = run_all(&mut s);
        (order, s.stats().num_preemptions)
    };
    assert_eq!(order(62), (vec![1, 2, 0, 3], 0));
    assert_eq!(order(32), (vec![0, 1, 2, 3], 1));
}

#[test]
fn order_of_arrival_holds_where_nothing_is_gained() {
    let mut s = limited(&Limits { max_num_seqs: 2, num_blocks: 2000, look_ahead: None });
    for id in 0..40 {
        add_with_prefix(&mut s, id, &prefix(id as u32 % 5, 40), 8);
    }
    assert_eq!(run_all(&mut s), (0..40).collect::<Vec<_>>(), "the pool holds all prefixes");
}

/// A table of reviews of three products: the longest of three prefixes must not overtake the others
/// while running rows keep all three in the pool.
#[test]
fn rows_of_prefixes_in_use_keep_their_turns() {
    let mut s = limited(&Limits { max_num_seqs: 12, num_blocks: 300, look_ahead: None });
    for id in 0..120 {
        let group = id as u32 % 3;
        add_with_prefix(&mut s, id, &prefix(group, 40 + 8 * group), 40);
    }
    let order = run_all(&mut s);
    let late = order.iter().zip(0u64..).map(|(id, place)| place.saturating_sub(*id)).max();
    // The rows of a step end together: then no prefix is in use, and the longest goes first.
    assert!(late <= Some(2), "{order:?}");
    assert_eq!(s.stats().num_computed_tokens, 120 * (4 + 39) + 40 + 48 + 56, "each prefix once");
}

#[test]
fn nobody_is_admitted_far_from_its_turn() {
    const LOOK_AHEAD: usize = 7;
    let (mut earliest, mut latest) = (0, 0);
    for seed in 0..200u64 {
        let limits = Limits { max_num_seqs: 3, num_blocks: 60, look_ahead: Some(LOOK_AHEAD) };
        let mut s = limited(&limits);
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            (state >> 33) % below
        };
        // The longest ones keep coming: without a limit the shortest would be the last.
        for id in 0..60 {
            let group = random(6) as u32;
            add_with_prefix(&mut s, id, &prefix(group, 40), 1 << random(5));
        }
        for (place, id) in run_all(&mut s).into_iter().enumerate() {
            earliest = earliest.max((id as usize).saturating_sub(place));
            latest = latest.max(place.saturating_sub(id as usize));
        }
    }
    assert_eq!((earliest, latest), (LOOK_AHEAD - 1, LOOK_AHEAD));
}

#[test]
fn a_preempted_row_goes_before_longer_ones() {
    let mut s = limited(&Limits { max_num_seqs: 4, num_blocks: 4, look_ahead: None });
    add(&mut s, 1, 8, 8);
    add(&mut s, 2, 8, 8);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 8), (2, 8)]);
    end_step(&mut s, &step, 5);
    add(&mut s, 3, 4, 200);
    let step = s.schedule();
    assert_eq!(who(&s, &step), [(1, 1)], "2 has given its blocks to 1");
    end_step(&mut s, &step, 5);
    assert_eq!(s.stats().num_preemptions, 1);
    assert_eq!(run(&mut s, 5)[0].request_id, 1);
    let step = s.schedule();
    assert_eq!(who(&s, &step)[0].0, 2, "3 may generate 25 times as many tokens");
    end_step(&mut s, &step, 5);
}

/// Computed tokens of 96 rows: 12 prefixes of 40 tokens, shuffled, 4 tokens of their own, 5 to
/// generate.
fn shuffled_prefixes(num_blocks: usize, look_ahead: Option<usize>) -> u64 {
    let mut s = limited(&Limits { max_num_seqs: 4, num_blocks, look_ahead });
    for id in 0..96 {
        // 35 is a unit modulo 96: each prefix comes eight times, a dozen rows apart or so.
        add_with_prefix(&mut s, id, &prefix((id * 35 % 96) as u32 / 8, 40), 5);
    }
    run_all(&mut s);
    s.stats().num_computed_tokens
}

#[test]
fn shuffled_prefixes_are_computed_once_in_a_small_pool() {
    // The last of the five tokens is never computed.
    let (own, prefix) = (96 * (4 + 4), 40);
    // Four rows with a prefix each take 52 of the 60 blocks.
    assert_eq!(shuffled_prefixes(60, Some(0)), own + 96 * prefix, "each row computes its own");
    assert_eq!(shuffled_prefixes(60, Some(96)), own + 12 * prefix, "each prefix once");
    let in_a_window = shuffled_prefixes(60, None);
    assert!(in_a_window < own + 24 * prefix, "twice at most: {in_a_window}");
    assert_eq!(shuffled_prefixes(600, Some(0)), own + 12 * prefix, "a large pool keeps them all");
}

#[test]
fn long_rows_first_shorten_the_tail() {
    let num_steps = |look_ahead| {
        let mut s = limited(&Limits { max_num_seqs: 8, num_blocks: 1000, look_ahead });
        for id in 0..64 {
            add(&mut s, id, 4, if id % 8 == 7 { 128 } else { 16 });
        }
        run_all(&mut s);
        s.stats().num_steps
    };
    // 8 rows of 128 tokens and 56 of 16 are 240 steps of 8 rows.
    assert_eq!((num_steps(None), num_steps(Some(0))), (240, 320));
}
