//! copy and fill_zero: what is neither a norm nor an addition.

use crate::engine::device::cuda::Args;
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::{Device, Tensor};

/// out = x. `out` takes as many rows as `x` has; on a GPU its values are rounded to its type.
///
/// # Panics
/// Widths differ.
pub fn copy(device: &Device, x: &Tensor, out: &mut Tensor) {
    out.set_num_rows(x.num_rows());
    copy_rows(device, (x, 0), out);
}

/// out = rows `first..` of x, as many as `out` has.
///
/// # Panics
/// Widths differ, there are not so many rows, or a GPU is asked for some of them only.
pub fn copy_rows(device: &Device, (x, first): (&Tensor, usize), out: &mut Tensor) {
    assert_eq!(x.width(), out.width());
    let num_values = out.num_rows() * x.width();
    match device {
        Device::Cpu(cpu) => {
            let work = || Work::elementwise(num_values, 8);
            let _timed = cpu.op_timer.timed(Op::new("copy"), work);
            let start = first * x.width();
            out.values_mut().copy_from_slice(&x.values()[start..start + num_values]);
        }
        Device::Cuda(gpu) => {
            assert_eq!(out.num_rows(), x.num_rows(), "a GPU takes all rows at once");
            let mut args = Args::new();
            args.tensor(x).tensor(out).u64(num_values as u64);
            gpu.launch_over(num_values, ("elementwise", "convert"), &mut args);
        }
    }
}

/// x = 0, for the first `num_rows` rows, which are in use from now on.
pub fn fill_zero(device: &Device, x: &mut Tensor, num_rows: usize) {
    x.set_num_rows(num_rows);
    match device {
        Device::Cpu(cpu) => {
            let work = || Work::elementwise(num_rows * x.width(), 4);
            let _timed = cpu.op_timer.timed(Op::new("fill_zero"), work);
            x.values_mut().fill(0.0);
        }
        Device::Cuda(gpu) => {
            gpu.fill_zero(x.device_ptr(), num_rows * x.width() * x.dtype().size_bytes());
        }
    }
}
