//! The same tokens and the same bits of logprobs however the rows are run.

use serde_json::json;
use vllm_batch::engine::api::request::{PositionLogprobs, RequestOutput};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, KvCacheDType, LoadFormat, Quantization,
    SpeculationConfig, SpeculationMethod,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::stats::{EngineStats, GivenLimits};

use crate::cuda_engine::rows::rows;
use crate::cuda_engine::{config, golden_dir, run};
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
        let device = DeviceConfig { quantization: base.device.quantization, ..device };
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

/// Rows among others, all of whose experts are run by kernels over codes.
fn check_experts_over_codes(base: &EngineConfig, model: &str, seed: u64, changes: &[Change]) {
    let mut engine = Engine::load(base).expect("a model");
    engine.start_op_times(GivenLimits::default());
    run(&mut engine, rows());
    let times = engine.finish_op_times(GivenLimits::default()).expect("no failure");
    let ops = times.expect("it was on").ops;
    let is_of_codes = |name: &str| name.starts_with("linear_expert_codes");
    assert!(ops.iter().any(|op| is_of_codes(op.op.name)), "{model}: {ops:?}");
    assert!(!ops.iter().any(|op| op.op.name.starts_with("linear_experts")), "{model}: {ops:?}");
    check_against(base, (model, DType::BFloat16), seed, changes);
}

/// MXFP4 as gpt-oss has it, and experts that are narrowed at load.
#[test]
fn a_row_has_the_same_bits_among_rows_of_other_experts_over_codes() {
    let models = [("gpt_oss_mxfp4", None, 160), ("qwen3_moe", Some(Quantization::Fp8), 180)];
    for (model, quantization, seed) in models {
        let Some(device) = gpu::device(seed) else { return };
        let device = DeviceConfig { quantization, ..device };
        let changes = &[SEQS[1], SEQS[3], STEPS[0], BLOCKS[3]];
        check_experts_over_codes(&config(model, DType::BFloat16, &device), model, seed, changes);
    }
}

/// Qwen3-MoE of made-up weights, whose config has this format.
fn made_up(quantization: &serde_json::Value) -> tempfile::TempDir {
    let (folder, golden) = (tempfile::tempdir().expect("a folder"), golden_dir().join("qwen3_moe"));
    for name in ["generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden.join(name), folder.path().join(name)).expect("a file");
    }
    let text = std::fs::read_to_string(golden.join("config.json")).expect("a config");
    let mut text: serde_json::Value = serde_json::from_str(&text).expect("a config");
    let sizes = [
        ("hidden_size", 128),
        ("intermediate_size", 128),
        ("moe_intermediate_size", 64),
        ("num_local_experts", 8),
    ];
    for (key, size) in sizes {
        text[key] = size.into();
    }
    text["quantization_config"] = quantization.clone();
    std::fs::write(folder.path().join("config.json"), text.to_string()).expect("a file");
    folder
}

#[test]
fn made_up_experts_of_every_format_are_run_as_codes() {
    let group = |format: &str| {
        json!({"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
               "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                   "num_bits": 4, "type": "float", "symmetric": true, "strategy": "group",
                   "group_size": 32}}}})
    };
    let formats = [
        json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64],
               "modules_to_not_convert": ["lm_head"]}),
        json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true,
               "version": "gemm"}),
        json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false,
               "sym": false}),
        json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
               "config_groups": {"group_0": {"targets": ["Linear"]}}}),
        group("mxfp4-pack-quantized"),
    ];
    for (seed, format) in (190..).zip(&formats) {
        let Some(device) = gpu::device(seed) else { return };
        let folder = made_up(format);
        let path = folder.path().to_str().expect("a path");
        let mut base = config(path, DType::BFloat16, &device);
        base.model.load_format = LoadFormat::Dummy;
        let name = format["quant_method"].as_str().expect("a name");
        let notes = Engine::load(&base).expect("a model").info().notes.clone();
        assert!(notes.iter().any(|note| note.starts_with("dummy weights are random codes")));
        assert!(!notes.iter().any(|note| note.contains("widened")), "{name}: {notes:?}");
        check_experts_over_codes(&base, name, seed, &[SEQS[3]]);
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
