//! selective_scan: the recurrence of Mamba 1 (Gu and Dao, 2023), token by token.
//!
//! Of every channel: h = e^(dt A) h + dt x B, y = C h + D x, where h, A, B and C have the values of
//! a state, and x and dt are the channel's own. Sums run over the state upward, in f32 as the state
//! is, and tokens follow each other by their positions: the bits are those of the sequence alone.

use std::ops::Range;

use super::lanes::{load_lanes, store_lanes};
use super::recurrent_step::{columns_of_block, launch_over_runs, states_kernel};
use crate::{RecurrentStep, Step, WeightValues};
use vllm_batch_base::layers::SelectiveShape;
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::kv_cache::StateLayerMut;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Gpu, Tensor};

/// Most channels that are computed together: of a state of 16 values they stay in a core's first
/// cache.
const TILE: usize = 64;

/// Learned weights of a scan.
#[derive(Debug)]
pub struct SelectiveWeights {
    /// Sizes.
    pub shape: SelectiveShape,
    /// (state_size, channels) A, below 0.
    pub decay: WeightValues,
    /// (channels) D.
    pub skip: WeightValues,
    /// (channels) is added to dt before its softplus.
    pub dt_bias: WeightValues,
}

/// What tokens bring.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveInputs<'a> {
    /// (num_tokens, channels and others behind) x.
    pub x: &'a Tensor,
    /// (num_tokens, groups * chosen width) what dt is made of, B and C of each group.
    pub chosen: &'a Tensor,
    /// (num_tokens, channels) dt without its bias and its softplus.
    pub dt: &'a Tensor,
}

/// out (num_tokens, channels) = y of tokens. The states are tiles of channels, each (state_size,
/// its channels), and begin at value `first` of those of a block.
///
/// # Panics
/// Widths differ.
pub fn selective_scan(
    device: &Device,
    (inputs, step): (SelectiveInputs<'_>, Step<'_>),
    weights: &SelectiveWeights,
    (states, first): (StateLayerMut<'_>, usize),
    out: &mut Tensor,
) {
    let shape = weights.shape;
    let SelectiveShape { num_channels, num_groups, state_size, .. } = shape;
    let num_rows = inputs.x.num_rows();
    assert!(inputs.x.width() >= num_channels);
    assert_eq!((inputs.dt.num_rows(), inputs.dt.width()), (num_rows, num_channels));
    let chosen = (inputs.chosen.num_rows(), inputs.chosen.width());
    assert_eq!(chosen, (num_rows, num_groups * shape.chosen_width()));
    assert_eq!((out.num_rows(), out.width()), (num_rows, num_channels));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, (inputs, step), weights, (&states, first), out),
    };
    let work = || Work {
        flops: 6.0 * (num_rows * shape.state_len()) as f64,
        bytes: 8.0 * (step.batch.num_seqs() * shape.state_len()) as f64,
    };
    let _timed = cpu.op_timer.timed(Op::new("selective_scan"), work);
    let recurrent = RecurrentStep::new(step, states);
    let out = SharedMut::new(out.values_mut());
    let tiles_of_group = shape.group_width().div_ceil(TILE);
    cpu.pool.run(num_groups * tiles_of_group, &|_, item| {
        let (group, tile) = (item / tiles_of_group, item % tiles_of_group);
        let end = (group + 1) * shape.group_width();
        let start = group * shape.group_width() + tile * TILE;
        let channels = start..end.min(start + TILE);
        let part = first + start * state_size..first + channels.end * state_size;
        let mut run = |rows: Range<usize>, state: &mut [f32]| {
            let channels = channels.clone();
            dispatch(cpu.isa, Scan { inputs, rows, state, weights, group, channels, out });
        };
        // SAFETY: tiles have no values of states in common.
        unsafe { recurrent.for_each_run(part, &mut run) };
    });
}

/// `struct SelectiveParams` of kernels/selective_scan.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct SelectiveArg {
    decay: DevicePtr,
    skip: DevicePtr,
    dt_bias: DevicePtr,
    stride: u32,
    num_channels: u32,
    num_groups: u32,
    rank: u32,
    first: u32,
}

fn on_gpu(
    gpu: &Gpu,
    (inputs, step): (SelectiveInputs<'_>, Step<'_>),
    weights: &SelectiveWeights,
    (states, first): (&StateLayerMut<'_>, usize),
    out: &Tensor,
) {
    let shape = weights.shape;
    let SelectiveShape { num_channels, num_groups, rank, state_size } = shape;
    assert!(first + shape.state_len() <= states.width);
    let scan = SelectiveArg {
        decay: weights.decay.device_ptr(),
        skip: weights.skip.device_ptr(),
        dt_bias: weights.dt_bias.device_ptr(),
        stride: inputs.x.width() as u32,
        num_channels: num_channels as u32,
        num_groups: num_groups as u32,
        rank: rank as u32,
        first: first as u32,
    };
    let kernel = states_kernel(("selective_scan", "selective_scan"), state_size);
    let num_parts = num_groups * shape.group_width().div_ceil(columns_of_block(state_size));
    launch_over_runs(gpu, kernel, num_parts, (step, states), |args: &mut Args, states| {
        args.tensor(inputs.x).tensor(inputs.chosen).tensor(inputs.dt).tensor(out);
        args.value(states).value(scan);
    });
}

/// A tile of channels over rows that follow each other.
struct Scan<'a> {
    inputs: SelectiveInputs<'a>,
    rows: Range<usize>,
    /// (state_size, channels of the tile)
    state: &'a mut [f32],
    weights: &'a SelectiveWeights,
    group: usize,
    channels: Range<usize>,
    out: SharedMut<f32>,
}

impl Kernel for Scan<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let num = self.channels.len();
        for row in self.rows.clone() {
            let mut channel = 0;
            // SAFETY: dispatched for this CPU; channels are within the tile.
            unsafe {
                while channel + 2 * V::LANES <= num {
                    self.channels::<V, 2>(row, channel);
                    channel += 2 * V::LANES;
                }
                while channel < num {
                    self.channels::<V, 1>(row, channel);
                    channel += V::LANES;
                }
            }
        }
    }
}

impl Scan<'_> {
    /// `N` vectors of the tile's channels from `first` on; all but a last one alone are whole.
    ///
    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    unsafe fn channels<V: Vector, const N: usize>(&mut self, row: usize, first: usize) {
        let SelectiveShape { num_channels, rank, state_size, .. } = self.weights.shape;
        let (in_tile, place) = (self.channels.len(), self.channels.start + first);
        let len = V::LANES.min(in_tile - first);
        assert!(self.state.len() == state_size * in_tile);
        assert!(first + (N - 1) * V::LANES + len <= in_tile);
        let chosen = self.group * self.weights.shape.chosen_width() + rank;
        let (b, c) = self.inputs.chosen.row(row)[chosen..][..2 * state_size].split_at(state_size);
        let (x, dt) = (self.inputs.x.row(row), self.inputs.dt.row(row));
        let (x, dt) = (x[place..num_channels].as_ptr(), dt[place..].as_ptr());
        let weights = [&self.weights.dt_bias, &self.weights.skip, &self.weights.decay];
        let [bias, skip, decay] = weights.map(|values| values.host()[place..].as_ptr());
        // SAFETY: channels of the tile by the assertions; nobody else touches them.
        unsafe {
            let zeros = [V::splat(0.0); N];
            let (mut steps, mut added, mut sums) = (zeros, zeros, zeros);
            for lane in 0..N {
                let at = lane * V::LANES;
                let bias: V = load_lanes(bias.add(at), len);
                let raw: V = load_lanes(dt.add(at), len);
                steps[lane] = raw.add(bias).softplus();
                added[lane] = load_lanes::<V>(x.add(at), len).mul(steps[lane]);
            }
            let mut state = self.state.as_mut_ptr().add(first);
            let mut decay = decay;
            for (b, c) in b.iter().zip(c) {
                let (b, c) = (V::splat(*b), V::splat(*c));
                for lane in 0..N {
                    let at = lane * V::LANES;
                    let kept = steps[lane].mul(load_lanes(decay.add(at), len)).exp();
                    let value: V = load_lanes(state.add(at), len);
                    let value = added[lane].mul_add(b, value.mul(kept));
                    store_lanes(value, state.add(at), len);
                    sums[lane] = value.mul_add(c, sums[lane]);
                }
                state = state.wrapping_add(in_tile);
                decay = decay.wrapping_add(num_channels);
            }
            for (lane, sum) in sums.iter().enumerate() {
                let at = lane * V::LANES;
                let x: V = load_lanes(x.add(at), len);
                let y = x.mul_add(load_lanes(skip.add(at), len), *sum);
                store_lanes(y, self.out.ptr(row * num_channels + place + at, len), len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::recurrent_step::testing::{Part, check, rows_of};
    use vllm_batch_base::matrix::SourceMatrix;
    use vllm_batch_device::simd::InstructionSet;
    use vllm_batch_device::simd::Isa;

    /// Two groups of more than a tile each, and no multiple of a vector; one of few channels.
    const SHAPES: [SelectiveShape; 2] = [
        SelectiveShape { num_channels: 202, num_groups: 2, rank: 3, state_size: 6 },
        SelectiveShape { num_channels: 5, num_groups: 1, rank: 1, state_size: 16 },
    ];

    fn weights(shape: SelectiveShape) -> SelectiveWeights {
        let of = |num, seed| SourceMatrix::random(1, num, seed, 1.0).to_vec();
        let held = |values| WeightValues::on_device(&Device::cpu(Some(1)), values).unwrap();
        let decay = of(shape.state_len(), 11);
        SelectiveWeights {
            shape,
            decay: held(decay.iter().map(|a| -0.1 - a.abs()).collect()),
            skip: held(of(shape.num_channels, 12)),
            dt_bias: held(of(shape.num_channels, 13)),
        }
    }

    /// x and a value that is not read, what chooses, and dt: columns of a row.
    fn widths(shape: SelectiveShape) -> [usize; 3] {
        [shape.num_channels + 1, shape.num_groups * shape.chosen_width(), shape.num_channels]
    }

    /// As the paper has it, in f64.
    fn expected(weights: &SelectiveWeights, rows: &[f32]) -> Vec<f64> {
        let shape = weights.shape;
        let SelectiveShape { num_channels, rank, state_size, .. } = shape;
        let mut out = Vec::new();
        let mut states = vec![0.0; shape.state_len()];
        let [x_width, chosen_width, _] = widths(shape);
        for row in rows.chunks_exact(widths(shape).iter().sum()) {
            let at = |index: usize| f64::from(row[index]);
            for channel in 0..num_channels {
                let group = channel / shape.group_width();
                let b = x_width + group * shape.chosen_width() + rank;
                let raw = at(x_width + chosen_width + channel);
                let dt = (raw + f64::from(weights.dt_bias.host()[channel])).exp().ln_1p();
                let mut y = f64::from(weights.skip.host()[channel]) * at(channel);
                for n in 0..state_size {
                    let decay = f64::from(weights.decay.host()[n * num_channels + channel]);
                    let state = &mut states[channel * state_size + n];
                    *state = (dt * decay).exp() * *state + dt * at(channel) * at(b + n);
                    y += at(b + state_size + n) * *state;
                }
                out.push(y);
            }
        }
        out
    }

    #[test]
    fn agrees_with_a_naive_loop_and_bits_do_not_depend_on_chunks() {
        for (shape, isa) in
            SHAPES.into_iter().flat_map(|s| Isa::all_available().into_iter().map(move |i| (s, i)))
        {
            let device = Device::cpu_with_isa(2, isa);
            let (weights, widths) = (weights(shape), widths(shape));
            let width = widths.iter().sum();
            // The first value of a state is another op's.
            let run = |batch: &Batch, parts: &[Part<'_>], states: StateLayerMut<'_>| {
                let rows = rows_of(parts, width);
                let mut first = 0;
                let [x, chosen, dt] = widths.map(|part| {
                    let columns = first..first + part;
                    first += part;
                    let rows =
                        rows.chunks_exact(width).flat_map(|row| row[columns.clone()].to_vec());
                    Tensor::from_vec(rows.collect(), part)
                });
                let mut out = Tensor::zeros(x.num_rows(), shape.num_channels);
                let inputs = SelectiveInputs { x: &x, chosen: &chosen, dt: &dt };
                let step = Step::on_host(batch);
                selective_scan(&device, (inputs, step), &weights, (states, 1), &mut out);
                out.values().to_vec()
            };
            let whole = check(1 + shape.state_len(), &run);
            let rows = rows_of(&[Part { seed: 0, first: 0, end: 50, table: &[] }], width);
            for (got, expected) in whole.iter().zip(expected(&weights, &rows)) {
                let error = (f64::from(*got) - expected).abs();
                assert!(error < 1e-4 * (1.0 + expected.abs()), "{got}, not {expected}");
            }
        }
    }
}
