//! `SoundTowerSpec`: what makes states of sounds, as data; and `CrossSpec`, the block of a decoder
//! that attends to them.

use super::{
    BlockNorms, ConnectorSpec, Heard, LayerSpec, LinearSpec, NamedShape, NormSpec, Parameters,
    QkvHeads, RopeSpec, SoundFront, SoundPositions, SoundShape, SoundTokensSpec, distinct,
    most_heads,
};

/// What makes states of chunks of sounds: convolutions over their frames, then layers in which the
/// states of a chunk see each other.
#[derive(Clone, Debug, PartialEq)]
pub struct SoundTowerSpec {
    /// Values of a frame.
    pub num_mels: usize,
    /// Frames of a chunk.
    pub num_frames: usize,
    /// From frames to the first values of states.
    pub front: SoundFront,
    /// What is added to them.
    pub positions: Option<SoundPositions>,
    /// The rotary embedding that layers refer to, of the place of a state in its chunk.
    pub rope: Option<RopeSpec>,
    /// One per layer.
    pub layers: Vec<LayerSpec>,
    /// Norm of the last layer's output.
    pub final_norm: Option<NormSpec>,
    /// What makes embeddings of them; None: a decoder attends to the states themselves (Whisper).
    pub tokens: Option<SoundTokensSpec>,
    /// Prefixes of tensors that are left unused, beside those of other media.
    pub unused: &'static [&'static str],
}

impl SoundTowerSpec {
    /// States of a whole chunk.
    pub fn num_states(&self) -> usize {
        self.shape().num_states(self.num_frames)
    }

    /// How many states there are of a sound.
    pub fn shape(&self) -> SoundShape {
        let (num_merged, heard) = (1, Heard::All);
        self.tokens.as_ref().map_or_else(|| self.shape_of(num_merged, heard), |tokens| tokens.shape)
    }

    /// The same where so many states are a token.
    pub fn shape_of(&self, num_merged: usize, heard: Heard) -> SoundShape {
        SoundShape {
            num_frames: self.num_frames,
            num_convolved: self.front.num_convolved(self.num_frames),
            stride: self.front.stride(),
            num_merged,
            heard,
        }
    }

    /// Width of a state.
    pub fn width(&self) -> usize {
        self.front.width()
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
        let positions = match &self.positions {
            Some(SoundPositions::Learned(table)) => table.tensors().collect(),
            Some(SoundPositions::Computed(_)) | None => Vec::new(),
        };
        let of_ends = self.front.tensors().into_iter().chain(positions);
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
