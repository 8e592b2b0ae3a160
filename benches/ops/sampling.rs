//! Sampling: one row of logits on one thread. A step has as many rows as sequences, shared by the
//! threads. And what the host does for a step of rows with penalties that a GPU samples.

use divan::Bencher;
use divan::counter::BytesCount;
use vllm_batch::engine::api::request::{NumLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::core::execute::step_sampler::DeviceVectors;
use vllm_batch::engine::core::execute::step_sampler::gpu_rows::{GpuRows, Limits};
use vllm_batch::engine::core::request::StopIds;
use vllm_batch::engine::core::sampler::{RowTask, SampleTask, SamplerScratch, run_row_with};

use super::{DEVICE, VOCAB_SIZE, random};

/// Rows with penalties, and tokens of each.
const NUM_PENALIZED: usize = 256;
const PROMPT_LEN: usize = 2048;
const OUTPUT_LEN: usize = 128;
const LARGE_VOCAB_SIZE: usize = 128_256;

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

/// A step in which the GPU counts one more token of each row.
#[divan::bench]
fn gpu_penalties_of_one_more_token(bencher: Bencher) {
    let rows = Penalized::new();
    let (mut num_steps, mut gpu_rows) = (0, gpu_rows());
    gpu_rows.refill(&rows.tasks(OUTPUT_LEN));
    bencher
        .with_inputs(|| {
            num_steps = num_steps % OUTPUT_LEN + 1;
            rows.tasks(OUTPUT_LEN + num_steps)
        })
        .bench_local_refs(|tasks| gpu_rows.refill(tasks));
}

/// A step that names all tokens of every row, as the first one does.
#[divan::bench]
fn gpu_penalties_of_all_tokens(bencher: Bencher) {
    let rows = Penalized::new();
    let tasks = rows.tasks(OUTPUT_LEN);
    bencher.with_inputs(gpu_rows).bench_local_refs(|gpu_rows| gpu_rows.refill(&tasks));
}

fn gpu_rows() -> GpuRows {
    GpuRows::new(Limits { vocab_size: LARGE_VOCAB_SIZE, max_kept: 128 })
}

/// Rows of tokens that seldom repeat, with penalties.
struct Penalized {
    params: SamplingParams,
    stop_ids: StopIds,
    /// (NUM_PENALIZED, PROMPT_LEN + 2 OUTPUT_LEN)
    tokens: Vec<Vec<u32>>,
}

impl Penalized {
    fn new() -> Self {
        let values = random(NUM_PENALIZED, PROMPT_LEN + 2 * OUTPUT_LEN, 3);
        let token = |value: &f32| (value.abs() * 1e6) as u32 % LARGE_VOCAB_SIZE as u32;
        let tokens = |row| values.row(row).iter().map(token).collect();
        // By default so few tokens may come that a list has room for one.
        let max_tokens = Some(2 * OUTPUT_LEN as u32);
        let params =
            SamplingParams { repetition_penalty: 1.1, max_tokens, ..SamplingParams::default() };
        let tokens = (0..NUM_PENALIZED).map(tokens).collect();
        Self { params, stop_ids: StopIds::default(), tokens }
    }

    /// A step of outputs of this length.
    fn tasks(&self, output_len: usize) -> Vec<RowTask<'_>> {
        let rows = self.tokens.iter().enumerate().map(|(row, tokens)| {
            let (prompt, output) = tokens.split_at(PROMPT_LEN);
            let tokens = (prompt, &output[..output_len]);
            RowTask::Sample(task(&self.params, tokens, &self.stop_ids, row as u64))
        });
        rows.collect()
    }
}

fn task<'a>(
    params: &'a SamplingParams,
    (prompt_token_ids, output_token_ids): (&'a [u32], &'a [u32]),
    stop_ids: &'a StopIds,
    request_id: u64,
) -> SampleTask<'a> {
    SampleTask {
        params,
        prompt_token_ids,
        output_token_ids,
        num_drafts: 0,
        sampled_row: None,
        stop_ids,
        bad_words_token_ids: &[],
        row_key: RowKey(request_id),
        engine_seed: 0,
        request_id,
        sample_index: 0,
        token_mask: None,
    }
}

fn run(bencher: Bencher, params: &SamplingParams) {
    let stop_ids = StopIds::default();
    let task = RowTask::Sample(task(params, (&[1, 2, 3], &[4]), &stop_ids, 0));
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
