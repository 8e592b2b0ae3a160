//! linear by `vdpbf16ps`, or by `bfmmla`: words of two bf16, a row's by every output's. Sums run
//! over pairs upward in one accumulator, so an output depends on its row alone.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::gemm::words::WordRows;
use crate::gemm::{even_tile, next_panel, part_of};
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::prefetch_to_write;

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_panels};
use super::cpu::ITEM_MACS;
use super::pairs::PairWeights;

/// Outputs of a panel: two vectors.
const WIDTH: usize = if cfg!(target_arch = "aarch64") { 16 } else { 32 };

/// Rows of a tile at most: 24 registers of sums.
pub(super) const MAX_HEIGHT: usize = if cfg!(target_arch = "aarch64") { 6 } else { 12 };

/// Data of a tile.
#[derive(Clone, Copy)]
pub(super) struct DotTile {
    /// First word of the first row, and the distance of rows.
    pub x: *const u32,
    pub x_stride: usize,
    pub num_words: usize,
    pub weights: *const u32,
    /// Whether sums begin here, or go on from what `out` holds.
    pub is_first: bool,
    pub bias: *const f32,
    pub out: *mut f32,
    pub out_stride: usize,
    /// Start of the data that is needed next, and its bytes for each word.
    pub next: (*const u8, usize),
}

/// x (rows, words) by the weights.
pub(super) fn linear(
    cpu: &Cpu,
    shape: Shape,
    x: WordRows<'_>,
    weights: PairWeights<'_>,
    out: Outputs,
) {
    // Dot products are twice as fast as multiply-adds, or more.
    let size = ItemSize::new(4 * ITEM_MACS, 1);
    let num_words = shape.k.div_ceil(2);
    for_panels(cpu, shape, size, out, &|rows, panel, out| {
        Block { x, weights, rows, num_words }.tiles(panel, out);
    });
}

/// Some rows of a product.
struct Block<'a> {
    x: WordRows<'a>,
    weights: PairWeights<'a>,
    rows: Rows,
    num_words: usize,
}

impl Block<'_> {
    /// All rows of the block by one panel.
    fn tiles(&self, panel: usize, (out, out_stride): (*mut f32, usize)) {
        let PairWeights { words, bias } = self.weights;
        let num_words = self.num_words;
        let Rows { first: first_row, end, .. } = self.rows;
        let num_tiles = (end - first_row).div_ceil(MAX_HEIGHT);
        let weights = words[panel * num_words * WIDTH..][..num_words * WIDTH].as_ptr();
        let bias = bias.map_or(std::ptr::null(), |bias| bias[panel * WIDTH..][..WIDTH].as_ptr());
        let next = next_panel(weights, num_words * WIDTH, num_tiles == 1);
        for index in 0..num_tiles {
            let (start, height) = even_tile(end - first_row, num_tiles, index);
            let row = first_row + start;
            let tile = DotTile {
                x: self.x.at((row, row + height), 0, num_words),
                x_stride: self.x.stride,
                num_words,
                weights,
                is_first: true,
                bias,
                out: out.wrapping_add(start * out_stride),
                out_stride,
                next: part_of(next, num_words, (index, num_tiles)),
            };
            // SAFETY: the slices above hold `height` rows of inputs and a panel's width of the
            // rest, `out` the block's rows; such words are only made for CPUs that have the
            // instruction.
            unsafe { tile.run(height) };
        }
    }
}

impl DotTile {
    /// # Safety
    /// Its pointers are valid for `height` rows and a panel; nobody else writes its outputs. The
    /// CPU has dot products of bf16.
    pub(super) unsafe fn run(&self, height: usize) {
        for row in 0..height {
            prefetch_to_write(self.out.wrapping_add(row * self.out_stride), WIDTH);
        }
        // SAFETY: the caller's promise.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            x86::run(self, height);
        }
        // SAFETY: the caller's promise.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            neon::run(self, height);
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        unreachable!("no set of this machine has dot products of bf16");
    }
}
