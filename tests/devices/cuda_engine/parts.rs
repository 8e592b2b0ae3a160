//! Rows whose attention is computed in parts, some for several rows: the same bits however the rows
//! are run, through chunks, graphs, preemption and the prefix cache.

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{NumLogprobs, SamplingParams};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceKind, EngineConfig, KvCacheDType, ShimGpu,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::stats::{EngineStats, GivenLimits};

use crate::cuda_engine::invariance::{bits, ngrams};
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
    config["max_position_embeddings"] = 1280.into();
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
    drawn(shared.chain(others).collect())
}

fn drawn(prompts: Vec<Vec<u32>>) -> Vec<(Prompt, SamplingParams)> {
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
    base.scheduler.max_num_batched_tokens = Some(512);
    base.cache.num_blocks = Some(NUM_BLOCKS);
    Some(base)
}

type Change = (&'static str, u32, fn(&mut EngineConfig));

const CHANGES: &[Change] = &[
    ("shared", ONE_SM, |_| {}),
    ("cut", MANY_SMS, |_| {}),
    ("shared, chunks of 100", ONE_SM, |c| {
        c.scheduler.max_num_batched_tokens = Some(100);
    }),
    ("cut, no CUDA graphs", MANY_SMS, |c| c.device.enforce_eager = true),
    ("cut, no prefix cache", MANY_SMS, |c| c.cache.enable_prefix_caching = false),
    ("few blocks", ONE_SM, |c| c.cache.num_blocks = Some(FEW_BLOCKS)),
    ("blocks of 64", MANY_SMS, |c| c.cache.block_size = Some(64)),
];

/// Each row with each change as alone. Gives what the engines of the shim counted.
fn check(
    rows: fn() -> Vec<(Prompt, SamplingParams)>,
    (seed, change_base): (u64, fn(&mut CacheConfig)),
    changes: &[Change],
) -> Vec<EngineStats> {
    let folder = long_model("qwen3");
    let Some(mut alone) = base(ONE_SM, seed, &folder) else { return Vec::new() };
    // One row at a time on one multiprocessor is computed as a whole.
    alone.scheduler.max_num_seqs = Some(1);
    change_base(&mut alone.cache);
    let outcome = |config: &EngineConfig| {
        let mut engine = Engine::load(config).expect("a model");
        let outputs = run(&mut engine, rows());
        (outputs.iter().map(bits).collect::<Vec<_>>(), engine.stats())
    };
    let is_shim = is_shim(&alone);
    let (expected, stats) = outcome(&alone);
    // A GPU has as many multiprocessors as it has.
    assert!(!is_shim || stats.num_steps_in_parts == 0, "alone: {stats:?}");
    let mut counted = Vec::new();
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
        if is_shim {
            assert!(stats.num_steps_in_parts > 0, "{what}: {stats:?}");
            let shares = stats.num_steps_with_shared_parts > 0;
            assert!(shares || *num_sms != ONE_SM, "{what}: {stats:?}");
            counted.push(stats);
        }
    }
    counted
}

fn is_shim(config: &EngineConfig) -> bool {
    matches!(config.device.kind, DeviceKind::CudaShim { .. })
}

/// Steps in parts and with shared ones of rows that come after the beginning of the others was
/// cached, by the counts and by the kernels that ran.
fn counts(num_sms: u32, prompts: &[Vec<u32>]) -> Option<[u64; 2]> {
    let folder = long_model("qwen3");
    let config = base(num_sms, 2200, &folder).filter(is_shim)?;
    let mut engine = Engine::load(&config).expect("a model");
    let greedy = |prompt: &Vec<u32>| {
        let max_tokens = Some(MAX_TOKENS);
        let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
        (Prompt::TokenIds(prompt.clone()), params)
    };
    run(&mut engine, vec![greedy(&tokens(99, SHARED).collect())]);
    let before = engine.stats();
    assert_eq!((before.num_steps_in_parts, before.num_steps_with_shared_parts), (0, 0));
    run(&mut engine, prompts.iter().map(greedy).collect());
    let stats = engine.stats();
    let counts = [stats.num_steps_in_parts, stats.num_steps_with_shared_parts];

    // The same once more, with times of kernels. What was cached is computed in fewer steps.
    let given = GivenLimits { flops: Some(1e12), bandwidth: Some(1e12) };
    engine.start_op_times(given);
    run(&mut engine, prompts.iter().map(greedy).collect());
    let again = engine.stats();
    let times = engine.finish_op_times(given).expect("no failure").expect("it was on");
    let calls = |name: &str| -> u64 {
        let ops = times.ops.iter().filter(|op| op.op.name == name);
        ops.map(|op| op.num_calls).sum()
    };
    let num_layers = calls("norm_rotary_and_cache") / (again.num_steps - stats.num_steps);
    for (name, after, before) in [
        ("paged_attention_merge", again.num_steps_in_parts, counts[0]),
        ("paged_attention_shared", again.num_steps_with_shared_parts, counts[1]),
    ] {
        assert_eq!(calls(name), num_layers * (after - before), "{name}");
    }
    assert_eq!(again.num_steps_in_parts - counts[0], counts[0], "{again:?}");
    Some(counts)
}

#[test]
fn steps_in_parts_are_counted_as_the_rule_has_them() {
    // The prompt gives the first token, and each step after it one more.
    let num_steps = u64::from(MAX_TOKENS) - 1;
    let behind = |seed| tokens(99, SHARED).chain(tokens(seed, 3 + seed * 2)).collect();
    let of_long = |num_tokens| vec![tokens(50, num_tokens).collect::<Vec<u32>>()];
    let shared: Vec<Vec<u32>> = (0..12).map(behind).collect();
    for (what, num_sms, prompts, expected) in [
        ("four splits on many blocks", MANY_SMS, of_long(780), [num_steps, 0]),
        ("three are not worth a merge", MANY_SMS, of_long(700), [0, 0]),
        ("one multiprocessor computes whole rows", ONE_SM, of_long(780), [0, 0]),
        ("twelve rows share a split", ONE_SM, shared.clone(), [num_steps; 2]),
        ("two save nothing", ONE_SM, shared[..2].to_vec(), [0, 0]),
    ] {
        let Some(got) = counts(num_sms, &prompts) else { return };
        assert_eq!(got, expected, "{what}");
    }
}

#[test]
fn rows_in_parts_have_the_same_bits_however_they_are_run() {
    check(rows, (2000, |_| {}), CHANGES);
}

#[test]
fn rows_in_parts_have_the_same_bits_with_a_cache_in_fp8() {
    check(rows, (2100, |cache| cache.kv_cache_dtype = KvCacheDType::Fp8), &CHANGES[..2]);
}

/// A prompt whose last chunks are few tokens behind four splits, and a short one.
fn long_and_short() -> Vec<(Prompt, SamplingParams)> {
    drawn(vec![tokens(60, 1100).collect(), tokens(61, 9).collect()])
}

/// A single long row shares with nobody, so that what is computed together are chunks.
#[test]
fn chunks_in_parts_have_the_same_bits_however_they_are_run() {
    let changes: &[Change] = &[
        ("chunks of 24", MANY_SMS, |c| c.scheduler.max_num_batched_tokens = Some(24)),
        ("guessed tokens", MANY_SMS, |c| c.speculation = Some(ngrams())),
    ];
    for stats in check(long_and_short, (2300, |_| {}), changes) {
        assert!(stats.num_steps_with_shared_parts > 0, "{stats:?}");
    }
}
