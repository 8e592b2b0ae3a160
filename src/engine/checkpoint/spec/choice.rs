//! Which tokens a token attends to where it does not attend to all, as data.

use super::{DecoderSpec, LinearSpec, NormSpec, QkvHeads};

/// A token attends to the best `num_chosen` of the tokens up to itself (DeepSeek V3.2). Those of
/// the first `num_chosen` positions attend to all.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceSpec {
    /// Tokens that a token attends to.
    pub num_chosen: usize,
    /// What says which are the best; `None`: a token attends to those of the last layer that has
    /// an indexer.
    pub indexer: Option<IndexerSpec>,
}

/// Scores of tokens: of the token at t for that at s, the sum over heads of
/// w_h relu(q_h k / sqrt(head_dim)) / sqrt(num_heads), where q and w are of t and k is of s. The
/// first values of q and k turn with the block's rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexerSpec {
    /// What stands before the names of its tensors.
    pub module: String,
    /// (num_heads * head_dim, rank of the latent of q): from the block's latent of q.
    pub q: LinearSpec,
    /// (head_dim + num_heads, hidden_size): k and then w, from what the block reads.
    pub inputs: LinearSpec,
    /// Of k.
    pub k_norm: NormSpec,
    /// Its heads, of which one is of k.
    pub heads: QkvHeads,
}

/// Heads of an indexer, and values of one, that the kernels of a GPU hold at most.
const MAX_GPU_HEADS: usize = 128;
const MAX_GPU_HEAD_DIM: usize = 256;

impl IndexerSpec {
    /// What of it has no kernels for a GPU, in words.
    pub(super) fn without_gpu_kernels(&self) -> Option<&'static str> {
        let QkvHeads { num_heads, head_dim, .. } = self.heads;
        let is_too_large = num_heads > MAX_GPU_HEADS || head_dim > MAX_GPU_HEAD_DIM;
        is_too_large.then_some("an indexer of more than 128 heads, or of heads of more than 256")
    }
}

impl DecoderSpec {
    /// The indexers, in the order of their layers. Each has its keys in a layer of the cache,
    /// behind those of K and V.
    pub fn indexers(&self) -> impl Iterator<Item = &IndexerSpec> {
        self.attentions().filter_map(|attention| attention.indexer())
    }

    /// Of each layer of the cache that has K and V, the one with the keys of its block's indexer.
    pub fn index_layers(&self) -> Vec<Option<usize>> {
        let mut next = self.cached_attentions().count();
        let of_block = |has_indexer: bool| {
            next += usize::from(has_indexer);
            has_indexer.then(|| next - 1)
        };
        let has_indexer = self.cached_attentions().map(|attention| attention.indexer().is_some());
        has_indexer.map(of_block).collect()
    }

    /// Leaves out choices that contexts of this length do not come to.
    pub fn without_choices_of_all(mut self, max_model_len: usize) -> Self {
        for (_, attention) in self.attentions_mut() {
            if attention.choice.as_ref().is_some_and(|choice| choice.num_chosen >= max_model_len) {
                let indexer = attention.choice.take().and_then(|choice| choice.indexer);
                attention.unused.extend(indexer.map(|indexer| indexer.module));
            }
        }
        self
    }
}
