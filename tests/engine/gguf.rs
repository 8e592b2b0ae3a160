//! Tiny GGUF files that llama.cpp's own converter wrote, against transformers on the same weights
//! (`testdata/gguf/make_models.py`): nothing beside the file is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{NumLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{CacheConfig, DType, EngineConfig, ModelConfig};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;

const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    text: String,
    prompt_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/gguf")
}

fn model(name: &str) -> ModelConfig {
    let model_dir = folder().join(format!("{name}.gguf"));
    ModelConfig { model_dir, ..ModelConfig::default() }
}

fn check(name: &str) {
    let goldens = std::fs::read_to_string(folder().join("models.json")).unwrap();
    let mut goldens: BTreeMap<String, Vec<Golden>> = serde_json::from_str(&goldens).unwrap();
    let goldens = goldens.remove(name).unwrap();
    let dtype = Some(DType::Float32);
    // Phi-3's first context: longer runs have its other divisors, whatever the length of a row.
    let model = ModelConfig { dtype, max_model_len: Some(64), ..model(name) };
    let cache = CacheConfig { num_blocks: Some(64), ..CacheConfig::default() };
    let mut engine = Engine::load(&EngineConfig { model, cache, ..EngineConfig::default() })
        .unwrap_or_else(|error| panic!("{error}"));
    let processor = Arc::clone(&engine.input_processor());
    for (index, golden) in goldens.iter().enumerate() {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(golden.token_ids.len() as u32),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(1)),
            ..SamplingParams::default()
        };
        let (index, prompt) = (index as u64, Prompt::Text(golden.text.clone()));
        engine.add_request(processor.process(index, prompt, params, RowKey(index)).unwrap());
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    for (golden, output) in goldens.iter().zip(&outputs) {
        let what = format!("{name}, {:?}", golden.text);
        assert_eq!(output.prompt_token_ids, golden.prompt_token_ids, "{what}");
        let completion = &output.outputs[0];
        assert_eq!(completion.token_ids, golden.token_ids, "{what}");
        let logprobs = completion.logprobs.as_ref().unwrap();
        for (got, expected) in logprobs.iter().zip(&golden.logprobs) {
            let difference = (got.token.logprob - expected).abs();
            assert!(difference < TOLERANCE, "{what}: {difference} beside");
        }
    }
}

/// Rows of q and k go back to where they were; llama3's rope is known by its divisors.
#[test]
fn llama_answers_as_in_transformers() {
    check("llama");
}

/// Rows are where they were.
#[test]
fn qwen3_answers_as_in_transformers() {
    check("qwen3");
}

/// Experts of one tensor, which no key says the sum of.
#[test]
fn qwen3moe_answers_as_in_transformers() {
    check("qwen3moe");
}

/// One of all tokens behind a gate, beside experts by their probabilities.
#[test]
fn qwen2moe_answers_as_in_transformers() {
    check("qwen2moe");
}

/// Experts with biases, apart, sinks and windows.
#[test]
fn gpt_oss_answers_as_in_transformers() {
    check("gpt-oss");
}

/// Experts by sigmoids and a bias behind a dense layer, one of all tokens.
#[test]
fn glm4moe_answers_as_in_transformers() {
    check("glm4moe");
}

/// Experts in two tensors that the file has in three, multipliers, rotary pairs.
#[test]
fn granitemoe_answers_as_in_transformers() {
    check("granitemoe");
}

/// Latents, divisors of longrope, and multipliers that no key says.
#[test]
fn minicpm3_answers_as_in_transformers() {
    check("minicpm3");
}

/// Short convolutions in layers without K and V heads.
#[test]
fn lfm2_answers_as_in_transformers() {
    check("lfm2");
}

/// The same with experts.
#[test]
fn lfm2moe_answers_as_in_transformers() {
    check("lfm2moe");
}

/// Gates, windows and norms after blocks; experts by sigmoids, and embeddings that are multiplied,
/// which no key says.
#[test]
fn afmoe_answers_as_in_transformers() {
    check("afmoe");
}

/// Experts by sigmoids and a bias behind a dense layer.
#[test]
fn dots1_answers_as_in_transformers() {
    check("dots1");
}

/// Experts by probabilities and a bias, under keys of their own.
#[test]
fn ernie4_5moe_answers_as_in_transformers() {
    check("ernie4_5moe");
}

/// Windows, layers without a rotary embedding, and experts by sigmoids.
#[test]
fn exaonemoe_answers_as_in_transformers() {
    check("exaonemoe");
}

/// Experts beside one of all tokens, whose width is written in another key.
#[test]
fn hunyuanmoe_answers_as_in_transformers() {
    check("hunyuanmoe");
}

/// How many layers are dense is in no key.
#[test]
fn hyv3_answers_as_in_transformers() {
    check("hyv3");
}

/// Which layers attend and which have experts is told by their tensors.
#[test]
fn jamba_answers_as_in_transformers() {
    check("jamba");
}

/// Chunks and layers that do not turn are in no key.
#[test]
fn llama4_answers_as_in_transformers() {
    check("llama4");
}

/// Decays of each state, stored as they are used.
#[test]
fn mamba_answers_as_in_transformers() {
    check("mamba");
}

/// Norms of all heads together, half of a head rotated, experts by sigmoids.
#[test]
fn minimaxm2_answers_as_in_transformers() {
    check("minimaxm2");
}

/// Kinds of layers are in no key; experts without gates.
#[test]
fn nemotron3_answers_as_in_transformers() {
    check("nemotron3");
}

/// A llama with experts.
#[test]
fn mixtral_answers_as_in_transformers() {
    check("mixtral");
}

/// Norms with 1 added; windows, two bases and the scale of scores, which no key has.
#[test]
fn gemma3_answers_as_in_transformers() {
    check("gemma3");
}

/// Fused tensors, divisors of longrope, SentencePiece with a space before each text.
#[test]
fn phi3_answers_as_in_transformers() {
    check("phi3");
}

/// Heads that are sorted go back to their groups; two norms read the same.
#[test]
fn falcon_answers_as_in_transformers() {
    check("falcon");
}

/// Heads of a fused tensor go back to their groups; slopes in place of positions.
#[test]
fn bloom_answers_as_in_transformers() {
    check("bloom");
}

/// Windows and layers without a rotary embedding, by the key; a scale of logits.
#[test]
fn cohere2_answers_as_in_transformers() {
    check("cohere2");
}

/// Norms with 1 added, windows on each other layer, two caps and the scale of scores.
#[test]
fn gemma2_answers_as_in_transformers() {
    check("gemma2");
}

/// Norms of heads behind the rotary embedding.
#[test]
fn hunyuan_answers_as_in_transformers() {
    check("hunyuan");
}

/// Norms with 1 added and a bias; half of a head is rotated.
#[test]
fn nemotron_answers_as_in_transformers() {
    check("nemotron");
}

/// Each fourth layer has no rotary embedding, which no key says.
#[test]
fn smollm3_answers_as_in_transformers() {
    check("smollm3");
}

/// Biases everywhere; without a window.
#[test]
fn starcoder2_answers_as_in_transformers() {
    check("starcoder2");
}

/// q, k, v and z apart, b and a together, norms with 1 added, decays as they are used.
#[test]
fn qwen3next_answers_as_in_transformers() {
    check("qwen3next");
}

/// Three V heads of each K head, by turns.
#[test]
fn qwen35_answers_as_in_transformers() {
    check("qwen35");
}

/// The same with experts.
#[test]
fn qwen35moe_answers_as_in_transformers() {
    check("qwen35moe");
}

/// What leads from latents to K is transposed; the factor of scores of yarn.
#[test]
fn deepseek2_answers_as_in_transformers() {
    check("deepseek2");
}

/// Experts of groups by sigmoids and a bias, latents of q.
#[test]
fn deepseek3_answers_as_in_transformers() {
    check("deepseek3");
}

/// Heads of two widths, shared K and V, inputs of layers, MLPs of two widths, merges.
#[test]
fn gemma4_answers_as_in_transformers() {
    check("gemma4");
}

/// V that is K, and experts.
#[test]
fn gemma4moe_answers_as_in_transformers() {
    check("gemma4moe");
}

/// No attention; decays as they are used, norms by groups.
#[test]
fn mamba2_answers_as_in_transformers() {
    check("mamba2");
}

/// Mamba 2 beside attention that does not turn, with experts.
#[test]
fn granitehybrid_answers_as_in_transformers() {
    check("granitehybrid");
}

/// Without experts.
#[test]
fn granitedense_answers_as_in_transformers() {
    check("granitedense");
}

/// Blocks are widened to it, and it is the type of the KV cache.
#[test]
fn a_gguf_file_is_of_bfloat16_and_names_its_eos() {
    let summary = ModelSummary::read(&model("llama")).unwrap();
    assert_eq!(summary.dtype, DType::BFloat16);
    assert_eq!(summary.max_model_len, 16384);
    assert_eq!(summary.generation_config.eos_token_ids.len(), 1);
}
