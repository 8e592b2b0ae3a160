//! `EmbeddingSpec` and `OutputSpec`: what is before the first layer of a model and behind the last.

use super::{LayerInputsSpec, LinearSpec, NamedShape, NormSpec, StreamsSpec};
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Activation;

/// From token ids to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// (vocab_size, embedding width)
    pub tokens: LinearSpec,
    /// Embeddings are multiplied by this.
    pub scale: Option<EmbeddingScale>,
    /// (hidden_size, embedding width): leads to the residual stream where the table has another
    /// width (OPT-350m).
    pub projection: Option<LinearSpec>,
    /// Learned positions are added.
    pub positions: Option<LearnedPositions>,
    /// Positions are added that are computed.
    pub sinusoids: Option<Sinusoids>,
    /// The sum is normalized (BLOOM).
    pub norm: Option<NormSpec>,
    /// Layers have inputs of their own (Gemma 4).
    pub of_layers: Option<LayerInputsSpec>,
    /// The sum becomes several streams (Gemma 3n).
    pub streams: Option<StreamsSpec>,
    /// Prefixes of tensors that make embeddings of images and sounds. Where no tower has them they
    /// are left unused: the model is run for text alone.
    pub of_media: &'static [&'static str],
}

/// A factor of embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingScale {
    /// The factor.
    pub factor: f32,
    /// It is rounded to the model's dtype first (Gemma), as transformers keeps it there.
    pub is_rounded: bool,
}

impl EmbeddingScale {
    /// The root of a width, not rounded.
    pub fn root_of(width: usize) -> Self {
        Self { factor: (width as f64).sqrt() as f32, is_rounded: false }
    }

    /// The factor in a model of this dtype.
    pub fn of_dtype(self, dtype: DType) -> f32 {
        match dtype {
            DType::BFloat16 if self.is_rounded => half::bf16::from_f32(self.factor).to_f32(),
            DType::Float16 if self.is_rounded => half::f16::from_f32(self.factor).to_f32(),
            _ => self.factor,
        }
    }
}

impl EmbeddingSpec {
    /// A table alone.
    pub fn of(tokens: LinearSpec) -> Self {
        Self {
            tokens,
            scale: None,
            projection: None,
            positions: None,
            sinusoids: None,
            norm: None,
            of_layers: None,
            streams: None,
            of_media: &[],
        }
    }

    /// Linear layers and norms beside the table of tokens and the streams.
    pub(super) fn parts(
        &self,
    ) -> (impl Iterator<Item = &LinearSpec>, impl Iterator<Item = &NormSpec>) {
        let Self { projection, positions, of_layers: inputs, norm, .. } = self;
        let table = positions.as_ref().map(|positions| &positions.table);
        let of_inputs = inputs.iter().flat_map(|inputs| [&inputs.table, &inputs.projection]);
        let linears = projection.iter().chain(table).chain(of_inputs);
        (linears, norm.iter().chain(inputs.as_ref().map(|inputs| &inputs.norm)))
    }
}

/// A table of position embeddings: position p is row p + offset.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedPositions {
    /// (rows, hidden_size)
    pub table: LinearSpec,
    /// Row of position 0.
    pub offset: usize,
}

/// Position embeddings that are computed: sines of a position at falling frequencies, and behind
/// them its cosines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sinusoids {
    /// Values of a position.
    pub width: usize,
    /// Frequency i is 10000^(-i / divisor).
    pub divisor: usize,
    /// What is added to positions.
    pub offset: usize,
    /// The number, offset included, that has zeros: that of a token of padding (XGLM).
    pub zeros: Option<usize>,
}

impl Sinusoids {
    /// Rows of so many positions, with f32's rounding of frequencies and angles, as transformers
    /// has it.
    pub fn rows(&self, num_positions: usize) -> Vec<f32> {
        let half = self.width / 2;
        let step = -(10_000f64.ln() / self.divisor as f64) as f32;
        let frequency = |index: usize| f64::from(index as f32 * step).exp() as f32;
        let frequencies: Vec<_> = (0..half).map(frequency).collect();
        let mut rows = vec![0.0; num_positions * self.width];
        for (number, row) in (self.offset..).zip(rows.chunks_exact_mut(self.width)) {
            if self.zeros == Some(number) {
                continue;
            }
            for (index, frequency) in frequencies.iter().enumerate() {
                let angle = f64::from(number as f32 * frequency);
                (row[index], row[half + index]) = (angle.sin() as f32, angle.cos() as f32);
            }
        }
        rows
    }
}

/// From the residual stream to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// Before everything.
    pub norm: Option<NormSpec>,
    /// (embedding width, hidden_size), where the table has another width.
    pub projection: Option<LinearSpec>,
    /// What follows the projection (Ettin).
    pub after_projection: Option<AfterProjection>,
    /// (vocab_size, embedding width); None: the embedding table.
    pub lm_head: Option<LinearSpec>,
    /// Logits are multiplied by this.
    pub scale: Option<f32>,
    /// logits = cap * tanh(logits / cap).
    pub soft_cap: Option<f32>,
    /// Prefixes of tensors that predict tokens after the next one (GLM-4.5). They are left unused.
    pub of_further_tokens: Vec<String>,
    /// Output layer of the files, if the config declares it to be the table.
    pub beside_table: BesideTable,
}

/// norm(activation(x))
#[derive(Clone, Debug, PartialEq)]
pub struct AfterProjection {
    /// The activation.
    pub activation: Activation,
    /// (embedding width)
    pub norm: NormSpec,
}

/// A matrix of an output layer in files whose config says that it is the embedding table.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum BesideTable {
    /// There is none, or the config does not say so.
    #[default]
    Nothing,
    /// It equals the table, and is left unused.
    Copy(NamedShape),
    /// It has other values, and is the output layer.
    Head,
}

impl OutputSpec {
    /// A norm and an output layer; None: the embedding table.
    pub fn new(norm: NormSpec, lm_head: Option<LinearSpec>) -> Self {
        Self {
            norm: Some(norm),
            projection: None,
            after_projection: None,
            lm_head,
            scale: None,
            soft_cap: None,
            of_further_tokens: Vec::new(),
            beside_table: BesideTable::Nothing,
        }
    }

    /// Linear layers and norms.
    pub(super) fn parts(
        &self,
    ) -> (impl Iterator<Item = &LinearSpec>, impl Iterator<Item = &NormSpec>) {
        let after = self.after_projection.as_ref().map(|after| &after.norm);
        (self.projection.iter().chain(&self.lm_head), self.norm.iter().chain(after))
    }

    /// For people: that the output layer is another than the config says.
    pub fn note_of_head(&self) -> Option<String> {
        let head = self.lm_head.as_ref().filter(|_| self.beside_table == BesideTable::Head)?;
        let name = head.parts[0].weight_name();
        Some(format!(
            "{name} is the output layer: config.json ties it to the embedding table, and the \
             weight files have other values in it"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_positions_are_sines_and_cosines_of_falling_frequencies() {
        let sinusoids = Sinusoids { width: 6, divisor: 2, offset: 2, zeros: Some(3) };
        let rows = sinusoids.rows(3);
        assert_eq!(rows[6..12], [0.0; 6]);
        for (number, row) in [(2f64, &rows[..6]), (4.0, &rows[12..])] {
            // 10000^(-1/2) is 1/100.
            for (index, frequency) in [1.0, 0.01, 1e-4].into_iter().enumerate() {
                let angle: f64 = number * frequency;
                assert!((f64::from(row[index]) - angle.sin()).abs() < 1e-6, "{row:?}");
                assert!((f64::from(row[3 + index]) - angle.cos()).abs() < 1e-6, "{row:?}");
            }
        }
    }
}
