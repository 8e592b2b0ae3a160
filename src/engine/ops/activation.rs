//! Activations of the MLP: plain, or gated (`silu_and_mul` and its kin).

use vllm_batch_base::layers::Activation;
use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

use super::shared_rows::SharedRows;
use super::{VectorOp, for_row_chunks, gpu_row_block, map_in_place, map2_in_place};

/// Values that are activated before they go to their place: they stay in the first cache.
const CHUNK: usize = 512;

/// Number in kernels/activation.cuh, and the parameters for kernels.
pub(super) fn in_kernels(activation: Activation) -> (u32, [f32; 4]) {
    match activation {
        Activation::Silu => (0, [0.0; 4]),
        Activation::GeluTanh => (1, [0.0; 4]),
        Activation::Gelu => (2, [0.0; 4]),
        Activation::Relu => (3, [0.0; 4]),
        Activation::Relu2 => (4, [0.0; 4]),
        Activation::XIelu { alpha_p, alpha_n, beta, eps } => (5, [alpha_p, alpha_n, beta, eps]),
        Activation::ClampedSwiGlu { alpha, limit } => (6, [alpha, limit, 0.0, 0.0]),
        Activation::ScaledSilu(factor) => (7, [factor, 0.0, 0.0, 0.0]),
        Activation::QuickGelu => (8, [0.0; 4]),
        Activation::BoundedSilu(limit) => (9, [0.0, limit, 0.0, 0.0]),
    }
}

fn append_to(activation: Activation, args: &mut Args) {
    let (kind, parameters) = in_kernels(activation);
    args.u32(kind).value(parameters);
}

/// x = f(x), in place.
pub fn activate(device: &Device, activation: Activation, x: &mut Tensor) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            assert!(!activation.is_of_gates(), "this activation is one of gates");
            let num_values = num_rows * width;
            let mut args = Args::new();
            append_to(activation, args.tensor(x).u64(num_values as u64));
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
                    assert!(!activation.is_of_gates(), "experts have no E4M3 values");
                    args.ptr(scales);
                    ("activate_and_mul_fp8", 1, gpu_row_block(width, 64).min(448))
                }
            };
            append_to(activation, args.u32(width as u32));
            let grid = [num_rows as u32, columns as u32];
            return gpu.launch(("activation", entry), grid, (block, 0), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 12);
    let _timed = cpu.op_timer.timed(Op::new("activate_and_mul"), work);
    let shared = SharedRows::of(out);
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        let mut chunk = [0.0f32; CHUNK];
        for row in start..end {
            let (gate, up) = gate_up.row(row).split_at(width);
            for column in (0..width).step_by(CHUNK) {
                let columns = column..(column + CHUNK).min(width);
                let chunk = &mut chunk[..columns.len()];
                chunk.copy_from_slice(&gate[columns.clone()]);
                mul_by_activated(cpu.isa, activation, chunk, &up[columns]);
                // SAFETY: each row belongs to one item.
                unsafe { shared.put((row, column), chunk) };
            }
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

/// gate = f(gate) * up.
pub(super) fn mul_by_activated(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    dispatch(isa, Gated { activation, gate, up });
}

struct Gated<'a> {
    activation: Activation,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Gated<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { activation, gate, up } = self;
        // SAFETY: dispatched for this CPU.
        unsafe { map2_in_place::<V>(gate, up, ActivateAndMul(activation)) };
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

#[derive(Clone, Copy)]
struct ActivateAndMul(Activation);

impl<V: Vector> VectorOp<V> for ActivateAndMul {
    #[inline(always)]
    unsafe fn apply(&self, gate: V, up: V) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let up = match self.0 {
                Activation::ClampedSwiGlu { limit, .. } => {
                    let bounded = V::splat(limit).min(V::splat(-limit).max(up));
                    V::splat(1.0).add(bounded)
                }
                Activation::BoundedSilu(limit) => V::splat(limit).min(V::splat(-limit).max(up)),
                _ => up,
            };
            apply(self.0, gate).mul(up)
        }
    }
}

/// One vector; only called from kernels that were dispatched for this CPU.
#[inline(always)]
pub(super) fn apply<V: Vector>(activation: Activation, x: V) -> V {
    // SAFETY: the callers are kernels, which run only on a CPU that has V's instructions.
    unsafe {
        let (one, half) = (V::splat(1.0), V::splat(0.5));
        match activation {
            Activation::Silu => x.div(one.add(V::splat(0.0).sub(x).exp())),
            Activation::ScaledSilu(factor) => {
                let x = x.mul(V::splat(factor));
                x.div(one.add(V::splat(0.0).sub(x).exp()))
            }
            Activation::QuickGelu => x.div(one.add(V::splat(-1.702).mul(x).exp())),
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
            Activation::Relu2 => {
                let positive = V::splat(0.0).max(x);
                positive.mul(positive)
            }
            Activation::XIelu { alpha_p, alpha_n, beta, eps } => {
                let zero = V::splat(0.0);
                // 0 where x is not positive, so that the sides add up.
                let positive = zero.max(x);
                let positive = V::splat(alpha_p).mul(positive).mul(positive);
                let negative = V::splat(eps).min(x).exp_m1().sub(x).mul(V::splat(alpha_n));
                let negative = zero.sub(x).zero_below(zero, negative);
                positive.add(negative).add(V::splat(beta).mul(x))
            }
            Activation::ClampedSwiGlu { alpha, limit } => {
                let x = V::splat(limit).min(x);
                x.div(one.add(V::splat(-alpha).mul(x).exp()))
            }
            Activation::BoundedSilu(limit) => {
                V::splat(limit).min(x.div(one.add(V::splat(0.0).sub(x).exp())))
            }
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
    use vllm_batch_device::simd::InstructionSet;
    use vllm_batch_device::simd::Isa;

    fn reference(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::ScaledSilu(factor) => {
                let x = x * f64::from(factor);
                x / (1.0 + (-x).exp())
            }
            Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
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
            Activation::Relu2 => x.max(0.0).powi(2),
            Activation::XIelu { alpha_p, alpha_n, beta, eps } => {
                let [alpha_p, alpha_n, beta, eps] = [alpha_p, alpha_n, beta, eps].map(f64::from);
                match x > 0.0 {
                    true => alpha_p * x * x + beta * x,
                    false => (x.min(eps).exp_m1() - x) * alpha_n + beta * x,
                }
            }
            Activation::ClampedSwiGlu { alpha, limit } => {
                let x = x.min(f64::from(limit));
                x / (1.0 + (-f64::from(alpha) * x).exp())
            }
            Activation::BoundedSilu(limit) => (x / (1.0 + (-x).exp())).min(f64::from(limit)),
        }
    }

    fn all() -> [Activation; 10] {
        [
            Activation::Silu,
            Activation::ScaledSilu(0.6),
            Activation::QuickGelu,
            Activation::GeluTanh,
            Activation::Gelu,
            Activation::Relu,
            Activation::Relu2,
            Activation::xielu(0.3, -0.7, 0.5, -1e-6),
            Activation::ClampedSwiGlu { alpha: 1.702, limit: 1.5 },
            Activation::BoundedSilu(1.5),
        ]
    }

    #[test]
    fn agree_with_f64_plain_and_gated_on_every_path() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            for activation in all() {
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
                    let up = match activation {
                        // 1 and the bound of 2.
                        Activation::ClampedSwiGlu { .. } => 1.0 + 1.5,
                        Activation::BoundedSilu(limit) => f64::from(limit),
                        _ => 2.0,
                    };
                    assert!((f64::from(out.values()[i]) - up * expected).abs() < up * limit);
                }
            }
        }
    }

    #[test]
    fn xielu_is_that_of_transformers() {
        // `XIELUActivation` of transformers 5.23 with alpha_p 0.3 and alpha_n -0.7 stored, in f32.
        let expected = [
            (-20.0, 7.160_536),
            (-3.5, 0.535_239),
            (-1.0, -0.167_736_41),
            (-0.25, -0.098_987_535),
            (-0.01, -0.004_954_990_5),
            (-1e-4, -4.999_548_4e-5),
            (-1e-7, -8.628_67e-7),
            (0.0, -9.031_856_5e-7),
            (1e-7, 5.000_001e-8),
            (1e-3, 5.008_544e-4),
            (0.5, 0.463_588_83),
            (2.0, 4.417_421_3),
            (17.0, 255.408_66),
        ];
        let xielu = Activation::xielu(0.3, -0.7, 0.5, -1e-6);
        let mut x = Tensor::from_vec(expected.map(|(x, _): (f32, f32)| x).to_vec(), expected.len());
        activate(&Device::cpu(Some(1)), xielu, &mut x);
        for ((x, expected), got) in expected.iter().zip(x.values()) {
            assert!((got - expected).abs() <= 1e-6 * expected.abs(), "xielu({x}) is {got}");
        }
        let large = Activation::xielu(100.0, 100.0, 0.5, -1e-6);
        let expected = Activation::XIelu { alpha_p: 100.0, alpha_n: 100.5, beta: 0.5, eps: -1e-6 };
        assert_eq!(large, expected, "softplus of what is large is itself");
    }
}
