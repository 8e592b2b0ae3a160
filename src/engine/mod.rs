//! The in-process continuous-batching engine, with vLLM's verbs: `add_request`, `step`, `has_unfinished_requests`.

pub mod batch;
pub mod config;
pub mod executor;
pub mod input_processor;
pub mod request;
pub mod sampler;
pub mod sampling_params;
pub mod stats;
pub mod text;

use std::sync::Arc;

use config::EngineConfig;
use input_processor::InputProcessor;
use request::{Request, RequestOutput};
use stats::EngineStats;

/// The engine: scheduler, executor and sampler behind vLLM's verbs.
pub struct Engine {}

impl Engine {
    /// Loads model, tokenizer and chat template, packs weights, sizes and allocates the KV cache.
    ///
    /// # Errors
    /// Model files are missing, corrupt or unsupported, or memory does not suffice.
    pub fn load(_config: &EngineConfig) -> Result<Self, EngineError> {
        unimplemented!()
    }

    /// What turns prompts into requests; shared with the thread that reads rows.
    pub fn input_processor(&self) -> Arc<InputProcessor> {
        unimplemented!()
    }

    /// Queues a request. It was validated by the input processor.
    pub fn add_request(&mut self, _request: Request) {
        unimplemented!()
    }

    /// Whether any request is waiting or running.
    pub fn has_unfinished_requests(&self) -> bool {
        unimplemented!()
    }

    /// One scheduling and model step; returns the requests that finished in it.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self) -> Result<Vec<RequestOutput>, EngineError> {
        unimplemented!()
    }

    /// Counters since load, and the present queue lengths.
    pub fn stats(&self) -> EngineStats {
        unimplemented!()
    }
}

/// Why an engine could not be loaded, or could not go on.
#[derive(Debug)]
pub enum EngineError {
    /// A model file is missing, corrupt, unsafe or unsupported (exit 7): path and remedy in the text.
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
