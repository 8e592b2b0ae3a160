//! Which tokens a token attends to where it does not attend to all, as data.

use super::{AttentionSpec, DecoderSpec, LinearSpec, NormSpec, QkvHeads};

/// A token attends to the best `num_chosen` of the tokens up to itself (DeepSeek V3.2). Those of
/// the first `num_chosen` positions attend to all.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceSpec {
    /// Tokens that a token attends to, at most.
    pub num_chosen: usize,
    /// What is chosen together.
    pub unit: ChoiceUnit,
    /// What says which are the best; `None`: a token attends to those of the last layer that has
    /// an indexer.
    pub indexer: Option<IndexerSpec>,
}

/// What is chosen together, and by which scores. With q and w of the token at t, and k of the one
/// at s:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceUnit {
    /// Single tokens, the same for all heads: by the sum over heads of
    /// w_h relu(q_h k / sqrt(head_dim)) / sqrt(num_heads).
    Token,
    /// Blocks of so many tokens, counted from the first position; each K and V head has its own
    /// (MiniMax M3). The block of the token itself is one of them, and the others are the best by
    /// the largest q_h k of any of their tokens, where h is the K and V head.
    Block(usize),
}

impl ChoiceUnit {
    /// Number of tokens.
    pub fn num_tokens(self) -> usize {
        match self {
            Self::Token => 1,
            Self::Block(num_tokens) => num_tokens,
        }
    }
}

/// Makes q, k and w of scores. The first values of q and k turn with the block's rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexerSpec {
    /// What stands before the names of its tensors.
    pub module: String,
    /// (num_heads * head_dim, rank of the latent of q): from the block's latent of q. `None`:
    /// `inputs` give q.
    pub q: Option<LinearSpec>,
    /// (head_dim + num_heads, hidden_size): k and then w, from what the block reads. Of blocks of
    /// tokens there is no w; q stands before k where nothing else gives it.
    pub inputs: LinearSpec,
    /// Of each head of q, if any.
    pub q_norm: Option<NormSpec>,
    /// Of k.
    pub k_norm: NormSpec,
    /// Its heads, of which one is of k.
    pub heads: QkvHeads,
}

/// Heads of an indexer, and values of one, that the kernels of a GPU hold at most.
const MAX_GPU_HEADS: usize = 128;
const MAX_GPU_HEAD_DIM: usize = 256;

/// Heads of an indexer of blocks that a thread has products of, at most.
const MAX_GPU_BLOCK_HEADS: usize = 16;

impl IndexerSpec {
    /// What of it has no kernels for a GPU, in words.
    pub(super) fn without_gpu_kernels(&self) -> Option<&'static str> {
        let QkvHeads { num_heads, head_dim, .. } = self.heads;
        let is_too_large = num_heads > MAX_GPU_HEADS || head_dim > MAX_GPU_HEAD_DIM;
        is_too_large.then_some("an indexer of more than 128 heads, or of heads of more than 256")
    }
}

impl AttentionSpec {
    /// What of a choice of blocks has no kernels for a GPU, in words.
    pub(super) fn blocks_without_gpu_kernels(&self) -> Option<&'static str> {
        let choice = self.choice.as_ref().filter(|choice| choice.unit != ChoiceUnit::Token)?;
        let num_heads = choice.indexer.as_ref().map_or(0, |indexer| indexer.heads.num_heads);
        let is_too_large =
            num_heads > MAX_GPU_BLOCK_HEADS || self.heads.head_dim > MAX_GPU_HEAD_DIM;
        is_too_large
            .then_some("a choice of blocks by more than 16 heads, or for heads of more than 256")
    }
}

impl DecoderSpec {
    /// Tokens that are chosen together, where blocks of them are.
    pub fn chosen_block(&self) -> Option<usize> {
        let units = self.attentions().filter_map(|attention| Some(attention.choice.as_ref()?.unit));
        units.map(ChoiceUnit::num_tokens).find(|num_tokens| *num_tokens > 1)
    }

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
