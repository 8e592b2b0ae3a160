//! linear by dot-product instructions: words of four int8 or two bf16, a row's by every output's.
//!
//! int8 sums are integers, so exact in any order. bf16 sums run over pairs upward in one
//! accumulator. Either way an output depends on its row alone.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::engine::device::Cpu;
use crate::engine::device::simd::{Int8Dots, Isa, prefetch, prefetch_to_write};
use crate::engine::ops::gemm::{even_tile, next_panel, part_of};

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_blocks};
use super::cpu::ITEM_MACS;

/// Which instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DotKernel {
    /// `vdpbf16ps`.
    BFloat16,
    /// `vpdpbusd`, 16 lanes: inputs are offset by 128, which the initial sums take off.
    Vnni,
    /// `vpsignb`, `vpmaddubsw`, `vpmaddwd`: no pair of products of 7 bits and a sign overflows.
    Avx2,
    /// Plain loops.
    Portable,
}

impl DotKernel {
    /// For int8 on this CPU.
    pub(super) fn int8(isa: Isa) -> Self {
        match isa.int8_dots() {
            Int8Dots::Vnni => Self::Vnni,
            Int8Dots::Avx2 => Self::Avx2,
            Int8Dots::Portable => Self::Portable,
        }
    }

    /// Outputs of a panel.
    pub(super) fn panel_width(self) -> usize {
        match self {
            Self::BFloat16 | Self::Vnni => 32,
            Self::Avx2 | Self::Portable => 16,
        }
    }

    /// Inputs of a word.
    pub(super) fn word_inputs(self) -> usize {
        if self == Self::BFloat16 { 2 } else { 4 }
    }

    /// What is added to an input byte, by flipping its highest bit.
    pub(super) fn input_offset(self) -> i32 {
        if self == Self::Vnni { 128 } else { 0 }
    }

    pub(super) fn max_height(self) -> usize {
        match self {
            Self::BFloat16 | Self::Vnni => 12,
            Self::Avx2 => 4,
            Self::Portable => 2,
        }
    }
}

/// Words of the weights by panel, (words, panel_width) each, and what turns sums into outputs; all
/// of these have one value per lane of all panels.
#[derive(Clone, Copy)]
pub(super) struct DotWeights<'a> {
    pub kernel: DotKernel,
    pub words: &'a [u32],
    /// Where integer sums begin; None: at 0.
    pub initial: Option<&'a [i32]>,
    /// Factors of integer sums.
    pub scales: Option<&'a [f32]>,
    pub bias: Option<&'a [f32]>,
}

/// (rows, words) inputs, and a factor per row of integer sums.
#[derive(Clone, Copy)]
pub(super) struct DotInputs<'a> {
    pub words: &'a [u32],
    pub scales: &'a [f32],
}

/// What a tile works on.
#[derive(Clone, Copy)]
pub(super) struct DotTile {
    /// First word of the first row, and the distance of rows.
    pub x: *const u32,
    pub x_stride: usize,
    pub num_words: usize,
    pub weights: *const u32,
    /// Whether sums begin here, or those of bf16 go on from what `out` holds.
    pub is_first: bool,
    pub initial: *const i32,
    pub row_scales: *const f32,
    pub scales: *const f32,
    pub bias: *const f32,
    pub out: *mut f32,
    pub out_stride: usize,
    /// What is needed next: where it begins, and its bytes for each word.
    pub next: (*const u8, usize),
}

pub(super) fn linear(
    cpu: &Cpu,
    shape: Shape,
    x: DotInputs<'_>,
    weights: DotWeights<'_>,
    out: Outputs,
) {
    // Dot products are two to four times as fast as multiply-adds.
    let size = ItemSize { macs: 4 * ITEM_MACS, num_panels: 1 };
    for_blocks(cpu, shape, out.width, size, &|rows, panels| {
        let block = Block { x, weights, rows };
        let product = |panel: usize, out: *mut f32, stride| block.tiles(panel, (out, stride));
        for panel in panels {
            // SAFETY: this item alone computes these rows of its panels, all of them.
            unsafe { out.with_panel(cpu.isa, rows, panel, product) };
        }
    });
}

/// Some rows of a product.
struct Block<'a> {
    x: DotInputs<'a>,
    weights: DotWeights<'a>,
    rows: Rows,
}

impl Block<'_> {
    /// All rows of the block by one panel.
    fn tiles(&self, panel: usize, (out, out_stride): (*mut f32, usize)) {
        let DotWeights { kernel, words, initial, scales, bias } = self.weights;
        let width = kernel.panel_width();
        // One scale per row.
        let num_words = self.x.words.len() / self.x.scales.len();
        let Rows { first: first_row, end, .. } = self.rows;
        let num_tiles = (end - first_row).div_ceil(kernel.max_height());
        let weights = words[panel * num_words * width..][..num_words * width].as_ptr();
        let lanes = |values: Option<&[f32]>| {
            values.map_or(std::ptr::null(), |values| values[panel * width..][..width].as_ptr())
        };
        let next = next_panel(weights, num_words * width, num_tiles == 1);
        for index in 0..num_tiles {
            let (start, height) = even_tile(end - first_row, num_tiles, index);
            let row = first_row + start;
            let x = &self.x.words[row * num_words..(row + height) * num_words];
            let tile = DotTile {
                x: x.as_ptr(),
                x_stride: num_words,
                num_words,
                weights,
                is_first: true,
                initial: initial
                    .map_or(std::ptr::null(), |initial| initial[panel * width..][..width].as_ptr()),
                row_scales: match scales {
                    Some(_) => self.x.scales[row..row + height].as_ptr(),
                    None => std::ptr::null(),
                },
                scales: lanes(scales),
                bias: lanes(bias),
                out: out.wrapping_add(start * out_stride),
                out_stride,
                next: part_of(next, num_words, (index, num_tiles)),
            };
            // SAFETY: the slices above hold `height` rows of inputs and a panel's width of the
            // rest, `out` the block's rows; the kernel was chosen for this CPU.
            unsafe { tile.run(kernel, height) };
        }
    }
}

impl DotTile {
    /// Asks for the lines that a word stands for, of which there may be two.
    #[inline(always)]
    fn bring(&self, word: usize) {
        let (next, step) = self.next;
        prefetch(next.wrapping_add(word * step));
        if step > 64 {
            prefetch(next.wrapping_add(word * step + 64));
        }
    }

    /// # Safety
    /// Its pointers are valid for `height` rows and a panel; nobody else writes its outputs. The
    /// CPU has the kernel's instructions.
    pub(super) unsafe fn run(&self, kernel: DotKernel, height: usize) {
        for row in 0..height {
            prefetch_to_write(self.out.wrapping_add(row * self.out_stride), kernel.panel_width());
        }
        // SAFETY: the caller's promise.
        unsafe {
            match kernel {
                #[cfg(target_arch = "x86_64")]
                DotKernel::BFloat16 => x86::run_bf16(self, height),
                #[cfg(target_arch = "x86_64")]
                DotKernel::Vnni => x86::run_vnni(self, height),
                #[cfg(target_arch = "x86_64")]
                DotKernel::Avx2 => x86::run_avx2(self, height),
                _ => portable::run(self, height),
            }
        }
    }
}
