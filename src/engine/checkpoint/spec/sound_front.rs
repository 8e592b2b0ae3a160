//! `SoundFront`: from the frames of a chunk to the stream of its states.

use super::{LinearSpec, NamedShape, Sinusoids};
use vllm_batch_base::layers::Activation;

/// What makes the first values of states.
#[derive(Clone, Debug, PartialEq)]
pub enum SoundFront {
    /// Convolutions over the frames of a chunk.
    Frames(FrameConvs),
    /// Convolutions over frames and mels.
    Squares(SquareConvs),
}

/// Convolutions over the frames of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameConvs {
    /// In this order.
    pub convs: Vec<ConvSpec>,
    /// What is behind the frames of the sound is zeros to each of them (Qwen2.5-Omni).
    pub is_cut: bool,
}

/// Convolutions over squares of three frames and three mels, every second of both, with zeros
/// beyond the edge. What is left of a frame goes through a product.
#[derive(Clone, Debug, PartialEq)]
pub struct SquareConvs {
    /// Frames that are convolved together, behind which there are zeros.
    pub num_frames: usize,
    /// (channels, inputs, 3, 3) each
    pub convs: Vec<LinearSpec>,
    /// Of each output.
    pub activation: Activation,
    /// (width, mels that are left * channels)
    pub out: LinearSpec,
    /// A sound of fewer frames is convolved without those behind it (Qwen3-Omni).
    pub is_cut: bool,
}

/// What is added by the place of a state among those that were convolved together.
#[derive(Clone, Debug, PartialEq)]
pub enum SoundPositions {
    /// (places, width)
    Learned(LinearSpec),
    /// Sines and cosines.
    Computed(Sinusoids),
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

    /// Frames that so many outputs are of, where there is no end before.
    pub fn num_inputs(&self, num_outputs: usize) -> usize {
        num_outputs.saturating_sub(1) * self.stride + CONV_TAPS / 2 + 1
    }
}

impl SoundFront {
    /// Frames of a state.
    pub fn stride(&self) -> usize {
        match self {
            Self::Frames(frames) => frames.convs.iter().map(|conv| conv.stride).product(),
            Self::Squares(squares) => 1 << squares.convs.len(),
        }
    }

    /// Width of a state.
    pub fn width(&self) -> usize {
        match self {
            Self::Frames(frames) => frames.convs.last().map_or(0, |conv| conv.linear.n()),
            Self::Squares(squares) => squares.out.n(),
        }
    }

    /// Frames that are convolved together, of a chunk of so many.
    pub fn num_convolved(&self, num_frames: usize) -> usize {
        match self {
            Self::Frames(_) => num_frames,
            Self::Squares(squares) => squares.num_frames,
        }
    }

    /// All tensors.
    pub fn tensors(&self) -> Vec<NamedShape> {
        match self {
            Self::Frames(frames) => {
                frames.convs.iter().flat_map(|conv| conv.linear.tensors()).collect()
            }
            Self::Squares(squares) => {
                let linears = squares.convs.iter().chain([&squares.out]);
                linears.flat_map(LinearSpec::tensors).collect()
            }
        }
    }
}

impl SquareConvs {
    /// What is left of so many frames or mels behind each convolution, and at first.
    pub fn sizes(&self, num: usize) -> Vec<usize> {
        let mut sizes = vec![num];
        for _ in &self.convs {
            sizes.push(sizes[sizes.len() - 1].div_ceil(2));
        }
        sizes
    }
}
