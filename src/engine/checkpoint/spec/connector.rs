//! `ConnectorSpec`: from the patches of a vision tower to embeddings of a decoder's tokens, as a
//! list of steps.

use super::{LinearSpec, NamedShape, NormSpec, QkvHeads};
use vllm_batch_base::layers::Activation;

/// What makes embeddings of patches. Rows are patches, by the tokens that they are of, until they
/// are merged; tokens from there on.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorSpec {
    /// In this order.
    pub steps: Vec<ConnectorStep>,
    /// (the decoder's hidden_size, or classes of an image; width of the steps' rows): behind them.
    pub last: LinearSpec,
}

/// A step, from rows to rows.
#[derive(Clone, Debug, PartialEq)]
pub enum ConnectorStep {
    /// First: the token before the patches of a tile, in place of all of them. An image is one row
    /// from there on (CLIP).
    ClassToken,
    /// First: what a query finds among the patches of a tile. An image is one row from there on
    /// (SigLIP).
    AttentionPool(AttentionPool),
    /// First: the mean of all patches of a tile. An image is one row from there on (classifiers of
    /// SigLIP).
    TileMean,
    /// First: what the mean of the patches of each token finds among them. Rows are tokens from
    /// there on, and tiles may share them (Molmo 2).
    GroupPool(GroupPool),
    /// Rows as they are here are added to what the last product gives.
    Keep,
    /// Norm of each row.
    Norm(NormSpec),
    /// The merge_size² patches of a token beside each other, row after row of its square.
    Merge,
    /// The mean of the merge_size² patches of a token.
    MeanPool,
    /// (value * factor - shift) * scale of each channel.
    Standardize {
        /// Factor of all.
        factor: f32,
        /// (width)
        shift: NamedShape,
        /// (width)
        scale: NamedShape,
    },
    /// Product of each row.
    Linear(LinearSpec),
    /// A convolution over squares of three rows of a tile's.
    Convolve(ConvolutionSpec),
    /// Shares of each row: e^value over the sum of these (Ovis 2).
    Softmax,
    /// Of each value.
    Activate(Activation),
    /// The activations of the first half of each row, times its second half.
    Gate(Activation),
}

/// A convolution over a square of rows: each is of the three by three around it, with zeros beyond
/// the edge.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionSpec {
    /// (outputs, width of the rows, 3, 3)
    pub linear: LinearSpec,
    /// Rows of the side of the square.
    pub side: usize,
    /// Every so many of a row and of a column are the middle of one.
    pub stride: usize,
    /// Patches of the side of a token, where rows are still by the tokens that they are of; None:
    /// they are row after row.
    pub by_token: Option<usize>,
}

/// Attention of one learned query over all patches of a tile.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPool {
    /// (1, 1, width): what the query is a product of.
    pub query: NamedShape,
    /// (3 * width, width): queries, keys and values.
    pub qkv: LinearSpec,
    /// Heads of the attention.
    pub num_heads: usize,
}

/// Attention of the means of groups of patches over the patches of each.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupPool {
    /// (width of queries, width of rows): of the means.
    pub q: LinearSpec,
    /// (widths of keys and of values, width of rows): of the patches.
    pub kv: LinearSpec,
    /// Heads of the attention.
    pub heads: QkvHeads,
}

impl ConnectorSpec {
    /// Its products.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        let of_steps = self.steps.iter().flat_map(|step| match step {
            ConnectorStep::Linear(linear) => vec![linear],
            ConnectorStep::Convolve(convolution) => vec![&convolution.linear],
            ConnectorStep::AttentionPool(pool) => vec![&pool.qkv],
            ConnectorStep::GroupPool(pool) => vec![&pool.q, &pool.kv],
            _ => Vec::new(),
        });
        of_steps.chain([&self.last])
    }

    /// Its norms.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        self.steps.iter().filter_map(|step| match step {
            ConnectorStep::Norm(norm) => Some(norm),
            _ => None,
        })
    }

    /// All tensors.
    pub fn tensors(&self) -> impl Iterator<Item = NamedShape> {
        let norms = self.norms().flat_map(NormSpec::tensors);
        let of_channels = self.steps.iter().flat_map(|step| match step {
            ConnectorStep::Standardize { shift, scale, .. } => vec![shift.clone(), scale.clone()],
            ConnectorStep::AttentionPool(pool) => vec![pool.query.clone()],
            _ => Vec::new(),
        });
        self.linears().flat_map(LinearSpec::tensors).chain(norms).chain(of_channels)
    }

    /// An image is one row of what it gives.
    pub fn gives_one_row(&self) -> bool {
        let pools = |step: &ConnectorStep| {
            use ConnectorStep::{AttentionPool, ClassToken, TileMean};
            matches!(step, ClassToken | AttentionPool(_) | TileMean)
        };
        self.steps.first().is_some_and(pools)
    }

    /// Tokens are of groups of patches of any tiles.
    pub fn pools_groups(&self) -> bool {
        matches!(self.steps.first(), Some(ConnectorStep::GroupPool(_)))
    }

    /// That row is made of the token before the patches alone.
    pub fn reads_class_token(&self) -> bool {
        self.steps.first() == Some(&ConnectorStep::ClassToken)
    }

    /// The decoder's hidden_size.
    pub fn n(&self) -> usize {
        self.last.n()
    }
}
