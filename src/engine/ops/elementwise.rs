//! Element by element: add, scale, clamp, copy, fill_zero.

use vllm_batch_base::config::DType;
use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Rows, RowsMut, Tensor};

use super::{for_row_chunks, map_in_place};

/// residual += delta; residual is f32 or of the model's dtype.
pub fn add(device: &Device, residual: &mut Tensor, delta: &Tensor) {
    let (num_rows, width) = (residual.num_rows(), residual.width());
    assert_eq!((num_rows, width), (delta.num_rows(), delta.width()));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let num_values = num_rows * width;
            let mut args = Args::new();
            args.tensor(residual).tensor(delta).u64(num_values as u64);
            let entry = match residual.dtype() {
                DType::Float32 => "add",
                DType::BFloat16 | DType::Float16 => "add_activations",
            };
            return gpu.launch_over(num_values, ("elementwise", entry), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 12);
    let _timed = cpu.op_timer.timed(Op::new("add"), work);
    let shared = SharedMut::new(residual.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let residual = unsafe { shared.slice(row * width, width) };
            add_row(residual, delta.row(row));
        }
    });
}

pub(super) fn add_row(residual: &mut [f32], delta: &[f32]) {
    for (residual, delta) in residual.iter_mut().zip(delta) {
        *residual += delta;
    }
}

/// x *= factor, in place; x is f32 or of the model's dtype.
pub fn scale(device: &Device, x: &mut Tensor, factor: f32) {
    let entry = ["scale", "scale_activations"];
    change(device, x, entry, Change::Scale(factor));
}

/// x = min(max(x, -limit), limit), in place; NaN stays. x is f32 or of the model's dtype.
pub fn clamp(device: &Device, x: &mut Tensor, limit: f32) {
    let entry = ["clamp", "clamp_activations"];
    change(device, x, entry, Change::Clamp(limit));
}

/// Columns of rows of x = min(max(x, least), largest), in place; NaN stays. Each of `bounds` is of
/// so many columns, and all columns have one.
///
/// # Panics
/// x is on a GPU, or the columns are not those of x.
pub fn clamp_columns(
    device: &Device,
    rows: RowsMut<'_>,
    num_rows: usize,
    bounds: &[(usize, [f32; 2])],
) {
    let Device::Cpu(cpu) = device else { unreachable!("towers with bounds are on the CPU") };
    let RowsMut { tensor: x, first } = rows;
    let width = x.width();
    assert_eq!(bounds.iter().map(|(columns, _)| columns).sum::<usize>(), width);
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("clamp_columns"), work);
    let values = &mut x.values_mut()[first * width..][..num_rows * width];
    let shared = SharedMut::new(values);
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            let mut from = row * width;
            for (columns, range) in bounds {
                // SAFETY: each row belongs to one item.
                let values = unsafe { shared.slice(from, *columns) };
                dispatch(cpu.isa, Changed { change: Change::Bound(*range), values });
                from += columns;
            }
        }
    });
}

/// Function of every value.
#[derive(Clone, Copy)]
enum Change {
    /// It is multiplied by this.
    Scale(f32),
    /// Clamps the magnitude to this bound.
    Clamp(f32),
    /// Clamps to this range.
    Bound([f32; 2]),
}

/// `entry`: of the kernel for f32, and for the model's dtype.
fn change(device: &Device, x: &mut Tensor, entry: [&'static str; 2], change: Change) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let num_values = num_rows * width;
            let (Change::Scale(value) | Change::Clamp(value)) = change else {
                unreachable!("ranges are on the CPU")
            };
            let entry = entry[usize::from(x.dtype() != DType::Float32)];
            let mut args = Args::new();
            args.tensor(x).f32(value).u64(num_values as u64);
            return gpu.launch_over(num_values, ("elementwise", entry), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new(entry[0]), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        // SAFETY: each chunk of rows belongs to one item.
        let values = unsafe { shared.slice(start * width, (end - start) * width) };
        dispatch(cpu.isa, Changed { change, values });
    });
}

/// values *= factor.
pub(super) fn scale_values(isa: Isa, factor: f32, values: &mut [f32]) {
    dispatch(isa, Changed { change: Change::Scale(factor), values });
}

struct Changed<'a> {
    change: Change,
    values: &'a mut [f32],
}

impl Kernel for Changed<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { change, values } = self;
        // SAFETY: dispatched for this CPU.
        unsafe {
            match change {
                Change::Scale(factor) => {
                    let factor = V::splat(factor);
                    map_in_place::<V>(values, |x: V, _: V| x.mul(factor));
                }
                Change::Clamp(limit) => bound::<V>(values, [-limit, limit]),
                Change::Bound(range) => bound::<V>(values, range),
            }
        }
    }
}

/// values = min(max(values, least), largest); NaN stays.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn bound<V: Vector>(values: &mut [f32], range: [f32; 2]) {
    // SAFETY: the caller's CPU.
    unsafe {
        let [low, high] = range.map(|value| V::splat(value));
        map_in_place::<V>(values, |x: V, _: V| high.min(low.max(x)));
    }
}

/// out = x. `out` takes as many rows as `x` has; on a GPU its values are rounded to its type.
///
/// # Panics
/// Widths differ.
pub fn copy(device: &Device, x: &Tensor, out: &mut Tensor) {
    out.set_num_rows(x.num_rows());
    copy_rows(device, x.rows_from(0), out);
}

/// out = these rows, as many as `out` has.
///
/// # Panics
/// Widths differ, or there are not so many rows.
pub fn copy_rows(device: &Device, rows: Rows<'_>, out: &mut Tensor) {
    let Rows { tensor: x, first } = rows;
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
            assert!(first + out.num_rows() <= x.num_rows());
            let from = x.device_ptr().offset(first * x.row_bytes());
            let mut args = Args::new();
            args.ptr(from).tensor(out).u64(num_values as u64);
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

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::InstructionSet;

    #[test]
    fn scale_and_clamp_are_those_of_one_value() {
        let values: Vec<f32> = (0..74).map(|i| (i as f32 - 37.0) * 0.37).collect();
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            let mut x = Tensor::from_vec(values.clone(), 37);
            scale(&device, &mut x, 0.3);
            assert!(x.values().iter().zip(&values).all(|(got, x)| *got == x * 0.3), "{isa:?}");
            let mut x = Tensor::from_vec(values.clone(), 37);
            x.values_mut()[5] = f32::NAN;
            clamp(&device, &mut x, 8.0);
            assert!(x.values()[5].is_nan(), "{isa:?}");
            x.values_mut()[5] = -8.0;
            let bounded = |x: &f32| x.clamp(-8.0, 8.0);
            assert!(x.values().iter().zip(&values).all(|(got, x)| *got == bounded(x)), "{isa:?}");
        }
    }
}
