//! `DecoderSpec`: what a decoder-only model is, as data. `decoder.rs` runs it.

mod rope;
mod tensors;

pub use rope::{RopeScaling, RopeSpec};
pub use tensors::{LinearSpec, NamedShape, NormSpec, Part};

use crate::engine::ops::Activation;

/// A decoder-only model. Families differ in these values only.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Longest context the checkpoint was made for, rope scaling included.
    pub max_model_len: usize,
    /// From token ids to the residual stream.
    pub embedding: EmbeddingSpec,
    /// One per layer.
    pub layers: Vec<LayerSpec>,
    /// Rotary embeddings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// From the residual stream to logits.
    pub output: OutputSpec,
}

/// From token ids to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// (vocab_size, embedding width)
    pub tokens: LinearSpec,
    /// Embeddings are multiplied by this, rounded to the model's dtype (Gemma).
    pub scale: Option<f32>,
    /// (hidden_size, embedding width): leads to the residual stream where the table has another
    /// width (OPT-350m).
    pub projection: Option<LinearSpec>,
    /// Learned positions are added.
    pub positions: Option<LearnedPositions>,
}

impl EmbeddingSpec {
    /// A table alone.
    pub fn of(tokens: LinearSpec) -> Self {
        Self { tokens, scale: None, projection: None, positions: None }
    }
}

/// A table of position embeddings: position p is row p + offset.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedPositions {
    /// (rows, hidden_size)
    pub table: LinearSpec,
    /// Row of position 0.
    pub offset: usize,
}

/// From the residual stream to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// Before everything.
    pub norm: Option<NormSpec>,
    /// (embedding width, hidden_size), where the table has another width.
    pub projection: Option<LinearSpec>,
    /// (vocab_size, embedding width); None: the embedding table.
    pub lm_head: Option<LinearSpec>,
    /// logits = cap * tanh(logits / cap).
    pub soft_cap: Option<f32>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Its first block.
    pub attention: AttentionSpec,
    /// Its second block.
    pub mlp: MlpSpec,
}

/// Where a block f normalizes: x += f(x) when nowhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockNorms {
    /// What it reads: x += f(norm(x)).
    pub before: Option<NormSpec>,
    /// What it adds: x += norm(f(x)).
    pub after: Option<NormSpec>,
    /// The sum: x = norm(x + f(x)).
    pub of_sum: Option<NormSpec>,
}

/// Attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Query heads.
    pub num_heads: usize,
    /// K and V heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// ((num_heads + 2 * num_kv_heads) * head_dim, hidden_size): q, k, v.
    pub qkv: LinearSpec,
    /// Norms of every q head and every k head, before the rotary embedding.
    pub qk_norm: Option<(NormSpec, NormSpec)>,
    /// (hidden_size, num_heads * head_dim)
    pub out: LinearSpec,
    /// Factor of the scores.
    pub scale: f32,
    /// scores = cap * tanh(scores / cap).
    pub soft_cap: Option<f32>,
    /// Positions a token attends to, itself included; None: all before it.
    pub sliding_window: Option<usize>,
    /// Index into `ropes`; None: no rotary embedding.
    pub rope: Option<usize>,
}

impl AttentionSpec {
    /// Values of all query heads.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }
}

/// Feed-forward of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Whether `up` has a gate.
    pub form: MlpForm,
    /// The activation.
    pub activation: Activation,
    /// (inner width, hidden_size), or gate and up, one after the other.
    pub up: LinearSpec,
    /// (hidden_size, inner width)
    pub down: LinearSpec,
}

/// How an MLP's inner values are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpForm {
    /// down(act(gate(x)) * up(x))
    Gated,
    /// down(act(up(x)))
    Plain,
}

impl DecoderSpec {
    /// Rows of the embedding table, width of the logits.
    pub fn vocab_size(&self) -> usize {
        self.embedding.tokens.n()
    }

    /// Width of the residual stream.
    pub fn hidden_size(&self) -> usize {
        self.embedding.projection.as_ref().map_or(self.embedding.tokens.k, LinearSpec::n)
    }

    /// Width of an attention head.
    pub fn head_dim(&self) -> usize {
        self.attentions().next().map_or(0, |attention| attention.head_dim)
    }

    /// K and V heads that the cache has room for.
    pub fn num_kv_heads(&self) -> usize {
        self.attentions().map(|attention| attention.num_kv_heads).max().unwrap_or(0)
    }

    /// Query heads that share a K and V head, at most.
    pub fn num_q_per_kv(&self) -> usize {
        let ratios =
            self.attentions().map(|attention| attention.num_heads / attention.num_kv_heads);
        ratios.max().unwrap_or(0)
    }

    /// The attention block of every layer.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().map(|layer| &layer.attention)
    }

    /// The linear layers of every layer.
    pub fn layer_linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.layers.iter().flat_map(|LayerSpec { attention, mlp }| {
            [&attention.qkv, &attention.out, &mlp.up, &mlp.down]
        })
    }

    /// All normalizations.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let of_layers = self.layers.iter().flat_map(|LayerSpec { attention, mlp }| {
            let qk = attention.qk_norm.iter().flat_map(|(q, k)| [q, k]);
            [&attention.norms, &mlp.norms].into_iter().flat_map(BlockNorms::all).chain(qk)
        });
        of_layers.chain(&self.output.norm)
    }

    /// All tensors: what a checkpoint is held against before anything of it is read, and what is
    /// loaded.
    pub fn tensors(&self) -> Vec<NamedShape> {
        let EmbeddingSpec { tokens, projection, positions, .. } = &self.embedding;
        let OutputSpec { projection: back, lm_head, .. } = &self.output;
        let table = positions.as_ref().map(|positions| &positions.table);
        let linears = [projection.as_ref(), back.as_ref(), lm_head.as_ref(), table];
        let linears = linears.into_iter().flatten().chain(self.layer_linears());
        let of_linears = [tokens].into_iter().chain(linears).flat_map(LinearSpec::tensors);
        of_linears.chain(self.norms().flat_map(NormSpec::tensors)).collect()
    }
}

impl BlockNorms {
    /// The usual norm, of what the block reads.
    pub fn before(norm: NormSpec) -> Self {
        Self { before: Some(norm), ..Self::default() }
    }

    fn all(&self) -> impl Iterator<Item = &NormSpec> {
        [&self.before, &self.after, &self.of_sum].into_iter().flatten()
    }
}
