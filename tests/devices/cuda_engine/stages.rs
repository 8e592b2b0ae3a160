//! One model in stages over several drivers of this process, or on one GPU: the bits of one device.

use std::collections::BTreeMap;
use std::sync::Arc;

use vllm_batch::engine::api::answer::Answer;
use vllm_batch::engine::api::request::RowKey;
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::{DType, EngineConfig};
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::serve::data_parallel::{DataParallel, LoadEngine};
use vllm_batch::engine::core::serve::runner::{Runner, Work};
use vllm_batch::engine::core::{Engine, Shared};

use super::failure::{error_of_run, failing_later};
use super::invariance::{bits, few_blocks};
use super::rows::rows;
use super::{config, images, run};
use crate::gpu;

/// A golden model on one device, and the same in stages; None: there is no device.
fn staged(
    family: &str,
    dtype: DType,
    (seed, num_stages): (u64, usize),
) -> Option<(EngineConfig, EngineConfig)> {
    let mut one = config(family, dtype, &gpu::device(seed)?);
    one.parallel.num_threads = Some(num_stages);
    Some((one.clone(), in_stages(one, num_stages)))
}

/// On a real GPU all stages are on the one that there is.
fn in_stages(mut config: EngineConfig, num_stages: usize) -> EngineConfig {
    config.parallel.pipeline_parallel_size = Some(num_stages);
    if gpu::is_real() {
        config.parallel.stage_devices = vec![config.device.kind.clone(); num_stages];
    }
    config
}

/// Bits by row, in one engine.
fn outcome(config: &EngineConfig) -> Vec<Vec<Vec<u32>>> {
    let mut engine = Engine::load(config).unwrap_or_else(|error| panic!("{error}"));
    run(&mut engine, rows()).iter().map(bits).collect()
}

fn load(config: &EngineConfig, shared: Option<Shared>) -> Result<Runner, EngineError> {
    let summary = ModelSummary::read(&config.model)?;
    Ok(Runner::Generate(Box::new(Engine::load_with(config, &summary, shared)?)))
}

/// The same of as many engines as keep all stages at work.
fn outcome_of_several(config: &EngineConfig) -> Vec<Vec<Vec<u32>>> {
    let load: LoadEngine = Arc::new(load);
    let engines = DataParallel::load(config, &load).unwrap_or_else(|error| panic!("{error}"));
    let mut runner = Runner::Parallel(Box::new(engines));
    let processor = runner.input_processor();
    let rows = rows();
    let num_rows = rows.len();
    for (index, (prompt, params)) in (0..).zip(rows) {
        let request = processor.process(index, prompt, params, RowKey(index)).unwrap();
        runner.add_request(Work::Generate(request));
    }
    let mut found = BTreeMap::new();
    while runner.has_unfinished_requests() {
        for answer in runner.step().unwrap_or_else(|error| panic!("{error}")) {
            let Answer::Generate(output) = answer else { panic!("it completes") };
            found.insert(output.request_id, bits(&output));
        }
    }
    assert_eq!(found.len(), num_rows);
    found.into_values().collect()
}

#[test]
fn stages_have_the_bits_of_one_device() {
    let families = [
        ("llama2", DType::Float32, 3),
        ("qwen3", DType::BFloat16, 2),
        ("gemma2", DType::BFloat16, 2),
        ("opt", DType::Float32, 2),
        ("solar", DType::BFloat16, 2),
        ("gpt_oss_mxfp4", DType::BFloat16, 2),
        ("qwen3_moe", DType::BFloat16, 2),
        ("deepseek_v2", DType::BFloat16, 2),
        ("gemma4", DType::Float32, 2),
        ("mamba2", DType::Float32, 2),
        ("qwen3_5", DType::BFloat16, 3),
        ("falcon_h1", DType::BFloat16, 2),
        ("zamba2", DType::Float32, 3),
        ("gemma3n", DType::Float32, 2),
    ];
    for (index, (family, dtype, num_stages)) in families.into_iter().enumerate() {
        let seeds = (600 + 10 * index as u64, num_stages);
        let Some((one, several)) = staged(family, dtype, seeds) else { return };
        let expected = outcome(&one);
        for (row, (got, expected)) in outcome(&several).iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{family}, {num_stages} stages: row {row}");
        }
    }
}

#[test]
fn engines_that_share_stages_have_the_bits_of_one_device() {
    for (index, family) in ["qwen3", "qwen3_5"].into_iter().enumerate() {
        let seeds = (760 + 10 * index as u64, 2);
        let Some((mut one, _)) = staged(family, DType::BFloat16, seeds) else { return };
        one.scheduler.max_num_seqs = Some(3);
        one.cache = few_blocks(true);
        let expected = outcome(&one);
        for (row, (got, expected)) in
            outcome_of_several(&in_stages(one, 2)).iter().zip(&expected).enumerate()
        {
            assert_eq!(got, expected, "{family}: row {row}");
        }
    }
}

#[test]
fn rows_with_images_have_the_bits_of_one_device() {
    for (index, family) in ["qwen3_vl", "smolvlm"].into_iter().enumerate() {
        let seeds = (800 + 10 * index as u64, 2);
        let Some((one, several)) = staged(family, DType::BFloat16, seeds) else { return };
        let outcome = |config| {
            let mut engine = Engine::load(config).unwrap_or_else(|error| panic!("{error}"));
            let outputs = run(&mut engine, images::rows());
            assert!(engine.stats().images.num_encoded > 0, "{family}");
            outputs.iter().map(bits).collect::<Vec<_>>()
        };
        let expected = outcome(&one);
        for (row, (got, expected)) in outcome(&several).iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{family}: row {row}");
        }
    }
}

#[test]
fn a_stage_that_fails_ends_the_run_and_is_named() {
    let Some(device) = failing_later("divergent_stage") else { return };
    let mut failing = config("llama2", DType::Float32, &device);
    failing.parallel.num_threads = Some(2);
    let failing = in_stages(failing, 2);
    assert!(Engine::load(&failing).is_ok(), "it fails later");
    let error = error_of_run(&failing).to_string();
    assert!(error.contains("stage 0: ") && error.contains("add_norm"), "{error}");
}
