//! `SoundTowerSpec`: what makes states of sounds, as data; and `CrossSpec`, the block of a decoder
//! that attends to them.

use super::{
    BlockNorms, ConnectorSpec, LayerSpec, LinearSpec, NamedShape, NormSpec, Parameters, QkvHeads,
    RopeSpec, TokenId, distinct, most_heads,
};
use vllm_batch_base::layers::{Activation, SoundChunks};

/// What makes states of chunks of sounds: convolutions over their frames, then layers in which the
/// states of a chunk see each other.
#[derive(Clone, Debug, PartialEq)]
pub struct SoundTowerSpec {
    /// Values of a frame.
    pub num_mels: usize,
    /// Frames of a chunk.
    pub num_frames: usize,
    /// In this order.
    pub convs: Vec<ConvSpec>,
    /// (states, width): what is added by the place of a state in its chunk.
    pub positions: Option<LinearSpec>,
    /// The rotary embedding that layers refer to, of the place of a state in its chunk.
    pub rope: Option<RopeSpec>,
    /// One per layer.
    pub layers: Vec<LayerSpec>,
    /// Norm of the last layer's output.
    pub final_norm: Option<NormSpec>,
    /// What makes embeddings of them; None: a decoder attends to the states themselves (Whisper).
    pub tokens: Option<SoundTokensSpec>,
}

/// From the states of a sound to embeddings of tokens of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct SoundTokensSpec {
    /// The token that stands for one of a sound's.
    pub token_id: TokenId,
    /// How many tokens a sound has.
    pub shape: SoundShape,
    /// What becomes of a sound that is longer than a chunk.
    pub chunks: SoundChunks,
    /// From the states of a token to its embedding.
    pub connector: ConnectorSpec,
}

/// How many states and tokens there are of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundShape {
    /// Frames of a chunk.
    pub num_frames: usize,
    /// Frames of a state.
    pub stride: usize,
    /// States of a token. Those that are left at the end of a chunk have none.
    pub num_merged: usize,
    /// Which states there are.
    pub heard: Heard,
}

/// What becomes of the silence that a chunk is filled up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is heard as the rest, and has tokens (Voxtral).
    All,
    /// It is heard as the rest, and has no tokens (GLM-ASR).
    AllWithoutTokens,
    /// It is not heard (Qwen2-Audio).
    Own,
}

/// What there is of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkShape {
    /// States, which see each other.
    pub num_states: usize,
    /// Tokens, of the first of them.
    pub num_tokens: usize,
}

impl SoundShape {
    /// The chunks of a sound of so many frames, of which there is at least one.
    pub fn chunks(self, num_heard: usize) -> impl Iterator<Item = ChunkShape> {
        (0..num_heard.max(1)).step_by(self.num_frames).map(move |start| {
            let own = (num_heard - start).min(self.num_frames).div_ceil(self.stride);
            let all = self.num_frames.div_ceil(self.stride);
            let (num_states, num_with_tokens) = match self.heard {
                Heard::All => (all, all),
                Heard::AllWithoutTokens => (all, own),
                Heard::Own => (own, own),
            };
            ChunkShape { num_states, num_tokens: num_with_tokens / self.num_merged }
        })
    }

    /// Tokens of a sound of so many frames.
    pub fn num_tokens(self, num_heard: usize) -> usize {
        self.chunks(num_heard).map(|chunk| chunk.num_tokens).sum()
    }
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

impl SoundTowerSpec {
    /// States of a whole chunk.
    pub fn num_states(&self) -> usize {
        self.convs.iter().fold(self.num_frames, |frames, conv| conv.num_outputs(frames))
    }

    /// Outputs of each convolution that so many states of a chunk are made of.
    pub fn num_outputs(&self, num_states: usize) -> Vec<usize> {
        let mut all = vec![self.num_frames];
        for conv in &self.convs {
            all.push(conv.num_outputs(all[all.len() - 1]));
        }
        let mut nums = vec![num_states];
        for (conv, most) in self.convs.iter().zip(&all).skip(1).rev() {
            nums.push(conv.num_inputs(nums[nums.len() - 1]).min(*most));
        }
        nums.reverse();
        nums
    }

    /// How many states there are of a sound.
    pub fn shape(&self) -> SoundShape {
        let of_states = SoundShape {
            num_frames: self.num_frames,
            stride: self.convs.iter().map(|conv| conv.stride).product(),
            num_merged: 1,
            heard: Heard::All,
        };
        self.tokens.as_ref().map_or(of_states, |tokens| tokens.shape)
    }

    /// Width of a state.
    pub fn width(&self) -> usize {
        self.convs.last().map_or(self.num_mels, |conv| conv.linear.n())
    }

    /// Width of what it gives: of states, or of embeddings.
    pub fn out_width(&self) -> usize {
        self.tokens.as_ref().map_or(self.width(), |tokens| tokens.connector.n())
    }

    /// The heads of its layers, which are the same in all.
    pub fn heads(&self) -> QkvHeads {
        most_heads(&self.layers)
    }

    /// All normalizations.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let of_connector = self.connector().into_iter().flat_map(ConnectorSpec::norms);
        self.layers.iter().flat_map(LayerSpec::norms).chain(&self.final_norm).chain(of_connector)
    }

    /// What makes embeddings of its states.
    pub fn connector(&self) -> Option<&ConnectorSpec> {
        self.tokens.as_ref().map(|tokens| &tokens.connector)
    }

    /// All tensors: what a checkpoint is held against before anything of it is read, and what is
    /// loaded.
    pub fn tensors(&self) -> Vec<NamedShape> {
        let convs = self.convs.iter().map(|conv| &conv.linear);
        let of_ends = convs.chain(&self.positions).flat_map(LinearSpec::tensors);
        let norm = self.final_norm.iter().flat_map(NormSpec::tensors);
        let of_layers = self.layers.iter().flat_map(LayerSpec::tensors);
        let of_connector = self.connector().into_iter().flat_map(ConnectorSpec::tensors);
        distinct(of_ends.chain(of_layers).chain(norm).chain(of_connector))
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
