//! The engine as a library: add requests, step until none is left, read outputs as they finish.
//!
//!     cargo run --release --example offline_inference [MODEL_DIR]
//!
//! The command line does the same with rows of a file, and adds order and error rows.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{RowKey, SamplingParams};
use vllm_batch::engine::base::config::{EngineConfig, ModelConfig};
use vllm_batch::engine::core::Engine;

const PROMPTS: [&str; 4] =
    ["Hello, my name is", "The president of the", "The capital of France is", "Once upon a time"];

fn main() -> Result<(), Box<dyn Error>> {
    let model_dir = std::env::args().nth(1).map_or_else(demo_model, PathBuf::from);

    // Every other setting has vLLM's default; the KV cache takes a share of free memory.
    let model = ModelConfig { model_dir, ..ModelConfig::default() };
    let mut engine = Engine::load(&EngineConfig { model, ..EngineConfig::default() })?;

    // The input processor is shared: a program may tokenize on one thread while another one steps.
    let processor = engine.input_processor();
    let params = SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        max_tokens: Some(32),
        ..processor.default_sampling_params()
    };
    for (index, text) in PROMPTS.iter().enumerate() {
        let prompt = Prompt::Text((*text).to_owned());
        // The key of a row's random numbers is the program's to choose: equal keys, equal
        // completions, whatever else runs beside them.
        let row_key = RowKey(index as u64);
        let request = processor.process(index as u64, prompt, params.clone(), row_key);
        // A prompt that the model cannot take is the row's fault: a program may go on without it.
        engine.add_request(request?);
    }

    // One step computes at most one new token for each running sequence. Short answers come out
    // first: outputs are put back in order by the number that the request was given.
    let mut outputs = BTreeMap::new();
    while engine.has_unfinished_requests() {
        for output in engine.step()? {
            outputs.insert(output.request_id, output);
        }
    }

    for (text, output) in PROMPTS.iter().zip(outputs.values()) {
        let completion = &output.outputs[0];
        println!("{text:?} -> {:?} ({})", completion.text, completion.finish_reason.name());
    }
    let (info, stats) = (engine.info(), engine.stats());
    println!(
        "{} tokens in {} steps, {} on {}",
        stats.num_generation_tokens,
        stats.num_steps,
        info.dtype.name(),
        info.kernel_set
    );
    Ok(())
}

/// The small trained model of the repository.
fn demo_model() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo"))
}
