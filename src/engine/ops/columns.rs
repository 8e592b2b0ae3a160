//! copy_columns: some columns of rows, to other columns of other rows.

use super::{GPU_BLOCK, for_row_chunks};
use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Gpu, Tensor};

/// Columns of a row: `num` runs of `width`, as far from each other as `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// First column of the first run.
    pub start: usize,
    /// From a run's first column to that of the next.
    pub stride: usize,
    /// Runs.
    pub num: usize,
    /// Columns of a run.
    pub width: usize,
}

impl Columns {
    /// One run.
    pub fn run(start: usize, width: usize) -> Self {
        Self { start, stride: width, num: 1, width }
    }

    /// First column of a run.
    pub(super) fn start_of(&self, run: usize) -> usize {
        self.start + run * self.stride
    }

    /// # Panics
    /// A run exceeds the row's columns, or two runs share one.
    pub(super) fn check(&self, row_width: usize) {
        assert!(self.num > 0 && (self.num == 1 || self.stride >= self.width), "{self:?}");
        assert!(self.start_of(self.num - 1) + self.width <= row_width, "{self:?} of {row_width}");
    }
}

/// Columns `to` of `out` = columns `from` of `x`, for all rows of `x`, which `out` has too.
///
/// # Panics
/// There are not as many columns as rows are wide, or numbers of rows or widths of columns differ.
pub fn copy_columns(
    device: &Device,
    (x, from): (&Tensor, Columns),
    (out, to): (&mut Tensor, Columns),
) {
    let (num_rows, x_width, out_width) = (x.num_rows(), x.width(), out.width());
    from.check(x_width);
    to.check(out_width);
    assert_eq!((from.num, from.width, num_rows), (to.num, to.width, out.num_rows()));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, (x, from), (out, to)),
    };
    let num_copied = from.num * from.width;
    let work = || Work::elementwise(num_rows * num_copied, 8);
    let _timed = cpu.op_timer.timed(Op::new("copy_columns"), work);
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, num_copied, &|start, end| {
        for row in start..end {
            let x = x.row(row);
            // SAFETY: each row belongs to one item.
            let out = unsafe { shared.slice(row * out_width, out_width) };
            for run in 0..from.num {
                let (from_start, to_start) = (from.start_of(run), to.start_of(run));
                out[to_start..to_start + to.width]
                    .copy_from_slice(&x[from_start..from_start + from.width]);
            }
        }
    });
}

fn on_gpu(gpu: &Gpu, (x, from): (&Tensor, Columns), (out, to): (&Tensor, Columns)) {
    assert_eq!(x.dtype(), out.dtype());
    // `struct Columns` of kernels/columns.cu.
    let of_rows = |width: usize, columns: Columns| {
        [width, columns.start, columns.stride].map(|number| number as u32)
    };
    let mut args = Args::new();
    args.tensor(x).value(of_rows(x.width(), from));
    args.tensor(out).value(of_rows(out.width(), to)).dims([to.num, to.width]);
    let parts = (to.num * to.width).div_ceil(GPU_BLOCK as usize * 16);
    let grid = [x.num_rows() as u32, parts as u32];
    gpu.launch(("columns", "copy_columns"), grid, (GPU_BLOCK, 0), &mut args);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_to_their_places_and_no_other_column_changes() {
        let device = Device::cpu(Some(2));
        let number = |row: usize, column: usize| (100 * row + column) as f32;
        for num_rows in [1, 3, 3000] {
            let values = (0..num_rows * 10).map(|i| number(i / 10, i % 10)).collect();
            let x = Tensor::from_vec(values, 10);
            let mut out = Tensor::from_vec(vec![-1.0; num_rows * 12], 12);
            let from = Columns { start: 1, stride: 4, num: 2, width: 3 };
            let to = Columns { start: 2, stride: 5, num: 2, width: 3 };
            copy_columns(&device, (&x, from), (&mut out, to));
            for row in 0..num_rows {
                let at = |column| number(row, column);
                let (first, second) = ([at(1), at(2), at(3)], [at(5), at(6), at(7)]);
                assert_eq!(out.row(row)[2..5], first);
                assert_eq!(out.row(row)[7..10], second);
                for column in [0, 1, 5, 6, 10, 11] {
                    assert_eq!(out.row(row)[column], -1.0, "column {column}");
                }
            }
        }
    }
}
