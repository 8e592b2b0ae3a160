//! Inputs that layers have besides the stream (Gemma 4's per-layer embeddings), and the blocks that
//! read them.

use super::{EmbeddingScale, LinearSpec, NormSpec};
use vllm_batch_base::layers::Activation;

/// Inputs of all layers, L of width W: a table by token ids and a projection of the embeddings,
/// (norm(projection(x) * projection_scale) + table * table_scale) * sum_scale.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerInputsSpec {
    /// (rows, L * W), the values of each layer one after the other.
    pub table: LinearSpec,
    /// Tokens behind the table have its first row (Gemma 3n).
    pub first_row_behind: bool,
    /// Factor of the table's values.
    pub table_scale: EmbeddingScale,
    /// (L * W, hidden_size)
    pub projection: LinearSpec,
    /// Factor of the projection's output.
    pub projection_scale: f32,
    /// (W): of each layer's values of the projection.
    pub norm: NormSpec,
    /// The sum is multiplied by this.
    pub sum_scale: f32,
}

/// The block of a layer that reads its inputs: x += norm(out(activation(gate(x)) * inputs)).
#[derive(Clone, Debug, PartialEq)]
pub struct SideBlockSpec {
    /// (W, hidden_size)
    pub gate: LinearSpec,
    /// The activation.
    pub activation: Activation,
    /// (hidden_size, W)
    pub out: LinearSpec,
    /// (hidden_size)
    pub norm: NormSpec,
}
