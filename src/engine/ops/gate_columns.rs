//! gate_columns and gate_heads: values times a function of others in the same row, in place.

use super::{GPU_BLOCK, VectorOp, for_row_chunks, map_in_place, map2_in_place};
use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

/// Factor of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The gate itself.
    Plain,
    /// 1 / (1 + e^-gate)
    Sigmoid,
    /// gate / (1 + e^-gate)
    Silu,
    /// ln(1 + e^gate)
    Softplus,
}

/// x *= f(gate), where the gates of a row's values are as many columns of the same row of `gates`,
/// from column `start` on.
///
/// # Panics
/// Numbers of rows differ, or the columns are not there.
pub fn gate_columns(device: &Device, x: &mut Tensor, gates: (&Tensor, usize), gate: Gate) {
    gate_heads(device, x, gates, (gate, 1));
}

/// The same where as many values beside each other as a head has share a gate.
///
/// # Panics
/// Rows are not of whole heads; or as [`gate_columns`].
pub fn gate_heads(
    device: &Device,
    x: &mut Tensor,
    (gates, start): (&Tensor, usize),
    (gate, head_dim): (Gate, usize),
) {
    let (num_rows, width) = (x.num_rows(), x.width());
    assert!(width.is_multiple_of(head_dim), "{width} values, in heads of {head_dim}");
    let num_gates = width / head_dim;
    assert!(gates.num_rows() == num_rows && start + num_gates <= gates.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            assert_eq!(x.dtype(), gates.dtype());
            let kind = match gate {
                Gate::Plain => 0,
                Gate::Sigmoid => 1,
                Gate::Silu => 2,
                Gate::Softplus => 3,
            };
            let mut args = Args::new();
            args.tensor(x).tensor(gates).dims([gates.width(), start, width, head_dim]).u32(kind);
            let grid = [num_rows as u32, width.div_ceil(GPU_BLOCK as usize * 16) as u32];
            return gpu.launch(("columns", "gate_columns"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 12);
    let _timed = cpu.op_timer.timed(Op::new("gate_columns"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|first, end| {
        for row in first..end {
            // SAFETY: each row belongs to one item.
            let values = unsafe { shared.slice(row * width, width) };
            let gates = &gates.row(row)[start..start + num_gates];
            dispatch(cpu.isa, GateRow { gate, head_dim, values, gates });
        }
    });
}

struct GateRow<'a> {
    gate: Gate,
    head_dim: usize,
    values: &'a mut [f32],
    gates: &'a [f32],
}

impl Kernel for GateRow<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { gate, head_dim, values, gates } = self;
        if head_dim == 1 {
            // SAFETY: dispatched for this CPU.
            return unsafe { map2_in_place::<V>(values, gates, Gated(gate)) };
        }
        for (values, of_head) in values.chunks_mut(head_dim).zip(gates) {
            // SAFETY: dispatched for this CPU.
            unsafe { map_in_place::<V>(values, GatedBy { gate, of_head: *of_head }) };
        }
    }
}

/// All values by one gate.
#[derive(Clone, Copy)]
struct GatedBy {
    gate: Gate,
    of_head: f32,
}

impl<V: Vector> VectorOp<V> for GatedBy {
    #[inline(always)]
    unsafe fn apply(&self, value: V, _: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { Gated(self.gate).apply(value, V::splat(self.of_head)) }
    }
}

#[derive(Clone, Copy)]
struct Gated(Gate);

impl<V: Vector> VectorOp<V> for Gated {
    #[inline(always)]
    unsafe fn apply(&self, value: V, gate: V) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match self.0 {
                Gate::Plain => value.mul(gate),
                Gate::Sigmoid => value.mul(gate.sigmoid()),
                Gate::Silu => value.mul(gate.mul(gate.sigmoid())),
                Gate::Softplus => value.mul(gate.softplus()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::isa::Isa;
    use vllm_batch_base::matrix::SourceMatrix;
    use vllm_batch_device::simd::InstructionSet;

    #[test]
    fn each_value_is_multiplied_by_its_own_gate() {
        let (values, gates) = (SourceMatrix::random(3, 70, 1, 2.0), 90);
        let gates = Tensor::from_vec(SourceMatrix::random(3, gates, 2, 4.0).to_vec(), gates);
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            let kinds = [Gate::Plain, Gate::Sigmoid, Gate::Silu, Gate::Softplus];
            for (gate, head_dim) in kinds.into_iter().flat_map(|gate| [(gate, 1), (gate, 14)]) {
                let before = Tensor::from_vec(values.to_vec(), 70);
                let mut x = Tensor::from_vec(values.to_vec(), 70);
                gate_heads(&device, &mut x, (&gates, 13), (gate, head_dim));
                for (row, column) in (0..3).flat_map(|row| (0..70).map(move |c| (row, c))) {
                    let by = f64::from(gates.row(row)[13 + column / head_dim]);
                    let sigmoid = 1.0 / (1.0 + (-by).exp());
                    let factor = match gate {
                        Gate::Plain => by,
                        Gate::Sigmoid => sigmoid,
                        Gate::Silu => by * sigmoid,
                        Gate::Softplus => by.exp().ln_1p(),
                    };
                    let expected = f64::from(before.row(row)[column]) * factor;
                    let got = f64::from(x.row(row)[column]);
                    assert!((got - expected).abs() < 1e-6, "{isa:?} {gate:?}: {got}, {expected}");
                }
            }
        }
    }
}
