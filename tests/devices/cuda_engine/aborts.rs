//! Requests that are aborted while the step after is queued, on one device and on two ranks: they
//! are gone, their blocks are free, and the others keep their bits.

use std::collections::BTreeSet;

use vllm_batch::engine::api::request::RowKey;
use vllm_batch::engine::base::config::{DType, EngineConfig};
use vllm_batch::engine::core::Engine;

use crate::cuda_engine::invariance::bits;
use crate::cuda_engine::rows::rows;
use crate::cuda_engine::{config, run};
use crate::gpu;

fn check(config: &EngineConfig) {
    let mut engine = Engine::load(config).expect("a model");
    let expected: Vec<_> = run(&mut engine, rows()).iter().map(bits).collect();
    let processor = engine.input_processor();
    for (id, (prompt, params)) in (0..).zip(rows()) {
        let request = processor.process(id, prompt, params, RowKey(id));
        engine.add_request(request.expect("a row that can be answered"));
    }
    let num_rows = expected.len() as u64;
    let (mut answered, mut aborted, mut victim) = (BTreeSet::new(), BTreeSet::new(), 3);
    for step in 0.. {
        if !engine.has_unfinished_requests() {
            break;
        }
        for output in engine.step().expect("the device works") {
            assert!(!aborted.contains(&output.request_id), "row {}", output.request_id);
            assert_eq!(bits(&output), expected[output.request_id as usize]);
            answered.insert(output.request_id);
        }
        if step % 2 == 1 {
            victim = (victim + 5) % num_rows;
            let is_unfinished = !answered.contains(&victim) && !aborted.contains(&victim);
            assert_eq!(engine.abort_request(victim), is_unfinished, "row {victim}");
            aborted.extend(is_unfinished.then_some(victim));
        }
    }
    assert_eq!((answered.len() + aborted.len()) as u64, num_rows);
    assert!(aborted.len() > 2 && answered.len() > 5, "{aborted:?} of {num_rows} aborted");
    let stats = engine.stats();
    let left = (stats.num_running, stats.num_waiting, stats.num_used_blocks);
    assert_eq!(left, (0, 0, 0), "{stats:?}");
}

#[test]
fn others_keep_their_bits_beside_aborted_rows() {
    let Some(device) = gpu::device(700) else { return };
    check(&config("llama2", DType::BFloat16, &device));
    let mut guessed = config("llama2", DType::BFloat16, &gpu::device(701).expect("there is one"));
    guessed.speculation = Some(super::invariance::ngrams());
    check(&guessed);
    if !gpu::is_real() {
        let mut ranks = config("qwen3", DType::BFloat16, &gpu::device(702).expect("a shim"));
        ranks.parallel.num_threads = Some(1);
        ranks.parallel.tensor_parallel_size = Some(2);
        check(&ranks);
    }
}
