//! Sizes of the gated delta rule (Qwen3-Next, Qwen3.5, Kimi Linear).

/// Lanes of the widest vectors; columns of a state are padded with zeros to a multiple of it.
pub const STATE_LANES: usize = 16;

/// Columns that a state has room for.
pub fn padded(v_dim: usize) -> usize {
    v_dim.next_multiple_of(STATE_LANES)
}

/// How fast the state of a head forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// All of it alike: e^(-rate * softplus(a + bias)), where a is of the head.
    OfHeads,
    /// Each of its rows (Kimi Linear): where a and the bias are of the row.
    OfRows(DecayForm),
}

/// What a, a bias and a head's rate say of a row of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecayForm {
    /// e^(-rate * softplus(a + bias))
    Softplus,
    /// e^(bound * sigmoid(rate * (a + bias))), where the bound is below 0 (Ling 3).
    Bounded(f32),
}

impl Decay {
    /// Values of a token that say it.
    pub fn width(self, heads: DeltaHeads) -> usize {
        match self {
            Self::OfHeads => heads.num_v_heads,
            Self::OfRows(_) => heads.num_v_heads * heads.k_dim,
        }
    }
}

/// Heads of a delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Heads of q and k; each serves as many v heads, in order.
    pub num_k_heads: usize,
    /// Heads of v, a multiple of `num_k_heads`: each has a state.
    pub num_v_heads: usize,
    /// Width of a q or k head.
    pub k_dim: usize,
    /// Width of a v head.
    pub v_dim: usize,
}

impl DeltaHeads {
    /// Values of all heads of k, or of q.
    pub fn k_width(self) -> usize {
        self.num_k_heads * self.k_dim
    }

    /// Values of all heads of v.
    pub fn v_width(self) -> usize {
        self.num_v_heads * self.v_dim
    }

    /// Values of q, k and v.
    pub fn qkv_width(self) -> usize {
        2 * self.k_width() + self.v_width()
    }

    /// Operations of a token: it reads each state twice, and changes it once.
    pub fn num_operations(self) -> f64 {
        7.0 * (self.num_v_heads * self.k_dim * self.v_dim) as f64
    }

    /// Values of the states of all heads.
    pub fn state_width(self) -> usize {
        self.num_v_heads * self.head_state_width()
    }

    /// Those of one head: stripes of columns, one after the other, each (k_dim, its columns).
    pub fn head_state_width(self) -> usize {
        self.k_dim * padded(self.v_dim)
    }
}
