//! SPLADE: a sparse vector of a text, a weight for each word of the vocabulary that the text is
//! about: log(1 + relu(x)) of the largest number that any token has for the word.

use super::SpladeSpec;
use super::pooler::each;
use vllm_batch_api::pooling::Pooled;
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Tensor};

/// What becomes of the largest numbers of a text.
#[derive(Debug)]
pub(super) struct Splade {
    /// Of each word.
    bias: Vec<f32>,
    /// How often the logarithm is taken.
    num_logs: usize,
}

impl Splade {
    /// Reads the bias of the words; the other weights are the encoder's.
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub(super) fn load(
        &SpladeSpec { ref head, num_logs }: &SpladeSpec,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        Ok(Self { bias: checkpoint.vector(&head.bias, 0.0)?, num_logs })
    }

    /// The words that have a weight, upward, of each row of `largest` (texts, words).
    pub(super) fn texts(&self, device: &Device, largest: &Tensor) -> Vec<Pooled> {
        each(device, largest.num_rows(), &|text| self.vector(largest.row(text)))
    }

    /// The words of a text that have a weight, upward.
    fn vector(&self, largest: &[f32]) -> Pooled {
        let numbers = largest.iter().zip(&self.bias).enumerate();
        let weights =
            numbers.map(|(word, (number, bias))| (word as u32, self.weight(number + bias)));
        Pooled::Sparse(weights.filter(|(_, weight)| *weight != 0.0).collect())
    }

    /// Of a word, from its number: computed in f64 and rounded once. To add the bias to the largest
    /// number is to take the largest sum, since rounding keeps the order.
    fn weight(&self, number: f32) -> f32 {
        if number.is_nan() {
            return number;
        }
        let weight = f64::from(number.max(0.0));
        (0..self.num_logs).fold(weight, |weight, _| weight.ln_1p()) as f32
    }
}
