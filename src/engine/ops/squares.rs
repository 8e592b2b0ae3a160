//! Squares: attention of the patches of a tile that adds to each score what the query says of the
//! distance in rows and of that in columns (SAM). The products of both are further values of q, of
//! which k has ones at its own row and column; so `encoder_attention` computes it, over heads that
//! are wider. Windows at the right and the lower edge are filled up.
//!
//! A row of what is made is a function of its own patch alone. On the CPU.

use vllm_batch_base::layers::QkvHeads;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, Tensor};

use super::{EncoderAttentionShape, EncoderScratch, Step, encoder_attention, for_row_chunks};

/// Heads are filled up to a multiple of this.
const GRANULE: usize = 16;

/// What is learned of distances, and how patches lie.
#[derive(Clone, Debug)]
pub struct Squares {
    /// Heads of the layer: as many of k and v as of q.
    pub heads: QkvHeads,
    /// Factor of the products of q and k.
    pub scale: f32,
    /// (2 * side - 1, head_dim) each, of rows and of columns: of the distance 1 - side first.
    pub tables: [Vec<f32>; 2],
    /// q, k and v of a place beyond the edge of a tile.
    pub beyond: Vec<f32>,
    /// Patches of the side of a tile.
    pub grid: usize,
    /// Of the side of what sees each other: a window, or the tile.
    pub side: usize,
}

impl Squares {
    /// Values of a wide head.
    fn wide_head_dim(&self) -> usize {
        (self.heads.head_dim + 2 * self.side).next_multiple_of(GRANULE)
    }

    /// The heads of what is made.
    fn wide_heads(&self) -> QkvHeads {
        QkvHeads { head_dim: self.wide_head_dim(), ..self.heads }
    }

    /// Rows of a tile, those beyond its edge too.
    fn num_wide_rows(&self) -> usize {
        self.grid.next_multiple_of(self.side).pow(2)
    }

    /// Row and column within its window, and the patch, of a row of a tile; None: it is beyond the
    /// edge. Windows stand row after row, and so do their rows.
    fn place(&self, row: usize) -> ([usize; 2], Option<usize>) {
        let (side, across) = (self.side, self.grid.div_ceil(self.side));
        let (window, within) = (row / (side * side), row % (side * side));
        let own = [within / side, within % side];
        let (y, x) = (window / across * side + own[0], window % across * side + own[1]);
        (own, (y < self.grid && x < self.grid).then_some(y * self.grid + x))
    }

    /// The row of a patch.
    fn row_of(&self, patch: usize) -> usize {
        let (side, across) = (self.side, self.grid.div_ceil(self.side));
        let (y, x) = (patch / self.grid, patch % self.grid);
        (y / side * across + x / side) * side * side + y % side * side + x % side
    }

    /// `wide` = q, k and v (patches of tiles, 3 * heads * head_dim) with what is said of distances,
    /// window after window.
    fn widen(&self, device: &Device, qkv: &Tensor, wide: &mut Tensor) {
        let cpu = host(device);
        let (num_patches, num_rows) = (self.grid * self.grid, self.num_wide_rows());
        let num_tiles = qkv.num_rows() / num_patches;
        let width = self.heads.head_dim * self.heads.num_heads;
        let wide_width = self.wide_head_dim() * self.heads.num_heads;
        fit(wide, num_tiles * num_rows, 3 * wide_width);
        let work = || Work::elementwise(wide.num_rows() * wide.width(), 8);
        let _timed = cpu.op_timer.timed(Op::new("widen_heads"), work);
        let total = wide.num_rows();
        let shared = SharedMut::new(wide.values_mut());
        for_row_chunks(&cpu.pool, total, 3 * wide_width, &|start, end| {
            for row in start..end {
                let (place, patch) = self.place(row % num_rows);
                let from = match patch {
                    Some(patch) => qkv.row(row / num_rows * num_patches + patch),
                    None => &self.beyond,
                };
                // SAFETY: each row belongs to one item.
                let out = unsafe { shared.slice(row * 3 * wide_width, 3 * wide_width) };
                let (q, rest) = out.split_at_mut(wide_width);
                let (k, v) = rest.split_at_mut(wide_width);
                self.widen_q(&from[..width], place, q);
                self.widen_k(&from[width..2 * width], place, k);
                self.each_head(&from[2 * width..], v, copy_head);
            }
        });
    }

    /// Calls with the values of each head, and the place of the wide one.
    fn each_head(&self, from: &[f32], out: &mut [f32], act: impl Fn(&[f32], &mut [f32])) {
        let heads = from.chunks_exact(self.heads.head_dim);
        heads
            .zip(out.chunks_exact_mut(self.wide_head_dim()))
            .for_each(|(from, out)| act(from, out));
    }

    fn widen_q(&self, q: &[f32], place: [usize; 2], out: &mut [f32]) {
        let (head_dim, side) = (self.heads.head_dim, self.side);
        self.each_head(q, out, |q, out| {
            copy_head(q, out);
            out[..head_dim].iter_mut().for_each(|value| *value *= self.scale);
            for (axis, table) in self.tables.iter().enumerate() {
                let out = &mut out[head_dim + axis * side..][..side];
                // The key at place 0 has the largest distance.
                let last = place[axis] + side - 1;
                for (other, out) in out.iter_mut().enumerate() {
                    let learned = &table[(last - other) * head_dim..][..head_dim];
                    *out = dot(q, learned);
                }
            }
        });
    }

    fn widen_k(&self, k: &[f32], place: [usize; 2], out: &mut [f32]) {
        let (head_dim, side) = (self.heads.head_dim, self.side);
        self.each_head(k, out, |k, out| {
            copy_head(k, out);
            out[head_dim + place[0]] = 1.0;
            out[head_dim + side + place[1]] = 1.0;
        });
    }

    /// `out` (patches, heads * head_dim) = what heads that were wide give of each patch.
    fn narrow(&self, device: &Device, wide: &Tensor, out: &mut Tensor) {
        let cpu = host(device);
        let (num_patches, num_rows) = (self.grid * self.grid, self.num_wide_rows());
        let (head_dim, wide_head_dim) = (self.heads.head_dim, self.wide_head_dim());
        let (total, width) = (out.num_rows(), out.width());
        let work = || Work::elementwise(total * width, 8);
        let _timed = cpu.op_timer.timed(Op::new("narrow_heads"), work);
        let shared = SharedMut::new(out.values_mut());
        for_row_chunks(&cpu.pool, total, width, &|start, end| {
            for row in start..end {
                let from = wide.row(row / num_patches * num_rows + self.row_of(row % num_patches));
                // SAFETY: each row belongs to one item.
                let out = unsafe { shared.slice(row * width, width) };
                let heads = from.chunks_exact(wide_head_dim);
                for (from, out) in heads.zip(out.chunks_exact_mut(head_dim)) {
                    out.copy_from_slice(&from[..head_dim]);
                }
            }
        });
    }
}

/// What `attend` works in.
#[derive(Debug)]
pub struct SquaresScratch {
    qkv: Tensor,
    attended: Tensor,
}

impl Default for SquaresScratch {
    fn default() -> Self {
        Self { qkv: Tensor::zeros(0, 1), attended: Tensor::zeros(0, 1) }
    }
}

impl Squares {
    /// `out` (patches, heads * head_dim) = what the patches of tiles attend to, of whose q, k and
    /// v `qkv` is. `seen`: windows as texts, with those beyond the edge.
    pub fn attend(
        &self,
        device: &Device,
        (qkv, seen): (&Tensor, Step<'_>),
        (own, scratch): (&mut SquaresScratch, &mut EncoderScratch),
        out: &mut Tensor,
    ) {
        self.widen(device, qkv, &mut own.qkv);
        let heads = self.wide_heads();
        let (soft_cap, before, after) = Default::default();
        let shape =
            EncoderAttentionShape { heads, scale: 1.0, soft_cap, before, after, bias: None };
        fit(&mut own.attended, own.qkv.num_rows(), heads.num_heads * heads.head_dim);
        encoder_attention(device, (&own.qkv, seen), shape, scratch, &mut own.attended);
        self.narrow(device, &own.attended, out);
    }
}

/// Of squares of rows (side², width) of each tile, the rows around each `stride`-th one, beside
/// each other: a square of three, with zeros beyond the edge, for a product that is a convolution.
/// `from`: the row of each place of a tile.
pub fn gather_around(
    device: &Device,
    (x, from): (&Tensor, &[u32]),
    (side, stride): (usize, usize),
    out: &mut Tensor,
) {
    let cpu = host(device);
    let (num_places, width) = (side * side, x.width());
    let out_side = side.div_ceil(stride);
    fit(out, x.num_rows() / num_places * out_side * out_side, 9 * width);
    let (total, out_width) = (out.num_rows(), out.width());
    let work = || Work::elementwise(total * out_width, 8);
    let _timed = cpu.op_timer.timed(Op::new("gather_around"), work);
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, total, out_width, &|start, end| {
        for row in start..end {
            let (tile, place) = (row / (out_side * out_side), row % (out_side * out_side));
            let (y, x_) = (place / out_side * stride, place % out_side * stride);
            // SAFETY: each row belongs to one item.
            let out = unsafe { shared.slice(row * out_width, out_width) };
            for (index, out) in out.chunks_exact_mut(width).enumerate() {
                // One row or column before the first wraps to more than there are.
                let (y, x_) = ((y + index / 3).wrapping_sub(1), (x_ + index % 3).wrapping_sub(1));
                match y < side && x_ < side {
                    true => {
                        let place = from[y * side + x_] as usize;
                        out.copy_from_slice(x.row(tile * num_places + place));
                    }
                    false => out.fill(0.0),
                }
            }
        }
    });
}

/// Makes a tensor of this size of it.
fn fit(tensor: &mut Tensor, num_rows: usize, width: usize) {
    tensor.reshape(0, width);
    tensor.resize_rows(num_rows);
}

/// A head with zeros behind it.
fn copy_head(head: &[f32], out: &mut [f32]) {
    out[..head.len()].copy_from_slice(head);
    out[head.len()..].fill(0.0);
}

/// The sum of products upward.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// GPUs leave such towers out.
fn host(device: &Device) -> &Cpu {
    match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(_) => unreachable!("towers with squares run on the CPU"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(grid: usize, side: usize) -> Squares {
        let heads = QkvHeads { num_heads: 2, num_kv_heads: 2, head_dim: 3 };
        let table = |first: usize| (0..3 * (2 * side - 1)).map(|at| (first + at) as f32).collect();
        let beyond = (0..18).map(|at| -(at as f32)).collect();
        let tables = [table(0), table(100)];
        Squares { heads, scale: 0.5, tables, beyond, grid, side }
    }

    fn tensor(num_rows: usize, width: usize) -> Tensor {
        Tensor::from_vec((0..num_rows * width).map(|at| (at % 31) as f32).collect(), width)
    }

    #[test]
    fn scores_have_what_is_learned_of_distances() {
        let device = Device::cpu(Some(2));
        for (grid, side) in [(4, 4), (5, 2), (4, 3)] {
            let squares = squares(grid, side);
            let (qkv, mut wide) = (tensor(2 * grid * grid, 18), Tensor::zeros(0, 0));
            squares.widen(&device, &qkv, &mut wide);
            assert_eq!(wide.num_rows(), 2 * squares.num_wide_rows());
            let (dim, num) = (squares.wide_head_dim(), squares.num_wide_rows());
            for (query, key) in [(0, side * side - 1), (num + 1, num + side), (num - 2, num - 1)] {
                let ([qy, qx], of_q) = squares.place(query % num);
                let ([ky, kx], of_k) = squares.place(key % num);
                let row = |row: usize, patch: Option<usize>| match patch {
                    Some(patch) => qkv.row(row / num * grid * grid + patch),
                    None => &squares.beyond[..],
                };
                let (q, k) = (&row(query, of_q)[3..6], &row(key, of_k)[9..12]);
                let table = |axis: usize, from: usize, to: usize| {
                    &squares.tables[axis][(from + side - 1 - to) * 3..][..3]
                };
                let expected =
                    0.5 * dot(q, k) + dot(q, table(0, qy, ky)) + dot(q, table(1, qx, kx));
                let got = dot(&wide.row(query)[dim..2 * dim], &wide.row(key)[3 * dim..4 * dim]);
                assert_eq!(got, expected, "{grid} {side}: {query} {key}");
            }
            let mut back = Tensor::zeros(2 * grid * grid, 6);
            let v = Tensor::from_vec(
                (0..wide.num_rows()).flat_map(|row| wide.row(row)[4 * dim..].to_vec()).collect(),
                2 * dim,
            );
            squares.narrow(&device, &v, &mut back);
            for patch in 0..2 * grid * grid {
                assert_eq!(back.row(patch), &qkv.row(patch)[12..]);
            }
        }
    }

    #[test]
    fn a_square_of_three_is_around_each_place() {
        let device = Device::cpu(Some(2));
        let (x, mut out) = (tensor(2 * 9, 2), Tensor::zeros(0, 0));
        let from: Vec<u32> = (0..9).rev().collect();
        for stride in [1, 2] {
            gather_around(&device, (&x, &from), (3, stride), &mut out);
            let side = 3_usize.div_ceil(stride);
            assert_eq!((out.num_rows(), out.width()), (2 * side * side, 18));
            let last = out.row(out.num_rows() - 1);
            // The place at the lower right corner, and the one above it to the left.
            assert_eq!((&last[8..10], &last[..2]), (x.row(9), x.row(9 + 4)));
            assert_eq!(last[10..12], [0.0, 0.0]);
        }
    }
}
