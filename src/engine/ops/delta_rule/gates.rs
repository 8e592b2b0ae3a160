//! Gates of the delta rule: decay of a state, or of each of its rows, and weight of a token in it.

use crate::{VectorOp, WeightValues, for_row_chunks, map_in_place};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Decay, DecayForm};
use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, Tensor};

/// Weights that turn the model's outputs into gates of heads.
#[derive(Debug)]
pub struct DeltaGateWeights {
    /// (num_heads) how fast a head forgets.
    pub(super) rates: WeightValues,
    /// (num_heads), or (num_heads, k_dim) if each row of a state decays.
    pub(super) bias: WeightValues,
    /// What decays.
    pub(super) decay: Decay,
    /// Factor of a token's weight: 2 lets it turn what the state knows of a key (OLMo Hybrid).
    pub(super) beta_factor: f32,
}

impl DeltaGateWeights {
    /// From the logarithms of the rates, and the bias of a token's own.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    ///
    /// # Panics
    /// There are not as many of each, or of the rows of each.
    pub fn new(
        device: &Device,
        (a_log, bias): (&[f32], Vec<f32>),
        (decay, beta_factor): (Decay, f32),
    ) -> Result<Self, EngineError> {
        match decay {
            Decay::OfHeads => assert_eq!(a_log.len(), bias.len()),
            Decay::OfRows(_) => assert!(bias.len().is_multiple_of(a_log.len())),
        }
        let rates = a_log.iter().map(|log| log.exp()).collect();
        let held = |values| WeightValues::on_device(device, values);
        Ok(Self { rates: held(rates)?, bias: held(bias)?, decay, beta_factor })
    }

    pub(super) fn num_heads(&self) -> usize {
        self.rates.host().len()
    }
}

/// Columns of x from `first` on are b, and then a of all heads if these decay. They become beta =
/// factor * sigmoid(b) and decay = e^(-rate * softplus(a + bias)), in place.
///
/// # Panics
/// There are fewer columns.
pub(super) fn open_gates(cpu: &Cpu, (x, first): (&mut Tensor, usize), weights: &DeltaGateWeights) {
    let num_kinds = if weights.decay == Decay::OfHeads { 2 } else { 1 };
    let (num_rows, stride, width) = (x.num_rows(), x.width(), num_kinds * weights.num_heads());
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
    if weights.beta_factor != 1.0 {
        beta.iter_mut().for_each(|value| *value *= weights.beta_factor);
    }
    // Empty where rows decay.
    decay.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    dispatch(isa, Each { function: Function::Softplus, values: decay });
    decay.iter_mut().zip(rates).for_each(|(value, rate)| *value *= -rate);
    dispatch(isa, Each { function: Function::Exp, values: decay });
}

/// out (num_tokens, num_heads * k_dim) = how much of each row of the heads' states a token leaves,
/// from as many columns of x from `first` on. In f32 on every device: a model's dtype is too narrow
/// for a decay near 1.
///
/// # Panics
/// States decay as a whole, or columns are too few.
pub fn delta_decays(
    device: &Device,
    (x, first): (&Tensor, usize),
    weights: &DeltaGateWeights,
    out: &mut Tensor,
) {
    let Decay::OfRows(form) = weights.decay else { panic!("states decay as a whole") };
    let (rates, bias) = (weights.rates.host(), weights.bias.host());
    let (num_rows, width) = (x.num_rows(), bias.len());
    assert!(first + width <= x.width());
    out.reshape(num_rows, width);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let num_values = num_rows * width;
            let bound = match form {
                DecayForm::Softplus => 0.0,
                DecayForm::Bounded(bound) => bound,
            };
            let mut args = Args::new();
            args.tensor(x).tensor(out);
            args.ptr(weights.rates.device_ptr()).ptr(weights.bias.device_ptr());
            args.dims([x.width(), first, width, width / rates.len()]);
            args.f32(bound).u64(num_values as u64);
            return gpu.launch_over(num_values, ("elementwise", "delta_decays"), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("delta_decays"), work);
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let out = unsafe { shared.slice(row * width, width) };
            out.copy_from_slice(&x.row(row)[first..first + width]);
            decay_row(cpu.isa, (rates, bias), form, out);
        }
    });
}

fn decay_row(isa: Isa, (rates, bias): (&[f32], &[f32]), form: DecayForm, row: &mut [f32]) {
    let k_dim = bias.len() / rates.len();
    let scale = |row: &mut [f32], factor: f32| {
        for (head, rate) in row.chunks_exact_mut(k_dim).zip(rates) {
            head.iter_mut().for_each(|value| *value *= factor * rate);
        }
    };
    row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    match form {
        DecayForm::Softplus => {
            dispatch(isa, Each { function: Function::Softplus, values: row });
            scale(row, -1.0);
        }
        DecayForm::Bounded(bound) => {
            scale(row, 1.0);
            dispatch(isa, Each { function: Function::Sigmoid, values: row });
            row.iter_mut().for_each(|value| *value *= bound);
        }
    }
    dispatch(isa, Each { function: Function::Exp, values: row });
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
            let form = (Decay::OfHeads, 2.0);
            let values = (&a_log[..], bias.clone());
            let weights = DeltaGateWeights::new(&device, values, form).unwrap();
            let Device::Cpu(cpu) = &device else { unreachable!() };
            open_gates(cpu, (&mut x, FIRST), &weights);
            for (row, head) in (0..5).flat_map(|row| (0..HEADS).map(move |head| (row, head))) {
                let (was, is) = (&before.row(row)[FIRST..], &x.row(row)[FIRST..]);
                assert_eq!(is[2 * HEADS], was[2 * HEADS], "columns behind");
                let (b, a) = (was[head], was[HEADS + head]);
                let beta = 2.0 / (1.0 + f64::from(-b).exp());
                assert!((f64::from(is[head]) - beta).abs() < 2e-7, "{isa:?} beta");
                let rate = f64::from(a_log[head]).exp();
                let softplus = f64::from(a + bias[head]).exp().ln_1p();
                let decay = (-rate * softplus).exp();
                let got = f64::from(is[HEADS + head]);
                assert!((got - decay).abs() < 1e-6, "{isa:?} decay: {got}, not {decay}");
            }
        }
    }

    #[test]
    fn decays_of_rows_agree_with_f64_on_every_instruction_set() {
        const HEADS: usize = 3;
        const K_DIM: usize = 7;
        const FIRST: usize = 2;
        const WIDTH: usize = FIRST + HEADS * K_DIM + 1;
        let of = |num, seed| SourceMatrix::random(1, num, seed, 1.5).to_vec();
        let (a_log, bias) = (of(HEADS, 1), of(HEADS * K_DIM, 2));
        let x = Tensor::from_vec(SourceMatrix::random(5, WIDTH, 3, 3.0).to_vec(), WIDTH);
        for (isa, form) in Isa::all_available()
            .into_iter()
            .flat_map(|isa| [DecayForm::Softplus, DecayForm::Bounded(-5.0)].map(|form| (isa, form)))
        {
            let device = Device::cpu_with_isa(2, isa);
            let values = (&a_log[..], bias.clone());
            let weights = DeltaGateWeights::new(&device, values, (Decay::OfRows(form), 1.0));
            let mut out = Tensor::zeros(5, HEADS * K_DIM);
            delta_decays(&device, (&x, FIRST), &weights.unwrap(), &mut out);
            for (row, place) in (0..5).flat_map(|row| (0..HEADS * K_DIM).map(move |i| (row, i))) {
                let a = f64::from(x.row(row)[FIRST + place]) + f64::from(bias[place]);
                let rate = f64::from(a_log[place / K_DIM]).exp();
                let log = match form {
                    DecayForm::Softplus => -rate * a.exp().ln_1p(),
                    DecayForm::Bounded(bound) => f64::from(bound) / (1.0 + (-rate * a).exp()),
                };
                let (got, expected) = (f64::from(out.row(row)[place]), log.exp());
                assert!((got - expected).abs() < 1e-6, "{isa:?} {form:?}: {got}, not {expected}");
            }
        }
    }
}
