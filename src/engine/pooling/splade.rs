//! SPLADE: a sparse vector of a text, a weight for each word of the vocabulary that the text is
//! about: log(1 + relu(x)) of the largest number that any token has for the word.

use super::pooler::Asked;
use super::{Pooled, SpladeSpec};
use crate::engine::EngineError;
use crate::engine::device::{Device, Tensor};
use crate::engine::model::head::Head;
use crate::engine::model::weights::Checkpoint;

/// Tokens whose numbers are in memory at a time: a token has as many as there are words.
const BLOCK: usize = 64;

/// A loaded head of a masked language model.
#[derive(Debug)]
pub(super) struct Splade {
    transform: Head,
    decoder: Head,
    /// Of each word.
    bias: Vec<f32>,
    /// How often the logarithm is taken.
    num_logs: usize,
}

impl Splade {
    /// Reads and packs the weights.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or memory does not suffice.
    pub(super) fn load(
        &SpladeSpec { ref head, num_logs }: &SpladeSpec,
        device: &Device,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let transform = Head::load(&head.transform, device, checkpoint)?;
        let decoder = Head::load(&head.decoder, device, checkpoint)?;
        Ok(Self { transform, decoder, bias: checkpoint.vector(&head.bias, 0.0)?, num_logs })
    }

    /// The vectors of texts, whose states are rows of `states` (tokens of all, width), one text
    /// after the other.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub(super) fn texts(
        &self,
        device: &Device,
        states: &Tensor,
        texts: &[Asked<'_>],
    ) -> Result<Vec<Pooled>, EngineError> {
        let (width, num_words) = (states.width(), self.bias.len());
        let num_tokens = texts.last().map_or(0, |text| text.end);
        let mut texts = texts.iter().peekable();
        let mut largest = vec![f32::NEG_INFINITY; num_words];
        let mut vectors = Vec::with_capacity(texts.len());
        for first in (0..num_tokens).step_by(BLOCK) {
            let rows = &states.values()[first * width..(first + BLOCK).min(num_tokens) * width];
            let rows = self.transform.forward(device, Tensor::from_vec(rows.to_vec(), width))?;
            let numbers = self.decoder.forward(device, rows)?;
            for (index, row) in numbers.values().chunks_exact(num_words).enumerate() {
                for (largest, number) in largest.iter_mut().zip(row) {
                    // NaN comes in, and stays.
                    let is_larger = *number > *largest || number.is_nan();
                    *largest = if is_larger { *number } else { *largest };
                }
                if texts.next_if(|text| text.end == first + index + 1).is_some() {
                    vectors.push(self.vector(&largest));
                    largest.fill(f32::NEG_INFINITY);
                }
            }
        }
        Ok(vectors)
    }

    /// The words that have a weight, upward.
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
