//! The end of requests before their time.

use super::*;
use vllm_batch_api::request::BeamSearchParams;

fn is_idle(scheduler: &Scheduler) -> bool {
    scheduler.assert_consistent();
    let stats = scheduler.stats();
    let numbers = (stats.num_running, stats.num_waiting, stats.num_used_blocks);
    numbers == (0, 0, 0) && !scheduler.has_unfinished_requests()
}

#[test]
fn a_request_is_gone_wherever_it_is_and_its_blocks_are_free() {
    let mut s = scheduler(1, 64, 16);
    add(&mut s, 1, 4, 10);
    add(&mut s, 2, 4, 10);
    let step = s.schedule();
    end_step(&mut s, &step, 5);
    assert!(s.abort(1), "it runs");
    assert!(s.abort(2), "it waits");
    assert!(!s.abort(2), "it is gone");
    assert!(!s.abort(3), "it never came");
    assert!(is_idle(&s));
}

#[test]
fn nothing_is_returned_of_what_was_finished_and_not_yet_returned() {
    let mut s = scheduler(1, 64, 16);
    let params = SamplingParams {
        max_tokens: Some(0),
        prompt_logprobs: Some(NumLogprobs::Top(1)),
        ..SamplingParams::default()
    };
    // Nothing is computed of one token without anything after it.
    s.add_request(request(1, vec![3], params));
    assert!(s.has_unfinished_requests() && s.abort(1) && is_idle(&s));
    let step = s.schedule();
    assert!(step.is_empty() && s.update(&step, Vec::new()).is_empty());
}

#[test]
fn all_completions_of_a_request_end_those_that_were_finished_too() {
    let mut s = scheduler(2, 64, 16);
    let params = SamplingParams { n: 3, max_tokens: Some(2), ..SamplingParams::default() };
    s.add_request(request(1, vec![3, 4, 5], params));
    for token_id in [5, 6, 7] {
        let step = s.schedule();
        assert!(end_step(&mut s, &step, token_id).is_empty());
    }
    assert_eq!(s.stats().num_running, 1, "two are finished");
    assert!(s.abort(1) && is_idle(&s));
}

#[test]
fn a_step_ahead_is_adopted_without_what_was_aborted_even_if_its_number_comes_again() {
    for comes_again in [false, true] {
        let mut s = scheduler(4, 64, 16);
        add(&mut s, 1, 4, 10);
        add(&mut s, 2, 4, 10);
        let step = s.schedule();
        let results = results_of(&s, &step, 5);
        let ahead = s.schedule_ahead(&step, |row| row).expect("both go on");
        take_in(&mut s, &step, results);
        assert!(s.abort(1));
        if comes_again {
            // In the slot of the first.
            add(&mut s, 1, 4, 10);
        }
        let (adopted, rows) = s.adopt(ahead);
        assert_eq!((who(&s, &adopted), rows), (vec![(2, 1)], vec![1]));
        end_step(&mut s, &adopted, 6);
        let mut outputs = Vec::new();
        while s.has_unfinished_requests() {
            outputs.extend(run(&mut s, 7));
        }
        let tokens = |id: u64| {
            let output = outputs.iter().find(|output| output.request_id == id)?;
            Some(output.outputs[0].token_ids.clone())
        };
        assert_eq!(tokens(1), comes_again.then(|| vec![7; 10]));
        assert_eq!(tokens(2), Some([&[5, 6][..], &[7; 8]].concat()));
        assert!(is_idle(&s));
    }
}

#[test]
fn a_row_with_beams_leaves_nothing() {
    let mut s = scheduler(4, 64, 32);
    let beams = SamplingParams {
        n: 3,
        beam_search: Some(BeamSearchParams::of_width(3)),
        max_tokens: Some(6),
        ..SamplingParams::default()
    };
    let candidate = |token_id| TokenLogprob { token_id, logprob: -1.0, rank: 1 };
    let top: Vec<_> = (0..6).map(candidate).collect();
    s.add_request(request(1, vec![3; 6], beams));
    for _ in 0..3 {
        let step = s.schedule();
        let row = PositionLogprobs { token: top[0].clone(), top: top.clone() };
        let results: Vec<_> =
            s.row_tasks(&step).map(|_| RowResult::PromptLogprobs(row.clone())).collect();
        assert!(s.update(&step, results).is_empty());
    }
    assert!(s.stats().num_used_blocks > 1, "all beams share blocks of their parent");
    assert!(s.abort(1) && is_idle(&s));
}

#[test]
fn a_row_that_was_guessed_at_leaves_nothing() {
    let mut s = scheduler(4, 64, 16);
    add(&mut s, 1, 4, 10);
    let step = s.schedule();
    end_step(&mut s, &step, 5);
    let mut step = s.schedule();
    let limits = DraftLimits {
        per_row: 4,
        per_step: 8,
        max_step_tokens: 16,
        in_rounds: false,
        paced: false,
    };
    let mut drafts = s.draft_step(&mut step, limits);
    assert!(drafts.push(0, 5) && drafts.push(0, 6));
    end_step(&mut s, &step, 5);
    assert!(s.abort(1) && is_idle(&s));
}
