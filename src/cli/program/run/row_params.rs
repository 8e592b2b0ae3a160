//! What rows are asked with: sampling parameters, or what texts become. What differs between the
//! commands on a row's way to the engine.

use std::sync::Arc;

use crate::config::{PoolingConfig, RunConfig};
use crate::model::Summary;
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::{RequestError, RowKey, SamplingParams};
use vllm_batch_dataset::input::overrides::Overrides;
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::serve::input_processor::{InputProcessor, ProcessError};
use vllm_batch_engine::serve::pooling::PoolingSummary;
use vllm_batch_engine::serve::runner::Work;

/// Parameters of a row, or those that rows start from.
#[derive(Clone, Debug)]
pub enum RowParams {
    /// Of a row that is completed.
    Sampling(SamplingParams),
    /// Of a row whose vector or class is asked for, of this model.
    Pooling(PoolingParams, Arc<PoolingSummary>),
}

impl RowParams {
    /// What rows without own parameters are asked with.
    ///
    /// # Errors
    /// The flags do not fit each other or the model.
    pub fn start(config: &RunConfig, summary: &Summary) -> Result<Self, CliError> {
        match (summary, &config.pooling) {
            (Summary::Pooling(summary), Some(pooling)) => {
                if config.output.is_matrix {
                    PoolingConfig::check_matrix(summary)?;
                }
                Ok(RowParams::Pooling(pooling.params(summary)?, summary.clone()))
            }
            (Summary::Generate(summary), _) => {
                let defaults = summary.default_sampling_params();
                config.check_sampling(defaults.clone(), summary.spec.vocab_size())?;
                Ok(RowParams::Sampling(config.row_params(defaults)))
            }
            (Summary::Pooling(_), None) => unreachable!("`run` completes"),
        }
    }

    /// Values of a vector of a matrix; 0 of what is none.
    pub fn width(&self) -> usize {
        match self {
            RowParams::Pooling(params, summary) => summary.width(params),
            RowParams::Sampling(_) => 0,
        }
    }

    /// The same with a row's own over them.
    ///
    /// # Errors
    /// A value is wrong, or the model cannot do what it asks for.
    pub fn of_row(&self, overrides: &Overrides) -> Result<Self, RequestError> {
        match self {
            RowParams::Sampling(base) => overrides.apply(base).map(RowParams::Sampling),
            RowParams::Pooling(base, summary) => {
                let params = overrides.apply_pooling(base)?;
                summary.check_params(&params)?;
                Ok(RowParams::Pooling(params, Arc::clone(summary)))
            }
        }
    }

    /// Sampling parameters, where rows are completed.
    pub fn sampling(&self) -> Option<&SamplingParams> {
        match self {
            RowParams::Sampling(params) => Some(params),
            RowParams::Pooling(..) => None,
        }
    }

    /// Refuses a row that the output has no room for.
    ///
    /// # Errors
    /// It has none.
    pub fn check_room(
        &self,
        format: &RowFormat,
        prompt: &Prompt,
        line: u64,
    ) -> Result<(), RowError> {
        match (self, format) {
            (RowParams::Sampling(params), _) => format.check_room(params, line),
            (RowParams::Pooling(params, summary), RowFormat::Npy(npy)) => {
                npy.check(prompt, params, summary.width(params), line)
            }
            (RowParams::Pooling(..), _) => Ok(()),
        }
    }

    /// What the engine is asked.
    ///
    /// # Errors
    /// The row cannot be answered, or the machine lacks something.
    pub fn work(
        self,
        processor: &InputProcessor,
        position: u64,
        prompt: Prompt,
        key: RowKey,
    ) -> Result<Work, ProcessError> {
        Ok(match self {
            RowParams::Sampling(params) => {
                Work::Generate(processor.process(position, prompt, params, key)?)
            }
            RowParams::Pooling(params, _) => {
                Work::Pooling(processor.process_pooling(position, prompt, params)?)
            }
        })
    }
}
