//! What tests of pooling models share: golden folders, engines under limits, requests that are run
//! to their end.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use vllm_batch::engine::api::pooling::{PoolingOutput, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::{
    DType, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig,
};
use vllm_batch::engine::core::serve::pooling::{PoolingEngine, PoolingRequest};

/// (texts of a step at most, tokens of a step at most, threads)
pub type Limits = (usize, usize, usize);

/// All texts in one step.
pub const WIDE: Limits = (256, 4096, 2);

/// A folder or file of `testdata`.
pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// What a folder of `testdata` holds, in the order of the names.
pub fn names(folder: &str) -> Vec<String> {
    let listing = std::fs::read_dir(testdata(folder)).expect("testdata is committed");
    let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// What another program makes of a model's texts.
pub fn golden<T: DeserializeOwned>(folder: &Path) -> T {
    let text = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The class that a folder's config.json names.
pub fn architecture(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["architectures"][0].as_str().unwrap().to_owned()
}

/// A model in float32.
pub fn config(model_dir: PathBuf, limits: Limits) -> EngineConfig {
    let (max_num_seqs, max_num_batched_tokens, num_threads) = limits;
    let model = ModelConfig { model_dir, dtype: Some(DType::Float32), ..ModelConfig::default() };
    let scheduler = SchedulerConfig {
        max_num_seqs: Some(max_num_seqs),
        max_num_batched_tokens: Some(max_num_batched_tokens),
        ..SchedulerConfig::default()
    };
    let parallel = ParallelConfig { num_threads: Some(num_threads), ..ParallelConfig::default() };
    EngineConfig { model, scheduler, parallel, ..EngineConfig::default() }
}

/// A request for every prompt.
pub fn requests(
    engine: &PoolingEngine,
    prompts: impl IntoIterator<Item = Prompt>,
    params: &PoolingParams,
) -> Vec<PoolingRequest> {
    let processor = engine.input_processor();
    let process =
        |(index, prompt)| processor.process_pooling(index as u64, prompt, params.clone()).unwrap();
    prompts.into_iter().enumerate().map(process).collect()
}

/// Runs requests together to their end. Outputs are in the order of the requests.
pub fn answers(engine: &mut PoolingEngine, requests: Vec<PoolingRequest>) -> Vec<PoolingOutput> {
    for request in requests {
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

/// Runs texts, one request for each, which are these tokens.
pub fn of_texts<'a>(
    config: &EngineConfig,
    texts: impl Iterator<Item = (&'a str, &'a [u32])> + Clone,
    params: &PoolingParams,
) -> Vec<PoolingOutput> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let prompts = texts.clone().map(|(text, _)| Prompt::Text(text.to_owned()));
    let requests = requests(&engine, prompts, params);
    for (request, (text, ids)) in requests.iter().zip(texts) {
        assert_eq!(request.texts[0].ids, ids, "{text:?}");
    }
    answers(&mut engine, requests)
}
