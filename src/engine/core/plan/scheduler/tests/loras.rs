//! Which adapters are in a step, and in which order.

use std::collections::HashSet;

use super::{end_step, request};
use crate::load::step_sizes::StepSizes;
use crate::plan::block_pool::BlockPool;
use crate::plan::scheduler::Scheduler;
use crate::request::Request;
use vllm_batch_api::request::{LoraId, SamplingParams};
use vllm_batch_ops::batch::LoraRows;

/// Blocks of 4 tokens, contexts of 64.
fn scheduler(max_loras: usize, max_num_seqs: usize, look_ahead: usize) -> Scheduler {
    let sizes = StepSizes {
        max_num_seqs,
        max_num_batched_tokens: 256,
        max_num_prompt_logits: 4,
        max_num_drafts: 0,
        max_loras,
        look_ahead,
    };
    Scheduler::new(&sizes, BlockPool::new(64, 4, true), 64, 0, None)
}

/// Two tokens of two adapters or none.
fn add(s: &mut Scheduler, request_id: u64, lora: Option<u32>, prompt: Vec<u32>) {
    let params = SamplingParams { max_tokens: Some(2), ..SamplingParams::default() };
    let request = request(request_id, prompt, params);
    s.add_request(Request { lora: lora.map(LoraId), ..request });
}

/// Runs to the end; returns the ids of the requests of each step in the order of its rows.
fn steps(s: &mut Scheduler) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    while s.has_unfinished_requests() {
        let step = s.schedule();
        let ids = step.seqs.iter().map(|entry| s.seq(entry.slot).request.request_id);
        all.push(ids.collect());
        end_step(s, &step, 3);
        s.assert_consistent();
    }
    all
}

#[test]
fn rows_of_an_adapter_lie_together_behind_those_without() {
    let mut s = scheduler(2, 8, 0);
    for (id, lora) in [(0, Some(1)), (1, None), (2, Some(0)), (3, Some(1)), (4, None)] {
        add(&mut s, id, lora, vec![id as u32 + 1; 3]);
    }
    let step = s.schedule();
    let ids: Vec<_> = step.seqs.iter().map(|entry| s.seq(entry.slot).request.request_id).collect();
    assert_eq!(ids, [1, 4, 2, 0, 3]);
    let batch = s.batch(&step);
    let rows = |lora: u32, tokens, logits| LoraRows { lora: LoraId(lora), tokens, logits };
    assert_eq!(batch.loras, [rows(0, 6..9, 2..3), rows(1, 9..15, 3..5)]);
    let of_seqs: Vec<_> = (0..5).map(|seq| batch.lora_of(seq).map(|lora| lora.0)).collect();
    assert_eq!(of_seqs, [None, None, Some(0), Some(1), Some(1)]);
}

#[test]
fn a_step_has_no_more_adapters_than_it_may() {
    let mut s = scheduler(1, 8, 16);
    for id in 0..6 {
        add(&mut s, id, [Some(0), Some(1), None][id as usize % 3], vec![id as u32 + 1; 3]);
    }
    let steps = steps(&mut s);
    // Rows of the first adapter and those without one go before the second's.
    assert_eq!(steps[0], [2, 5, 0, 3]);
    let loras = |step: &Vec<u64>| step.iter().filter(|id| *id % 3 < 2).map(|id| id % 3).collect();
    let of_steps: Vec<HashSet<u64>> = steps.iter().map(loras).collect();
    assert!(of_steps.iter().all(|loras| loras.len() <= 1), "{steps:?}");
    assert_eq!(of_steps.iter().filter(|loras| loras.contains(&1)).count(), 2, "{steps:?}");
}

#[test]
fn a_row_whose_turn_has_come_gets_room_for_its_adapter() {
    let mut s = scheduler(1, 1, 2);
    // Of one place a time, rows of adapter 0 could go before the one of adapter 1 for ever.
    add(&mut s, 0, Some(0), vec![1; 3]);
    add(&mut s, 1, Some(1), vec![2; 3]);
    (2..8).for_each(|id| add(&mut s, id, Some(0), vec![id as u32 + 1; 3]));
    let order: Vec<u64> = steps(&mut s).concat();
    let place = order.iter().position(|id| *id == 1).expect("it was run");
    assert!(place < 2 * 4, "{order:?}");
}

#[test]
fn no_adapter_shares_blocks_with_another() {
    let mut s = scheduler(3, 8, 0);
    let prompt: Vec<u32> = (0..9).collect();
    for (id, lora) in [(0, None), (1, Some(0)), (2, Some(1)), (3, Some(0)), (4, None)] {
        add(&mut s, id, lora, prompt.clone());
    }
    let step = s.schedule();
    let cached: Vec<_> = step
        .seqs
        .iter()
        .map(|entry| (s.seq(entry.slot).request.request_id, s.seq(entry.slot).num_computed_tokens))
        .collect();
    assert_eq!(cached, [(0, 0), (4, 8), (1, 0), (3, 8), (2, 0)]);
}
