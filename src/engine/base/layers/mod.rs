//! Layers as values: what a checkpoint says of an op, and what the op takes. No tensor is here.

mod activation;
mod alibi;
mod delta;
mod heads;
mod norm;
mod routing;
mod scan;

pub use activation::Activation;
pub use alibi::alibi_slopes;
pub use delta::{DeltaHeads, STATE_LANES, padded};
pub use heads::{Heads, QkvHeads};
pub use norm::NormKind;
pub use routing::{ExpertGroups, ExpertWeight, GroupScore, Routing, Score, TopK};
pub use scan::ScanShape;
