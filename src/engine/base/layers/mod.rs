//! Layers as values: what a checkpoint says of an op, and what the op takes. No tensor is here.

mod activation;
mod alibi;
mod delta;
mod heads;
mod norm;
mod reach;
mod routing;
mod scan;
mod sound;

/// Most tokens of an image of Gemma 4: the largest budget that its image processor may have.
pub const MAX_SOFT_TOKENS: usize = 1120;
/// Most tokens of an image whose tiles share tokens (Molmo 2).
pub const MAX_JOINED_TOKENS: usize = 4096;

pub use activation::{Activation, MlpForm};
pub use alibi::alibi_slopes;
pub use delta::{Decay, DecayForm, DeltaHeads, STATE_LANES, padded};
pub use heads::{Heads, QkvHeads};
pub use norm::NormKind;
pub use reach::Reach;
pub use routing::{ExpertGroups, ExpertWeight, GroupScore, Routing, Score, TopK, Weighted};
pub use scan::{ScanShape, SelectiveShape};
pub use sound::SoundChunks;
