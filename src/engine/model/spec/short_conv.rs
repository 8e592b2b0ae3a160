//! `ShortConvSpec`: what LFM2's layers without attention have in its place, as data.

use super::{BlockNorms, LinearSpec, NamedShape};

/// out(c * conv(b * x)), where `inputs` gives b, c and x, and conv sums over the last few tokens,
/// value by value.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// (3 * hidden_size, hidden_size): b, c, x.
    pub inputs: LinearSpec,
    /// The name before `.weight` (hidden_size, 1, taps) and `.bias` (hidden_size).
    pub taps: String,
    /// Tokens that a sum is over.
    pub num_taps: usize,
    /// The sums have biases.
    pub bias: bool,
    /// (hidden_size, hidden_size)
    pub out: LinearSpec,
}

impl ShortConvSpec {
    /// The weights of the sums.
    pub fn weight(&self) -> NamedShape {
        (format!("{}.weight", self.taps), vec![self.out.k, 1, self.num_taps])
    }

    /// Their biases, if there are any.
    pub fn biases(&self) -> Option<NamedShape> {
        self.bias.then(|| (format!("{}.bias", self.taps), vec![self.out.k]))
    }

    /// Values that a sequence keeps of the tokens before.
    pub fn state_width(&self) -> usize {
        (self.num_taps - 1) * self.out.k
    }
}
