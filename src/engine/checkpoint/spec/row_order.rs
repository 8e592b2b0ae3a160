//! `RowOrder`: where the rows of a layer are in the tensors that store them.

use std::sync::Arc;

use vllm_batch_base::layers::QkvHeads;

/// A permutation of rows: row i of the layer is row `order[i]` of what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowOrder(Option<Arc<[u32]>>);

impl RowOrder {
    /// Row by row.
    pub fn as_stored() -> Self {
        Self(None)
    }

    /// Any order.
    ///
    /// # Panics
    /// A row is named twice or is out of range.
    pub fn new(order: Vec<u32>) -> Self {
        let mut is_named = vec![false; order.len()];
        order.iter().for_each(|&row| {
            let before = std::mem::replace(&mut is_named[row as usize], true);
            assert!(!before, "row {row} is there once");
        });
        let is_as_stored = (0..).zip(&order).all(|(index, row)| index == *row);
        Self((!is_as_stored).then(|| order.into()))
    }

    /// This of each of so many stacks of as many rows.
    pub fn of_each(&self, num_stacks: usize) -> Self {
        let Some(order) = &self.0 else { return Self(None) };
        let stack = |index: usize| order.iter().map(move |row| (index * order.len()) as u32 + row);
        Self(Some((0..num_stacks).flat_map(stack).collect()))
    }

    /// So many rows whose second half is stored first, as of gates that stand behind what they
    /// open (Aya Vision).
    pub fn second_half_first(num_rows: usize) -> Self {
        let (half, num_rows) = ((num_rows / 2) as u32, num_rows as u32);
        Self::new((half..num_rows).chain(0..half).collect())
    }

    /// q, k and v that are stored per K and V head: its query heads, its K, its V. With as many K
    /// and V heads as query heads that is q, k, v of each head (GPT-NeoX, Falcon, InternLM2).
    pub fn grouped_qkv(heads: QkvHeads) -> Self {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
        let q_per_group = num_heads / num_kv_heads;
        let head = |group: usize, index: usize| {
            let first = (group * (q_per_group + 2) + index) * head_dim;
            first as u32..(first + head_dim) as u32
        };
        let q = (0..num_heads).flat_map(|h| head(h / q_per_group, h % q_per_group));
        let k = (0..num_kv_heads).flat_map(|group| head(group, q_per_group));
        let v = (0..num_kv_heads).flat_map(|group| head(group, q_per_group + 1));
        Self::new(q.chain(k).chain(v).collect())
    }

    /// q, k, v and gates, where q and gates are stored by turns: those of one head, then those of
    /// the next (Qwen3-Next).
    pub fn with_gates_of_heads(heads: QkvHeads) -> Self {
        let QkvHeads { num_heads, head_dim, .. } = heads;
        let by_turns = |first: usize| {
            let head = move |h: usize| (2 * h + first) * head_dim;
            (0..num_heads).flat_map(move |h| head(h) as u32..(head(h) + head_dim) as u32)
        };
        let first_k = 2 * heads.q_width();
        let kv = first_k as u32..(first_k + 2 * heads.kv_width()) as u32;
        Self::new(by_turns(0).chain(kv).chain(by_turns(1)).collect())
    }

    /// Rotary embeddings that turn neighbours (2i, 2i + 1), made those of halves (i, i + d/2), in
    /// the first `rotary_dim` values of every q and k head; v as stored. Scores are sums over a
    /// head, so they do not change.
    pub fn rotated_in_pairs(heads: QkvHeads, rotary_dim: usize) -> Self {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
        let num_rotated = num_heads + num_kv_heads;
        let head = pairs_as_halves(head_dim, rotary_dim);
        let qk =
            (0..num_rotated).flat_map(|h| head.iter().map(move |&d| (h * head_dim + d) as u32));
        let first_v = num_rotated * head_dim;
        let v = first_v as u32..(first_v + num_kv_heads * head_dim) as u32;
        Self::new(qk.chain(v).collect())
    }

    /// Rotary embeddings that turn backwards, made those that turn forwards: the halves of every q
    /// and k head change places; v as stored (NanoChat).
    pub fn rotated_backwards(heads: QkvHeads) -> Self {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
        let num_rotated = num_heads + num_kv_heads;
        let row = |row: usize| row / head_dim * head_dim + (row + head_dim / 2) % head_dim;
        let num_rows = num_rotated * head_dim;
        let v = num_rows..num_rows + num_kv_heads * head_dim;
        Self::new((0..num_rows).map(row).chain(v).map(|row| row as u32).collect())
    }

    /// The same for values of `num_heads` heads alone: a norm of q or of k.
    pub fn heads_in_pairs(num_heads: usize, head_dim: usize, rotary_dim: usize) -> Self {
        let head = pairs_as_halves(head_dim, rotary_dim);
        let row = |h: usize| head.iter().map(move |&d| (h * head_dim + d) as u32);
        Self::new((0..num_heads).flat_map(row).collect())
    }

    /// Rotary embeddings that turn the halves of each half of a head, made those of halves of
    /// heads, in every q and k head; v as stored (Gemma 4's tower).
    pub fn rotated_in_halves(heads: QkvHeads) -> Self {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
        let num_rotated = num_heads + num_kv_heads;
        let head = quarters_as_halves(head_dim);
        let row = |h: usize| head.iter().map(move |&d| (h * head_dim + d) as u32);
        let first_v = num_rotated * head_dim;
        let v = first_v as u32..(first_v + num_kv_heads * head_dim) as u32;
        Self::new((0..num_rotated).flat_map(row).chain(v).collect())
    }

    /// The same for values of one head alone: a norm of q or of k.
    pub fn head_in_halves(head_dim: usize) -> Self {
        Self::new(quarters_as_halves(head_dim).into_iter().map(|d| d as u32).collect())
    }

    /// Two halves, the second one of which is stored first.
    pub fn halves_swapped(num_rows: usize) -> Self {
        let half = num_rows as u32 / 2;
        Self::new((half..2 * half).chain(0..half).collect())
    }

    /// Two halves, whose rows are stored by turns: one of the first, one of the second.
    pub fn halves_by_turns(num_rows: usize) -> Self {
        let half = num_rows as u32 / 2;
        Self::new((0..half).map(|row| 2 * row).chain((0..half).map(|row| 2 * row + 1)).collect())
    }

    /// Order that restores the original rows.
    pub fn inverse(&self) -> Self {
        let Some(rows) = self.rows() else { return Self::as_stored() };
        let mut inverse = vec![0; rows.len()];
        (0..).zip(rows.iter()).for_each(|(index, row)| inverse[*row as usize] = index);
        Self::new(inverse)
    }

    /// `after` of the rows that `self` gives.
    pub fn then(&self, after: &Self) -> Self {
        match (&self.0, &after.0) {
            (None, _) => after.clone(),
            (_, None) => self.clone(),
            (Some(first), Some(after)) => {
                Self::new(after.iter().map(|&row| first[row as usize]).collect())
            }
        }
    }

    /// `num_rows` rows in this order, and behind them others of their own.
    pub fn and(&self, num_rows: usize, (others, num_others): (&Self, usize)) -> Self {
        let row = |order: &Self, index: usize| match order.rows() {
            None => index as u32,
            Some(rows) => rows[index],
        };
        let own = (0..num_rows).map(|index| row(self, index));
        let others = (0..num_others).map(|index| num_rows as u32 + row(others, index));
        Self::new(own.chain(others).collect())
    }

    /// The stored row of row i, unless they are the same for all.
    pub fn rows(&self) -> Option<&Arc<[u32]>> {
        self.0.as_ref()
    }

    /// Values of rows in this order.
    pub fn arrange<T: Copy>(&self, stored: Vec<T>) -> Vec<T> {
        match self.rows() {
            None => stored,
            Some(rows) => rows.iter().map(|&row| stored[row as usize]).collect(),
        }
    }
}

/// Where value i of a head is stored, whose second and third quarters are exchanged.
fn quarters_as_halves(head_dim: usize) -> Vec<usize> {
    let quarter = head_dim / 4;
    [0, 2, 1, 3].into_iter().flat_map(|at| at * quarter..(at + 1) * quarter).collect()
}

/// Where value i of a head is stored.
fn pairs_as_halves(head_dim: usize, rotary_dim: usize) -> Vec<usize> {
    let half = rotary_dim / 2;
    (0..head_dim)
        .map(|d| match d {
            d if d < half => 2 * d,
            d if d < 2 * half => 2 * (d - half) + 1,
            d => d,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: QkvHeads = QkvHeads { num_heads: 4, num_kv_heads: 2, head_dim: 2 };

    #[test]
    fn halves_of_heads_that_turn_backwards_change_places() {
        let heads = QkvHeads { num_heads: 2, num_kv_heads: 1, head_dim: 4 };
        let order = RowOrder::rotated_backwards(heads);
        let qk = [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9];
        assert_eq!(order.rows().unwrap()[..], [&qk[..], &[12, 13, 14, 15]].concat());
    }

    #[test]
    fn groups_are_taken_apart() {
        // Group 0: rows 0 to 3 are q of heads 0 and 1, 4 and 5 are k, 6 and 7 are v.
        let order = RowOrder::grouped_qkv(HEADS);
        let expected = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
        assert_eq!(order.rows().unwrap()[..], expected);
        assert_eq!(RowOrder::as_stored().then(&order), order);
        let order = RowOrder::with_gates_of_heads(QkvHeads { num_heads: 2, ..HEADS });
        assert_eq!(
            order.rows().unwrap()[..],
            [0, 1, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 2, 3, 6, 7]
        );
        let order = RowOrder::grouped_qkv(HEADS);
        assert_eq!(order.then(&order).rows().unwrap()[4..8], [4, 5, 12, 13]);
        assert_eq!(order.then(&order.inverse()), RowOrder::as_stored());
        let swapped = RowOrder::new(vec![1, 0]);
        assert_eq!(RowOrder::as_stored().and(2, (&swapped, 2)).rows().unwrap()[..], [0, 1, 3, 2]);
        assert_eq!(swapped.and(2, (&swapped, 2)).rows().unwrap()[..], [1, 0, 3, 2]);
    }

    #[test]
    fn pairs_become_halves_in_q_and_k_alone() {
        let heads = QkvHeads { num_heads: 1, num_kv_heads: 1, head_dim: 6 };
        let order = RowOrder::rotated_in_pairs(heads, 4);
        let expected = [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17];
        assert_eq!(order.rows().unwrap()[..], expected);
        assert_eq!(RowOrder::heads_in_pairs(1, 6, 4).rows().unwrap()[..], expected[..6]);
        let heads = QkvHeads { num_heads: 1, num_kv_heads: 1, head_dim: 8 };
        let quarters = RowOrder::head_in_halves(8);
        assert_eq!(quarters.rows().unwrap()[..], [0, 1, 4, 5, 2, 3, 6, 7]);
        let order = RowOrder::rotated_in_halves(heads);
        assert_eq!(order.rows().unwrap()[8..18], [8, 9, 12, 13, 10, 11, 14, 15, 16, 17]);
        assert_eq!(RowOrder::halves_by_turns(6).rows().unwrap()[..], [0, 2, 4, 1, 3, 5]);
    }
}
