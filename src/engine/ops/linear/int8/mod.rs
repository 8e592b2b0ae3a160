//! linear in int8 (`--quantization int8`): exact integer sums over groups of inputs.
//!
//! Weights and inputs are cut into groups of [`GROUP`] inputs. A group is rotated first, the same
//! way on both sides (`rotation`), which leaves products as they are and spreads out the few large
//! inputs that trained models have. Then each has a scale of its own, symmetric: an output's group
//! of weights, and a row's group of inputs.
//!
//! Sums within a group are integers, so exact in any order. Groups are added in f32, upward, each
//! as sum * (input scale * weight scale), without fused multiply-adds. So all instruction sets give
//! the same bits, and an output depends on its row alone.

#[cfg(target_arch = "x86_64")]
mod amx;
mod inputs;
mod narrow;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod rotation;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::PoisonError;

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_panels};
use super::cpu::ITEM_MACS;
use crate::gemm::{even_tile, next_panel, part_of};
use inputs::Int8Rows;
use vllm_batch_device::Cpu;
use vllm_batch_device::pages::Pages;
use vllm_batch_device::simd::tiles::{BLOCK_TILES, TILE_ROWS};
use vllm_batch_device::simd::{Int8Dots, prefetch_to_write};

/// Inputs that share a scale; the last group may have fewer.
const GROUP: usize = 256;

/// Inputs of a word.
const WORD: usize = 4;

/// Weights of a layer in int8.
#[derive(Debug)]
pub(super) struct Int8Panels {
    kernel: Int8Dots,
    /// (panels, words, panel width) of four inputs each, but see `Int8Dots::Smmla`.
    words: Pages<u32>,
    /// (panels, groups, panel width)
    scales: Vec<f32>,
}

/// Layout of weights and order of rows for these instructions.
trait Int8Layout {
    fn panel_width(self) -> usize;

    /// Rows of a tile at most.
    fn max_height(self) -> usize;

    /// Offset of a weight's byte, added by flipping its highest bit.
    fn weight_offset(self) -> i32;

    /// Words of a lane of k weights.
    fn num_words(self, k: usize) -> usize;
}

impl Int8Layout for Int8Dots {
    fn panel_width(self) -> usize {
        match self {
            Self::Amx | Self::Vnni => 32,
            Self::AvxVnni | Self::Avx2 | Self::Smmla | Self::Sdot | Self::Portable => 16,
        }
    }

    fn max_height(self) -> usize {
        match self {
            Self::Amx => BLOCK_TILES * TILE_ROWS,
            Self::Vnni => 12,
            Self::Avx2 => 4,
            Self::AvxVnni | Self::Smmla => 6,
            Self::Sdot => 5,
            Self::Portable => 2,
        }
    }

    fn weight_offset(self) -> i32 {
        if matches!(self, Self::Vnni | Self::AvxVnni) { 128 } else { 0 }
    }

    fn num_words(self, k: usize) -> usize {
        let num_words = k.div_ceil(WORD);
        if self == Self::Smmla { num_words.next_multiple_of(2) } else { num_words }
    }
}

/// Data of a tile.
#[derive(Clone, Copy)]
struct Int8Tile {
    /// First word of the first row, the distance of rows, and words of a row.
    x: *const u32,
    x_stride: usize,
    num_words: usize,
    /// By row and group.
    row_scales: *const f32,
    /// Initial integer sums: see `weight_offset`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "x86 has offsets"))]
    row_starts: *const i32,
    num_groups: usize,
    weights: *const u32,
    /// By group and lane.
    scales: *const f32,
    /// By lane, or null.
    bias: *const f32,
    out: *mut f32,
    out_stride: usize,
    /// Start of the data that is needed next, and its bytes for each word.
    next: (*const u8, usize),
}

impl Int8Panels {
    pub(super) fn panel_width(&self) -> usize {
        self.kernel.panel_width()
    }

    /// Bytes that they take.
    pub(super) fn num_bytes(&self) -> usize {
        4 * (self.words.len() + self.scales.len())
    }

    /// x Wᵀ + b, with one bias per output of all panels.
    pub(super) fn linear(
        &self,
        cpu: &Cpu,
        shape: Shape,
        x: &[f32],
        bias: Option<&[f32]>,
        out: Outputs,
    ) {
        // A poisoned lock only says that a thread panicked: what is there is written anew.
        let inputs = &mut *cpu.narrow_inputs.lock().unwrap_or_else(PoisonError::into_inner);
        let x = inputs::narrow_inputs((cpu, self.kernel), (x, shape.k), inputs);
        #[cfg(target_arch = "x86_64")]
        if self.kernel == Int8Dots::Amx {
            return amx::linear(cpu, shape, (&x, self, bias), out);
        }
        // Dot products are two to four times as fast as multiply-adds.
        let size = ItemSize::new(4 * ITEM_MACS, 1);
        for_panels(cpu, shape, size, out, &|rows, panel, out| {
            Block { x: &x, weights: self, bias, k: shape.k }.tiles(rows, panel, out);
        });
    }
}

/// A product of which blocks of rows are computed.
struct Block<'a> {
    x: &'a Int8Rows<'a>,
    weights: &'a Int8Panels,
    bias: Option<&'a [f32]>,
    k: usize,
}

impl Block<'_> {
    /// All rows of the block by one panel.
    fn tiles(&self, rows: Rows, panel: usize, (out, out_stride): (*mut f32, usize)) {
        let kernel = &self.weights.kernel;
        let (width, num_words) = (kernel.panel_width(), self.k.div_ceil(WORD));
        let panel_len = kernel.num_words(self.k) * width;
        let weights = self.weights.words[panel * panel_len..].as_ptr();
        let Rows { first: first_row, end, .. } = rows;
        let num_tiles = (end - first_row).div_ceil(kernel.max_height());
        let next = next_panel(weights, panel_len, num_tiles == 1);
        for index in 0..num_tiles {
            let (start, height) = even_tile(end - first_row, num_tiles, index);
            let out = (out.wrapping_add(start * out_stride), out_stride);
            let next = part_of(next, num_words, (index, num_tiles));
            let tile = self.tile(panel, (first_row + start, height), out, next);
            // SAFETY: the slices above hold `height` rows of inputs and a panel's width of the
            // rest, `out` the block's rows; the kernel was chosen for this CPU.
            unsafe { tile.run(*kernel, height) };
        }
    }
}

impl Block<'_> {
    /// Some rows by a panel.
    fn tile(
        &self,
        panel: usize,
        (row, height): (usize, usize),
        (out, out_stride): (*mut f32, usize),
        next: (*const u8, usize),
    ) -> Int8Tile {
        let Int8Panels { kernel, words, scales } = self.weights;
        let width = kernel.panel_width();
        let (num_words, num_groups) = (self.k.div_ceil(WORD), self.k.div_ceil(GROUP));
        let panel_len = kernel.num_words(self.k) * width;
        let groups = row * num_groups..(row + height) * num_groups;
        let bias = self.bias.map(|bias| bias[panel * width..][..width].as_ptr());
        Int8Tile {
            x: self.x.words.at((row, row + height), 0, num_words),
            x_stride: self.x.words.stride,
            num_words,
            row_scales: self.x.scales[groups.clone()].as_ptr(),
            row_starts: self.x.starts[groups].as_ptr(),
            num_groups,
            weights: words[panel * panel_len..][..panel_len].as_ptr(),
            scales: scales[panel * num_groups * width..][..num_groups * width].as_ptr(),
            bias: bias.unwrap_or(std::ptr::null()),
            out,
            out_stride,
            next,
        }
    }
}

impl Int8Tile {
    /// The words of a group.
    #[inline(always)]
    fn words(&self, group: usize) -> std::ops::Range<usize> {
        let first = group * (GROUP / WORD);
        first..(first + GROUP / WORD).min(self.num_words)
    }

    /// # Safety
    /// Its pointers are valid for `height` rows and a panel; nobody else touches its outputs. The
    /// CPU has the kernel's instructions.
    unsafe fn run(&self, kernel: Int8Dots, height: usize) {
        for row in 0..height {
            prefetch_to_write(self.out.wrapping_add(row * self.out_stride), kernel.panel_width());
        }
        // SAFETY: the caller's promise.
        unsafe {
            match kernel {
                #[cfg(target_arch = "x86_64")]
                Int8Dots::Vnni => x86::run_vnni(self, height),
                #[cfg(target_arch = "x86_64")]
                Int8Dots::AvxVnni => x86::run_avx_vnni(self, height),
                #[cfg(target_arch = "x86_64")]
                Int8Dots::Avx2 => x86::run_avx2(self, height),
                #[cfg(target_arch = "aarch64")]
                Int8Dots::Smmla => neon::run_smmla(self, height),
                #[cfg(target_arch = "aarch64")]
                Int8Dots::Sdot => neon::run_sdot(self, height),
                _ => portable::run(self, height),
            }
        }
    }
}
