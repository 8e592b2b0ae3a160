//! Rows whose attention is computed in parts, some for several rows: the same bits however the rows
//! are run, through chunks, graphs, preemption and the prefix cache.

use vllm_batch::engine::Engine;
use vllm_batch::engine::config::{
    CacheConfig, DType, DeviceKind, EngineConfig, KvCacheDType, ShimGpu,
};
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::request::{NumLogprobs, SamplingParams};

use crate::cuda_engine::invariance::bits;
use crate::cuda_engine::{config, golden_dir, run};
use crate::gpu;

const MAX_TOKENS: u32 = 24;
/// Positions that most rows begin with: a split, and some.
const SHARED: usize = 270;
/// One multiprocessor, where sharing pays among twelve rows; so many that long rows are cut.
const ONE_SM: u32 = 1;
const MANY_SMS: u32 = 64;
const NUM_BLOCKS: usize = 512;
/// Enough for the longest row alone, and for those behind one beginning until they have grown.
const FEW_BLOCKS: usize = 54;

/// A golden model with room for long rows.
fn long_model(family: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden_dir().join(family)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["max_position_embeddings"] = 1024.into();
    std::fs::write(path, config.to_string()).unwrap();
    folder
}

fn tokens(seed: usize, num_tokens: usize) -> impl Iterator<Item = u32> {
    (0..num_tokens).map(move |i| 5 + ((seed * 31 + i * i * 7 + i) % 80) as u32)
}

/// Rows behind one beginning, a long row, and short ones.
fn rows() -> Vec<(Prompt, SamplingParams)> {
    let behind = |seed| tokens(99, SHARED).chain(tokens(seed, 3 + seed * 2));
    let shared = (0..12).map(|seed| behind(seed).collect());
    let others = [tokens(50, 780).collect(), tokens(51, 9).collect(), tokens(52, 257).collect()];
    let prompts: Vec<Vec<u32>> = shared.chain(others).collect();
    let params = |seed| SamplingParams {
        max_tokens: Some(MAX_TOKENS),
        ignore_eos: true,
        temperature: 0.8,
        seed: Some(seed),
        logprobs: Some(NumLogprobs::Top(1)),
        ..SamplingParams::default()
    };
    prompts.into_iter().map(Prompt::TokenIds).zip((0..).map(params)).collect()
}

fn base(num_sms: u32, seed: u64, folder: &tempfile::TempDir) -> Option<EngineConfig> {
    let mut device = gpu::device(seed)?;
    if let DeviceKind::CudaShim { gpu, .. } = &mut device.kind {
        *gpu = ShimGpu { num_sms, ..ShimGpu::default() };
    }
    let mut base = config("qwen3", DType::BFloat16, &device);
    base.model.model_dir = folder.path().to_owned();
    base.scheduler.max_num_batched_tokens = 512;
    base.cache.num_blocks = Some(NUM_BLOCKS);
    Some(base)
}

type Change = (&'static str, u32, fn(&mut EngineConfig));

const CHANGES: &[Change] = &[
    ("shared", ONE_SM, |_| {}),
    ("cut", MANY_SMS, |_| {}),
    ("shared, chunks of 100", ONE_SM, |c| {
        c.scheduler.max_num_batched_tokens = 100;
    }),
    ("cut, no CUDA graphs", MANY_SMS, |c| c.device.enforce_eager = true),
    ("no prefix cache", ONE_SM, |c| c.cache.enable_prefix_caching = false),
    ("few blocks", ONE_SM, |c| c.cache.num_blocks = Some(FEW_BLOCKS)),
    ("blocks of 64", MANY_SMS, |c| c.cache.block_size = Some(64)),
];

fn check(seed: u64, change_base: fn(&mut CacheConfig), changes: &[Change]) {
    let folder = long_model("qwen3");
    let Some(mut alone) = base(ONE_SM, seed, &folder) else { return };
    // One row at a time on one multiprocessor is computed as a whole.
    alone.scheduler.max_num_seqs = 1;
    change_base(&mut alone.cache);
    let outcome = |config: &EngineConfig| {
        let mut engine = Engine::load(config).expect("a model");
        let outputs = run(&mut engine, rows());
        (outputs.iter().map(bits).collect::<Vec<_>>(), engine.stats())
    };
    let (expected, _) = outcome(&alone);
    for (index, (what, num_sms, change)) in changes.iter().enumerate() {
        let mut config = base(*num_sms, seed + 1 + index as u64, &folder).expect("as before");
        change_base(&mut config.cache);
        change(&mut config);
        let (got, stats) = outcome(&config);
        for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{what}: row {row}");
        }
        let is_short = config.cache.num_blocks == Some(FEW_BLOCKS);
        assert_eq!(stats.num_preemptions > 0, is_short, "{what}: {stats:?}");
    }
}

#[test]
fn rows_in_parts_have_the_same_bits_however_they_are_run() {
    check(2000, |_| {}, CHANGES);
}

#[test]
fn rows_in_parts_have_the_same_bits_with_a_cache_in_fp8() {
    check(2100, |cache| cache.kv_cache_dtype = KvCacheDType::Fp8, &CHANGES[..2]);
}
