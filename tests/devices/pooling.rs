//! Models that make vectors and classes, on the GPU's kernels: against transformers and against the
//! CPU; and a text's bits however it is run.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use vllm_batch::engine::api::pooling::{Pooled, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::{
    DType, DeviceConfig, EngineConfig, ModelConfig, ParallelConfig, Quantization, SchedulerConfig,
};
use vllm_batch::engine::base::pooling::{PoolingTask, PoolingType, TokenClasses};
use vllm_batch::engine::core::serve::pooling::PoolingEngine;

use crate::gpu;

/// Of a value in float32, or of its part where it is above 1.
const TOLERANCE: f32 = 1e-5;

/// Of a value of a decoder's state, which no norm has scaled to a length: two devices that are each
/// as close to transformers.
const STATE_TOLERANCE: f32 = 3e-5;

/// On a GPU, whose library of matrix products sums in an order of its own.
const GPU_TOLERANCE: f32 = 1e-3;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<GoldenText>,
}

#[derive(Deserialize)]
struct GoldenText {
    token_ids: Vec<u32>,
    mean: Vec<f32>,
}

#[derive(Deserialize)]
struct GoldenIds {
    texts: Vec<Ids>,
}

#[derive(Deserialize)]
struct Ids {
    token_ids: Vec<u32>,
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

fn folders(name: &str) -> Vec<String> {
    let listing = std::fs::read_dir(testdata(name)).expect("testdata is committed");
    let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.map(|folder| format!("{name}/{folder}")).collect();
    names.sort();
    names
}

fn golden<T: for<'de> Deserialize<'de>>(folder: &str) -> T {
    let path = testdata(folder).join("golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Token ids of the texts of a folder.
fn ids(folder: &str) -> Vec<Vec<u32>> {
    let golden: GoldenIds = golden(folder);
    golden.texts.into_iter().map(|text| text.token_ids).collect()
}

/// A model in float32, its texts all in one step.
fn config(folder: &str, device: &DeviceConfig) -> EngineConfig {
    let model = ModelConfig {
        model_dir: testdata(folder),
        tokenizer_dir: Some(testdata("golden_embeddings/bert")),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    let scheduler = SchedulerConfig {
        max_num_seqs: Some(64),
        max_num_batched_tokens: Some(4096),
        ..SchedulerConfig::default()
    };
    let parallel = ParallelConfig { num_threads: Some(1), ..ParallelConfig::default() };
    let device = device.clone();
    EngineConfig { model, scheduler, parallel, device, ..EngineConfig::default() }
}

/// What texts become, one request for each, in the order of the texts.
fn pooled(config: &EngineConfig, texts: &[Vec<u32>]) -> Vec<Pooled> {
    let name = config.model.model_dir.display();
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{name}: {error}"));
    let processor = engine.input_processor();
    for (index, ids) in texts.iter().enumerate() {
        let use_activation = if config.model.sparse { None } else { Some(false) };
        let params = PoolingParams { use_activation, ..PoolingParams::default() };
        let prompt = Prompt::TokenIds(ids.clone());
        engine.add_request(processor.process_pooling(index as u64, prompt, params).unwrap());
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().expect("the device works"));
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs.into_iter().flat_map(|output| output.texts).collect()
}

/// The largest difference of two rows of numbers, relative where they are above 1.
fn difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let of = |(got, expected): (&f32, &f32)| (got - expected).abs() / expected.abs().max(1.0);
    // NaN is no difference that is small.
    got.iter()
        .zip(expected)
        .map(of)
        .fold(0.0, |largest, of| if of <= largest { largest } else { of })
}

fn assert_close(what: &str, got: &[f32], expected: &[f32], on_shim: f32) {
    let tolerance = if gpu::is_real() { GPU_TOLERANCE } else { on_shim };
    let found = difference(got, expected);
    assert!(found < tolerance, "{what}: off by {found}");
}

fn numbers(pooled: &Pooled) -> Vec<f32> {
    pooled.values().collect()
}

#[test]
fn every_encoder_agrees_with_transformers() {
    let Some(device) = gpu::device(60) else { return };
    for folder in folders("golden_embeddings") {
        let golden: Golden = golden(&folder);
        let mut config = config(&folder, &device);
        config.model.pooling_type = Some(PoolingType::Mean);
        for (got, text) in pooled(&config, &ids(&folder)).iter().zip(&golden.texts) {
            let what = format!("{folder}, {:?}", text.token_ids);
            assert_close(&what, &numbers(got), &text.mean, TOLERANCE);
        }
    }
}

/// The GPU and the CPU, whose own test holds it against transformers.
fn check_against_cpu(
    folder: &str,
    texts: &[Vec<u32>],
    tolerance: f32,
    change: impl Fn(&mut EngineConfig),
) {
    let Some(device) = gpu::device(61) else { return };
    let of = |device: &DeviceConfig| {
        let mut config = config(folder, device);
        change(&mut config);
        pooled(&config, texts)
    };
    let (got, expected) = (of(&device), of(&DeviceConfig::default()));
    assert_eq!(got.len(), texts.len());
    for ((got, expected), text) in got.iter().zip(&expected).zip(texts) {
        let what = format!("{folder}, {text:?}");
        let words = |pooled: &Pooled| match pooled {
            Pooled::Sparse(words) => words.iter().map(|(word, _)| *word).collect(),
            _ => Vec::new(),
        };
        assert_eq!(words(got), words(expected), "{what}");
        assert_close(&what, &numbers(got), &numbers(expected), tolerance);
    }
}

#[derive(Deserialize)]
struct GoldenClasses {
    tokenizer: String,
    /// Of a language model whose classes are words.
    tokens: Option<Vec<String>>,
}

#[test]
fn classifiers_agree_with_the_cpu() {
    for folder in folders("golden_classifiers") {
        let GoldenClasses { tokenizer, tokens } = golden(&folder);
        check_against_cpu(&folder, &ids(&folder), TOLERANCE, |config| {
            let tokens = tokens.as_ref();
            config.model.tokenizer_dir = Some(testdata("golden_embeddings").join(&tokenizer));
            config.model.pooling_task = Some(PoolingTask::Classify);
            config.model.token_classes =
                tokens.map(|tokens| TokenClasses::new(tokens, false).unwrap());
        });
    }
}

#[test]
fn sparse_vectors_agree_with_the_cpu() {
    let texts = ids("golden_embeddings/bert");
    let texts: Vec<_> = texts.into_iter().filter(|text| text.len() <= 30).collect();
    for folder in folders("golden_sparse") {
        check_against_cpu(&folder, &texts, TOLERANCE, |config| config.model.sparse = true);
    }
}

/// Windows, soft caps, slopes of ALiBi, blocks side by side, and norms of q and k.
const DECODERS: [&str; 6] = ["bloom", "gemma2", "gptj", "mistral", "olmo2", "ministral3"];

#[test]
fn decoders_agree_with_the_cpu() {
    let of = |len: u32| (0..len).map(|index| (index * 37 + len) % 96 + 3).collect::<Vec<u32>>();
    let texts = [1, 2, 17, 33, 40].map(of);
    for name in DECODERS {
        check_against_cpu(&format!("golden/{name}"), &texts, STATE_TOLERANCE, |config| {
            config.model.tokenizer_dir = None;
        });
    }
}

/// Through the KV cache: a model that sees, and layers that need one.
#[test]
fn vectors_of_all_tokens_agree_with_the_cpu() {
    let of = |len: u32| (0..len).map(|index| (index * 37 + len) % 96 + 3).collect::<Vec<u32>>();
    let texts = [1, 2, 17, 40].map(of);
    for name in ["deepseek_v2", "lfm2", "qwen2_vl"] {
        check_against_cpu(&format!("golden/{name}"), &texts, STATE_TOLERANCE, |config| {
            config.model.tokenizer_dir = None;
            config.model.pooling_type = Some(PoolingType::All);
            // A text goes through several steps.
            config.scheduler.max_num_batched_tokens = Some(16);
        });
    }
}

/// The cosine of two vectors' angle.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// (dtype, narrowing, least cosine). Weights are of the largest size that norms allow: trained
/// models move less.
const NARROW: [(DType, Option<Quantization>, f32); 3] = [
    (DType::BFloat16, None, 0.998),
    (DType::Float16, None, 0.9999),
    (DType::BFloat16, Some(Quantization::Fp8), 0.85),
];

#[test]
fn narrow_types_stay_close_to_float32() {
    for (dtype, quantization, least) in NARROW {
        let Some(device) = gpu::device(62) else { return };
        let device = DeviceConfig { quantization, ..device };
        for folder in folders("golden_embeddings") {
            let golden: Golden = golden(&folder);
            let mut config = config(&folder, &device);
            config.model.pooling_type = Some(PoolingType::Mean);
            config.model.dtype = Some(dtype);
            for (got, text) in pooled(&config, &ids(&folder)).iter().zip(&golden.texts) {
                let cosine = cosine(&numbers(got), &text.mean);
                let num_tokens = text.token_ids.len();
                let what = format!("{folder}, {dtype:?}, {quantization:?}, {num_tokens} tokens");
                println!("{what}: {cosine}");
                assert!(cosine > least, "{what}: {cosine}");
                assert_ne!(numbers(got), text.mean, "{what}: nothing was narrowed");
            }
        }
    }
}

/// Alone, among others, in another order, in other steps, with other orders of threads: equal bits.
#[test]
fn a_vector_depends_on_no_neighbour_order_or_budget() {
    let kinds = [
        (DType::Float32, None),
        (DType::BFloat16, None),
        (DType::Float16, Some(Quantization::Fp8)),
    ];
    let means = ["bert", "gemma3_bidirectional", "jina", "modernbert", "mpnet", "qwen3"];
    let means = means.map(|family| (family, PoolingType::Mean));
    // Through the KV cache.
    for (family, pooling_type) in means.into_iter().chain([("qwen3", PoolingType::Last)]) {
        let folder = format!("golden_embeddings/{family}");
        let texts = ids(&folder);
        for (kind, (dtype, quantization)) in kinds.into_iter().enumerate() {
            let run = |seed: u64, max_num_seqs, max_num_batched_tokens, texts: &[Vec<u32>]| {
                let device = gpu::device(seed).expect("there was one before");
                let mut config = config(&folder, &DeviceConfig { quantization, ..device });
                config.model.pooling_type = Some(pooling_type);
                config.model.dtype = Some(dtype);
                config.scheduler.max_num_seqs = Some(max_num_seqs);
                config.scheduler.max_num_batched_tokens = Some(max_num_batched_tokens);
                pooled(&config, texts)
            };
            if gpu::device(63).is_none() {
                return;
            }
            let seed = 63 + kind as u64;
            let all = run(seed, 64, 4096, &texts);
            let name = format!("{family}, {pooling_type:?}, {dtype:?}, {quantization:?}");
            assert_eq!(run(seed + 10, 1, 4096, &texts), all, "{name}: one by one");
            assert_eq!(run(seed + 20, 2, 1, &texts), all, "{name}: in small steps");
            let reversed: Vec<_> = texts.iter().rev().cloned().collect();
            let mut got = run(seed + 30, 64, 4096, &reversed);
            got.reverse();
            assert_eq!(got, all, "{name}: in another order");
        }
    }
}
