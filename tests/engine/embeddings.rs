//! Tiny random encoders of every family against Hugging Face transformers
//! (`testdata/golden_embeddings`), and a vector alone against the same among others.

use std::path::PathBuf;

use serde::Deserialize;
use vllm_batch::engine::api::pooling::{PoolingOutput, PoolingParams};
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::{
    DType, DeviceConfig, DeviceKind, EngineConfig, Quantization,
};
use vllm_batch::engine::base::pooling::PoolingType;
use vllm_batch::engine::checkpoint::hf_config::HfConfig;
use vllm_batch::engine::checkpoint::{ENCODERS, encoder_spec};
use vllm_batch::engine::core::serve::pooling::PoolingEngine;

use super::pooled::{self, Limits, WIDE, architecture, of_texts, testdata};

/// Of a value, or of its part where it is above 1.
const TOLERANCE: f32 = 1e-5;

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
    /// Of decoders.
    last: Option<Vec<f32>>,
}

fn folder() -> PathBuf {
    testdata("golden_embeddings")
}

fn families() -> Vec<String> {
    pooled::names("golden_embeddings")
}

fn golden(family: &str) -> Golden {
    pooled::golden(&folder().join(family))
}

/// `pooling_type`: None, if it is the model's.
fn config(
    family: &str,
    pooling_type: impl Into<Option<PoolingType>>,
    limits: Limits,
) -> EngineConfig {
    let mut config = pooled::config(folder().join(family), limits);
    config.model.pooling_type = pooling_type.into();
    config
}

/// The vectors of all texts, as the model gives them, one request for each.
fn embed(config: &EngineConfig, texts: &[GoldenText]) -> Vec<PoolingOutput> {
    let params = PoolingParams { use_activation: Some(false), ..PoolingParams::default() };
    let texts = texts.iter().map(|text| (text.text.as_str(), &text.token_ids[..]));
    of_texts(config, texts, &params)
}

#[test]
fn every_family_agrees_with_transformers() {
    for family in families() {
        let golden = golden(&family);
        for pooling_type in [Some(PoolingType::Mean), Some(PoolingType::Cls), None] {
            let outputs = embed(&config(&family, pooling_type, WIDE), &golden.texts);
            for (output, text) in outputs.iter().zip(&golden.texts) {
                let expected = match pooling_type {
                    Some(PoolingType::Mean) => &text.mean,
                    Some(_) => &text.cls,
                    None => text.last.as_ref().unwrap_or(&text.cls),
                };
                let distance =
                    |(got, expected): (f32, &f32)| (got - expected).abs() / expected.abs().max(1.0);
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
    let tested: Vec<String> =
        families().iter().map(|family| architecture(&folder().join(family))).collect();
    // Built by the same code as one that is tested.
    let mut alike = vec!["CamembertForMaskedLM", "CamembertModel", "XLMRobertaForMaskedLM"];
    alike.extend(["EuroBertForMaskedLM", "Gemma3ForCausalLM", "GteModel", "JinaBertModel"]);
    // With their heads, in `golden_sparse`.
    alike.extend(["BertForMaskedLM", "DistilBertForMaskedLM", "MPNetForMaskedLM"]);
    alike.push("RobertaForMaskedLM");
    // With their towers of images, in `golden_vision`.
    alike.extend(["CLIPModel", "SiglipModel", "Siglip2Model"]);
    // In `golden_late`.
    alike.extend(["ColIdefics3", "ColPaliForRetrieval", "ColQwen2", "ColQwen2ForRetrieval"]);
    alike.extend(["ColModernVBertForRetrieval", "ColQwen2_5"]);
    let docs = include_str!("../../docs/EMBEDDINGS.md");
    for known in ENCODERS {
        assert!(docs.contains(&format!("`{}`", known.name)), "{} is not in the docs", known.name);
        let is_tested = tested.iter().any(|name| name == known.name);
        assert!(is_tested || alike.contains(&known.name), "{} has no golden folder", known.name);
    }
}

#[test]
fn a_vector_depends_on_no_neighbour_budget_or_thread() {
    let kinds = [
        (DType::Float32, None),
        (DType::BFloat16, None),
        (DType::Float32, Some(Quantization::Int8)),
    ];
    for family in ["bert", "modernbert", "gemma3_bidirectional", "qwen3"] {
        let golden = golden(family);
        for (dtype, quantization) in kinds {
            let run = |limits| {
                let mut config = config(family, PoolingType::Mean, limits);
                config.model.dtype = Some(dtype);
                config.device.quantization = quantization;
                embed(&config, &golden.texts)
            };
            let all = run((256, 4096, 1));
            for limits in [(1, 4096, 3), (2, 1, 2), (256, 4096, 4)] {
                for (one, other) in all.iter().zip(&run(limits)) {
                    let name = format!("{family}, {dtype:?}, {quantization:?}, {limits:?}");
                    assert_eq!(one.texts, other.texts, "{name}");
                }
            }
        }
    }
}

/// The cosine of two vectors' angle.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn bfloat16_and_int8_stay_close_to_float32() {
    // Weights of the largest size that norms allow: trained models move less.
    for (dtype, quantization, min_cosine) in [
        (DType::BFloat16, None, 0.998),
        (DType::Float16, None, 0.99999),
        (DType::Float32, Some(Quantization::Int8), 0.995),
    ] {
        for family in families() {
            let golden = golden(&family);
            let mut config = config(&family, PoolingType::Mean, WIDE);
            config.model.dtype = Some(dtype);
            config.device.quantization = quantization;
            for (output, text) in embed(&config, &golden.texts).iter().zip(&golden.texts) {
                let vector: Vec<f32> = output.texts[0].values().collect();
                let cosine = cosine(&vector, &text.mean);
                let name = format!("{family}, {dtype:?}, {quantization:?}, {:?}", text.text);
                println!("{name}: {cosine}");
                assert!(cosine > min_cosine, "{name}: {cosine}");
                assert_ne!(vector, text.mean, "{name}: nothing was narrowed");
            }
        }
    }
}

#[test]
fn what_makes_no_vectors_is_refused_by_name() {
    let mut on_gpu = config("bert", PoolingType::Mean, (1, 1, 1));
    on_gpu.device = DeviceConfig { kind: DeviceKind::Cuda(7), ..DeviceConfig::default() };
    let Err(EngineError::Setting { text, .. }) = PoolingEngine::load(&on_gpu) else { panic!() };
    assert!(text.contains("the GPU cannot be used"), "{text}");
    let mut opt = config("bert", None, (1, 1, 1));
    opt.model.model_dir = folder().join("../golden/opt350");
    let Err(EngineError::Model(error)) = PoolingEngine::load(&opt) else { panic!() };
    assert!(error.contains("another width than the model's is not supported"), "{error}");
    let refused = |text: &str| {
        let config = HfConfig::parse(text, "config.json").unwrap();
        encoder_spec(&config).unwrap_err().to_string()
    };
    let error = refused(r#"{"architectures": ["T5EncoderModel"]}"#);
    assert!(error.contains("`T5EncoderModel` makes no vectors"), "{error}");
    let error = refused(
        r#"{"architectures": ["MistralModel"], "is_causal": false, "sliding_window": 8,
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "max_position_embeddings": 64, "vocab_size": 9}"#,
    );
    assert!(error.contains("`is_causal` of `false`"), "{error}");
}
