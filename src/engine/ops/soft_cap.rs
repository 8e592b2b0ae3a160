//! soft_cap: x = cap * tanh(x / cap), Gemma 2's bound on logits.

use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

use super::{VectorOp, for_row_chunks, map_in_place};

/// Bounds every value of `x` to (-cap, cap), in place.
pub fn soft_cap(device: &Device, cap: f32, x: &mut Tensor) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let num_values = num_rows * width;
            let mut args = Args::new();
            args.tensor(x).f32(cap).u64(num_values as u64);
            return gpu.launch_over(num_values, ("soft_cap", "soft_cap"), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("soft_cap"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        // SAFETY: each chunk of rows belongs to one item.
        let values = unsafe { shared.slice(start * width, (end - start) * width) };
        dispatch(cpu.isa, Cap { cap, values });
    });
}

struct Cap<'a> {
    cap: f32,
    values: &'a mut [f32],
}

impl Kernel for Cap<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU.
        unsafe { map_in_place::<V>(self.values, Capped(self.cap)) };
    }
}

#[derive(Clone, Copy)]
struct Capped(f32);

impl<V: Vector> VectorOp<V> for Capped {
    #[inline(always)]
    unsafe fn apply(&self, x: V, _: V) -> V {
        capped(x, self.0)
    }
}

/// cap * tanh(x / cap) of one vector; called from dispatched kernels only.
#[inline(always)]
pub(super) fn capped<V: Vector>(x: V, cap: f32) -> V {
    // SAFETY: the callers are kernels, which run only on a CPU that has V's instructions.
    unsafe { x.div(V::splat(cap)).tanh().mul(V::splat(cap)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::InstructionSet;
    use vllm_batch_device::simd::Isa;

    #[test]
    fn agrees_with_f64() {
        for isa in Isa::all_available() {
            let values: Vec<f32> = (0..300).map(|i| (i as f32 - 150.0) * 0.7).collect();
            let mut x = Tensor::from_vec(values.clone(), 100);
            soft_cap(&Device::cpu_with_isa(1, isa), 30.0, &mut x);
            for (capped, value) in x.values().iter().zip(&values) {
                let expected = 30.0 * (f64::from(*value) / 30.0).tanh();
                assert!((f64::from(*capped) - expected).abs() < 1e-5);
            }
        }
    }
}
