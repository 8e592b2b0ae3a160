//! Kinds of normalization.

/// Kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square, no mean, no bias.
    Rms,
    /// Mean and variance.
    Layer,
}
