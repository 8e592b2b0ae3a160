//! causal_conv: a causal convolution over a few tokens, column by column.
//!
//! Its state is what it needs of the tokens before: the last inputs. Sums run over the tokens
//! upward, from zeros before the first one, whatever the step holds of them.

use std::ops::Range;

use super::activation::{apply, in_kernels};
use super::lanes::{load_lanes, store_lanes};
use super::recurrent_step::{launch_over_runs, states_kernel};
use crate::{RecurrentStep, Step, WeightValues};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::kv_cache::StateLayerMut;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Gpu, Tensor};

/// Weights of a causal convolution.
#[derive(Debug)]
pub struct ConvTaps {
    width: usize,
    /// (taps, width), that of the oldest token first.
    values: WeightValues,
    /// (width)
    bias: WeightValues,
}

/// Columns of rows that a convolution is over, and what is done around it.
#[derive(Clone, Copy, Debug)]
pub struct ConvColumns {
    /// First column of its inputs. Outputs take their place.
    pub first: usize,
    /// First columns of what inputs, and of what outputs are multiplied by (LFM2).
    pub gates: Option<[usize; 2]>,
    /// Activation of the outputs.
    pub activation: Option<Activation>,
}

/// Columns of an item: its inputs are in one piece of the state.
const TILE: usize = 128;

impl ConvTaps {
    /// From (width, taps) values as `torch.nn.Conv1d` stores them, and (width) biases.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    ///
    /// # Panics
    /// Lengths do not fit each other.
    pub fn new(
        device: &Device,
        width: usize,
        stored: &[f32],
        bias: Option<Vec<f32>>,
    ) -> Result<Self, EngineError> {
        assert!(stored.len().is_multiple_of(width));
        let bias = bias.unwrap_or_else(|| vec![0.0; width]);
        assert_eq!(bias.len(), width);
        let num_taps = stored.len() / width;
        let value = |index: usize| stored[index % width * num_taps + index / width];
        let values = (0..stored.len()).map(value).collect();
        let values = WeightValues::on_device(device, values)?;
        Ok(Self { width, values, bias: WeightValues::on_device(device, bias)? })
    }

    /// Tokens that a sum is over.
    fn num_taps(&self) -> usize {
        self.values.host().len() / self.width
    }

    /// Those before the own one.
    fn num_before(&self) -> usize {
        self.num_taps() - 1
    }

    /// Values of a state that are its own: the first ones.
    pub fn state_len(&self) -> usize {
        self.num_before() * self.width
    }
}

/// The columns of every row = f(sum over the last tokens of tap * column), where the tokens before
/// those of the step are in `states`. Of a state it has (tiles, taps - 1, columns of a tile).
///
/// # Panics
/// Columns or states are too few.
pub fn causal_conv(
    device: &Device,
    (x, step): (&mut Tensor, Step<'_>),
    taps: &ConvTaps,
    states: StateLayerMut<'_>,
    columns: ConvColumns,
) {
    let (num_rows, stride, width) = (x.num_rows(), x.width(), taps.width);
    let ConvColumns { first, gates, .. } = columns;
    let firsts = gates.into_iter().flatten().chain([first]);
    assert!(firsts.map(|first| first + width).all(|end| end <= stride));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, (x, step), taps, &states, columns),
    };
    let work = || Work {
        flops: 2.0 * (num_rows * taps.num_taps() * width) as f64,
        bytes: (num_rows * width * 2 * size_of::<f32>()) as f64,
    };
    let _timed = cpu.op_timer.timed(Op::new("causal_conv"), work);
    let recurrent = RecurrentStep::new(step, states);
    let x = SharedMut::new(x.values_mut());
    cpu.pool.run(width.div_ceil(TILE), &|_, tile| {
        let tile = tile * TILE..width.min((tile + 1) * TILE);
        let part = tile.start * taps.num_before()..tile.end * taps.num_before();
        let mut run = |rows: Range<usize>, state: &mut [f32]| {
            let (state, tile) = (SharedMut::new(state), tile.clone());
            dispatch(cpu.isa, Conv { x, stride, rows, state, taps, tile, columns });
        };
        // SAFETY: tiles have no columns in common, of rows or of states.
        unsafe { recurrent.for_each_run(part, &mut run) };
    });
}

/// `struct Conv` of kernels/causal_conv.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct ConvArg {
    taps: DevicePtr,
    bias: DevicePtr,
    width: u32,
    stride: u32,
    first: u32,
    has_gates: u32,
    input_gates: u32,
    output_gates: u32,
    has_activation: u32,
    activation: u32,
}

fn on_gpu(
    gpu: &Gpu,
    (x, step): (&Tensor, Step<'_>),
    taps: &ConvTaps,
    states: &StateLayerMut<'_>,
    columns: ConvColumns,
) {
    assert!(taps.state_len() <= states.width);
    let ConvColumns { first, gates, activation } = columns;
    assert!(!activation.is_some_and(Activation::is_of_gates), "one of gates");
    let [input_gates, output_gates] = gates.unwrap_or_default().map(|first| first as u32);
    let (kind, parameters) = activation.map_or((0, [0.0; 4]), in_kernels);
    let conv = ConvArg {
        taps: taps.values.device_ptr(),
        bias: taps.bias.device_ptr(),
        width: taps.width as u32,
        stride: x.width() as u32,
        first: first as u32,
        has_gates: u32::from(gates.is_some()),
        input_gates,
        output_gates,
        has_activation: u32::from(activation.is_some()),
        activation: kind,
    };
    let kernel = states_kernel(("causal_conv", "causal_conv"), taps.num_taps());
    let num_tiles = taps.width.div_ceil(TILE);
    launch_over_runs(gpu, kernel, num_tiles, (step, states), |args: &mut Args, states| {
        args.tensor(x).value(states).value(conv).value(parameters);
    });
}

/// Some columns of rows that follow each other.
struct Conv<'a> {
    /// (rows, stride)
    x: SharedMut<f32>,
    stride: usize,
    rows: Range<usize>,
    /// (taps - 1, columns of the tile) the inputs before these rows, the oldest first.
    state: SharedMut<f32>,
    taps: &'a ConvTaps,
    /// Columns of the convolution.
    tile: Range<usize>,
    columns: ConvColumns,
}

impl Kernel for Conv<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU; nobody else touches the tile's columns.
        unsafe {
            for row in self.rows.clone() {
                for column in self.tile.clone().step_by(V::LANES) {
                    self.token::<V>(row * self.stride, column);
                }
            }
        }
    }
}

impl Conv<'_> {
    /// One row, which begins at `row`; the columns of a vector.
    ///
    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    unsafe fn token<V: Vector>(&self, row: usize, column: usize) {
        let Self { x, state, taps, tile, columns, .. } = self;
        let (width, in_tile) = (taps.width, tile.len());
        let len = V::LANES.min(tile.end - column);
        let at = |first: usize| x.ptr(row + first + column, len);
        // SAFETY: columns of the tile, of the row, the weights and the state.
        unsafe {
            let mut input: V = load_lanes(at(columns.first), len);
            if let Some([gate, _]) = columns.gates {
                input = input.mul(load_lanes(at(gate), len));
            }
            let mut sum: V = load_lanes(taps.bias.host().as_ptr().add(column), len);
            let num_before = taps.num_before();
            let state = |tap: usize| state.ptr(tap * in_tile + column - tile.start, len);
            let weights = taps.values.host().as_ptr().add(column);
            for tap in 0..num_before {
                let before: V = load_lanes(state(tap), len);
                sum = before.mul_add(load_lanes(weights.add(tap * width), len), sum);
                if tap > 0 {
                    store_lanes(before, state(tap - 1), len);
                }
            }
            sum = input.mul_add(load_lanes(weights.add(num_before * width), len), sum);
            if num_before > 0 {
                store_lanes(input, state(num_before - 1), len);
            }
            if let Some(activation) = columns.activation {
                sum = apply(activation, sum);
            }
            if let Some([_, gate]) = columns.gates {
                sum = sum.mul(load_lanes(at(gate), len));
            }
            store_lanes(sum, at(columns.first), len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::recurrent_step::testing::{Part, check, rows_of};
    use vllm_batch_base::matrix::SourceMatrix;

    /// More than a tile, and no multiple of a vector.
    const WIDTH: usize = 131;

    fn stored(num_taps: usize) -> Vec<f32> {
        SourceMatrix::random(WIDTH, num_taps, 1, 1.0).to_vec()
    }

    fn expected(num_taps: usize, bcx: &[f32]) -> Vec<f64> {
        let stored = stored(num_taps);
        let at = |token: usize, column: usize| f64::from(bcx[token * 3 * WIDTH + column]);
        let output = |token: usize, column: usize| {
            let input = |before: usize| match token.checked_sub(before) {
                None => 0.0,
                Some(token) => at(token, column) * at(token, 2 * WIDTH + column),
            };
            let weight = |tap: usize| f64::from(stored[column * num_taps + tap]);
            let sum: f64 = (0..num_taps).map(|tap| weight(tap) * input(num_taps - 1 - tap)).sum();
            let sum = sum + 0.25;
            at(token, WIDTH + column) * sum / (1.0 + (-sum).exp())
        };
        let tokens = 0..bcx.len() / (3 * WIDTH);
        tokens.flat_map(|token| (0..WIDTH).map(move |column| output(token, column))).collect()
    }

    #[test]
    fn agrees_with_a_naive_loop_and_bits_do_not_depend_on_chunks() {
        let device = Device::cpu(Some(2));
        for num_taps in [1, 2, 3, 4] {
            let bias = Some(vec![0.25; WIDTH]);
            let taps = ConvTaps::new(&device, WIDTH, &stored(num_taps), bias).unwrap();
            // The last value of a state is another op's.
            let run = |batch: &Batch, parts: &[Part<'_>], states: StateLayerMut<'_>| {
                let mut bcx = Tensor::from_vec(rows_of(parts, 3 * WIDTH), 3 * WIDTH);
                let columns = ConvColumns {
                    first: 2 * WIDTH,
                    gates: Some([0, WIDTH]),
                    activation: Some(Activation::Silu),
                };
                causal_conv(&device, (&mut bcx, Step::on_host(batch)), &taps, states, columns);
                let outputs = bcx.values().chunks_exact(3 * WIDTH);
                outputs.flat_map(|row| row[2 * WIDTH..].to_vec()).collect()
            };
            let whole = check(taps.state_len() + 1, &run);
            let part = Part { seed: 0, first: 0, end: 50, table: &[] };
            let bcx = rows_of(&[part], 3 * WIDTH);
            for (got, expected) in whole.iter().zip(expected(num_taps, &bcx)) {
                assert!((f64::from(*got) - expected).abs() < 1e-5, "{got}, not {expected}");
            }
        }
    }
}
