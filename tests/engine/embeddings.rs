//! Tiny random encoders of every family against Hugging Face transformers
//! (`testdata/golden_embeddings`), and a vector alone against the same among others.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use vllm_batch::engine::EngineError;
use vllm_batch::engine::config::{
    DType, DeviceConfig, DeviceKind, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig,
};
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::model::ENCODERS;
use vllm_batch::engine::pooling::{PoolingEngine, PoolingOutput, PoolingParams, PoolingType};

/// Of a value; states are about 1.
const TOLERANCE: f32 = 5e-6;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<GoldenText>,
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
    token_ids: Vec<u32>,
    mean: Vec<f32>,
    cls: Vec<f32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden_embeddings")
}

fn families() -> Vec<String> {
    let listing = std::fs::read_dir(folder()).expect("testdata is committed");
    let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn golden(family: &str) -> Golden {
    let path = folder().join(family).join("golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// (texts of a step at most, tokens of a step at most, threads)
type Limits = (usize, usize, usize);

fn config(family: &str, pooling_type: PoolingType, limits: Limits) -> EngineConfig {
    let (max_num_seqs, max_num_batched_tokens, num_threads) = limits;
    let model = ModelConfig {
        model_dir: folder().join(family),
        dtype: Some(DType::Float32),
        pooling_type: Some(pooling_type),
        ..ModelConfig::default()
    };
    let scheduler =
        SchedulerConfig { max_num_seqs, max_num_batched_tokens, ..SchedulerConfig::default() };
    let parallel = ParallelConfig { num_threads: Some(num_threads), isa: None };
    EngineConfig { model, scheduler, parallel, ..EngineConfig::default() }
}

/// The vectors of all texts, as the model gives them, one request for each.
fn embed(config: &EngineConfig, texts: &[GoldenText]) -> Vec<PoolingOutput> {
    let mut engine = PoolingEngine::load(config).unwrap();
    let processor = engine.input_processor();
    for (index, text) in texts.iter().enumerate() {
        let params = PoolingParams { use_activation: Some(false), ..PoolingParams::default() };
        let prompt = Prompt::Text(text.text.clone());
        let request = processor.process_pooling(index as u64, prompt, params).unwrap();
        assert_eq!(request.texts, [&text.token_ids[..]], "{:?}", text.text);
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

#[test]
fn every_family_agrees_with_transformers() {
    for family in families() {
        let golden = golden(&family);
        for pooling_type in [PoolingType::Mean, PoolingType::Cls] {
            let outputs = embed(&config(&family, pooling_type, (256, 4096, 2)), &golden.texts);
            for (output, text) in outputs.iter().zip(&golden.texts) {
                let expected = match pooling_type {
                    PoolingType::Mean => &text.mean,
                    _ => &text.cls,
                };
                let distance = |(got, expected): (f32, &f32)| (got - expected).abs();
                let pairs = output.texts[0].values().zip(expected);
                let largest = pairs.map(distance).fold(0.0, f32::max);
                let name = format!("{family}, {pooling_type:?}, {:?}", text.text);
                assert!(largest < TOLERANCE, "{name}: off by {largest}");
                assert_eq!(output.num_prompt_tokens, text.token_ids.len(), "{name}");
            }
        }
    }
}

#[test]
fn every_family_has_a_golden_folder() {
    let tested: Vec<String> = families()
        .iter()
        .map(|family| {
            let path = folder().join(family).join("config.json");
            let text = std::fs::read_to_string(path).unwrap();
            let config: serde_json::Value = serde_json::from_str(&text).unwrap();
            config["architectures"][0].as_str().unwrap().to_owned()
        })
        .collect();
    // Built by the same code as one that is tested.
    let mut alike = vec!["CamembertForMaskedLM", "CamembertModel", "XLMRobertaForMaskedLM"];
    // With their heads, in `golden_sparse`.
    alike.extend(["BertForMaskedLM", "DistilBertForMaskedLM", "MPNetForMaskedLM"]);
    alike.push("RobertaForMaskedLM");
    let docs = include_str!("../../docs/EMBEDDINGS.md");
    for known in ENCODERS {
        assert!(docs.contains(&format!("`{}`", known.name)), "{} is not in the docs", known.name);
        let is_tested = tested.iter().any(|name| name == known.name);
        assert!(is_tested || alike.contains(&known.name), "{} has no golden folder", known.name);
    }
}

#[test]
fn a_vector_depends_on_no_neighbour_budget_or_thread() {
    for family in ["bert", "modernbert"] {
        let golden = golden(family);
        let all = embed(&config(family, PoolingType::Mean, (256, 4096, 1)), &golden.texts);
        for limits in [(1, 4096, 3), (2, 1, 2), (256, 4096, 4)] {
            let others = embed(&config(family, PoolingType::Mean, limits), &golden.texts);
            for (one, other) in all.iter().zip(&others) {
                assert_eq!(one.texts, other.texts, "{family}, {limits:?}");
            }
        }
    }
}

#[test]
fn a_gpu_and_an_unknown_class_are_refused_by_name() {
    let mut on_gpu = config("bert", PoolingType::Mean, (1, 1, 1));
    on_gpu.device = DeviceConfig { kind: DeviceKind::Cuda(0), ..DeviceConfig::default() };
    let Err(EngineError::Config(error)) = PoolingEngine::load(&on_gpu) else { panic!() };
    assert!(error.contains("--device cuda"), "{error}");
    let mut decoder = config("bert", PoolingType::Mean, (1, 1, 1));
    decoder.model.model_dir = folder().join("../golden/llama3");
    let Err(EngineError::Model(error)) = PoolingEngine::load(&decoder) else { panic!() };
    assert!(error.contains("`LlamaForCausalLM` makes no vectors"), "{error}");
}
