//! One rank's share of a model, as a spec of its own: its heads, its inner values
//! of MLPs, and the rows and columns of the layers that make and read them. The rest is on every
//! rank whole. Sums over ranks come after `out` and after `down`.

use std::ops::Range;
use std::sync::Arc;

use super::{
    AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpan,
};

/// One of the ranks that compute a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOf {
    /// Index of the rank.
    pub index: usize,
    /// Number of ranks.
    pub count: usize,
}

/// A rank's share of a layer. The layer's parts are as its tensors are, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Rows of the layer; `None`: all.
    pub rows: Option<Arc<[u32]>>,
    /// Columns of the layer; `None`: all.
    pub columns: Option<Range<usize>>,
    /// Columns of the layer.
    pub whole_k: usize,
    /// Sums over ranks have the bias once: the first rank adds it.
    pub adds_bias: bool,
}

/// Most ranks of a model.
const MAX_RANKS: usize = 64;

impl RankOf {
    /// The rank's part of an evenly shared number.
    fn part(self, of: usize) -> Range<usize> {
        let len = of / self.count;
        self.index * len..(self.index + 1) * len
    }
}

impl LinearSpec {
    /// Some rows of it alone.
    pub(crate) fn of_rows(mut self, rows: impl Iterator<Item = usize>) -> Self {
        let rows = Some(rows.map(|row| row as u32).collect());
        let share = Share { rows, columns: None, whole_k: self.k, adds_bias: true };
        self.share = Some(share);
        self
    }

    /// Its first columns alone.
    pub(crate) fn of_first_columns(mut self, num_columns: usize) -> Self {
        let columns = Some(0..num_columns);
        self.share = Some(Share { rows: None, columns, whole_k: self.k, adds_bias: true });
        self.k = num_columns;
        self
    }

    /// Some columns of it alone.
    fn of_columns(mut self, rank: RankOf) -> Self {
        let columns = rank.part(self.k);
        let (whole_k, k) = (self.k, columns.len());
        let adds_bias = rank.index == 0;
        self.share = Some(Share { rows: None, columns: Some(columns), whole_k, adds_bias });
        self.k = k;
        self
    }
}

impl DecoderSpec {
    /// The rank's share of the model.
    ///
    /// # Errors
    /// In words: so many ranks cannot share it. Models with parts that ranks do not share yet are
    /// refused before.
    pub fn of_rank(&self, rank: RankOf) -> Result<Self, String> {
        self.check_shared(rank.count)?;
        let mut own = self.clone();
        own.layers = self.layers.iter().map(|layer| layer.of_rank(rank)).collect();
        Ok(own)
    }

    /// Weights of linear layers that it leaves to other ranks.
    pub fn num_weights_elsewhere(&self) -> u64 {
        let elsewhere = |linear: &LinearSpec| {
            let rows: usize = linear.parts.iter().map(|part| part.rows).sum();
            let whole_k = linear.share.as_ref().map_or(linear.k, |share| share.whole_k);
            (rows * whole_k - linear.n() * linear.k) as u64
        };
        self.layer_linears().map(elsewhere).sum()
    }

    fn check_shared(&self, count: usize) -> Result<(), String> {
        let sizes = || self.layers.iter().flat_map(LayerSpec::shared_sizes);
        let Some((of, size)) = sizes().find(|(_, size)| !size.is_multiple_of(count)) else {
            return Ok(());
        };
        let fits = |count: &usize| sizes().all(|(_, size)| size.is_multiple_of(*count));
        let others: Vec<_> = (2..=MAX_RANKS).filter(fits).map(|n| n.to_string()).collect();
        Err(match &others[..] {
            [] => format!("this model has {size} {of}: one GPU has to compute it"),
            _ => format!("this model has {size} {of}: give {}", others.join(", ")),
        })
    }
}

impl LayerSpec {
    /// Names and sizes of what ranks share evenly.
    fn shared_sizes(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let heads = self.attention.iter().flat_map(|attention| {
            let heads = attention.heads;
            [("K and V heads", heads.num_kv_heads), ("attention heads", heads.num_heads)]
        });
        heads.chain(self.mlp().map(|mlp| ("inner values of an MLP", mlp.down.k)))
    }

    fn of_rank(&self, rank: RankOf) -> Self {
        Self {
            attention: self.attention.clone().map(|attention| attention.of_rank(rank)),
            feed_forward: self.feed_forward.clone().map(|block| match block {
                FeedForwardSpec::Mlp(mlp) => FeedForwardSpec::from(mlp.of_rank(rank)),
                FeedForwardSpec::Experts(_) => unreachable!("refused before"),
            }),
            ..self.clone()
        }
    }
}

impl AttentionSpec {
    /// Whether norms of queries or keys are over the values of several heads.
    pub fn has_norms_over_heads(&self) -> bool {
        self.qk_norm.as_ref().is_some_and(|norms| {
            let head_dim = self.heads.head_dim;
            let mut widths = [&norms.q].into_iter().chain(&norms.k).map(|norm| norm.width());
            norms.span == NormSpan::AllHeads || widths.any(|width| width != head_dim)
        })
    }

    /// Query heads that share a K and V head go to the rank that has it.
    fn of_rank(mut self, rank: RankOf) -> Self {
        let (heads, dim) = (self.heads, self.heads.head_dim);
        let q = rank.part(heads.num_heads);
        let kv = rank.part(heads.num_kv_heads);
        let values =
            |first: usize, heads: &Range<usize>| first + heads.start * dim..first + heads.end * dim;
        let (first_k, first_v) = (heads.q_width(), heads.q_width() + heads.kv_width());
        let rows = values(0, &q).chain(values(first_k, &kv)).chain(values(first_v, &kv));
        self.qkv = self.qkv.of_rows(rows);
        self.out = self.out.of_columns(rank);
        self.alibi_slopes = self.alibi_slopes.map(|slopes| slopes[q.clone()].to_vec());
        (self.heads.num_heads, self.heads.num_kv_heads) = (q.len(), kv.len());
        self
    }
}

impl MlpSpec {
    fn of_rank(mut self, rank: RankOf) -> Self {
        let inner = self.down.k;
        let own = rank.part(inner);
        let num_runs = match self.form {
            MlpForm::Gated => 2,
            MlpForm::Plain => 1,
        };
        let rows = (0..num_runs).flat_map(|run| run * inner + own.start..run * inner + own.end);
        self.up = self.up.of_rows(rows);
        self.down = self.down.of_columns(rank);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{
        ActivationSpec, BesideTable, BlockNorms, EmbeddingSpec, OutputSpec, QkvHeads, Stage,
    };
    use vllm_batch_base::layers::Activation;

    /// Four heads of two values, two of K and V; gate and up of six values.
    fn spec() -> DecoderSpec {
        let heads = QkvHeads { num_heads: 4, num_kv_heads: 2, head_dim: 2 };
        let [q, k, v] = [("q", 8), ("k", 4), ("v", 4)].map(|(name, rows)| (name.to_owned(), rows));
        let qkv = LinearSpec::stacked([q, k, v], 8);
        let mut attention =
            AttentionSpec::new(BlockNorms::default(), heads, qkv, LinearSpec::new("o", 8, 8));
        attention.alibi_slopes = Some(vec![1.0, 2.0, 3.0, 4.0]);
        let up = [("gate", 6), ("up", 6)].map(|(name, rows)| (name.to_owned(), rows));
        let mlp = MlpSpec {
            norms: BlockNorms::default(),
            form: MlpForm::Gated,
            activation: ActivationSpec::Known(Activation::Silu),
            up: LinearSpec::stacked(up, 8),
            down: LinearSpec::new("down", 8, 6).with_bias(true),
        };
        let output = OutputSpec {
            norm: None,
            projection: None,
            after_projection: None,
            lm_head: None,
            scale: None,
            soft_cap: None,
            of_further_tokens: Vec::new(),
            beside_table: BesideTable::Nothing,
        };
        DecoderSpec {
            max_model_len: 16,
            embedding: EmbeddingSpec::of(LinearSpec::new("tokens", 10, 8)),
            layers: vec![LayerSpec::new(attention, mlp)],
            ropes: Vec::new(),
            output,
            stage: Stage::WHOLE,
        }
    }

    fn rows(linear: &LinearSpec) -> Vec<u32> {
        linear.share.as_ref().unwrap().rows.as_ref().unwrap().to_vec()
    }

    #[test]
    fn ranks_share_heads_and_inner_values() {
        let whole = spec();
        let second = whole.of_rank(RankOf { index: 1, count: 2 }).unwrap();
        assert_eq!(second.tensors(), whole.tensors(), "as the files have them");
        let attention = second.layers[0].attention.as_ref().unwrap();
        // Heads 2 and 3 of q, head 1 of k, head 1 of v.
        assert_eq!(rows(&attention.qkv), [4, 5, 6, 7, 10, 11, 14, 15]);
        assert_eq!((attention.qkv.n(), attention.qkv.k), (8, 8));
        assert_eq!((attention.heads.num_heads, attention.heads.num_kv_heads), (2, 1));
        assert_eq!(attention.out.share.as_ref().unwrap().columns, Some(4..8));
        assert_eq!((attention.out.n(), attention.out.k), (8, 4));
        assert_eq!(attention.alibi_slopes.as_deref(), Some(&[3.0, 4.0][..]));
        let mlp = second.layers[0].mlp().unwrap();
        assert_eq!(rows(&mlp.up), [3, 4, 5, 9, 10, 11]);
        assert_eq!(mlp.down.share.as_ref().unwrap().columns, Some(3..6));
        let first = whole.of_rank(RankOf { index: 0, count: 2 }).unwrap();
        let adds = |spec: &DecoderSpec| {
            spec.layers[0].mlp().unwrap().down.share.as_ref().unwrap().adds_bias
        };
        assert!(adds(&first) && !adds(&second));
        // Half of each layer.
        assert_eq!(second.num_weights_elsewhere(), (16 * 8 + 8 * 8 + 12 * 8 + 8 * 6) / 2);
    }

    #[test]
    fn what_ranks_cannot_share_is_said_with_its_size() {
        let refused = |count, spec: DecoderSpec| {
            spec.of_rank(RankOf { index: 0, count }).expect_err("it is refused")
        };
        assert_eq!(refused(3, spec()), "this model has 2 K and V heads: give 2");
        let mut one_head = spec();
        one_head.layers[0].attention.as_mut().unwrap().heads.num_kv_heads = 1;
        assert_eq!(
            refused(2, one_head),
            "this model has 1 K and V heads: one GPU has to compute it"
        );
    }
}
