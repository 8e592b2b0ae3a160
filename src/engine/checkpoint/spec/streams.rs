//! Streams beside each other, which layers mix and of which they run on one (Gemma 3n's AltUp), and
//! a branch beside attention.

use super::{LinearSpec, NamedShape, NormSpec};

/// Streams beside each other: the embedding, and what is made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamsSpec {
    /// Index of the stream that layers run on.
    pub active: usize,
    /// (hidden_size, hidden_size) each: from the embedding to streams 1 and on, at its size.
    pub into: Vec<LinearSpec>,
    /// The same back, at the size of stream 0. The mean of all goes on.
    pub out_of: Vec<LinearSpec>,
}

impl StreamsSpec {
    /// Number of streams.
    pub fn num(&self) -> usize {
        self.into.len() + 1
    }

    /// Its linear layers.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.into.iter().chain(&self.out_of)
    }
}

/// How a layer mixes N streams: kinds(x) = tanh(router(norm(x))). Before it stream i grows by
/// (prediction(kinds of the active one) as N x N)[i] times all streams, and behind it by (what the
/// layer gives - what it ran on) * (correction(kinds of what it gives) + 1)[i]. The layer's side
/// block reads the active stream then, and is added to streams 1 and on.
#[derive(Clone, Debug, PartialEq)]
pub struct MixingSpec {
    /// (hidden_size)
    pub norm: NormSpec,
    /// (N, hidden_size). It is computed in f32, as are the two below.
    pub router: LinearSpec,
    /// (N * N, N)
    pub prediction: LinearSpec,
    /// (N, N)
    pub correction: LinearSpec,
    /// (hidden_size): factors of what the side block reads.
    pub side_scale: Option<NamedShape>,
}

impl MixingSpec {
    /// Its linear layers.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        [&self.router, &self.prediction, &self.correction].into_iter()
    }
}

/// A branch beside attention (Gemma 3n's LAuReL): with n what attention reads, n + norm(right(left
/// n)) is added with what attention gives, and the sum is multiplied by a factor.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchSpec {
    /// (rank, hidden_size)
    pub left: LinearSpec,
    /// (hidden_size, rank)
    pub right: LinearSpec,
    /// (hidden_size)
    pub norm: NormSpec,
    /// The factor.
    pub scale: f32,
}
