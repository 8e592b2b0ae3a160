//! `SoundTokensSpec`: what a prompt has of a sound, and how many tokens that is.

use super::{ConnectorSpec, TokenId};
use vllm_batch_base::layers::SoundChunks;

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
    /// Frames that are convolved together: of a chunk, or of a part of it.
    pub num_convolved: usize,
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
    /// Frames of the sound.
    pub num_own: usize,
    /// It is all of the sound.
    pub is_all: bool,
    /// States, which see each other.
    pub num_states: usize,
    /// Tokens, of the first of them.
    pub num_tokens: usize,
}

impl SoundShape {
    /// States that are made together, which is as many places as there are.
    pub fn num_places(self) -> usize {
        self.num_convolved.div_ceil(self.stride)
    }

    /// States of so many frames of a chunk.
    pub fn num_states(self, num_frames: usize) -> usize {
        let (whole, rest) = (num_frames / self.num_convolved, num_frames % self.num_convolved);
        whole * self.num_places() + rest.div_ceil(self.stride)
    }

    /// The chunks of a sound of so many frames, of which there is at least one.
    pub fn chunks(self, num_heard: usize) -> impl Iterator<Item = ChunkShape> {
        (0..num_heard.max(1)).step_by(self.num_frames).map(move |start| {
            let num_own = (num_heard - start).min(self.num_frames);
            let (own, all) = (self.num_states(num_own), self.num_states(self.num_frames));
            let (num_states, num_with_tokens) = match self.heard {
                Heard::All => (all, all),
                Heard::AllWithoutTokens => (all, own),
                Heard::Own => (own, own),
            };
            let num_tokens = num_with_tokens / self.num_merged;
            let is_all = num_own == num_heard;
            ChunkShape { num_own, is_all, num_states, num_tokens }
        })
    }

    /// Tokens of a sound of so many frames.
    pub fn num_tokens(self, num_heard: usize) -> usize {
        self.chunks(num_heard).map(|chunk| chunk.num_tokens).sum()
    }
}
