//! Tokens of one sequence through some columns of one head's state: columns of a state do not see
//! each other.

use std::ops::Range;

use vllm_batch_base::layers::STATE_LANES;
use vllm_batch_device::Tensor;
use vllm_batch_device::simd::{Kernel, Vector};
use vllm_batch_device::tensor::SharedMut;

/// Most columns that are computed together: of 128 rows they stay in a core's first cache.
const STRIPE: usize = 64;
/// Vectors of a stripe, of the narrowest kind.
const MAX_VECTORS: usize = STRIPE / 8;

/// Stripes of so many columns.
pub(super) fn num_stripes(v_dim: usize) -> usize {
    v_dim.div_ceil(STRIPE)
}

/// Columns of stripe `index`.
pub(super) fn stripe(v_dim: usize, index: usize) -> Range<usize> {
    index * STRIPE..v_dim.min((index + 1) * STRIPE)
}

/// Tokens through a stripe.
pub(super) struct Update<'a> {
    /// (k_dim, padded columns), those of the stripe.
    pub state: &'a mut [f32],
    /// The tokens' rows, in the order of their positions.
    pub rows: Range<usize>,
    /// What they are computed from.
    pub inputs: &'a Inputs<'a>,
    /// (num_tokens, values of all heads)
    pub out: SharedMut<f32>,
    /// Values of a row of `out`, and the stripe's columns there.
    pub out_columns: (usize, Range<usize>),
}

/// Where q, k, v and the gates of a head are.
pub(super) struct Inputs<'a> {
    /// q, k, v and gates of all heads; q and k are normalized, q is scaled.
    pub rows: &'a Tensor,
    /// Columns of the head's q.
    pub q: Range<usize>,
    /// Columns of the head's k.
    pub k: Range<usize>,
    /// Columns of the stripe's v.
    pub v: Range<usize>,
    /// Column of the head's beta.
    pub beta: usize,
    /// Where its decays are.
    pub decays: Decays<'a>,
}

/// Where the decays of a head's state are.
#[derive(Debug)]
pub(super) enum Decays<'a> {
    /// One of all of it, in this column.
    OfHead(usize),
    /// One of each row: these columns of other rows.
    OfRows(&'a Tensor, Range<usize>),
}

impl Kernel for Update<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU.
        unsafe {
            match self.inputs.v.len().div_ceil(STATE_LANES) {
                1 => self.of_groups::<V, 1>(),
                2 => self.of_groups::<V, 2>(),
                3 => self.of_groups::<V, 3>(),
                _ => self.of_groups::<V, 4>(),
            }
        }
    }
}

impl Update<'_> {
    /// # Safety
    /// As `advance`.
    #[inline(always)]
    unsafe fn of_groups<V: Vector, const GROUPS: usize>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.inputs.decays {
                Decays::OfHead(_) => self.advance::<V, GROUPS, false>(),
                Decays::OfRows(..) => self.advance::<V, GROUPS, true>(),
            }
        }
    }

    /// # Safety
    /// As `Kernel::run`; nobody else touches the state and the columns of `out`.
    #[inline(always)]
    unsafe fn advance<V: Vector, const GROUPS: usize, const BY_ROW: bool>(self) {
        let Self { state, rows, inputs, out, out_columns: (out_width, columns) } = self;
        assert_eq!(state.len(), inputs.k.len() * GROUPS * STATE_LANES);
        let (mut v, mut sums) = ([0.0f32; STRIPE], [0.0f32; STRIPE]);
        for row in rows {
            let values = inputs.rows.row(row);
            v[..columns.len()].copy_from_slice(&values[inputs.v.clone()]);
            let token = Token {
                q: &values[inputs.q.clone()],
                k: &values[inputs.k.clone()],
                v: &v,
                beta: values[inputs.beta],
                decays: match &inputs.decays {
                    Decays::OfHead(column) => &values[*column..=*column],
                    Decays::OfRows(decays, columns) => &decays.row(row)[columns.clone()],
                },
            };
            // SAFETY: the caller's promise; the state has GROUPS groups of columns.
            unsafe {
                token.advance::<V, GROUPS, BY_ROW>(state, &mut sums);
                let out = out.slice(row * out_width + columns.start, columns.len());
                out.copy_from_slice(&sums[..columns.len()]);
            }
        }
    }
}

/// What a token brings.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32; STRIPE],
    beta: f32,
    /// Those of all rows of the state, or one.
    decays: &'a [f32],
}

impl Token<'_> {
    /// Changes the state, and computes what the token reads of it.
    ///
    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    unsafe fn advance<V: Vector, const GROUPS: usize, const BY_ROW: bool>(
        &self,
        state: &mut [f32],
        out: &mut [f32; STRIPE],
    ) {
        let (width, num) = (GROUPS * STATE_LANES, GROUPS * STATE_LANES / V::LANES);
        let of_row = |index: usize| if BY_ROW { self.decays[index] } else { self.decays[0] };
        // SAFETY: `num` vectors are the columns of a row, and no more than a stripe has.
        unsafe {
            let (zero, decay) = (V::splat(0.0), V::splat(self.decays[0]));
            let mut known = [zero; MAX_VECTORS];
            for (index, (row, k)) in state.chunks_exact(width).zip(self.k).enumerate() {
                let k = V::splat(if BY_ROW { *k * of_row(index) } else { *k });
                for (i, known) in known.iter_mut().enumerate().take(num) {
                    *known = V::load(row.as_ptr().add(i * V::LANES)).mul_add(k, *known);
                }
            }
            let (mut new, beta) = ([zero; MAX_VECTORS], V::splat(self.beta));
            for (i, new) in new.iter_mut().enumerate().take(num) {
                let v = V::load(self.v.as_ptr().add(i * V::LANES));
                let known = if BY_ROW { known[i] } else { known[i].mul(decay) };
                *new = v.sub(known).mul(beta);
            }
            let mut sums = [zero; MAX_VECTORS];
            let values = self.k.iter().zip(self.q);
            for (index, (row, (k, q))) in state.chunks_exact_mut(width).zip(values).enumerate() {
                let (k, q) = (V::splat(*k), V::splat(*q));
                let decay = if BY_ROW { V::splat(of_row(index)) } else { decay };
                for (i, sum) in sums.iter_mut().enumerate().take(num) {
                    let place = row.as_mut_ptr().add(i * V::LANES);
                    let value = new[i].mul_add(k, V::load(place).mul(decay));
                    value.store(place);
                    *sum = value.mul_add(q, *sum);
                }
            }
            for (i, sum) in sums.iter().enumerate().take(num) {
                sum.store(out.as_mut_ptr().add(i * V::LANES));
            }
        }
    }
}
