//! Tiny random models of every family against Hugging Face transformers (`testdata/golden`): prompt
//! ids and greedy tokens identical, logprobs within 1e-3, alone and batched; on the CPU, and
//! through the kernels of the GPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use vllm_batch::engine::Engine;
use vllm_batch::engine::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig,
};
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::model::ARCHITECTURES;
use vllm_batch::engine::request::{NumLogprobs, RequestOutput, RowKey, SamplingParams};

use crate::gpu;

const TOLERANCE: f32 = 1e-3;

#[derive(Deserialize)]
struct Golden {
    transformers: String,
    max_new_tokens: u32,
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    text: String,
    prompt_token_ids: Vec<u32>,
    output_token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    top: Vec<Vec<(u32, f32)>>,
    prompt_logprobs: Vec<Option<f32>>,
    text_out: Option<String>,
}

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden")
}

fn families() -> Vec<String> {
    let listing = std::fs::read_dir(golden_dir()).expect("testdata/golden is committed");
    let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn read_golden(family: &str) -> Golden {
    let path = golden_dir().join(family).join("golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn engine(family: &str, scheduler: SchedulerConfig, device: &DeviceConfig) -> Engine {
    let model = ModelConfig {
        model_dir: golden_dir().join(family),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    let cache = CacheConfig { block_size: 16, num_blocks: Some(256), ..CacheConfig::default() };
    let device = device.clone();
    let config = EngineConfig { model, scheduler, cache, device, ..EngineConfig::default() };
    Engine::load(&config).unwrap_or_else(|error| panic!("{family}: {error}"))
}

fn params(golden: &Golden) -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        max_tokens: Some(golden.max_new_tokens),
        ignore_eos: true,
        logprobs: Some(NumLogprobs::Top(5)),
        prompt_logprobs: Some(NumLogprobs::Top(0)),
        ..SamplingParams::default()
    }
}

/// Outputs by prompt.
fn run(engine: &mut Engine, golden: &Golden) -> Vec<RequestOutput> {
    let processor = Arc::clone(&engine.input_processor());
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let key = RowKey(index as u64);
        let text = Prompt::Text(prompt.text.clone());
        let request = processor.process(index as u64, text, params(golden), key);
        engine.add_request(request.unwrap_or_else(|error| panic!("{:?}: {error:?}", prompt.text)));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

fn assert_close(got: f32, expected: f32, what: &str) {
    assert!((got - expected).abs() < TOLERANCE, "{what}: {got}, transformers has {expected}");
}

/// Whether the tokenizer decodes byte tokens by runs: one invalid byte turns its whole run into
/// U+FFFD, so that the text of a prefix is no prefix of the text, and a stream (vLLM's and ours)
/// differs by design.
fn has_byte_fallback(family: &str) -> bool {
    let path = golden_dir().join(family).join("tokenizer.json");
    let tokenizer: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    tokenizer["model"]["byte_fallback"] == true
}

fn check(family: &str, byte_fallback: bool, prompt: &GoldenPrompt, output: &RequestOutput) {
    let name = format!("{family}, prompt {:?}", prompt.text);
    assert_eq!(output.prompt_token_ids, prompt.prompt_token_ids, "{name}: prompt ids");
    let completion = &output.outputs[0];
    assert_eq!(completion.token_ids, prompt.output_token_ids, "{name}: greedy tokens");
    let logprobs = completion.logprobs.as_ref().unwrap();
    for (step, position) in logprobs.iter().enumerate() {
        assert_close(
            position.token.logprob,
            prompt.logprobs[step],
            &format!("{name}, step {step}"),
        );
        for ((id, expected), got) in prompt.top[step].iter().zip(&position.top) {
            // Equal probabilities may swap places; their values may not differ.
            assert_close(got.logprob, *expected, &format!("{name}, step {step}, top {id}"));
        }
    }
    let sum: f64 = prompt.logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
    assert!((completion.cumulative_logprob.unwrap() - sum).abs() < 1e-2, "{name}: sum");
    let prompt_logprobs = output.prompt_logprobs.as_ref().unwrap();
    assert_eq!(prompt_logprobs.len(), prompt.prompt_logprobs.len(), "{name}");
    for (position, (got, expected)) in
        prompt_logprobs.iter().zip(&prompt.prompt_logprobs).enumerate()
    {
        match (got, expected) {
            (None, None) => assert_eq!(position, 0),
            (Some(got), Some(expected)) => {
                assert_close(
                    got.token.logprob,
                    *expected,
                    &format!("{name}, prompt token {position}"),
                );
            }
            _ => {
                panic!("{name}: prompt logprob {position}: {got:?}, transformers has {expected:?}")
            }
        }
    }
    if let Some(text) = &prompt.text_out
        && !(byte_fallback && text.contains('\u{FFFD}'))
    {
        // Bytes that are no whole character yet at the end are never emitted (as in vLLM).
        let trimmed = |text: &str| text.trim_end_matches('\u{FFFD}').to_owned();
        assert_eq!(trimmed(&completion.text), trimmed(text), "{name}: text");
    }
}

fn check_all(scheduler: SchedulerConfig, device: &DeviceConfig) {
    for family in &families() {
        let golden = read_golden(family);
        let byte_fallback = has_byte_fallback(family);
        let mut engine = engine(family, scheduler.clone(), device);
        let outputs = run(&mut engine, &golden);
        assert_eq!(outputs.len(), golden.prompts.len());
        for (prompt, output) in golden.prompts.iter().zip(&outputs) {
            check(family, byte_fallback, prompt, output);
        }
        println!("{family}: {} prompts equal transformers {}", outputs.len(), golden.transformers);
    }
}

#[test]
fn every_family_agrees_with_transformers_one_sequence_at_a_time() {
    let scheduler = SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::default() };
    check_all(scheduler, &DeviceConfig::default());
}

#[test]
fn every_family_agrees_with_transformers_batched_and_in_chunks() {
    let scheduler = SchedulerConfig { max_num_batched_tokens: 19, ..SchedulerConfig::default() };
    check_all(scheduler, &DeviceConfig::default());
}

#[test]
fn every_family_agrees_with_transformers_through_the_kernels_of_the_gpu() {
    let Some(device) = gpu::device(7) else { return };
    let scheduler = SchedulerConfig { max_num_batched_tokens: 40, ..SchedulerConfig::default() };
    check_all(scheduler, &device);
}

#[test]
fn every_architecture_has_a_golden_model() {
    let configs: Vec<String> = families()
        .iter()
        .map(|family| {
            std::fs::read_to_string(golden_dir().join(family).join("config.json")).unwrap()
        })
        .collect();
    for (architecture, _) in ARCHITECTURES {
        let has = |config: &String| config.contains(&format!("\"{architecture}\""));
        assert!(configs.iter().any(has), "{architecture} has no model under testdata/golden");
    }
}
