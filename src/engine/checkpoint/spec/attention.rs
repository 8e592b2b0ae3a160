//! Attention of a layer: its heads, where its K and V come from, and what happens to q and k.

use super::{
    BlockNorms, ChoiceSpec, IndexerSpec, LatentSpec, LinearSpec, NamedShape, NormSpec, Part,
    QkvHeads,
};
use vllm_batch_base::layers::Reach;

/// Attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Its heads.
    pub heads: QkvHeads,
    /// ((num_heads + 2 * num_kv_heads) * head_dim, hidden_size): q, k, v; or what `kv` or `latent`
    /// says. Behind them what `gate` says.
    pub qkv: LinearSpec,
    /// Where K and V come from.
    pub kv: KvSource,
    /// Width of V heads that are narrower than K heads: `qkv` gives so many values of each, which
    /// are in the cache with zeros behind them (MiMo V2).
    pub narrow_v: Option<usize>,
    /// K and V are a latent that all heads share; `qkv` does not give them as they are.
    pub latent: Option<LatentSpec>,
    /// q, k and v are bounded to [-clip, clip].
    pub clip_qkv: Option<f32>,
    /// Norms of q and k.
    pub qk_norm: Option<QkNormSpec>,
    /// A norm of every V head: (head_dim).
    pub v_norm: Option<NormSpec>,
    /// Index into `ropes`; None: no rotary embedding.
    pub rope: Option<usize>,
    /// q grows with the position (Ministral 3).
    pub position_scale: Option<PositionScale>,
    /// Factor of the scores.
    pub scale: f32,
    /// scores = cap * tanh(scores / cap).
    pub soft_cap: Option<f32>,
    /// ALiBi: scores of head h change by this for every position between query and key.
    pub alibi_slopes: Option<Vec<f32>>,
    /// The tensor (num_heads) of scores that are in the softmax and have no value (gpt-oss).
    pub sinks: Option<String>,
    /// Which positions up to its own a token attends to.
    pub reach: Reach,
    /// Which of these a token attends to; `None`: all.
    pub choice: Option<ChoiceSpec>,
    /// Tokens of images attend to none behind them, also where the tower says that they attend to
    /// all of their image (Gemma 4's global layers).
    pub is_causal: bool,
    /// What the query says of distances in a square of patches is added to the scores (SAM).
    pub squares: Option<SquaresSpec>,
    /// What the heads' outputs are multiplied by, before `out`.
    pub gate: Option<OutputGate>,
    /// (hidden_size, num_heads * head_dim), or as wide as V heads are
    pub out: LinearSpec,
    /// What stands before the names of tensors that files may have though nothing reads them: K and
    /// V of a block that has none of its own, a norm that other layers have (A.X K1).
    pub unused: Vec<String>,
}

/// What is learned of distances between patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SquaresSpec {
    /// (2 * side - 1, head_dim) each: of rows and of columns.
    pub tables: [NamedShape; 2],
    /// Patches of the side of a tile.
    pub grid: usize,
    /// Of the side of what sees each other: a window, or the tile.
    pub side: usize,
}

/// A gate of what heads give: a function of what `qkv` gives behind v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputGate {
    /// What is multiplied by the same.
    pub span: GateSpan,
    /// The function.
    pub function: GateFunction,
}

/// Values that a gate is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateSpan {
    /// Each value has one: num_heads * head_dim (Qwen3-Next).
    Value,
    /// All values of a head have one: num_heads (Laguna).
    Head,
}

/// Function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// ln(1 + e^x)
    Softplus,
}

impl OutputGate {
    /// The sigmoid of a gate of each value.
    pub const OF_VALUES: Self = Self { span: GateSpan::Value, function: GateFunction::Sigmoid };

    /// A sigmoid of one gate for each head.
    pub const OF_HEADS: Self = Self { span: GateSpan::Head, function: GateFunction::Sigmoid };

    /// Gates of a token.
    pub fn num_gates(self, num_heads: usize, head_dim: usize) -> usize {
        match self.span {
            GateSpan::Value => num_heads * head_dim,
            GateSpan::Head => num_heads,
        }
    }
}

impl AttentionSpec {
    /// Softmax of q k / sqrt(head_dim) over all positions, without a rotary embedding.
    pub fn new(norms: BlockNorms, heads: QkvHeads, qkv: LinearSpec, out: LinearSpec) -> Self {
        Self {
            norms,
            heads,
            qkv,
            kv: KvSource::Own,
            narrow_v: None,
            latent: None,
            clip_qkv: None,
            qk_norm: None,
            v_norm: None,
            rope: None,
            position_scale: None,
            scale: 1.0 / (heads.head_dim as f32).sqrt(),
            soft_cap: None,
            alibi_slopes: None,
            sinks: None,
            reach: Reach::All,
            choice: None,
            is_causal: false,
            squares: None,
            gate: None,
            out,
            unused: Vec::new(),
        }
    }

    /// Adds a gate of what heads give, by the tensor of this name, which has no bias.
    pub fn gate_by(&mut self, name: String, gate: OutputGate) {
        let num_gates = gate.num_gates(self.heads.num_heads, self.heads.head_dim);
        self.qkv.parts.push(Part::new(name, num_gates).without_bias());
        self.gate = Some(gate);
    }

    /// Gates of a token: the last outputs of `qkv`.
    pub fn num_gates(&self) -> usize {
        let QkvHeads { num_heads, head_dim, .. } = self.heads;
        self.gate.map_or(0, |gate| gate.num_gates(num_heads, head_dim))
    }

    /// What chooses the tokens that its tokens attend to, if that is its own.
    pub fn indexer(&self) -> Option<&IndexerSpec> {
        self.choice.as_ref()?.indexer.as_ref()
    }

    /// Width of a V head.
    pub fn v_dim(&self) -> usize {
        self.latent.as_ref().map_or(self.heads.head_dim, |latent| latent.dims.rank)
    }

    /// Values of V that `qkv` gives of a head.
    pub fn v_width(&self) -> usize {
        self.narrow_v.unwrap_or(self.heads.head_dim)
    }

    /// Every token attends to all positions before it, to heads of K and V, without biases.
    pub fn attends_to_all(&self) -> bool {
        self.reach == Reach::All && self.alibi_slopes.is_none() && self.latent.is_none()
    }

    /// The heads that `qkv` gives, of q, k and v.
    pub fn own_heads(&self) -> QkvHeads {
        match self.kv {
            KvSource::OfLayer(_) => QkvHeads { num_kv_heads: 0, ..self.heads },
            KvSource::Own | KvSource::ValuesAreKeys => self.heads,
        }
    }

    /// K and V in the cache are not what `qkv` gives of them.
    pub fn makes_values(&self) -> bool {
        self.kv != KvSource::Own || self.narrow_v.is_some()
    }

    /// It has K and V in the cache that are its own.
    pub fn is_cached(&self) -> bool {
        !matches!(self.kv, KvSource::OfLayer(_))
    }

    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        let latent = self
            .latent
            .iter()
            .flat_map(|latent| latent.q.iter().map(|q| &q.up).chain(latent.up.linears()));
        let indexer = self.indexer().into_iter();
        let indexer = indexer.flat_map(|indexer| indexer.q.iter().chain([&indexer.inputs]));
        [&self.qkv, &self.out].into_iter().chain(latent).chain(indexer)
    }

    /// Its norms of q, k and what they are made of.
    pub(super) fn inner_norms(&self) -> impl Iterator<Item = &NormSpec> {
        let latent = self
            .latent
            .iter()
            .flat_map(|latent| latent.q.iter().map(|q| &q.norm).chain([&latent.norm]));
        let of_qk = self.qk_norm.iter().flat_map(|norms| [&norms.q].into_iter().chain(&norms.k));
        let of_indexer = self.indexer().into_iter();
        let of_indexer =
            of_indexer.flat_map(|indexer| indexer.q_norm.iter().chain([&indexer.k_norm]));
        of_qk.chain(&self.v_norm).chain(latent).chain(of_indexer)
    }

    /// The tensor of its sinks, if it has them.
    pub fn sink_tensor(&self) -> Option<NamedShape> {
        Some((self.sinks.clone()?, vec![self.heads.num_heads]))
    }
}

/// Where K and V of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// `qkv` gives q, k and v.
    Own,
    /// `qkv` gives q and k. v is k, before it is normalized and rotated.
    ValuesAreKeys,
    /// `qkv` gives q. K and V are those of an earlier layer, which has such heads.
    OfLayer(usize),
}

/// Norms of q and k.
#[derive(Clone, Debug, PartialEq)]
pub struct QkNormSpec {
    /// Of q: (head_dim), the same for every head; or (num_heads * head_dim).
    pub q: NormSpec,
    /// Of k: (head_dim), or (num_kv_heads * head_dim). None: the layer has no k of its own.
    pub k: Option<NormSpec>,
    /// What is normalized together.
    pub span: NormSpan,
    /// When.
    pub order: QkNormOrder,
}

/// Values of q or k that are normalized together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSpan {
    /// Those of one head.
    Head,
    /// All.
    AllHeads,
}

/// When q and k are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNormOrder {
    /// Before the rotary embedding.
    BeforeRotation,
    /// After it (Hunyuan).
    AfterRotation,
}

impl QkNormSpec {
    /// Norms of every q head and every k head, before the rotary embedding.
    pub fn per_head(q: NormSpec, k: NormSpec) -> Self {
        Self { q, k: Some(k), span: NormSpan::Head, order: QkNormOrder::BeforeRotation }
    }
}

/// q *= 1 + beta * ln(1 + floor((position + offset) / original_max_position_embeddings)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// How fast it grows.
    pub beta: f32,
    /// What is added to positions: 1 in Llama 4.
    pub offset: f32,
    /// Positions up to which it is 1.
    pub original_max_position_embeddings: f32,
}
