//! `DeltaNetSpec`: a gated delta rule with what is around it, as data.

use super::{BlockNorms, LinearSpec, NamedShape, NormSpec, RowOrder, TapsSpec};
use vllm_batch_base::layers::{Decay, DeltaHeads};

/// A gated delta net (Qwen3-Next). Of each token: q, k and v are sums over the last few tokens,
/// through silu; q and k of each head are divided by their lengths; the delta rule gives what the
/// state of each head holds for q; that is normalized, times a function of z, and goes through
/// `out`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNetSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Heads of the delta net.
    pub heads: DeltaHeads,
    /// (2 * k_width + v_width + .., hidden_size): q, k, v, z (v_width), b (num_v_heads), a (the
    /// decay's width); of low rank, what z and a are made of are in their places.
    pub inputs: LinearSpec,
    /// Layers to a and z where these are of low rank (Kimi Linear).
    pub low_rank: Option<LowRankGates>,
    /// The sums, of all values of q, k and v.
    pub taps: TapsSpec,
    /// What forgets.
    pub decay: Decay,
    /// The tensor, with num_v_heads values, of the logarithms of how fast heads forget.
    pub a_log: NamedShape,
    /// The tensor (the decay's width) of what is added to a.
    pub dt_bias: String,
    /// Factor of the weight of a token, which is sigmoid(b).
    pub beta_factor: f32,
    /// (v_dim) of what each head gives.
    pub norm: NormSpec,
    /// Function of z.
    pub output_gate: DeltaGate,
    /// (hidden_size, v_width)
    pub out: LinearSpec,
}

/// Layers from few values to gates.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankGates {
    /// (the decay's width, rank)
    pub a: LinearSpec,
    /// (v_width, rank)
    pub z: LinearSpec,
}

/// Function of what the outputs of a delta net are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaGate {
    /// z * sigmoid(z)
    Silu,
    /// sigmoid(z)
    Sigmoid,
}

impl DeltaNetSpec {
    /// First column of z in what `inputs` gives.
    pub fn first_z(&self) -> usize {
        self.heads.qkv_width()
    }

    /// First column of b, and then a, or what that is made of.
    pub fn first_gate(&self) -> usize {
        let of_z = self.low_rank.as_ref().map_or(self.heads.v_width(), |gates| gates.z.k);
        self.first_z() + of_z
    }

    /// The tensors of its gates.
    pub fn gate_tensors(&self) -> [NamedShape; 2] {
        let dt_bias = (self.dt_bias.clone(), vec![self.decay.width(self.heads)]);
        [self.a_log.clone(), dt_bias]
    }
}

/// Where rows of `inputs` are in two tensors that group them by key heads: q, k, and v and z of the
/// heads that it serves; and b and a of these (Qwen3-Next).
pub fn grouped_delta_inputs(heads: DeltaHeads) -> RowOrder {
    let DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim } = heads;
    let v = num_v_heads / num_k_heads * v_dim;
    let first = grouped(num_k_heads, &[k_dim, k_dim, v, v]);
    let gates = num_v_heads / num_k_heads;
    let num_first = heads.qkv_width() + heads.v_width();
    first.and(num_first, (&grouped(num_k_heads, &[gates, gates]), 2 * num_v_heads))
}

/// Rows of several kinds, of which each group has as many as `sizes` says: all of the first kind,
/// then all of the next.
fn grouped(num_groups: usize, sizes: &[usize]) -> RowOrder {
    let stride: usize = sizes.iter().sum();
    let mut order = Vec::new();
    let mut first = 0;
    for size in sizes {
        let of_group = |group: usize| (group * stride + first) as u32;
        order.extend((0..num_groups).flat_map(|g| of_group(g)..of_group(g) + *size as u32));
        first += size;
    }
    RowOrder::new(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_key_heads_are_taken_apart() {
        let heads = DeltaHeads { num_k_heads: 2, num_v_heads: 4, k_dim: 1, v_dim: 2 };
        // Group 0: rows 0 and 1 are q and k, 2 to 5 are v, 6 to 9 are z. Group 1 begins at row 10.
        let order = grouped_delta_inputs(heads);
        let (qk, v) = ([0, 10, 1, 11], [2, 3, 4, 5, 12, 13, 14, 15]);
        let (z, ba) = ([6, 7, 8, 9, 16, 17, 18, 19], [20, 21, 24, 25, 22, 23, 26, 27]);
        assert_eq!(order.rows().unwrap()[..], [&qk[..], &v, &z, &ba].concat());
    }
}
