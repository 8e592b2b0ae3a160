//! Gates of the delta rule: decay of a state, and weight of a token in it.

use crate::{VectorOp, WeightValues, for_row_chunks, map_in_place};
use vllm_batch_base::EngineError;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, Tensor};

/// Weights that turn the model's outputs into gates of heads.
#[derive(Debug)]
pub struct DeltaGateWeights {
    /// (num_heads) how fast a head forgets.
    pub(super) rates: WeightValues,
    /// (num_heads)
    pub(super) bias: WeightValues,
}

impl DeltaGateWeights {
    /// From the logarithms of the rates, and the bias of a token's own.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    ///
    /// # Panics
    /// There are not as many of each.
    pub fn new(device: &Device, a_log: &[f32], bias: Vec<f32>) -> Result<Self, EngineError> {
        assert_eq!(a_log.len(), bias.len());
        let rates = a_log.iter().map(|log| log.exp()).collect();
        let held = |values| WeightValues::on_device(device, values);
        Ok(Self { rates: held(rates)?, bias: held(bias)? })
    }

    pub(super) fn num_heads(&self) -> usize {
        self.rates.host().len()
    }
}

/// Columns of x from `first` on are b and then a of all heads. They become beta = sigmoid(b) and
/// decay = e^(-rate * softplus(a + bias)), in place.
///
/// # Panics
/// There are fewer columns.
pub(super) fn open_gates(cpu: &Cpu, (x, first): (&mut Tensor, usize), weights: &DeltaGateWeights) {
    let (num_rows, stride, width) = (x.num_rows(), x.width(), 2 * weights.num_heads());
    assert!(first + width <= stride);
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("delta_gates"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            gate_row(cpu.isa, weights, unsafe { shared.slice(row * stride + first, width) });
        }
    });
}

fn gate_row(isa: Isa, weights: &DeltaGateWeights, row: &mut [f32]) {
    let (rates, bias) = (weights.rates.host(), weights.bias.host());
    let (beta, decay) = row.split_at_mut(rates.len());
    dispatch(isa, Each { function: Function::Sigmoid, values: beta });
    decay.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    dispatch(isa, Each { function: Function::Softplus, values: decay });
    decay.iter_mut().zip(rates).for_each(|(value, rate)| *value *= -rate);
    dispatch(isa, Each { function: Function::Exp, values: decay });
}

/// Function of every value.
#[derive(Clone, Copy)]
enum Function {
    Sigmoid,
    Softplus,
    Exp,
}

struct Each<'a> {
    function: Function,
    values: &'a mut [f32],
}

impl Kernel for Each<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU.
        unsafe { map_in_place::<V>(self.values, self.function) };
    }
}

impl<V: Vector> VectorOp<V> for Function {
    #[inline(always)]
    unsafe fn apply(&self, x: V, _: V) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Function::Sigmoid => x.sigmoid(),
                Function::Softplus => x.softplus(),
                Function::Exp => x.exp(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::matrix::SourceMatrix;
    use vllm_batch_device::simd::InstructionSet;

    #[test]
    fn gates_agree_with_f64_on_every_instruction_set() {
        const HEADS: usize = 19;
        const FIRST: usize = 3;
        const WIDTH: usize = FIRST + 2 * HEADS + 1;
        let of_heads = |seed| SourceMatrix::random(1, HEADS, seed, 1.5).to_vec();
        let (a_log, bias) = (of_heads(1), of_heads(2));
        let before = Tensor::from_vec(SourceMatrix::random(5, WIDTH, 3, 3.0).to_vec(), WIDTH);
        for isa in Isa::all_available() {
            let mut x = Tensor::from_vec(before.values().to_vec(), WIDTH);
            let device = Device::cpu_with_isa(2, isa);
            let weights = DeltaGateWeights::new(&device, &a_log, bias.clone()).unwrap();
            let Device::Cpu(cpu) = &device else { unreachable!() };
            open_gates(cpu, (&mut x, FIRST), &weights);
            for (row, head) in (0..5).flat_map(|row| (0..HEADS).map(move |head| (row, head))) {
                let (was, is) = (&before.row(row)[FIRST..], &x.row(row)[FIRST..]);
                assert_eq!(is[2 * HEADS], was[2 * HEADS], "columns behind");
                let (b, a) = (was[head], was[HEADS + head]);
                let beta = 1.0 / (1.0 + f64::from(-b).exp());
                assert!((f64::from(is[head]) - beta).abs() < 1e-7, "{isa:?} beta");
                let rate = f64::from(a_log[head]).exp();
                let softplus = f64::from(a + bias[head]).exp().ln_1p();
                let decay = (-rate * softplus).exp();
                let got = f64::from(is[HEADS + head]);
                assert!((got - decay).abs() < 1e-6, "{isa:?} decay: {got}, not {decay}");
            }
        }
    }
}
