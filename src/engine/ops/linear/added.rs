//! Products of few inputs that are added to what is there: what adapters add to a linear layer.
//! Sums go on from the outputs that are there, input after input, upward.

use std::ops::Range;
use vllm_batch_device::simd::InstructionSet;

use super::blocks::{Destination, ItemSize, Outputs, Shape, SumColumns, for_blocks};
use super::cpu::ITEM_MACS;
use super::{LinearWeight, Packed, Panels, Storage};
use crate::gemm::{PanelProduct, Tiling, Widened};
use vllm_batch_device::Cpu;
use vllm_batch_device::tensor::{Rows, RowsMut, SharedMut};

/// Some columns of outputs, and which columns of the inputs they are made of.
#[derive(Debug)]
pub(crate) struct AddedPart {
    /// (outputs, inputs) in f32, on the host, without a bias.
    pub weight: LinearWeight,
    pub first_input: usize,
    pub first_output: usize,
}

impl AddedPart {
    fn panels(&self) -> &[f32] {
        match &self.weight.storage {
            Storage::Cpu(Packed { panels: Panels::Float32(panels), .. }) => panels,
            _ => panic!("a part is in f32 on the host"),
        }
    }
}

/// `num_rows` rows of out += those of x Wᵀ, for the columns of each part.
///
/// # Panics
/// The rows are not in use, or a part's columns are not there.
pub(crate) fn add_products(
    cpu: &Cpu,
    x: Rows<'_>,
    parts: &[AddedPart],
    out: RowsMut<'_>,
    num_rows: usize,
) {
    let (x_width, stride) = (x.tensor.width(), out.tensor.width());
    for AddedPart { weight, first_input, first_output } in parts {
        assert!(first_input + weight.k <= x_width && first_output + weight.n <= stride, "columns");
    }
    let x = &x.tensor.values()[x.first * x_width..(x.first + num_rows) * x_width];
    let out = &mut out.tensor.values_mut()[out.first * stride..(out.first + num_rows) * stride];
    let values = SharedMut::new(out);
    let width = 2 * cpu.isa.num_lanes();
    let num_panels: usize = parts.iter().map(|part| part.weight.n.div_ceil(width)).sum();
    let k = parts.iter().map(|part| part.weight.k).max().unwrap_or(0);
    let shape = Shape { num_rows, n: num_panels * width, k };
    let size = ItemSize::new(ITEM_MACS, 1);
    for_blocks(cpu, shape, width, size, &|rows, panels| {
        let tiling = Tiling::new::<f32>(cpu.isa, false, rows.end - rows.first);
        let mut widened = Widened::new();
        for (part, panel) in panels_of(parts, width, panels) {
            let LinearWeight { n, k, .. } = part.weight;
            let panel_len = width * k.next_multiple_of(2);
            let first = part.first_output;
            let to = Destination::Sums(SumColumns { values, stride, first });
            let out = Outputs { n, width, to };
            let product = |panel: usize, out: *mut f32, out_stride: usize| {
                let product = PanelProduct {
                    tiling: &tiling,
                    x: (x[rows.first * x_width + part.first_input..].as_ptr(), x_width),
                    weights: part.panels()[panel * panel_len..][..panel_len].as_ptr(),
                    inputs: (0, k),
                    out: (out, out_stride),
                    is_first: false,
                    bias: std::ptr::null(),
                    next: None,
                    brings_rows: false,
                };
                // SAFETY: the last row of x has the part's inputs, and the slice is the panel;
                // `out` is the block's own. The device was made for this CPU.
                unsafe { product.run(&mut widened) };
            };
            // SAFETY: this item alone computes these rows of its panels, and all of them.
            unsafe { out.with_panel(cpu.isa, rows, panel, product) };
        }
    });
}

/// Some of the panels of all parts, one part after the other: each with its place in its part.
fn panels_of(
    parts: &[AddedPart],
    width: usize,
    panels: Range<usize>,
) -> impl Iterator<Item = (&AddedPart, usize)> {
    let of_part = move |part: &AddedPart| part.weight.n.div_ceil(width);
    let all = parts.iter().flat_map(move |part| (0..of_part(part)).map(move |panel| (part, panel)));
    all.skip(panels.start).take(panels.len())
}
