//! The in-process continuous-batching engine, with vLLM's verbs: `add_request`, `step`,
//! `has_unfinished_requests`.

pub mod batch;
pub mod block_pool;
pub mod completion;
pub mod config;
pub mod device;
pub mod executor;
pub mod input_processor;
pub mod model;
pub mod model_executor;
pub mod ops;
pub mod prefix_cache;
pub mod request;
pub mod sampler;
pub mod sampling_params;
pub mod scheduler;
pub mod sequence;
pub mod simulated_executor;
pub mod stats;
pub mod text;

use std::path::Path;
use std::sync::{Arc, Mutex};

use batch::Batch;
use config::{DType, EngineConfig, GenerationConfigSource};
use device::Device;
use executor::{Executor, Logits};
use input_processor::{InputProcessor, ModelLimits};
use model::hf_config::{GenerationConfig, HfConfig};
use model_executor::ModelExecutor;
use request::{Request, RequestOutput};
use sampler::{RowResult, RowTask, SamplerScratch};
use scheduler::Scheduler;
use stats::EngineStats;
use text::{ChatTemplate, TextError, Tokenizer};

/// The engine: scheduler, executor and sampler behind vLLM's verbs.
pub struct Engine {
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    sampler: Sampler,
    /// Refilled by every step.
    batch: Batch,
    input_processor: Arc<InputProcessor>,
    info: EngineInfo,
}

/// What was loaded, for logs and for the fingerprint of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    /// Weights and KV cache.
    pub dtype: DType,
    /// Device and instruction set: outputs are byte-equal only within one kernel set.
    pub kernel_set: String,
    /// Threads of the device.
    pub num_threads: usize,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: usize,
    /// Tokens that the KV cache holds.
    pub num_cache_tokens: usize,
    /// Bytes of the KV cache.
    pub kv_cache_bytes: usize,
}

impl Engine {
    /// Loads model, tokenizer and chat template, packs weights, sizes and allocates the KV cache.
    ///
    /// # Errors
    /// Model files are missing, corrupt or unsupported, or memory does not suffice.
    pub fn load(config: &EngineConfig) -> Result<Self, EngineError> {
        let model_dir = &config.model.model_dir;
        let hf_config = HfConfig::from_dir(model_dir)?;
        let spec = model::decoder_spec(&hf_config)?;
        let dtype = match config.model.dtype {
            Some(dtype) => dtype,
            None => hf_config.dtype()?,
        };
        let max_model_len = max_model_len(config, spec.max_model_len)?;
        let vocab_size = spec.vocab_size;
        let limits = ModelLimits { vocab_size, max_model_len };
        let input_processor = load_input_processor(config, &hf_config, limits)?;

        let device = Arc::new(Device::cpu(config.parallel.num_threads));
        let executor =
            ModelExecutor::load(config, spec, dtype, max_model_len, Arc::clone(&device))?;
        let shape = executor.cache_shape();
        let info = EngineInfo {
            dtype,
            kernel_set: device.kernel_set(),
            num_threads: device.num_threads(),
            max_model_len,
            num_cache_tokens: shape.num_blocks * shape.block_size,
            kv_cache_bytes: shape.num_blocks * shape.block_bytes(dtype),
        };
        let scheduler = Scheduler::new(
            &config.scheduler,
            &config.cache,
            shape.num_blocks,
            max_model_len,
            config.model.seed,
            Some(input_processor.tokenizer()),
        );
        Ok(Self {
            scheduler,
            executor: Box::new(executor),
            sampler: Sampler::new(device),
            batch: Batch::default(),
            input_processor,
            info,
        })
    }

    /// What turns prompts into requests; shared with the thread that reads rows.
    pub fn input_processor(&self) -> Arc<InputProcessor> {
        Arc::clone(&self.input_processor)
    }

    /// What was loaded.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Queues a request. It was validated by the input processor.
    pub fn add_request(&mut self, request: Request) {
        self.scheduler.add_request(request);
    }

    /// Whether any request is waiting or running.
    pub fn has_unfinished_requests(&self) -> bool {
        self.scheduler.has_unfinished_requests()
    }

    /// One scheduling and model step; returns the requests that finished in it.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self) -> Result<Vec<RequestOutput>, EngineError> {
        let scheduled = self.scheduler.schedule();
        if scheduled.is_empty() {
            return Ok(self.scheduler.update(&scheduled, Vec::new()));
        }
        self.batch.refill(&scheduled, &self.scheduler);
        let logits =
            self.executor.execute(&self.batch).map_err(|error| EngineError::Device(error.0))?;
        let results = self.sampler.sample(logits, &self.scheduler.row_tasks(&scheduled));
        Ok(self.scheduler.update(&scheduled, results))
    }

    /// Counters since load, and the present queue lengths.
    pub fn stats(&self) -> EngineStats {
        self.scheduler.stats()
    }
}

/// Runs the sampler over the rows of a step on the device's threads. A row's result is a function
/// of the row alone, so the threads may take them in any order.
struct Sampler {
    device: Arc<Device>,
    /// One per thread.
    scratch: Vec<Mutex<SamplerScratch>>,
}

impl Sampler {
    fn new(device: Arc<Device>) -> Self {
        let scratch = (0..device.num_threads()).map(|_| Mutex::new(SamplerScratch::default()));
        Self { scratch: scratch.collect(), device }
    }

    fn sample(&mut self, logits: Logits<'_>, tasks: &[RowTask<'_>]) -> Vec<RowResult> {
        let rows = logits.values.chunks_exact_mut(logits.vocab_size);
        assert_eq!(rows.len(), tasks.len(), "one row of logits per task");
        let rows: Vec<_> = rows.map(|row| Mutex::new((row, None))).collect();
        self.device.parallel_for(rows.len(), &|thread, index| {
            let mut row = rows[index].lock().expect("a row is sampled once");
            let mut scratch = self.scratch[thread].lock().expect("one scratch per thread");
            row.1 = Some(sampler::run_row(row.0, &tasks[index], &mut scratch));
        });
        let result = |row: Mutex<(&mut [f32], Option<RowResult>)>| {
            row.into_inner().expect("no thread panicked").1.expect("every row was sampled")
        };
        rows.into_iter().map(result).collect()
    }
}

/// The context length: what was asked for, else what the model has.
fn max_model_len(config: &EngineConfig, of_model: usize) -> Result<usize, EngineError> {
    match config.model.max_model_len {
        None => Ok(of_model),
        Some(asked) if (2..=of_model).contains(&asked) => Ok(asked),
        Some(asked) => Err(EngineError::Config(format!(
            "--max-model-len {asked}: the model's context is {of_model} tokens, at least 2 are needed"
        ))),
    }
}

fn load_input_processor(
    config: &EngineConfig,
    hf_config: &HfConfig,
    limits: ModelLimits,
) -> Result<Arc<InputProcessor>, EngineError> {
    let dir: &Path = config.model.tokenizer_dir.as_ref().unwrap_or(&config.model.model_dir);
    let error = |error: TextError| EngineError::Model(error.to_string());
    let tokenizer = Tokenizer::from_dir(dir).map_err(error)?;
    let chat_template = match &config.model.chat_template {
        Some(source) => {
            let (bos, eos) = (tokenizer.bos_token(), tokenizer.eos_token());
            Some(ChatTemplate::new(source, bos, eos).map_err(error)?)
        }
        None => ChatTemplate::from_dir(dir, &tokenizer).map_err(error)?,
    };
    let generation_dir = match &config.model.generation_config {
        GenerationConfigSource::Dir(dir) => dir,
        GenerationConfigSource::Auto | GenerationConfigSource::Vllm => &config.model.model_dir,
    };
    let mut generation_config = GenerationConfig::from_dir(generation_dir)?;
    if generation_config.eos_token_ids.is_empty() {
        generation_config.eos_token_ids = hf_config.eos_token_ids();
    }
    if config.model.generation_config == GenerationConfigSource::Vllm {
        // EOS ids are merged all the same, as vLLM does.
        let eos_token_ids = std::mem::take(&mut generation_config.eos_token_ids);
        generation_config = GenerationConfig { eos_token_ids, ..GenerationConfig::default() };
    }
    let processor =
        InputProcessor::new(&config.model, limits, tokenizer, chat_template, generation_config);
    Ok(Arc::new(processor))
}

/// Why an engine could not be loaded, or could not go on.
#[derive(Debug)]
pub enum EngineError {
    /// A model file is missing, corrupt, unsafe or unsupported (exit 7): path and remedy in the
    /// text.
    Model(String),
    /// A configuration value cannot be honoured (exit 2).
    Config(String),
    /// The device failed in the middle of a run (exit 5).
    Device(String),
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Model(text) | EngineError::Config(text) | EngineError::Device(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for EngineError {}
