//! Sampling: one row of logits on one thread. A step has as many rows as sequences, shared by the
//! threads.

use divan::Bencher;
use divan::counter::BytesCount;
use vllm_batch::engine::request::{NumLogprobs, RowKey, SamplingParams, StopIds};
use vllm_batch::engine::sampler::{RowTask, SampleTask, SamplerScratch, run_row_with};
use vllm_batch::engine::step_sampler::DeviceVectors;

use super::{DEVICE, VOCAB_SIZE, random};

#[divan::bench]
fn greedy(bencher: Bencher) {
    run(bencher, &SamplingParams { temperature: 0.0, ..SamplingParams::default() });
}

#[divan::bench]
fn greedy_with_logprobs(bencher: Bencher) {
    let logprobs = Some(NumLogprobs::Top(5));
    run(bencher, &SamplingParams { temperature: 0.0, logprobs, ..SamplingParams::default() });
}

#[divan::bench]
fn temperature(bencher: Bencher) {
    run(bencher, &SamplingParams { temperature: 0.8, ..SamplingParams::default() });
}

#[divan::bench]
fn top_p(bencher: Bencher) {
    run(bencher, &SamplingParams { temperature: 0.8, top_p: 0.95, ..SamplingParams::default() });
}

#[divan::bench]
fn top_k(bencher: Bencher) {
    run(bencher, &SamplingParams { temperature: 0.8, top_k: 40, ..SamplingParams::default() });
}

fn run(bencher: Bencher, params: &SamplingParams) {
    let stop_ids = StopIds::default();
    let task = RowTask::Sample(SampleTask {
        params,
        prompt_token_ids: &[1, 2, 3],
        output_token_ids: &[4],
        stop_ids: &stop_ids,
        bad_words_token_ids: &[],
        row_key: RowKey(0),
        engine_seed: 0,
        sample_index: 0,
        token_mask: None,
    });
    let logits = logits();
    let mut scratch = SamplerScratch::default();
    // A row is scratch space after it is sampled, so each iteration takes a fresh copy, outside the
    // clock.
    bencher
        .counter(BytesCount::of_slice(&logits))
        .with_inputs(|| logits.clone())
        .bench_local_refs(|row| run_row_with(DeviceVectors(&DEVICE), row, &task, &mut scratch));
}

/// Near normal with a deviation of about 2.5, as a model's logits are: uniform ones have no tail,
/// which is what top-p spends its time on.
fn logits() -> Vec<f32> {
    let parts = random(8, VOCAB_SIZE, 1);
    let sum = |column: usize| (0..8).map(|row| parts.row(row)[column]).sum::<f32>();
    (0..VOCAB_SIZE).map(|column| 1.5 * sum(column)).collect()
}
