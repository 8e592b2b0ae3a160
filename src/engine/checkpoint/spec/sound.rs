//! `SoundTowerSpec`: what makes states of sounds, as data; and `CrossSpec`, the block of a decoder
//! that attends to them.

use super::{
    BlockNorms, LayerSpec, LinearSpec, NamedShape, NormSpec, Parameters, QkvHeads, distinct,
    most_heads,
};
use vllm_batch_base::layers::Activation;

/// What makes states of a sound of one length: convolutions over its frames, then layers in which
/// all states see each other.
#[derive(Clone, Debug, PartialEq)]
pub struct SoundTowerSpec {
    /// Values of a frame.
    pub num_mels: usize,
    /// Frames of a sound.
    pub num_frames: usize,
    /// In this order.
    pub convs: Vec<ConvSpec>,
    /// (states, width): what is added by the place of a state.
    pub positions: LinearSpec,
    /// One per layer.
    pub layers: Vec<LayerSpec>,
    /// Norm of the last layer's output.
    pub final_norm: Option<NormSpec>,
}

/// A convolution over frames: each output is of three frames, one before and one behind, with
/// zeros beyond the ends.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvSpec {
    /// (outputs, 3 * inputs)
    pub linear: LinearSpec,
    /// Frames from one output to the next.
    pub stride: usize,
    /// Of each output.
    pub activation: Activation,
}

/// Frames that an output is of.
pub const CONV_TAPS: usize = 3;

impl ConvSpec {
    /// Outputs for so many frames.
    pub fn num_outputs(&self, num_frames: usize) -> usize {
        num_frames.div_ceil(self.stride)
    }
}

impl SoundTowerSpec {
    /// States of a sound.
    pub fn num_states(&self) -> usize {
        self.convs.iter().fold(self.num_frames, |frames, conv| conv.num_outputs(frames))
    }

    /// Width of a state.
    pub fn width(&self) -> usize {
        self.positions.k
    }

    /// The heads of its layers, which are the same in all.
    pub fn heads(&self) -> QkvHeads {
        most_heads(&self.layers)
    }

    /// All normalizations.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        self.layers.iter().flat_map(LayerSpec::norms).chain(&self.final_norm)
    }

    /// All tensors: what a checkpoint is held against before anything of it is read, and what is
    /// loaded.
    pub fn tensors(&self) -> Vec<NamedShape> {
        let convs = self.convs.iter().map(|conv| &conv.linear);
        let of_ends = convs.chain([&self.positions]).flat_map(LinearSpec::tensors);
        let norm = self.final_norm.iter().flat_map(NormSpec::tensors);
        distinct(of_ends.chain(self.layers.iter().flat_map(LayerSpec::tensors)).chain(norm))
    }

    /// Number of parameters.
    pub fn parameters(&self) -> Parameters {
        Parameters::of(&self.tensors(), &self.layers)
    }
}

/// States that tokens attend to beside those of their own sequence: the first positions of a
/// prompt. K and V of a state lie in the cache where those of a token at its position would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSpec {
    /// States.
    pub num_states: usize,
    /// Positions before the first token: the states, and none behind them up to whole blocks.
    pub num_positions: usize,
}

impl SourceSpec {
    /// Positions are so many times some: blocks of the cache of every usual size are whole ones.
    pub const WHOLE_BLOCKS: usize = 128;

    /// A source of so many states.
    pub fn new(num_states: usize) -> Self {
        Self { num_states, num_positions: num_states.next_multiple_of(Self::WHOLE_BLOCKS) }
    }
}

/// A block that attends to states of a source, between a layer's attention and its MLP. All tokens
/// see all states.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Its heads, which are those of the layer's attention.
    pub heads: QkvHeads,
    /// (num_heads * head_dim, hidden_size)
    pub q: LinearSpec,
    /// (2 * num_kv_heads * head_dim, width of states): k, v.
    pub kv: LinearSpec,
    /// (hidden_size, num_heads * head_dim)
    pub out: LinearSpec,
    /// What it attends to.
    pub source: SourceSpec,
}

impl CrossSpec {
    /// Factor of the scores.
    pub fn scale(&self) -> f32 {
        1.0 / (self.heads.head_dim as f32).sqrt()
    }

    /// Its linear layers.
    pub fn linears(&self) -> [&LinearSpec; 3] {
        [&self.q, &self.kv, &self.out]
    }
}
