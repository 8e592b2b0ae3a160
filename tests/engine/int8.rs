//! `--quantization int8` against the full precision of the same weights: how far the log
//! probabilities of given text move, and how often the most likely token stays. The figures are
//! printed (`--nocapture`) and stated in docs/PERFORMANCE.md; the bounds leave them some room.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{NumLogprobs, RequestOutput, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, DeviceKind, EngineConfig, ModelConfig, Quantization,
    SchedulerConfig,
};
use vllm_batch::engine::core::Engine;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn engine(model: &str, quantization: Option<Quantization>, max_num_seqs: usize) -> Engine {
    let model = ModelConfig {
        model_dir: testdata().join(model),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    let device = DeviceConfig { kind: DeviceKind::Cpu, quantization, ..DeviceConfig::default() };
    let cache = CacheConfig { num_blocks: Some(256), ..CacheConfig::default() };
    let scheduler =
        SchedulerConfig { max_num_seqs: Some(max_num_seqs), ..SchedulerConfig::default() };
    let config = EngineConfig { model, device, cache, scheduler, ..EngineConfig::default() };
    Engine::load(&config).unwrap_or_else(|error| panic!("{error}"))
}

fn run(engine: &mut Engine, prompts: Vec<Prompt>, max_tokens: u32) -> Vec<RequestOutput> {
    let processor = Arc::clone(&engine.input_processor());
    for (index, prompt) in prompts.into_iter().enumerate() {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(1)),
            prompt_logprobs: Some(NumLogprobs::Top(1)),
            ..SamplingParams::default()
        };
        let request = processor.process(index as u64, prompt, params, RowKey(index as u64));
        engine.add_request(request.expect("a valid row"));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

/// Ids of the golden prompts and of what transformers generated after them.
fn golden_ids(family: &str) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(testdata().join(family).join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |prompt: &serde_json::Value, key: &str| -> Vec<u32> {
        serde_json::from_value(prompt[key].clone()).unwrap()
    };
    let prompts = golden["prompts"].as_array().unwrap().iter();
    prompts
        .map(|prompt| [ids(prompt, "prompt_token_ids"), ids(prompt, "output_token_ids")].concat())
        .collect()
}

/// The demo model's own answers to the prompts of testdata.
fn demo_ids(exact: &mut Engine) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(testdata().join("prompts.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let prompts = rows.filter_map(|row| Some(Prompt::Text(row["prompt"].as_str()?.to_owned())));
    let outputs = run(exact, prompts.collect(), 24);
    outputs
        .iter()
        .map(|out| [&out.prompt_token_ids[..], &out.outputs[0].token_ids].concat())
        .collect()
}

fn prompts(ids: &[Vec<u32>]) -> Vec<Prompt> {
    ids.iter().map(|ids| Prompt::TokenIds(ids.clone())).collect()
}

/// Mean absolute error of the given tokens' log probabilities, the largest one, and the share of
/// positions with the same most likely token.
fn compare(exact: &[RequestOutput], int8: &[RequestOutput]) -> (f64, f64, f64) {
    let positions = |outputs: &[RequestOutput]| -> Vec<(u32, f64)> {
        let of_prompts = outputs.iter().flat_map(|out| out.prompt_logprobs.as_ref().unwrap());
        of_prompts.flatten().map(|p| (p.top[0].token_id, f64::from(p.token.logprob))).collect()
    };
    let (exact, int8) = (positions(exact), positions(int8));
    assert!(exact.len() == int8.len() && exact.len() > 50);
    let pairs = || exact.iter().zip(&int8);
    let errors: Vec<f64> = pairs().map(|(exact, int8)| (exact.1 - int8.1).abs()).collect();
    let num_equal = pairs().filter(|(exact, int8)| exact.0 == int8.0).count();
    let num = errors.len() as f64;
    let largest = errors.iter().copied().fold(0.0, f64::max);
    (errors.iter().sum::<f64>() / num, largest, num_equal as f64 / num)
}

#[test]
fn log_probabilities_move_little_and_the_first_choice_stays() {
    // Random weights have no clear first choice.
    for (model, max_mean, min_agreement) in [
        ("demo", 0.04, 0.97),
        ("golden/llama3", 0.2, 0.85),
        ("golden/qwen2", 0.2, 0.85),
        ("golden/gemma3", 0.2, 0.85),
        ("golden/opt", 0.2, 0.85),
    ] {
        let mut exact = engine(model, None, 8);
        let ids = if model == "demo" { demo_ids(&mut exact) } else { golden_ids(model) };
        let exact = run(&mut exact, prompts(&ids), 1);
        let int8 = run(&mut engine(model, Some(Quantization::Int8), 8), prompts(&ids), 1);
        let (mean, largest, agreement) = compare(&exact, &int8);
        println!(
            "{model}: error of log probabilities {mean:.4} (largest {largest:.3}), same first \
             choice {agreement:.3}"
        );
        assert!(mean > 0.0, "{model}: nothing was narrowed");
        assert!(mean < max_mean && agreement > min_agreement, "{model}: {mean}, {agreement}");
    }
}

#[test]
fn a_row_has_the_same_bytes_alone_and_among_others() {
    let ids = golden_ids("golden/llama3");
    let together =
        run(&mut engine("golden/llama3", Some(Quantization::Int8), 8), prompts(&ids), 16);
    let mut alone = engine("golden/llama3", Some(Quantization::Int8), 1);
    for (row, together) in ids.iter().zip(&together) {
        let out = &run(&mut alone, prompts(std::slice::from_ref(row)), 16)[0];
        assert_eq!(out.outputs[0].token_ids, together.outputs[0].token_ids);
        let sums = [out, together].map(|out| out.outputs[0].cumulative_logprob.unwrap().to_bits());
        assert_eq!(sums[0], sums[1]);
    }
}
