//! Products with panels of codes: each piece of a panel becomes floats in the first cache, and the
//! tiles of plain weights run over it. Sums go on from piece to piece, which is exact, so that the
//! bits are those of panels of such floats, whatever the number of rows.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice::from_raw_parts;
use vllm_batch_device::simd::InstructionSet;

use super::few_rows::{self, FewRows};
use super::layout::{CodePanels, Rounding};
use super::widen::Widen;
use crate::gemm::tiles::{RowTiles, TileProduct};
use crate::gemm::words::WordRows;
use crate::gemm::{
    MAX_INPUTS, MAX_PANEL_WIDTH, PanelProduct, Tiling, Widened, even_tile, num_short_rows, part_of,
};
use crate::linear::blocks::{ItemSize, Outputs, Rows, Shape, for_blocks};
use crate::linear::cpu::{ITEM_MACS, MIN_GROUP_PANELS};
use crate::linear::dot::{DotTile, MAX_HEIGHT};
use crate::linear::pairs::Inputs;
use vllm_batch_base::matrix::UNIT;
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::{Bf16Products, Isa};

/// Inputs of a piece: with 32 lanes of f32 a third of the first cache.
pub(super) const PIECE: usize = 128;

/// Prefetch distance of codes: the latency of memory at its rate.
const AHEAD_BYTES: usize = 4096;

/// Room on the stack of a thread, made once: it is large.
struct Scratch {
    piece: PieceFloats,
    /// Buffer that tiles of f32 never write.
    widened: Widened,
}

/// A piece of a panel as floats.
#[repr(C, align(64))]
struct PieceFloats([MaybeUninit<f32>; PIECE * MAX_PANEL_WIDTH]);

/// Panels, and one bias per output of them, those past n included.
#[derive(Clone, Copy)]
pub(in super::super) struct CodeWeights<'a> {
    pub panels: &'a CodePanels,
    pub rounding: Rounding,
    pub bias: Option<&'a [f32]>,
}

/// x Wᵀ + b of rows of inputs; they are pairs where the rounding is to pairs.
pub(in super::super) fn linear(
    cpu: &Cpu,
    shape: Shape,
    x: Inputs<'_>,
    weights: CodeWeights<'_>,
    out: Outputs,
) {
    let is_short = shape.num_rows <= num_short_rows(cpu.isa, false);
    let (block_k, macs) = match x {
        Inputs::Floats(_) if !is_short => (block_k(shape.k), ITEM_MACS),
        Inputs::Floats(_) => (shape.k, ITEM_MACS),
        // Dot products are twice as fast.
        Inputs::Pairs(_) => (shape.k, 2 * ITEM_MACS),
    };
    let num_panels = if block_k < shape.k { MIN_GROUP_PANELS } else { 1 };
    for_blocks(cpu, shape, out.width, ItemSize::new(macs, num_panels), &|rows, panels| {
        let tiling = Tiling::new::<f32>(cpu.isa, false, rows.end - rows.first);
        let tiles = match (x, cpu.isa.bf16_products()) {
            (Inputs::Pairs(_), Bf16Products::Tiles(unit)) => {
                Some(RowTiles::new(unit, (rows.first, rows.end)))
            }
            _ => None,
        };
        let block = Block { isa: cpu.isa, k: shape.k, block_k, x, weights, rows, tiling, tiles };
        block.run(panels, out);
    });
}

/// Inputs of a block of k, in whole units.
fn block_k(k: usize) -> usize {
    k.div_ceil(k.div_ceil(MAX_INPUTS)).next_multiple_of(UNIT)
}

/// Some rows of a product.
struct Block<'a> {
    isa: Isa,
    k: usize,
    block_k: usize,
    x: Inputs<'a>,
    weights: CodeWeights<'a>,
    rows: Rows,
    tiling: Tiling,
    /// Tiles that multiply pairs, if dot products do not.
    tiles: Option<RowTiles>,
}

/// Inputs of a panel as floats, and where their products go.
struct Piece {
    inputs: Range<usize>,
    floats: *const f32,
    bias: *const f32,
    out: (*mut f32, usize),
    /// Data that is needed next, and its bytes.
    next: (*const u8, usize),
}

impl Block<'_> {
    fn run(&self, panels: Range<usize>, out: Outputs) {
        let piece = PieceFloats([MaybeUninit::uninit(); _]);
        let mut scratch = Scratch { piece, widened: Widened::new() };
        for first_k in (0..self.k).step_by(self.block_k) {
            let inputs = first_k..(first_k + self.block_k).min(self.k);
            for panel in panels.clone() {
                let product = |panel: usize, to: *mut f32, stride: usize| {
                    self.panel(panel, inputs.clone(), (to, stride), &mut scratch);
                };
                // SAFETY: this item alone computes these rows of its panels, and a product writes
                // its rows.
                unsafe { out.with_panel(self.isa, self.rows, panel, product) };
            }
        }
    }

    /// All rows of the block by some inputs of a panel.
    fn panel(
        &self,
        index: usize,
        inputs: Range<usize>,
        out: (*mut f32, usize),
        scratch: &mut Scratch,
    ) {
        let CodeWeights { panels, rounding, bias } = self.weights;
        let panel = panels.panel(index);
        let floats: *mut f32 = scratch.piece.0.as_mut_ptr().cast();
        let bias = bias.map(|bias| bias[index * panels.width..][..panels.width].as_ptr());
        if self.tiles.is_none()
            && few_rows::takes(self.isa, self.rows.end - self.rows.first, self.k)
        {
            assert!(inputs == (0..self.k));
            return self.few_rows(index, bias, out);
        }
        for start in inputs.clone().step_by(PIECE) {
            let end = (start + PIECE).min(inputs.end);
            let widen = Widen { panel, inputs: start..end, rounding, out: floats };
            // SAFETY: a piece of whole units has room in the scratch.
            unsafe { widen.run(self.isa) };
            let (first, num_bytes) = panels.codes_behind(index, end);
            let piece = Piece {
                inputs: start..end,
                floats,
                bias: bias.filter(|_| end == self.k).unwrap_or(std::ptr::null()),
                out,
                next: (first.wrapping_add(AHEAD_BYTES), num_bytes * (end - start)),
            };
            match self.x {
                Inputs::Floats(x) => self.by_floats(x, &piece, &mut scratch.widened),
                Inputs::Pairs(x) => match &self.tiles {
                    Some(tiles) => self.by_tiles((tiles, x), &piece),
                    None => self.by_pairs(x, &piece),
                },
            }
        }
    }

    /// All inputs of a panel, where `few_rows` takes them.
    fn few_rows(&self, index: usize, bias: Option<*const f32>, out: (*mut f32, usize)) {
        let CodeWeights { panels, rounding, .. } = self.weights;
        let (Rows { first, end, .. }, k) = (self.rows, self.k);
        let (codes, num_bytes) = panels.codes_behind(index, 0);
        let few = FewRows {
            panel: panels.panel(index),
            rounding,
            k,
            x: match self.x {
                Inputs::Floats(x) => (x[first * k..end * k].as_ptr().cast(), k),
                Inputs::Pairs(x) => (x.at((first, end), 0, k / 2), x.stride),
            },
            num_rows: end - first,
            bias: bias.unwrap_or(std::ptr::null()),
            out,
            next: (codes.wrapping_add(AHEAD_BYTES), num_bytes),
        };
        // SAFETY: the slices reach the last input of the last row and the panel's last bias; `out`
        // is the block's own. The panels were made for this CPU.
        unsafe { few.run(self.isa) };
    }

    fn by_floats(&self, x: &[f32], piece: &Piece, widened: &mut Widened) {
        let Rows { first, end, .. } = self.rows;
        let k = self.k;
        let x = &x[first * k + piece.inputs.start..(end - 1) * k + piece.inputs.end];
        let product = PanelProduct {
            tiling: &self.tiling,
            x: (x.as_ptr(), k),
            weights: piece.floats,
            inputs: (0, piece.inputs.len()),
            out: piece.out,
            is_first: piece.inputs.start == 0,
            bias: piece.bias,
            next: Some(piece.next),
            brings_rows: false,
        };
        // SAFETY: the slice reaches the last input of the last row, and the piece has all of its
        // inputs; `out` is the block's own. The device was made for this CPU.
        unsafe { product.run(widened) };
    }

    fn by_tiles(&self, (tiles, x): (&RowTiles, WordRows<'_>), piece: &Piece) {
        let width = self.weights.panels.width;
        let num_words = piece.inputs.len().div_ceil(2);
        // SAFETY: the piece has all of its words, and a bias the panel's width.
        let (words, bias) = unsafe {
            let bias = (!piece.bias.is_null()).then(|| from_raw_parts(piece.bias, width));
            (from_raw_parts(piece.floats.cast(), num_words * width), bias)
        };
        let product = TileProduct {
            x,
            words,
            first_word: piece.inputs.start / 2,
            is_first: piece.inputs.start == 0,
            bias,
            next: piece.next,
            out: piece.out,
        };
        // SAFETY: `out` is the block's own rows of this panel.
        unsafe { tiles.run(self.isa, &product) };
    }

    fn by_pairs(&self, x: WordRows<'_>, piece: &Piece) {
        let Rows { first, end, .. } = self.rows;
        let num_words = piece.inputs.len().div_ceil(2);
        let num_tiles = (end - first).div_ceil(MAX_HEIGHT);
        for index in 0..num_tiles {
            let (start, height) = even_tile(end - first, num_tiles, index);
            let row = first + start;
            let tile = DotTile {
                x: x.at((row, row + height), piece.inputs.start / 2, num_words),
                x_stride: x.stride,
                num_words,
                weights: piece.floats.cast(),
                is_first: piece.inputs.start == 0,
                bias: piece.bias,
                out: piece.out.0.wrapping_add(start * piece.out.1),
                out_stride: piece.out.1,
                next: part_of(piece.next, num_words, (index, num_tiles)),
            };
            // SAFETY: as in `by_floats`, in words of two inputs.
            unsafe { tile.run(height) };
        }
    }
}
