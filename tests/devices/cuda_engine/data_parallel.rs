//! Several drivers in one process, each with an engine: their rows are those of one, with adapters
//! too, and one that fails in the run ends it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use vllm_batch::engine::api::answer::Answer;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{LoraId, RowKey, SamplingParams};
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::{
    DType, DeviceConfig, EngineConfig, Engines, LoraConfig, ModelConfig,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::serve::data_parallel::{DataParallel, LoadEngine};
use vllm_batch::engine::core::serve::runner::{Runner, Work};

use super::failure::failing_later;
use super::loras::adapters::{Made, make};
use crate::gpu;

/// With `has_lora` every other row has the adapter.
fn add_rows(runner: &mut Runner, has_lora: bool) {
    let processor = runner.input_processor();
    for index in 0..10u64 {
        let prompt = (0..5 + index as u32 * 7 % 23).map(|at| at * 29 % 80 + 20).collect();
        let params = SamplingParams {
            temperature: if index.is_multiple_of(2) { 0.0 } else { 1.0 },
            max_tokens: Some(4),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let request = processor.process(index, Prompt::TokenIds(prompt), params, RowKey(index));
        let mut request = request.unwrap();
        request.lora = (has_lora && index % 4 < 2).then_some(LoraId(0));
        runner.add_request(Work::Generate(request));
    }
}

fn answers(runner: &mut Runner, has_lora: bool) -> BTreeMap<u64, Vec<u32>> {
    add_rows(runner, has_lora);
    let mut answers = BTreeMap::new();
    while runner.has_unfinished_requests() {
        for answer in runner.step().unwrap_or_else(|error| panic!("{error}")) {
            let Answer::Generate(output) = answer else { panic!("it completes") };
            answers.insert(output.request_id, output.outputs[0].token_ids.clone());
        }
    }
    assert_eq!(answers.len(), 10);
    answers
}

/// None: a machine may have one GPU.
fn config() -> Option<EngineConfig> {
    if gpu::is_real() {
        println!("SKIP: a machine may have one GPU");
        return None;
    }
    let device = gpu::device(3)?;
    let model_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden/llama2");
    let model = ModelConfig { model_dir, dtype: Some(DType::Float32), ..ModelConfig::default() };
    let mut config = EngineConfig { model, device, ..EngineConfig::default() };
    config.parallel.num_threads = Some(2);
    config.scheduler.max_num_seqs = Some(4);
    config.scheduler.max_num_batched_tokens = Some(32);
    config.cache.num_blocks = Some(20);
    Some(config)
}

/// The second engine is on `second`, if that is another device.
fn loader(second: Option<DeviceConfig>) -> LoadEngine {
    Arc::new(move |config, processor| {
        let mut config = config.clone();
        if let (Some(device), Some(_)) = (&second, &processor) {
            config.device = device.clone();
        }
        let summary = ModelSummary::read(&config.model)?;
        Ok(Runner::Generate(Box::new(Engine::load_with(&config, &summary, processor)?)))
    })
}

fn two(config: &EngineConfig, load: &LoadEngine) -> Runner {
    let mut config = config.clone();
    config.parallel.engines = Engines::Number(2);
    let engines = DataParallel::load(&config, load).unwrap_or_else(|error| panic!("{error}"));
    Runner::Parallel(Box::new(engines))
}

#[test]
fn rows_of_two_drivers_are_those_of_one() {
    let Some(config) = config() else { return };
    let load = loader(None);
    let expected = answers(&mut load(&config, None).unwrap(), false);
    assert_eq!(answers(&mut two(&config, &load), false), expected);
}

#[test]
fn rows_of_an_adapter_on_two_drivers_are_those_of_one() {
    let Some(mut config) = config() else { return };
    config.model.model_dir.set_file_name("qwen2");
    let (load, folder) = (loader(None), tempfile::tempdir().unwrap());
    let plain = answers(&mut load(&config, None).unwrap(), false);
    let made = Made { rank: 8, seed: 1, modules: &[], b: 0.6 };
    let modules = vec![make(folder.path(), "all", &config.model.model_dir, made)];
    config.lora = LoraConfig { modules, ..LoraConfig::default() };
    let expected = answers(&mut load(&config, None).unwrap(), true);
    assert_ne!(expected, plain, "the adapter does nothing");
    assert_eq!(answers(&mut two(&config, &load), true), expected);
}

#[test]
fn a_device_that_fails_in_the_run_ends_it_and_is_named() {
    let Some(config) = config() else { return };
    let Some(device) = failing_later("second_of_two") else { return };
    let mut engines = two(&config, &loader(Some(device)));
    add_rows(&mut engines, false);
    let error = loop {
        match engines.step() {
            Ok(_) => assert!(engines.has_unfinished_requests(), "no engine has failed"),
            Err(error) => break error,
        }
    };
    let is_named = |text: &str| text.starts_with("engine 1 (") && text.contains("add_norm");
    assert!(matches!(&error, EngineError::Device(text) if is_named(text)), "{error}");
}
