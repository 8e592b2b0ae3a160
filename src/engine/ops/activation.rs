//! Activations of the MLP: plain, or gated (`silu_and_mul` and its kin).

use crate::engine::device::cuda::Args;
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::simd::{Isa, Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Device, Tensor};

use super::{VectorOp, for_row_chunks, gpu_row_block, map_in_place, map2};

/// Activation functions, by Hugging Face's names in `hidden_act`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `silu`: x / (1 + e^-x).
    Silu,
    /// `gelu_pytorch_tanh`, `gelu_new`: the tanh approximation.
    GeluTanh,
    /// `gelu`: x Φ(x), with the error function.
    Gelu,
    /// `relu`.
    Relu,
}

impl Activation {
    /// Its number in kernels/activation.cu.
    fn kind(self) -> u32 {
        match self {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
            Activation::Gelu => 2,
            Activation::Relu => 3,
        }
    }
}

/// x = f(x), in place.
pub fn activate(device: &Device, activation: Activation, x: &mut Tensor) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let num_values = num_rows * width;
            let mut args = Args::new();
            args.tensor(x).u64(num_values as u64).u32(activation.kind());
            return gpu.launch_over(num_values, ("activation", "activate"), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("activate"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        // SAFETY: each chunk of rows belongs to one item.
        let values = unsafe { shared.slice(start * width, (end - start) * width) };
        dispatch(cpu.isa, Plain { activation, values });
    });
}

/// out = f(gate) * up, where a row of `gate_up` (num_tokens, 2 * width) is gate then up.
pub fn activate_and_mul(
    device: &Device,
    activation: Activation,
    gate_up: &Tensor,
    out: &mut Tensor,
) {
    let width = out.width();
    assert_eq!(gate_up.width(), 2 * width);
    out.set_num_rows(gate_up.num_rows());
    let num_rows = out.num_rows();
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(gate_up).tensor(out);
            let (entry, columns, block) = match out.scales_ptr() {
                None => ("activate_and_mul", width.div_ceil(2048), 128),
                Some(scales) => {
                    args.ptr(scales);
                    ("activate_and_mul_fp8", 1, gpu_row_block(width, 64).min(448))
                }
            };
            args.u32(width as u32).u32(activation.kind());
            let grid = [num_rows as u32, columns as u32];
            return gpu.launch(("activation", entry), grid, (block, 0), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 12);
    let _timed = cpu.op_timer.timed(Op::new("activate_and_mul"), work);
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            let (gate, up) = gate_up.row(row).split_at(width);
            let out = (shared.ptr(row * width, width), width);
            // SAFETY: each row belongs to one item.
            unsafe { activate_and_mul_panel(cpu.isa, activation, (gate, up), out, width) };
        }
    });
}

struct Plain<'a> {
    activation: Activation,
    values: &'a mut [f32],
}

impl Kernel for Plain<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU.
        unsafe { map_in_place::<V>(self.values, Activate(self.activation)) };
    }
}

/// out = f(gate) * up for rows of `width` sums each; `out` is `width` columns of a row-major matrix
/// with this stride.
///
/// # Safety
/// `out` is writable for `width` columns of as many rows as there are sums, and nobody else touches
/// these meanwhile.
pub(super) unsafe fn activate_and_mul_panel(
    isa: Isa,
    activation: Activation,
    (gate, up): (&[f32], &[f32]),
    out: (*mut f32, usize),
    width: usize,
) {
    dispatch(isa, Gated { activation, gate, up, out, width });
}

struct Gated<'a> {
    activation: Activation,
    gate: &'a [f32],
    up: &'a [f32],
    out: (*mut f32, usize),
    width: usize,
}

impl Kernel for Gated<'_> {
    /// # Safety
    /// As `Kernel::run` and `activate_and_mul_panel`.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { activation, gate, up, out: (out, stride), width } = self;
        let rows = gate.chunks_exact(width).zip(up.chunks_exact(width));
        for (row, (gate, up)) in rows.enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let out = std::slice::from_raw_parts_mut(out.add(row * stride), width);
                map2::<V>(gate, up, out, ActivateAndMul(activation));
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Activate(Activation);

impl<V: Vector> VectorOp<V> for Activate {
    #[inline(always)]
    unsafe fn apply(&self, x: V, _: V) -> V {
        apply(self.0, x)
    }
}

struct ActivateAndMul(Activation);

impl<V: Vector> VectorOp<V> for ActivateAndMul {
    #[inline(always)]
    unsafe fn apply(&self, gate: V, up: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { apply(self.0, gate).mul(up) }
    }
}

/// One vector; only called from kernels that were dispatched for this CPU.
#[inline(always)]
fn apply<V: Vector>(activation: Activation, x: V) -> V {
    // SAFETY: the callers are kernels, which run only on a CPU that has V's instructions.
    unsafe {
        let (one, half) = (V::splat(1.0), V::splat(0.5));
        match activation {
            Activation::Silu => x.div(one.add(V::splat(0.0).sub(x).exp())),
            Activation::GeluTanh => {
                let cube = x.mul(x).mul(x);
                let inner = cube.mul_add(V::splat(0.044_715), x);
                let inner = inner.mul(V::splat((2.0 / std::f32::consts::PI).sqrt()));
                half.mul(x).mul(one.add(inner.tanh()))
            }
            Activation::Gelu => {
                let inner = x.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
                half.mul(x).mul(one.add(erf(inner)))
            }
            Activation::Relu => V::splat(0.0).max(x),
        }
    }
}

/// Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn erf<V: Vector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let (zero, one) = (V::splat(0.0), V::splat(1.0));
        let size = x.max(zero.sub(x));
        let t = one.div(size.mul_add(V::splat(0.327_591_1), one));
        let mut p = V::splat(1.061_405_4);
        for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = p.mul_add(t, V::splat(coefficient));
        }
        let value = one.sub(p.mul(t).mul(zero.sub(size.mul(size)).exp()));
        // Odd function: the value where x >= 0, less the value where x <= 0; both at 0.
        let positive = x.zero_below(zero, value);
        let negative = zero.sub(x).zero_below(zero, value);
        positive.sub(negative)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::device::simd::Isa;

    fn reference(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                0.5 * x
                    * (1.0
                        + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            // Φ by numerical integration of the density from 0.
            Activation::Gelu => {
                let steps = 4000;
                let h = x / f64::from(steps);
                let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
                let sum: f64 = (0..steps).map(|i| density((f64::from(i) + 0.5) * h)).sum();
                x * (0.5 + sum * h)
            }
            Activation::Relu => x.max(0.0),
        }
    }

    #[test]
    fn agree_with_f64_plain_and_gated_on_every_path() {
        let all = [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::Relu];
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            for activation in all {
                let width = 37;
                let gate: Vec<f32> = (0..5 * width).map(|i| (i as f32 - 92.0) * 0.11).collect();
                let mut x = Tensor::from_vec(gate.clone(), width);
                activate(&device, activation, &mut x);
                let rows = gate.chunks(width).flat_map(|g| [g.to_vec(), vec![2.0; width]].concat());
                let gate_up = Tensor::from_vec(rows.collect(), 2 * width);
                let mut out = Tensor::zeros(5, width);
                activate_and_mul(&device, activation, &gate_up, &mut out);
                for (i, &g) in gate.iter().enumerate() {
                    let expected = reference(activation, f64::from(g));
                    let limit = 2e-6 * (1.0 + expected.abs());
                    assert!(
                        (f64::from(x.values()[i]) - expected).abs() < limit,
                        "{isa:?} {activation:?} {g}"
                    );
                    assert!((f64::from(out.values()[i]) - 2.0 * expected).abs() < 2.0 * limit);
                }
            }
        }
    }
}
