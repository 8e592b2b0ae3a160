//! `LatentSpec`: K and V that all heads share and that are few values a token, as data.

use super::{LinearSpec, NormSpec, RowOrder};

/// Latent attention (DeepSeek V2): the K and V of each head are matrices of its own times one
/// latent per token, and a part of k that turns is one for all heads.
///
/// The block's `qkv` gives q, or the latent of q, and then the part of k that turns and the latent
/// of K and V. Its `heads` are those that attention runs over, in the absorbed form
/// (docs/DECISIONS.md): q times the head's matrix of K, one K head (the part that turns, latent),
/// one V head (latent).
#[derive(Clone, Debug, PartialEq)]
pub struct LatentSpec {
    /// Layers from the latent of q to q; `None`: `qkv` gives q.
    pub q: Option<LatentQuerySpec>,
    /// (rank) of the latent of K and V.
    pub norm: NormSpec,
    /// From latents to K and V.
    pub up: LatentUpSpec,
    /// Widths.
    pub dims: LatentDims,
}

/// From the latent of K and V to K and V of each head.
#[derive(Clone, Debug, PartialEq)]
pub enum LatentUpSpec {
    /// (num_heads * (nope + v), rank): of each head those of k, then those of v.
    Together(LinearSpec),
    /// As GGUF files have them.
    Apart {
        /// (num_heads * rank, nope): transposed, head by head.
        keys: LinearSpec,
        /// (num_heads * v, rank)
        values: LinearSpec,
    },
}

impl LatentUpSpec {
    /// Linear layers of the block.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        let (first, second) = match self {
            LatentUpSpec::Together(both) => (both, None),
            LatentUpSpec::Apart { keys, values } => (keys, Some(values)),
        };
        [first].into_iter().chain(second)
    }
}

/// From the latent of q to q.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentQuerySpec {
    /// (rank of q)
    pub norm: NormSpec,
    /// (num_heads * (rope + nope), rank of q)
    pub up: LinearSpec,
}

/// Widths of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentDims {
    /// Values of q and k that turn, the first ones of a head.
    pub rope: usize,
    /// Values of a head's q and k that do not.
    pub nope: usize,
    /// Values of the latent of K and V.
    pub rank: usize,
    /// Values of a head's v.
    pub v: usize,
}

impl LatentDims {
    /// Values of q of one head.
    pub fn q(self) -> usize {
        self.rope + self.nope
    }

    /// Values of k as attention sees it: what turns, and the latent.
    pub fn key(self) -> usize {
        self.rope + self.rank
    }

    /// q of each head as files have it, what does not turn first, with what turns first; and with
    /// pairs that turn (2i, 2i + 1) as halves, if it is `in_pairs`.
    pub fn q_order(self, num_heads: usize, in_pairs: bool) -> RowOrder {
        let head = turning_first(self.nope, self.rope, in_pairs);
        let row = |h: usize| head.iter().map(move |row| (h * self.q()) as u32 + row);
        RowOrder::new((0..num_heads).flat_map(row).collect())
    }

    /// The same of the latent of K and V, which files have before what turns.
    pub fn key_order(self, in_pairs: bool) -> RowOrder {
        RowOrder::new(turning_first(self.rank, self.rope, in_pairs))
    }
}

/// Rows of `still` values and then `turning` ones, the latter first.
fn turning_first(still: usize, turning: usize, in_pairs: bool) -> Vec<u32> {
    let order = match in_pairs {
        true => RowOrder::heads_in_pairs(1, turning, turning),
        false => RowOrder::as_stored(),
    };
    let turning: Vec<_> = (still as u32..(still + turning) as u32).collect();
    order.arrange(turning).into_iter().chain(0..still as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_turns_comes_first() {
        let dims = LatentDims { rope: 4, nope: 2, rank: 3, v: 1 };
        let rows = |order: RowOrder| order.rows().unwrap().to_vec();
        assert_eq!(rows(dims.q_order(2, false)), [2, 3, 4, 5, 0, 1, 8, 9, 10, 11, 6, 7]);
        assert_eq!(rows(dims.q_order(1, true)), [2, 4, 3, 5, 0, 1]);
        assert_eq!(rows(dims.key_order(true)), [3, 5, 4, 6, 0, 1, 2]);
    }
}
