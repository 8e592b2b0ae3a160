//! Sampling and logprobs of whole steps through the kernels of the GPU, against the sampler of the
//! host; and the steps that are queued before the tokens of the one before are read.

use std::path::Path;
use std::sync::Arc;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    NumLogprobs, PositionLogprobs, RequestOutput, RowKey, SamplingParams, TokenLogprob,
};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::execute::executor::Logits;
use vllm_batch::engine::core::execute::step_sampler::StepSampler;
use vllm_batch::engine::core::request::StopIds;
use vllm_batch::engine::core::sampler::{
    RowResult, RowTask, SampleTask, SamplerScratch, TokenMask, run_row,
};
use vllm_batch::engine::device::{Device, open};

use crate::gpu;

const TOLERANCE: f32 = 1e-5;
const MAX_ROWS: usize = 400;

/// Seeded numbers (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 32) as usize) % bound
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }
}

/// Rows of logits with tasks.
#[derive(Default)]
struct Step {
    vocab_size: usize,
    logits: Vec<Vec<f32>>,
    wanted: Vec<Wanted>,
    /// Tokens that may come; empty: any.
    masks: Vec<Vec<u32>>,
}

enum Wanted {
    Prompt { target: u32, num_logprobs: NumLogprobs },
    Sample(Box<SamplingParams>),
}

impl Step {
    fn push(&mut self, row: Vec<f32>, wanted: Wanted) {
        self.logits.push(row);
        self.wanted.push(wanted);
        self.masks.push(Vec::new());
    }

    fn task(&self, row: usize) -> RowTask<'_> {
        match &self.wanted[row] {
            &Wanted::Prompt { target, num_logprobs } => {
                RowTask::PromptLogprobs { target, num_logprobs }
            }
            Wanted::Sample(params) => RowTask::Sample(SampleTask {
                params,
                prompt_token_ids: &[1, 2, 3],
                output_token_ids: &[4, 4, 5],
                stop_ids: const { &StopIds { eos_token_id: None, stop_token_ids: Vec::new() } },
                bad_words_token_ids: &[],
                row_key: RowKey(row as u64 * 31),
                num_drafts: 0,
                sampled_row: None,
                request_id: row as u64,
                engine_seed: 5,
                sample_index: 0,
                token_mask: self.token_mask(row),
            }),
        }
    }

    fn token_mask(&self, row: usize) -> Option<TokenMask<'_>> {
        let words = self.masks[row].as_slice();
        let num_allowed: u32 = words.iter().map(|word| word.count_ones()).sum();
        let first = || (0..).find(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1);
        let only = if num_allowed == 1 { first() } else { None };
        (!words.is_empty()).then_some(TokenMask { words, only, weighed: None })
    }

    /// Logits as the mask leaves them.
    fn masked_logits(&self, row: usize) -> Vec<f32> {
        let mut logits = self.logits[row].clone();
        if let Some(TokenMask { words, .. }) = self.token_mask(row) {
            for (id, logit) in logits.iter_mut().enumerate() {
                if words.get(id / 32).is_none_or(|word| word >> (id % 32) & 1 == 0) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        logits
    }

    /// Results of these rows, in one step.
    fn run(
        &self,
        device: &Arc<Device>,
        sampler: &mut StepSampler,
        rows: &[usize],
    ) -> Vec<RowResult> {
        let values = rows.iter().flat_map(|row| self.logits[*row].clone()).collect();
        let mut tensor = device.upload(values, self.vocab_size).expect("memory");
        device.finish_loading().expect("the copies arrive");
        let tasks: Vec<_> = rows.iter().map(|row| self.task(*row)).collect();
        let logits = Logits { tensor: &mut tensor, likeliest: &[] };
        let pending = sampler.sample(logits, &tasks).expect("the device works");
        sampler.results(pending).expect("the device works")
    }

    fn on_host(&self, row: usize, task: &RowTask<'_>) -> RowResult {
        let mut logits = match task {
            RowTask::PromptLogprobs { .. } => self.masked_logits(row),
            RowTask::Sample(_) | RowTask::Later => self.logits[row].clone(),
        };
        run_row(&mut logits, task, &mut SamplerScratch::default())
    }

    /// What the host says of the token at a row.
    fn logprobs(&self, row: usize, target: u32, num_logprobs: NumLogprobs) -> PositionLogprobs {
        match self.on_host(row, &RowTask::PromptLogprobs { target, num_logprobs }) {
            RowResult::PromptLogprobs(logprobs) => logprobs,
            other => panic!("row {row}: {other:?}"),
        }
    }

    fn num_logprobs(&self, row: usize) -> Option<NumLogprobs> {
        match &self.wanted[row] {
            Wanted::Prompt { num_logprobs, .. } => Some(*num_logprobs),
            Wanted::Sample(params) => params.logprobs,
        }
    }
}

/// Rows as models give them, flat ones, with many ties, with masked tokens, and broken ones.
fn row_of_logits(rng: &mut Rng, vocab_size: usize, kind: usize) -> Vec<f32> {
    let mut row: Vec<f32> = (0..vocab_size).map(|_| 20.0 * rng.unit() - 10.0).collect();
    match kind % 10 {
        0 | 1 => {}
        2 => row.iter_mut().for_each(|x| *x = 0.01 * *x + 3.0),
        3 | 4 => row.iter_mut().for_each(|x| *x = (*x / 2.0).round() * 2.0),
        5 => row.fill(-0.0),
        6 => row[..vocab_size - 9].fill(f32::NEG_INFINITY),
        7 => row[rng.below(vocab_size)] = f32::NAN,
        8 => row[rng.below(vocab_size)] = f32::INFINITY,
        _ => row.fill(f32::NEG_INFINITY),
    }
    row
}

fn params_of(rng: &mut Rng, vocab_size: usize, kind: usize) -> SamplingParams {
    let base = SamplingParams { temperature: 0.9, ..SamplingParams::default() };
    match kind % 7 {
        0 => SamplingParams { temperature: 0.0, ..base },
        1 => base,
        2 => SamplingParams { top_p: 0.9, top_k: 30, ..base },
        3 => SamplingParams { temperature: 0.0, logit_bias: vec![(4, -3.0), (7, 25.0)], ..base },
        4 => SamplingParams { repetition_penalty: 1.7, frequency_penalty: 0.5, ..base },
        5 => {
            let allowed = (0..5).map(|_| rng.below(vocab_size) as u32).collect();
            SamplingParams { allowed_token_ids: Some(allowed), ..base }
        }
        _ => SamplingParams { logit_bias: vec![(0, f32::NEG_INFINITY)], min_p: 0.1, ..base },
    }
}

/// Few tokens, many, one, or none of the last ones.
fn mask_of(rng: &mut Rng, vocab_size: usize) -> Vec<u32> {
    let num_words = vocab_size.div_ceil(32);
    let mut words = vec![0; num_words];
    match rng.below(4) {
        0 => words[rng.below(vocab_size / 32)] = 1 << rng.below(32),
        1 => words.iter_mut().for_each(|word| *word = rng.next() as u32 & rng.next() as u32),
        2 => words.iter_mut().for_each(|word| *word = !(1 << rng.below(32))),
        _ => words = vec![u32::MAX; 1 + rng.below(num_words / 2)],
    }
    words
}

/// Every kind of row with every kind of parameters, prompt rows between them.
fn step(vocab_size: usize, num_rows: usize) -> Step {
    let rng = &mut Rng(99 + vocab_size as u64);
    let top = |count| Some(NumLogprobs::Top(count));
    let counts = [None, top(0), top(1), top(20), top(64), top(65), Some(NumLogprobs::All)];
    let mut step = Step { vocab_size, ..Step::default() };
    for _ in 0..num_rows {
        let kind = rng.below(10);
        let row = row_of_logits(rng, vocab_size, kind);
        let num_logprobs = counts[rng.below(counts.len())];
        let wanted = match num_logprobs {
            Some(num_logprobs) if rng.below(3) == 0 => {
                Wanted::Prompt { target: rng.below(vocab_size) as u32, num_logprobs }
            }
            logprobs => {
                let kind = rng.below(7);
                let params = params_of(rng, vocab_size, kind);
                Wanted::Sample(Box::new(SamplingParams { logprobs, ..params }))
            }
        };
        let is_sampled = matches!(wanted, Wanted::Sample(_));
        step.push(row, wanted);
        if is_sampled && rng.below(3) == 0 {
            *step.masks.last_mut().expect("it was pushed") = mask_of(rng, vocab_size);
        }
    }
    step
}

fn assert_close(got: &PositionLogprobs, expected: &PositionLogprobs, what: &str) {
    let all = |position: &PositionLogprobs| -> Vec<TokenLogprob> {
        std::iter::once(&position.token).chain(&position.top).cloned().collect()
    };
    let (got, expected) = (all(got), all(expected));
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!((got.token_id, got.rank), (expected.token_id, expected.rank), "{what}");
        let is_close =
            got.logprob == expected.logprob || (got.logprob - expected.logprob).abs() < TOLERANCE;
        assert!(is_close, "{what}: {got:?}, the host has {expected:?}");
    }
}

/// A GPU that samples rows of this width.
pub fn gpu_sampler(seed: u64, vocab_size: usize) -> Option<(Arc<Device>, StepSampler)> {
    let config = EngineConfig { device: gpu::device(seed)?, ..EngineConfig::default() };
    let (device, _) = open(&config, DType::Float32, None).expect("a device for tests");
    let device = Arc::new(device);
    let sampler = StepSampler::new(Arc::clone(&device), MAX_ROWS, vocab_size).expect("memory");
    Some((device, sampler))
}

#[test]
fn logprobs_of_a_step_are_the_hosts() {
    let (mut num_equal, mut num_sampled) = (0, 0);
    for (seed, vocab_size, num_rows) in [(0, 50, MAX_ROWS), (3, 1500, 200), (11, 9000, 60)] {
        let Some((device, mut sampler)) = gpu_sampler(seed, vocab_size) else { return };
        let step = step(vocab_size, num_rows);
        let rows: Vec<usize> = (0..num_rows).collect();
        let results = step.run(&device, &mut sampler, &rows);
        for (row, got) in results.iter().enumerate() {
            let expected = step.on_host(row, &step.task(row));
            let what = format!("{vocab_size} tokens, row {row}");
            match (got, &expected) {
                (RowResult::PromptLogprobs(got), RowResult::PromptLogprobs(expected)) => {
                    assert_close(got, expected, &what);
                }
                (
                    RowResult::Sampled { token_id, logprobs },
                    RowResult::Sampled { token_id: expected, .. },
                ) => {
                    num_equal += usize::from(token_id == expected);
                    num_sampled += 1;
                    let of_host = step.num_logprobs(row).map(|n| step.logprobs(row, *token_id, n));
                    assert_eq!(logprobs.is_some(), of_host.is_some(), "{what}");
                    if let (Some(got), Some(expected)) = (logprobs, &of_host) {
                        assert_close(got, expected, &what);
                    }
                }
                (got, expected) => assert_eq!(got, expected, "{what}"),
            }
        }
    }
    // Random numbers within a rounding of a token's edge may take its neighbour.
    println!("{num_equal} of {num_sampled} tokens are the host's");
    assert!(num_sampled > 100 && num_equal * 100 >= num_sampled * 97);
}

#[test]
fn logprobs_of_a_row_do_not_depend_on_the_rest_of_the_step() {
    let (vocab_size, num_rows) = (1200, 40);
    let Some((device, mut sampler)) = gpu_sampler(21, vocab_size) else { return };
    let step = step(vocab_size, num_rows);
    let together = step.run(&device, &mut sampler, &(0..num_rows).collect::<Vec<_>>());
    let backward: Vec<usize> = (0..num_rows).rev().collect();
    let mut reversed = step.run(&device, &mut sampler, &backward);
    reversed.reverse();
    for (row, together) in together.iter().enumerate() {
        assert!(&reversed[row] == together, "row {row}, backward");
        let alone = step.run(&device, &mut sampler, &[row]);
        assert!(&alone[0] == together, "row {row}, alone");
    }
}

/// More rows that sampling overwrites than are kept at a time.
#[test]
fn logprobs_are_of_the_logits_before_any_edit_however_many_rows_are_kept() {
    let vocab_size = 40;
    let Some((device, mut sampler)) = gpu_sampler(4, vocab_size) else { return };
    let mut step = Step { vocab_size, ..Step::default() };
    let rng = &mut Rng(8);
    for _ in 0..MAX_ROWS {
        let params = SamplingParams {
            temperature: 0.0,
            logit_bias: vec![(rng.below(vocab_size) as u32, 100.0)],
            logprobs: Some(NumLogprobs::Top(3)),
            ..SamplingParams::default()
        };
        step.push(row_of_logits(rng, vocab_size, 0), Wanted::Sample(Box::new(params)));
    }
    let rows: Vec<usize> = (0..MAX_ROWS).collect();
    for (row, got) in step.run(&device, &mut sampler, &rows).iter().enumerate() {
        let Wanted::Sample(params) = &step.wanted[row] else { unreachable!("all are sampled") };
        let RowResult::Sampled { token_id, logprobs: Some(got) } = got else { panic!("{got:?}") };
        assert_eq!(*token_id, params.logit_bias[0].0, "row {row}: the bias decides");
        assert_close(got, &step.logprobs(row, *token_id, NumLogprobs::Top(3)), "raw logits");
    }
}

fn outputs(
    device: &DeviceConfig,
    max_num_seqs: usize,
    change: fn(&mut SamplingParams),
) -> Vec<RequestOutput> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = ModelConfig {
        model_dir: root.join("testdata/golden/llama3"),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    let scheduler =
        SchedulerConfig { max_num_seqs: Some(max_num_seqs), ..SchedulerConfig::default() };
    let cache =
        CacheConfig { block_size: Some(16), num_blocks: Some(128), ..CacheConfig::default() };
    let device = device.clone();
    let config = EngineConfig { model, scheduler, cache, device, ..EngineConfig::default() };
    let mut engine = Engine::load(&config).expect("a model");
    let processor = engine.input_processor();
    for index in 0..6u32 {
        let mut params = SamplingParams {
            temperature: if index % 2 == 0 { 0.0 } else { 0.8 },
            max_tokens: Some(6 + 3 * index),
            ignore_eos: true,
            logprobs: [None, Some(NumLogprobs::Top(12 * index))][usize::from(index != 3)],
            prompt_logprobs: (index == 4).then_some(NumLogprobs::Top(2)),
            ..SamplingParams::default()
        };
        change(&mut params);
        let prompt = Prompt::Text(format!("the sum of {index} and seven"));
        let request = processor.process(u64::from(index), prompt, params, RowKey(index.into()));
        engine.add_request(request.expect("a row that can be answered"));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().expect("the device works"));
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

/// An edit that changes nothing keeps a step from being queued ahead. Where rows wait, steps ahead
/// admit them and begin their prompts.
#[test]
fn logprobs_of_steps_that_run_ahead_are_those_of_steps_that_do_not() {
    let Some(device) = gpu::device(13) else { return };
    let ahead = outputs(&device, 8, |_| {});
    let not_ahead: fn(&mut SamplingParams) = |params| params.logit_bias = vec![(0, 0.0)];
    for (max_num_seqs, change) in [(8, not_ahead), (1, not_ahead), (1, |_| {}), (3, |_| {})] {
        assert_same(&outputs(&device, max_num_seqs, change), &ahead, max_num_seqs);
    }
}

fn assert_same(others: &[RequestOutput], ahead: &[RequestOutput], max_num_seqs: usize) {
    assert_eq!(others.len(), ahead.len());
    for (got, expected) in others.iter().zip(ahead) {
        assert_eq!(got.prompt_logprobs, expected.prompt_logprobs);
        let (got, expected) = (&got.outputs[0], &expected.outputs[0]);
        assert_eq!(got.token_ids, expected.token_ids, "{max_num_seqs} sequences");
        assert_eq!(got.logprobs, expected.logprobs, "{max_num_seqs} sequences");
    }
}

/// The device counts the tokens that it samples.
#[test]
fn rows_with_penalties_that_run_ahead_have_the_tokens_of_those_that_do_not() {
    let Some(device) = gpu::device(14) else { return };
    let penalties: fn(&mut SamplingParams) = |params| {
        params.repetition_penalty = 1.3;
        params.frequency_penalty = 0.6;
    };
    let not_ahead: fn(&mut SamplingParams) = |params| {
        params.repetition_penalty = 1.3;
        params.frequency_penalty = 0.6;
        params.logit_bias = vec![(0, 0.0)];
    };
    let ahead = outputs(&device, 8, penalties);
    for (max_num_seqs, change) in [(8, not_ahead), (2, penalties)] {
        assert_same(&outputs(&device, max_num_seqs, change), &ahead, max_num_seqs);
    }
    let tokens = |outputs: &[RequestOutput]| -> Vec<Vec<u32>> {
        outputs.iter().map(|output| output.outputs[0].token_ids.clone()).collect()
    };
    assert_ne!(tokens(&ahead), tokens(&outputs(&device, 8, |_| {})), "penalties change tokens");
}
