//! linear_by_head: a matrix of its own for each attention head, over columns of each row.

use vllm_batch_device::simd::InstructionSet;
mod cuda;

use std::sync::PoisonError;

use half::{bf16, f16};

use super::blocks::{BLOCK_ROWS, Destination, Outputs, Rows, SumColumns};
use super::pack;
use super::pairs::narrow_rows;
use crate::columns::Columns;
use crate::gemm::panel::PanelElement;
use crate::gemm::tiles::{RowTiles, TileProduct};
use crate::gemm::words::as_words;
use crate::gemm::{MAX_INPUTS, PanelProduct, Tiling, Widened, even_tile, next_panel};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::{SourceMatrix, SourceValues};
use vllm_batch_device::cuda::DeviceBuffer;
use vllm_batch_device::limits::Arithmetic;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::pages::Pages;
use vllm_batch_device::simd::tiles::TileUnit;
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, Tensor};

/// A matrix W (n, k) for each head, in the model's dtype. Inputs are rounded to bf16 where tiles
/// multiply bf16, which round what attention reads of them anyway, and nowhere else.
#[derive(Debug)]
pub struct HeadMatrices {
    num_heads: usize,
    n: usize,
    k: usize,
    values: Values,
}

/// Panels as `pack` makes them, head after head; each head begins a panel. On a GPU the matrices as
/// they are.
#[derive(Debug)]
enum Values {
    Float32(Pages<f32>),
    BFloat16(Pages<bf16>),
    Float16(Pages<f16>),
    OnGpu(DeviceBuffer),
}

impl HeadMatrices {
    /// Packs matrices of one shape; `value(head, row, column)` is what is in them.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn pack(
        device: &Device,
        dtype: DType,
        (num_heads, n, k): (usize, usize, usize),
        value: impl Fn(usize, usize, usize) -> f32,
    ) -> Result<Self, EngineError> {
        let rows_per_head = match device {
            Device::Cpu(cpu) => n.next_multiple_of(panel_width(cpu)),
            Device::Cuda(_) => n,
        };
        let mut values = vec![0.0; num_heads * rows_per_head * k];
        for (index, row) in values.chunks_exact_mut(k).enumerate() {
            let (head, index) = (index / rows_per_head, index % rows_per_head);
            if index < n {
                for (column, to) in row.iter_mut().enumerate() {
                    *to = value(head, index, column);
                }
            }
        }
        let matrix = SourceMatrix::new(num_heads * rows_per_head, k, SourceValues::Slice(&values));
        let cpu = match device {
            Device::Cpu(cpu) => cpu,
            Device::Cuda(gpu) => {
                let values = Values::OnGpu(cuda::upload(gpu, dtype, &matrix)?);
                return Ok(Self { num_heads, n, k, values });
            }
        };
        let (rows, width) = (vec![matrix].into(), panel_width(cpu));
        let values = match dtype {
            DType::Float32 => Values::Float32(pack::pack(cpu, &rows, width)),
            DType::BFloat16 => Values::BFloat16(pack::pack(cpu, &rows, width)),
            DType::Float16 => Values::Float16(pack::pack(cpu, &rows, width)),
        };
        Ok(Self { num_heads, n, k, values })
    }

    fn num_bytes(&self) -> usize {
        match &self.values {
            Values::Float32(panels) => 4 * panels.len(),
            Values::BFloat16(panels) => 2 * panels.len(),
            Values::Float16(panels) => 2 * panels.len(),
            Values::OnGpu(matrices) => matrices.bytes(),
        }
    }

    fn work(&self, num_rows: usize) -> Work {
        let (rows, heads) = (num_rows as f64, self.num_heads as f64);
        let (n, k) = (self.n as f64, self.k as f64);
        let bytes = self.num_bytes() as f64 + 4.0 * rows * heads * (n + k);
        Work { flops: 2.0 * rows * heads * n * k, bytes }
    }
}

/// Run h of columns `to` of `out` = run h of columns `from` of `x`, times the transpose of matrix
/// h, for all rows of `x`, which `out` has too. Sums run over k upward, as `linear`'s do.
///
/// # Panics
/// Columns and matrices do not fit each other, or are not on the device.
pub fn linear_by_head(
    device: &Device,
    (x, from): (&Tensor, Columns),
    matrices: &HeadMatrices,
    (out, to): (&mut Tensor, Columns),
) {
    let HeadMatrices { num_heads, n, k, values } = matrices;
    from.check(x.width());
    to.check(out.width());
    assert_eq!((from.num, from.width, to.num, to.width), (*num_heads, *k, *num_heads, *n));
    assert_eq!(x.num_rows(), out.num_rows());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return cuda::linear_by_head(gpu, (x, from), matrices, (out, to)),
    };
    let unit = match values {
        Values::BFloat16(_) => cpu.isa.bf16_products().tiles_of(DType::BFloat16),
        _ => None,
    };
    let arithmetic = unit.map_or(Arithmetic::Float32, |_| Arithmetic::of_bf16(cpu.isa));
    let op = Op { name: "linear_by_head", shape: Some((*n, *k)), arithmetic };
    let _timed = cpu.op_timer.timed(op, || matrices.work(x.num_rows()));
    let (num_rows, out_width) = (x.num_rows(), out.width());
    let out = SharedMut::new(out.values_mut());
    let task = Task { cpu, x, from, width: panel_width(cpu), out, out_width, to };
    match values {
        Values::Float32(panels) => task.run(panels, num_rows),
        Values::BFloat16(panels) => match unit {
            Some(unit) => task.run_by_tiles(unit, panels, num_rows),
            None => task.run(panels, num_rows),
        },
        Values::Float16(panels) => task.run(panels, num_rows),
        Values::OnGpu(_) => panic!("matrices of a GPU were given to the CPU"),
    }
}

/// Outputs of a panel.
fn panel_width(cpu: &Cpu) -> usize {
    2 * cpu.isa.num_lanes()
}

#[derive(Clone, Copy)]
struct Task<'a> {
    cpu: &'a Cpu,
    x: &'a Tensor,
    from: Columns,
    /// Outputs of a panel.
    width: usize,
    out: SharedMut<f32>,
    out_width: usize,
    to: Columns,
}

impl Task<'_> {
    fn run<E: PanelElement>(&self, panels: &[E], num_rows: usize) {
        self.for_blocks(num_rows, &|head, rows| {
            let tiling = Tiling::new::<E>(self.cpu.isa, false, rows.end - rows.first);
            let mut widened = Widened::new();
            self.block((head, rows), panels, |weights, out| {
                // SAFETY: this item alone computes these rows of its head's columns.
                unsafe { self.panel((head, rows.first), weights, &tiling, out, &mut widened) };
            });
        });
    }

    /// The same over inputs that are rounded to bf16.
    fn run_by_tiles(&self, unit: TileUnit, panels: &[bf16], num_rows: usize) {
        let (k, num_heads) = (self.from.width, self.from.num);
        // A poisoned lock only says that a thread panicked: what is there is written anew.
        let room = &mut *self.cpu.narrow_inputs.lock().unwrap_or_else(PoisonError::into_inner);
        // The rows of a head lie together.
        let row = |index: usize| {
            &self.x.row(index % num_rows)[self.from.start_of(index / num_rows)..][..k]
        };
        let x = narrow_rows(self.cpu, (num_heads * num_rows, k), row, room);
        self.for_blocks(num_rows, &|head, rows| {
            let first = head * num_rows;
            let tiles = RowTiles::new(unit, (first + rows.first, first + rows.end));
            self.block((head, rows), panels, |weights, out| {
                let words = as_words(weights);
                let product = TileProduct {
                    x,
                    words,
                    first_word: 0,
                    is_first: true,
                    bias: None,
                    next: next_panel(words.as_ptr(), words.len(), tiles.num_blocks() == 1),
                    out,
                };
                // SAFETY: this item alone computes these rows of its head's columns.
                unsafe { tiles.run(self.cpu.isa, &product) };
            });
        });
    }

    /// `block(head, rows)` for blocks of rows of each head, on all threads.
    fn for_blocks(&self, num_rows: usize, block: &(dyn Fn(usize, Rows) + Sync)) {
        let num_blocks = num_rows.div_ceil(BLOCK_ROWS);
        self.cpu.pool.run(num_blocks * self.from.num, &|thread, item| {
            let (first, num) = even_tile(num_rows, num_blocks, item % num_blocks);
            block(item / num_blocks, Rows { first, end: first + num, is_new: true, thread });
        });
    }

    /// Has `product(weights, (out, stride))` write the sums of a head's rows, panel after panel.
    fn block<E>(
        &self,
        (head, rows): (usize, Rows),
        panels: &[E],
        mut product: impl FnMut(&[E], (*mut f32, usize)),
    ) {
        let (n, width) = (self.to.width, self.width);
        let panel_len = self.from.width.next_multiple_of(2) * width;
        let num_panels = n.div_ceil(width);
        let first = self.to.start_of(head);
        let to = SumColumns { values: self.out, stride: self.out_width, first };
        let out = Outputs { n, width, to: Destination::Sums(to) };
        for panel in 0..num_panels {
            let weights = &panels[(head * num_panels + panel) * panel_len..][..panel_len];
            let of_panel = |_, out, stride| product(weights, (out, stride));
            // SAFETY: this item alone computes these rows of its head's columns, all of them.
            unsafe { out.with_panel(self.cpu.isa, rows, panel, of_panel) };
        }
    }

    /// The rows that the tiling is of, from a row on, by one panel of a head.
    ///
    /// # Safety
    /// A panel's width may be written to `out` for each of the rows, which are so far from each
    /// other, and nobody else touches that.
    unsafe fn panel<E: PanelElement>(
        &self,
        (head, first_row): (usize, usize),
        weights: &[E],
        tiling: &Tiling,
        out: (*mut f32, usize),
        widened: &mut Widened,
    ) {
        let (k, x_width) = (self.from.width, self.x.width());
        for first in (0..k).step_by(MAX_INPUTS) {
            let num_inputs = MAX_INPUTS.min(k - first);
            let at = first_row * x_width + self.from.start_of(head) + first;
            let product = PanelProduct {
                tiling,
                x: (self.x.values()[at..].as_ptr(), x_width),
                weights: weights[first * self.width..].as_ptr(),
                inputs: (0, num_inputs),
                out,
                is_first: first == 0,
                bias: std::ptr::null(),
                next: None,
                brings_rows: false,
            };
            // SAFETY: the columns were checked to be within the rows of x, and the panel holds all
            // inputs; the caller's promise for `out`. The device was made for this CPU.
            unsafe { product.run(widened) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::Isa;

    /// (heads, n, k), with whole panels and without, and more inputs than one product takes.
    const SHAPES: [(usize, usize, usize); 4] = [(3, 5, 7), (2, 32, 16), (1, 70, 9), (2, 3, 1031)];

    fn random(len: usize, seed: u64) -> Vec<f32> {
        SourceMatrix::random(1, len, seed, 1.0).to_vec()
    }

    /// Rows of x, and what comes out of them, which begins as 7 everywhere.
    fn run(isa: Isa, dtype: DType, shape: (usize, usize, usize), x: &[f32]) -> Tensor {
        let (num_heads, n, k) = shape;
        let device = Device::cpu_with_isa(2, isa);
        let weights = random(num_heads * n * k, 5);
        let value = |head, row, column| weights[(head * n + row) * k + column];
        let matrices = HeadMatrices::pack(&device, dtype, shape, value).unwrap();
        let x = Tensor::from_vec(x.to_vec(), 1 + num_heads * (k + 2));
        let width = 3 + num_heads * (n + 1);
        let mut out = Tensor::from_vec(vec![7.0; x.num_rows() * width], width);
        let from = Columns { start: 1, stride: k + 2, num: num_heads, width: k };
        let to = Columns { start: 2, stride: n + 1, num: num_heads, width: n };
        linear_by_head(&device, (&x, from), &matrices, (&mut out, to));
        out
    }

    #[test]
    fn agrees_with_a_naive_loop_and_rows_do_not_depend_on_each_other() {
        for isa in Isa::all_available() {
            for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
                for shape in SHAPES {
                    let (num_heads, n, k) = shape;
                    let weights = random(num_heads * n * k, 5);
                    let rounded = |weight: f32| match dtype {
                        DType::Float32 => weight,
                        DType::BFloat16 => bf16::from_f32(weight).to_f32(),
                        DType::Float16 => f16::from_f32(weight).to_f32(),
                    };
                    let tiles = isa.bf16_products().tiles_of(dtype);
                    let taken = |x: f32| tiles.map_or(x, |_| bf16::from_f32(x).to_f32());
                    let width = 1 + num_heads * (k + 2);
                    let num_rows = 150;
                    let x = random(num_rows * width, 6);
                    let out = run(isa, dtype, shape, &x);
                    for row in [0, 1, 77, 149] {
                        let x = &x[row * width..][..width];
                        let alone = run(isa, dtype, shape, x);
                        assert_eq!(alone.row(0), out.row(row), "{isa:?} {dtype:?} {shape:?}");
                        let mut expected = vec![7.0; out.width()];
                        for (head, to) in
                            expected[2..].chunks_mut(n + 1).take(num_heads).enumerate()
                        {
                            for (index, to) in to[..n].iter_mut().enumerate() {
                                let weights = &weights[(head * n + index) * k..][..k];
                                let x = &x[1 + head * (k + 2)..][..k];
                                let products = x
                                    .iter()
                                    .zip(weights)
                                    .map(|(x, w)| f64::from(taken(*x)) * f64::from(rounded(*w)));
                                *to = products.sum::<f64>() as f32;
                            }
                        }
                        for (got, expected) in out.row(row).iter().zip(&expected) {
                            let distance = (got - expected).abs();
                            assert!(distance < 1e-4, "{isa:?} {dtype:?} {shape:?}");
                        }
                    }
                }
            }
        }
    }
}
