//! encoder_attention: every token of a row attends to the tokens of its row: to all, to those near
//! it, or, in a decoder's layers, to those up to it. Rows lie one after the other, without padding;
//! K and V are those of the same pass.
//!
//! One order, which the row alone decides: scores are sums over head_dim upward; the softmax sums
//! lane i over the positions i, i + LANES, ...; P·V runs over positions upward. On the CPU only:
//! whoever loads an encoder refuses a GPU.

mod head;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::simd::dispatch;
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Device, Tensor};

use super::QkvHeads;
use head::{HeadPass, Workspace};

/// What attention looks like in one layer of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderAttentionShape<'a> {
    /// Heads; a row of `qkv` has q, k and v of them, one after the other.
    pub heads: QkvHeads,
    /// Factor of the scores.
    pub scale: f32,
    /// scores = cap * tanh(scores / cap).
    pub soft_cap: Option<f32>,
    /// A token attends to this many positions before it; None: to all.
    pub before: Option<usize>,
    /// And to this many after it; None: to all.
    pub after: Option<usize>,
    /// Added to the scores.
    pub bias: Option<&'a RelativeBias>,
}

impl EncoderAttentionShape<'_> {
    /// What the query at a position attends to, in a row that is long enough.
    fn seen(&self, query: usize) -> Range<usize> {
        let start = self.before.map_or(0, |before| query.saturating_sub(before));
        start..self.after.map_or(usize::MAX, |after| query.saturating_add(after).saturating_add(1))
    }
}

/// What is added to scores, by the distance of key and query.
#[derive(Clone, Debug)]
pub struct RelativeBias {
    /// (heads, distances and `PADDING`)
    values: Vec<f32>,
    max_len: usize,
}

/// Values behind those of a head: scores are read by whole vectors.
const PADDING: usize = 32;

impl RelativeBias {
    /// A bias for rows of up to `max_len` tokens: `value(head, j - i)` for the query at i and the
    /// key at j.
    pub fn new(num_heads: usize, max_len: usize, value: impl Fn(usize, isize) -> f32) -> Self {
        let max = max_len as isize;
        let of_head = |head| {
            let values = (1 - max..max).map(move |distance| (head, distance));
            values.map(Some).chain(std::iter::repeat_n(None, PADDING))
        };
        let places = (0..num_heads).flat_map(of_head);
        let values =
            places.map(|place| place.map_or(0.0, |(head, distance)| value(head, distance)));
        Self { values: values.collect(), max_len }
    }

    /// Of the query at a position and the keys from position 0 on; `len` of them, and padding.
    fn of_query(&self, head: usize, position: usize, len: usize) -> &[f32] {
        let start = head * (2 * self.max_len - 1 + PADDING) + self.max_len - 1 - position;
        &self.values[start..start + len + PADDING]
    }
}

/// Buffers that live between steps: one per thread.
#[derive(Debug, Default)]
pub struct EncoderScratch(Vec<Workspace>);

/// out (num_tokens, num_heads * head_dim) = softmax(cap(q Kᵀ * scale) + bias) V within each row.
/// Row i is the tokens `row_starts[i]..row_starts[i + 1]` of `qkv`.
///
/// # Panics
/// The device is a GPU, or widths and rows do not fit.
pub fn encoder_attention(
    device: &Device,
    (qkv, row_starts): (&Tensor, &[u32]),
    shape: EncoderAttentionShape<'_>,
    scratch: &mut EncoderScratch,
    out: &mut Tensor,
) {
    let Device::Cpu(cpu) = device else { panic!("an encoder was given to a GPU") };
    let QkvHeads { num_heads, num_kv_heads, head_dim } = shape.heads;
    assert_eq!(qkv.width(), (num_heads + 2 * num_kv_heads) * head_dim);
    assert!(num_heads.is_multiple_of(num_kv_heads) && out.width() == num_heads * head_dim);
    assert_eq!(row_starts.last().map(|end| *end as usize), Some(qkv.num_rows()));
    out.set_num_rows(qkv.num_rows());
    let lens = || row_starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
    let work = || {
        let num_scores: usize = lens().map(|len| len * len).sum();
        let flops = 4.0 * (num_scores * num_heads * head_dim) as f64;
        Work { flops, ..Work::elementwise(qkv.num_rows() * (qkv.width() + out.width()), 4) }
    };
    let _timed = cpu.op_timer.timed(Op::new("encoder_attention"), work);
    let longest = lens().max().unwrap_or(0);
    scratch.0.resize_with(cpu.pool.num_threads(), Workspace::default);
    for workspace in &mut scratch.0 {
        workspace.reserve(longest, head_dim);
    }
    let workspaces = SharedMut::new(&mut scratch.0);
    let out = SharedMut::new(out.values_mut());
    let num_rows = row_starts.len() - 1;
    cpu.pool.run(num_rows * num_heads, &|thread, item| {
        // SAFETY: no two items with one thread index overlap.
        let workspace = unsafe { &mut workspaces.slice(thread, 1)[0] };
        let (row, head) = (item / num_heads, item % num_heads);
        let first = row_starts[row] as usize;
        let len = row_starts[row + 1] as usize - first;
        dispatch(cpu.isa, HeadPass { qkv, shape, head, first, len, workspace, out });
    });
}
