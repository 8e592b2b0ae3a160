//! copy and fill_zero: what is neither a norm nor an addition.

use crate::engine::device::cuda::Args;
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::{Device, Tensor};

/// out = x. `out` takes as many rows as `x` has; on a GPU its values are rounded to its type.
///
/// # Panics
/// Widths differ.
pub fn copy(device: &Device, x: &Tensor, out: &mut Tensor) {
    assert_eq!(x.width(), out.width());
    out.set_num_rows(x.num_rows());
    match device {
        Device::Cpu(cpu) => {
            let work = || Work::elementwise(x.num_rows() * x.width(), 8);
            let _timed = cpu.op_timer.timed(Op::new("copy"), work);
            out.values_mut().copy_from_slice(x.values());
        }
        Device::Cuda(gpu) => {
            let num_values = x.num_rows() * x.width();
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
