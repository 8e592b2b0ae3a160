//! The head of a masked language model over the states of texts: of each text the largest number
//! that any of its tokens has for each word of the vocabulary.

use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Activation;
use vllm_batch_checkpoint::encoders::MaskedLmSpec;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{LinearWeight, NormWeight, Step, TextLimits};

/// The weights of a `MaskedLmSpec` without its bias, and buffers for some tokens at a time: each
/// has as many numbers as there are words.
#[derive(Debug)]
pub(super) struct WordMaxima {
    dense: LinearWeight,
    activation: Activation,
    norm: Option<NormWeight>,
    words: LinearWeight,
    /// (block, hidden_size)
    states: Tensor,
    /// (block, hidden_size)
    transformed: Tensor,
    /// (block, words)
    numbers: Tensor,
    /// (texts, words)
    pub largest: Tensor,
    /// Tokens at a time.
    block: usize,
}

impl WordMaxima {
    /// Reads and packs the weights, as exact as linear layers take their inputs.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, memory does not suffice, or the device cannot run
    /// a layer.
    pub(super) fn load(
        spec: &MaskedLmSpec,
        loader: &mut Loader<'_>,
        limits: TextLimits,
    ) -> Result<Self, EngineError> {
        let device = loader.device;
        let dtype = device.activation_dtype();
        let mut loader = Loader { dtype, device, checkpoint: &mut *loader.checkpoint };
        let (dense, words) = (loader.linear(&spec.dense)?, loader.linear(&spec.words)?);
        let block = device.output_rows(limits.max_num_tokens);
        dense.prepare(device, dtype, block)?;
        words.prepare(device, DType::Float32, block)?;
        let per_token = || device.tensor(block, spec.dense.n(), Precision::Activation);
        let num_words = spec.words.n();
        let texts = device.preallocated_rows(limits.max_num_texts);
        Ok(Self {
            dense,
            activation: spec.activation,
            norm: loader.norm(Some(&spec.norm))?,
            words,
            states: per_token()?,
            transformed: per_token()?,
            numbers: device.tensor(block, num_words, Precision::Full)?,
            largest: device.tensor(texts, num_words, Precision::Full)?,
            block,
        })
    }

    /// largest = the maxima of the step's texts, whose tokens have these states (num_tokens,
    /// hidden_size).
    pub(super) fn run(&mut self, device: &Device, step: Step<'_>, all: &Tensor) {
        let Self { states, transformed, numbers, largest, .. } = self;
        let num_tokens = step.batch.num_tokens();
        largest.resize_rows(step.text_starts().host.len() - 1);
        for first in (0..num_tokens).step_by(self.block) {
            let num_rows = self.block.min(num_tokens - first);
            states.set_num_rows(num_rows);
            ops::copy_rows(device, all.rows_from(first), states);
            ops::linear(device, states, &self.dense, transformed);
            ops::activate(device, self.activation, transformed);
            if let Some(norm) = &self.norm {
                ops::norm_in_place(device, transformed, norm);
            }
            ops::linear(device, transformed, &self.words, numbers);
            ops::text_maxima(device, (numbers, first), step.text_starts(), largest);
        }
    }
}
