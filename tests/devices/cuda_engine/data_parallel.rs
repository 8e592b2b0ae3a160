//! Several drivers in one process, each with an engine: their rows are those of one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use vllm_batch::engine::Engine;
use vllm_batch::engine::config::{DType, EngineConfig, Engines, ModelConfig};
use vllm_batch::engine::data_parallel::{DataParallel, LoadEngine};
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::model_summary::ModelSummary;
use vllm_batch::engine::request::{RowKey, SamplingParams};
use vllm_batch::engine::runner::{Answer, Runner, Work};

use crate::gpu;

fn answers(runner: &mut Runner) -> BTreeMap<u64, Vec<u32>> {
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
        runner.add_request(Work::Generate(request.unwrap()));
    }
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

#[test]
fn rows_of_two_drivers_are_those_of_one() {
    if gpu::is_real() {
        println!("SKIP: a machine may have one GPU");
        return;
    }
    let Some(device) = gpu::device(3) else { return };
    let model_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden/llama2");
    let model = ModelConfig { model_dir, dtype: Some(DType::Float32), ..ModelConfig::default() };
    let mut config = EngineConfig { model, device, ..EngineConfig::default() };
    config.parallel.num_threads = Some(2);
    config.scheduler.max_num_seqs = 4;
    config.scheduler.max_num_batched_tokens = 32;
    config.cache.num_blocks = Some(20);
    let load: LoadEngine = Arc::new(|config, processor| {
        let summary = ModelSummary::read(&config.model)?;
        Ok(Runner::Generate(Box::new(Engine::load_with(config, &summary, processor)?)))
    });
    let expected = answers(&mut load(&config, None).unwrap());
    config.parallel.engines = Engines::Number(2);
    let engines = DataParallel::load(&config, &load).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(answers(&mut Runner::Parallel(Box::new(engines))), expected);
}
