//! Weights that stay as narrow as a checkpoint holds them: unsigned codes with scales by group.
//!
//! A matrix that can say its codes is a [`CodedMatrix`]. [`CodePanels`] are its rows by panels, as
//! wide as those of f32 weights, so that both are shared out alike.
//!
//! # Memory of a panel
//! Words of 32 bits, `width` lanes side by side. Its sections follow each other, each from a
//! multiple of 16 words on:
//!
//! 1. codes, by units of 32 inputs: a unit has `bits` rows of `width` words. Bits of a code lie in
//!    planes, the low ones first: 8 bits in one plane of bytes; else planes of 4, of 2 and of 1 bit
//!    as the number of bits asks for (5 = 4 + 1, 6 = 4 + 2, 3 = 2 + 1).
//!    A byte of a word belongs to one of 4 neighbouring inputs (a quad), as integer dot products
//!    want them. A plane of bits b has, in the word of a lane, 8 / b quads from the lowest bits up:
//!    a word of 4 bits has inputs 8v to 8v + 3 in the low nibbles of its bytes and 8v + 4 to 8v + 7
//!    in the high ones; a word of 2 bits has 16 inputs, one of 1 bit all 32 of the unit.
//! 2. scales, (groups, width), in the bytes of their kind;
//! 3. zeros (a byte each) or minima (as scales), (groups, width), where there are some;
//! 4. outer scales, float16, (k / 256, width), where there are some;
//! 5. outer scales of the minima, likewise.
//!
//! Inputs past the last one and lanes past the last row have code 0 and scale 0.

use vllm_batch_device::simd::InstructionSet;
mod few_rows;
mod layout;
mod pack;
mod product;
mod widen;

#[cfg(test)]
mod tests;

pub(super) use layout::{CodePanels, Rounding};
pub(super) use product::{CodeWeights, linear};

use crate::gemm::MAX_PANEL_WIDTH;
use product::PIECE;
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::{SourceMatrix, SourceRows};
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::{Bf16Products, Isa};
use widen::Widen;

use std::fmt::Debug;

impl Rounding {
    /// Rounding of weights that compute in `dtype`. float16 has no products of its own, so none.
    pub(super) fn of(dtype: DType, isa: Isa) -> Self {
        match (dtype, isa.bf16_products()) {
            (DType::Float32 | DType::Float16, _) => Rounding::Exact,
            (DType::BFloat16, Bf16Products::Widened) => Rounding::BFloat16,
            (DType::BFloat16, Bf16Products::Dots | Bf16Products::Tiles(_)) => Rounding::Pairs,
        }
    }
}

/// Bytes that the codes of a matrix take on a CPU; None: they do not stay as they are.
pub fn num_bytes(matrix: &SourceMatrix<'_>) -> Option<usize> {
    CodePanels::num_bytes_of(&matrix.code_kind()?, matrix.num_rows, matrix.num_columns)
}

/// Panels of codes, and how their values are rounded.
#[derive(Debug)]
pub(super) struct NarrowWeights {
    pub panels: CodePanels,
    pub rounding: Rounding,
    isa: Isa,
}

impl NarrowWeights {
    /// All rows, to compute in `dtype`; None: there are no codes to keep.
    pub(super) fn pack(
        cpu: &Cpu,
        dtype: DType,
        rows: &SourceRows<'_>,
        width: usize,
    ) -> Option<Self> {
        let panels = CodePanels::pack(cpu, rows, width)?;
        Some(Self { panels, rounding: Rounding::of(dtype, cpu.isa), isa: cpu.isa })
    }

    /// Inputs `first..` of a panel as products take them, but each as an f32: (inputs, width).
    fn widen(&self, panel: usize, first: usize, out: &mut [f32]) {
        let CodePanels { width, .. } = self.panels;
        let rounding = match self.rounding {
            Rounding::Exact => Rounding::Exact,
            Rounding::BFloat16 | Rounding::Pairs => Rounding::BFloat16,
        };
        let panel = self.panels.panel(panel);
        let inputs = first..first + out.len() / width;
        let mut floats = [0.0; PIECE * MAX_PANEL_WIDTH];
        assert!(inputs.len() <= PIECE);
        // SAFETY: there is room for a piece.
        unsafe { Widen { panel, inputs, rounding, out: floats.as_mut_ptr() }.run(self.isa) };
        out.copy_from_slice(&floats[..out.len()]);
    }

    /// One panel, widened: (k, width).
    pub(super) fn widen_panel(&self, panel: usize, out: &mut [f32]) {
        for (index, out) in out.chunks_mut(PIECE * self.panels.width).enumerate() {
            self.widen(panel, index * PIECE, out);
        }
    }

    /// One row, widened.
    pub(super) fn copy_row(&self, row: usize, out: &mut [f32]) {
        let CodePanels { width, .. } = self.panels;
        let mut floats = [0.0; PIECE * MAX_PANEL_WIDTH];
        for (index, out) in out.chunks_mut(PIECE).enumerate() {
            let floats = &mut floats[..out.len() * width];
            self.widen(row / width, index * PIECE, floats);
            for (value, inputs) in out.iter_mut().zip(floats.chunks_exact(width)) {
                *value = inputs[row % width];
            }
        }
    }
}
