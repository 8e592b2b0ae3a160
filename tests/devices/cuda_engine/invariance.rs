//! The same tokens and the same bits of logprobs however the rows are run.

use vllm_batch::engine::api::request::{PositionLogprobs, RequestOutput};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, KvCacheDType, Quantization, SpeculationConfig,
    SpeculationMethod,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::stats::{EngineStats, GivenLimits};

use crate::cuda_engine::rows::rows;
use crate::cuda_engine::{config, run};
use crate::gpu;

/// Enough for the longest row alone, too few for all.
const FEW_BLOCKS: usize = 8;

/// What must not change of a row: ids, and the bits of every logprob.
pub fn bits(output: &RequestOutput) -> Vec<Vec<u32>> {
    let position = |logprobs: &PositionLogprobs| {
        let all = std::iter::once(&logprobs.token).chain(&logprobs.top);
        all.flat_map(|t| [t.token_id, t.logprob.to_bits(), t.rank]).collect::<Vec<_>>()
    };
    let prompt = output.prompt_logprobs.iter().flatten().flatten().flat_map(position).collect();
    let mut bits = vec![prompt];
    for completion in &output.outputs {
        bits.push(completion.token_ids.clone());
        bits.push(completion.logprobs.iter().flatten().flat_map(position).collect());
    }
    bits
}

/// Bits by row, and counters.
fn outcome(config: &EngineConfig) -> (Vec<Vec<Vec<u32>>>, EngineStats) {
    let mut engine = Engine::load(config).expect("a model");
    let outputs = run(&mut engine, rows());
    (outputs.iter().map(bits).collect(), engine.stats())
}

type Change = (&'static str, fn(&mut EngineConfig));

const SEQS: &[Change] = &[
    ("one sequence", |c| c.scheduler.max_num_seqs = Some(1)),
    ("three sequences", |c| c.scheduler.max_num_seqs = Some(3)),
    ("64 sequences", |c| c.scheduler.max_num_seqs = Some(64)),
    ("8 tokens a step", |c| c.scheduler.max_num_batched_tokens = Some(8)),
];

const STEPS: &[Change] = &[
    ("4096 tokens a step", |c| c.scheduler.max_num_batched_tokens = Some(4096)),
    ("no CUDA graphs", |c| c.device.enforce_eager = true),
    ("one prompt logit a step", |c| c.scheduler.max_num_prompt_logits = 1),
];

const BLOCKS: &[Change] = &[
    ("blocks of 32", |c| c.cache.block_size = Some(32)),
    ("blocks of 64", |c| c.cache.block_size = Some(64)),
    ("no prefix cache", |c| c.cache.enable_prefix_caching = false),
    ("few blocks", |c| c.cache = few_blocks(true)),
    ("few blocks, no prefix cache", |c| c.cache = few_blocks(false)),
];

const GUESSES: &[Change] = &[
    ("guessed tokens", |c| c.speculation = Some(ngrams())),
    ("guessed tokens, three sequences", |c| {
        c.scheduler.max_num_seqs = Some(3);
        c.speculation = Some(ngrams());
    }),
];

pub fn ngrams() -> SpeculationConfig {
    SpeculationConfig {
        method: SpeculationMethod::Ngram { min: 1, max: 2 },
        num_speculative_tokens: 3,
        max_step_tokens: None,
        paced: true,
    }
}

pub fn few_blocks(enable_prefix_caching: bool) -> CacheConfig {
    let num_blocks = Some(FEW_BLOCKS);
    CacheConfig {
        block_size: Some(16),
        num_blocks,
        enable_prefix_caching,
        ..CacheConfig::default()
    }
}

fn check(family: &str, dtype: DType, seed: u64, changes: &[Change]) {
    let Some(device) = gpu::device(seed) else { return };
    let mut base = config(family, dtype, &device);
    base.scheduler.max_num_batched_tokens = Some(40);
    check_against(&base, (family, dtype), seed, changes);
}

fn check_against(
    base: &EngineConfig,
    (family, dtype): (&str, DType),
    seed: u64,
    changes: &[Change],
) {
    let (expected, _) = outcome(base);
    for (index, (what, change)) in changes.iter().enumerate() {
        // Another order of threads as well.
        let device = gpu::device(seed + 1 + index as u64).expect("there was one before");
        let mut changed = EngineConfig { device, ..base.clone() };
        change(&mut changed);
        let (got, stats) = outcome(&changed);
        for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{family}, {}, {what}: row {row}", dtype.name());
        }
        assert_eq!(got.len(), expected.len());
        let is_short = changed.cache.num_blocks == Some(FEW_BLOCKS);
        assert_eq!(stats.num_preemptions > 0, is_short, "{what}: {stats:?}");
        assert_eq!(stats.num_draft_tokens > 0, changed.speculation.is_some(), "{what}: {stats:?}");
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_number_of_sequences() {
    check("qwen3", DType::BFloat16, 20, SEQS);
}

#[test]
fn a_row_has_the_same_bits_in_every_size_of_step() {
    check("gemma2", DType::BFloat16, 30, STEPS);
}

#[test]
fn a_row_has_the_same_bits_with_guessed_tokens() {
    check("qwen3", DType::BFloat16, 80, GUESSES);
}

#[test]
fn a_row_has_the_same_bits_in_every_cache() {
    check("mistral", DType::BFloat16, 40, BLOCKS);
}

/// So few blocks on the device that beginnings go to the host's memory, which holds all of them, or
/// a few; the same rows come again.
#[test]
fn a_row_has_the_same_bits_when_its_beginning_was_on_the_host() {
    for (index, (family, num_host_bytes)) in
        [("mistral", 4 << 20), ("mistral", 64 << 10), ("lfm2", 4 << 20), ("deepseek_v2", 4 << 20)]
            .into_iter()
            .enumerate()
    {
        let Some(device) = gpu::device(140 + index as u64) else { return };
        let base = config(family, DType::BFloat16, &device);
        let (expected, _) = outcome(&base);
        let cache = CacheConfig { kv_offloading_bytes: Some(num_host_bytes), ..few_blocks(true) };
        let mut engine = Engine::load(&EngineConfig { cache, ..base }).expect("a model");
        for round in 0..3 {
            let outputs = run(&mut engine, rows());
            let got: Vec<_> = outputs.iter().map(bits).collect();
            assert!(got == expected, "{family}, round {round}");
        }
        let stats = engine.stats();
        assert!(stats.num_offloaded_blocks > 0 && stats.num_returned_blocks > 0, "{stats:?}");
    }
}

#[test]
fn a_row_has_the_same_bits_among_rows_of_other_experts() {
    check("qwen3_moe", DType::BFloat16, 60, &[SEQS[1], STEPS[0], BLOCKS[0]]);
}

#[test]
fn a_row_has_the_same_bits_over_latents() {
    check("deepseek_v2", DType::BFloat16, 90, &[SEQS[1], STEPS[0], BLOCKS[0], BLOCKS[3]]);
}

#[test]
fn a_row_has_the_same_bits_with_kv_of_another_layer() {
    check("gemma4", DType::Float32, 95, &[SEQS[1], STEPS[0], BLOCKS[0], BLOCKS[3]]);
}

#[test]
fn a_row_has_the_same_bits_with_convolutions() {
    check("lfm2", DType::BFloat16, 130, &[SEQS[1], SEQS[3], STEPS[1], BLOCKS[1], BLOCKS[3]]);
}

#[test]
fn a_row_has_the_same_bits_with_scans_beside_attention() {
    check("falcon_h1", DType::BFloat16, 100, &[SEQS[0], STEPS[0], BLOCKS[2], BLOCKS[3]]);
}

#[test]
fn a_row_has_the_same_bits_with_delta_rules() {
    check("qwen3_5", DType::BFloat16, 110, &[SEQS[3], STEPS[1], BLOCKS[0], BLOCKS[4]]);
}

#[test]
fn a_row_has_the_same_bits_without_attention() {
    check("mamba2", DType::Float32, 120, &[SEQS[1], BLOCKS[3]]);
}

/// Steps of few rows go through the kernels over codes, and those of many are of widened weights.
#[test]
fn a_row_has_the_same_bits_over_codes() {
    let (family, dtype) = ("gptq_v2", DType::BFloat16);
    check(family, dtype, 150, &[SEQS[1], SEQS[3], STEPS[0], BLOCKS[3]]);
    let Some(device) = gpu::device(155) else { return };
    let mut config = config(family, dtype, &device);
    config.scheduler.max_num_batched_tokens = Some(4096);
    let mut engine = Engine::load(&config).expect("a model");
    engine.start_op_times(GivenLimits::default());
    run(&mut engine, rows());
    let times = engine.finish_op_times(GivenLimits::default()).expect("no failure");
    let ops = times.expect("it was on").ops;
    let has = |name| ops.iter().any(|op| op.op.name == name);
    // A real GPU's library may sum layers so small in another order, which the trial finds.
    assert!(gpu::is_real() || has("widen_codes"), "{ops:?}");
    assert!(ops.iter().any(|op| op.op.name.starts_with("linear_codes")), "{ops:?}");
}

/// MXFP4 as gpt-oss has it, and experts that are narrowed at load.
#[test]
fn a_row_has_the_same_bits_among_rows_of_other_experts_over_codes() {
    let models = [("gpt_oss_mxfp4", None, 160), ("qwen3_moe", Some(Quantization::Fp8), 180)];
    for (model, quantization, seed) in models {
        let Some(device) = gpu::device(seed) else { return };
        let device = DeviceConfig { quantization, ..device };
        let base = config(model, DType::BFloat16, &device);
        let mut engine = Engine::load(&base).expect("a model");
        engine.start_op_times(GivenLimits::default());
        run(&mut engine, rows());
        let times = engine.finish_op_times(GivenLimits::default()).expect("no failure");
        let ops = times.expect("it was on").ops;
        let is_of_codes = |name: &str| name.starts_with("linear_expert_codes");
        assert!(ops.iter().any(|op| is_of_codes(op.op.name)), "{model}: {ops:?}");
        assert!(!ops.iter().any(|op| op.op.name.starts_with("linear_experts")), "{model}: {ops:?}");
        let changes = &[SEQS[1], SEQS[3], STEPS[0], BLOCKS[3]];
        check_against(&base, (model, DType::BFloat16), seed, changes);
    }
}

#[test]
fn a_row_has_the_same_bits_in_float32() {
    check("llama3", DType::Float32, 50, &[SEQS[1], BLOCKS[3]]);
}

#[test]
fn a_row_has_the_same_bits_with_a_cache_in_fp8() {
    let Some(device) = gpu::device(70) else { return };
    let (family, dtype) = ("llama3", DType::BFloat16);
    let mut base = config(family, dtype, &device);
    base.scheduler.max_num_batched_tokens = Some(40);
    base.cache.kv_cache_dtype = KvCacheDType::Fp8;
    check_against(&base, (family, dtype), 70, &[SEQS[0], SEQS[3], BLOCKS[0], BLOCKS[2]]);
}
