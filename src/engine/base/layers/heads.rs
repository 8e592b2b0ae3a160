//! Attention heads as columns of a row.

/// Columns of a row that are attention heads: `num_heads` of `head_dim`, from column `start`.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// First column.
    pub start: usize,
    /// Number of heads.
    pub num_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
}

/// The query, key and value heads of a row of `qkv`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkvHeads {
    /// Query heads.
    pub num_heads: usize,
    /// K and V heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl QkvHeads {
    /// Values of all query heads.
    pub fn q_width(self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Values of all K heads, or of all V heads.
    pub fn kv_width(self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Values of q and k.
    pub fn qk_width(self) -> usize {
        self.q_width() + self.kv_width()
    }

    /// Values of q, k and v.
    pub fn qkv_width(self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }

    /// Query heads.
    pub fn q(&self) -> Heads {
        self.heads(0, self.num_heads)
    }

    /// Key heads.
    pub fn k(&self) -> Heads {
        self.heads(self.num_heads, self.num_kv_heads)
    }

    /// Value heads, as wide as the others.
    pub fn v(&self) -> Heads {
        self.heads(self.num_heads + self.num_kv_heads, self.num_kv_heads)
    }

    fn heads(&self, first: usize, num_heads: usize) -> Heads {
        Heads { start: first * self.head_dim, num_heads, head_dim: self.head_dim }
    }
}
