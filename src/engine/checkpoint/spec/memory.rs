//! `MemorySpec`: a block that layers share, which reads the embeddings beside the stream, as data.

use super::{BlockNorms, LinearSpec, MlpSpec, NormSpec};

/// What is added to the stream for the layer's recurrent block alone to read (Zamba 2): `out` of
/// the MLP of the layer's attention, which reads the stream and the embeddings, one behind the
/// other. No sum is between these. Layers share attention and the MLP, each with adapters of its
/// own; K and V are each layer's.
#[derive(Clone, Debug, PartialEq)]
pub struct MemorySpec {
    /// The layer before whose attention and MLP these are; None: they are its own.
    pub owner: Option<usize>,
    /// The MLP; its norm is before it.
    pub mlp: MlpSpec,
    /// What is added to q, to k and to v.
    pub qkv_adapters: Option<[LowRankSpec; 3]>,
    /// What is added to gate and up.
    pub up_adapter: LowRankSpec,
    /// (hidden_size, hidden_size)
    pub out: LinearSpec,
}

/// Two linear layers, one behind the other, with few values between them.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankSpec {
    /// (rank, inputs)
    pub down: LinearSpec,
    /// (outputs, rank)
    pub up: LinearSpec,
}

impl LowRankSpec {
    fn linears(&self) -> [&LinearSpec; 2] {
        [&self.down, &self.up]
    }
}

impl MemorySpec {
    /// Linear layers beside those of attention.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        let adapters = self.qkv_adapters.iter().flatten().chain([&self.up_adapter]);
        let own = [&self.mlp.up, &self.mlp.down, &self.out];
        own.into_iter().chain(adapters.flat_map(LowRankSpec::linears))
    }

    /// Norms beside those of attention.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let BlockNorms { before, after, of_sum, .. } = &self.mlp.norms;
        [before, after, of_sum].into_iter().flatten()
    }
}
