//! mamba_scan: the recurrence of Mamba 2 (Dao and Gu, 2024), token by token.
//!
//! Of every head: S = e^(dt A) S + dt (B x), y = C S + D x, where S is (state_size, head_dim), and
//! dt, B, C and x are the token's. Sums run over the state upward, in f32 as the state is, and
//! tokens follow each other by their positions: the bits are those of the sequence alone.

use std::ops::Range;

use super::lanes::{load_lanes, store_lanes};
use super::recurrent_step::{columns_of_block, launch_over_runs, states_kernel};
use crate::{RecurrentStep, Step, WeightValues};
use vllm_batch_base::layers::ScanShape;
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::kv_cache::StateLayerMut;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Gpu, Tensor};

/// Learned weights of a scan, (num_heads) each.
#[derive(Debug)]
pub struct ScanWeights {
    /// Sizes.
    pub shape: ScanShape,
    /// A, below 0.
    pub decay: WeightValues,
    /// D.
    pub skip: WeightValues,
    /// Added to dt before its softplus.
    pub dt_bias: WeightValues,
    /// The least and the most that dt is after that.
    pub dt_bounds: [f32; 2],
}

/// out (num_tokens, heads * head_dim) = y of rows of `x`, which are z, x, B, C and dt. The states
/// are (heads, state_size, head_dim), and begin at value `first` of those of a block.
///
/// # Panics
/// Widths differ.
pub fn mamba_scan(
    device: &Device,
    (x, step): (&Tensor, Step<'_>),
    weights: &ScanWeights,
    (states, first): (StateLayerMut<'_>, usize),
    out: &mut Tensor,
) {
    let ScanShape { num_heads, head_dim, state_size, .. } = weights.shape;
    let (num_rows, state_len) = (x.num_rows(), head_dim * state_size);
    assert_eq!(x.width(), weights.shape.row_width());
    assert_eq!((out.num_rows(), out.width()), (num_rows, weights.shape.inner_width()));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, (x, step), weights, (&states, first), out),
    };
    let work = || Work {
        flops: 5.0 * (num_rows * num_heads * state_len) as f64,
        bytes: 8.0 * (step.batch.num_seqs() * num_heads * state_len) as f64,
    };
    let _timed = cpu.op_timer.timed(Op::new("mamba_scan"), work);
    let recurrent = RecurrentStep::new(step, states);
    let out = SharedMut::new(out.values_mut());
    cpu.pool.run(num_heads, &|_, head| {
        let start = first + head * state_len;
        let mut run = |rows: Range<usize>, state: &mut [f32]| {
            dispatch(cpu.isa, Scan { x, rows, state, weights, head, out });
        };
        // SAFETY: heads have no values of states in common.
        unsafe { recurrent.for_each_run(start..start + state_len, &mut run) };
    });
}

/// `struct ScanParams` of kernels/mamba_scan.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct ScanArg {
    decay: DevicePtr,
    skip: DevicePtr,
    dt_bias: DevicePtr,
    num_heads: u32,
    head_dim: u32,
    num_groups: u32,
    first: u32,
    dt_bounds: [f32; 2],
}

fn on_gpu(
    gpu: &Gpu,
    (x, step): (&Tensor, Step<'_>),
    weights: &ScanWeights,
    (states, first): (&StateLayerMut<'_>, usize),
    out: &Tensor,
) {
    let ScanShape { num_heads, head_dim, num_groups, state_size } = weights.shape;
    assert!(first + weights.shape.state_len() <= states.width);
    let scan = ScanArg {
        decay: weights.decay.device_ptr(),
        skip: weights.skip.device_ptr(),
        dt_bias: weights.dt_bias.device_ptr(),
        num_heads: num_heads as u32,
        head_dim: head_dim as u32,
        num_groups: num_groups as u32,
        first: first as u32,
        dt_bounds: weights.dt_bounds,
    };
    let kernel = states_kernel(("mamba_scan", "mamba_scan"), state_size);
    let num_parts = num_heads * head_dim.div_ceil(columns_of_block(state_size));
    launch_over_runs(gpu, kernel, num_parts, (step, states), |args: &mut Args, states| {
        args.tensor(x).tensor(out).value(states).value(scan);
    });
}

/// A head over rows that follow each other.
struct Scan<'a> {
    x: &'a Tensor,
    rows: Range<usize>,
    /// (state_size, head_dim)
    state: &'a mut [f32],
    weights: &'a ScanWeights,
    head: usize,
    out: SharedMut<f32>,
}

/// Effect of a token on a head's state.
struct Token<'a, V> {
    decay: V,
    dt: V,
    /// (head_dim)
    x: &'a [f32],
    /// (state_size) each.
    b: &'a [f32],
    c: &'a [f32],
    /// (head_dim)
    y: *mut f32,
}

impl Kernel for Scan<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let ScanShape { head_dim, .. } = self.weights.shape;
        for row in self.rows.clone() {
            // SAFETY: dispatched for this CPU; columns are within the head.
            unsafe {
                let token = self.token::<V>(row);
                let mut column = 0;
                while column + 4 * V::LANES <= head_dim {
                    self.columns::<V, 4>(&token, column);
                    column += 4 * V::LANES;
                }
                while column < head_dim {
                    self.columns::<V, 1>(&token, column);
                    column += V::LANES;
                }
            }
        }
    }
}

impl<'a> Scan<'a> {
    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    unsafe fn token<V: Vector>(&self, row: usize) -> Token<'a, V> {
        let Self { x, weights, head, out, .. } = self;
        let ScanShape { num_heads, head_dim, num_groups, state_size } = weights.shape;
        let inner = num_heads * head_dim;
        let (_, values) = x.row(row).split_at(inner);
        let (x, values) = values.split_at(inner);
        let (b, values) = values.split_at(num_groups * state_size);
        let (c, dt) = values.split_at(num_groups * state_size);
        let group = head / (num_heads / num_groups) * state_size;
        let [least, most] = weights.dt_bounds;
        // SAFETY: this function's own promise; arithmetic only.
        unsafe {
            let dt = V::splat(dt[*head] + weights.dt_bias.host()[*head]).softplus();
            let dt = V::splat(most).min(V::splat(least).max(dt));
            Token {
                decay: dt.mul(V::splat(weights.decay.host()[*head])).exp(),
                dt,
                x: &x[head * head_dim..][..head_dim],
                b: &b[group..][..state_size],
                c: &c[group..][..state_size],
                y: out.ptr(row * inner + head * head_dim, head_dim),
            }
        }
    }

    /// `N` vectors of columns from `column` on; all but a last one alone are within the head.
    ///
    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    unsafe fn columns<V: Vector, const N: usize>(&mut self, token: &Token<'_, V>, column: usize) {
        let head_dim = token.x.len();
        let len = V::LANES.min(head_dim - column);
        assert!(self.state.len() == token.b.len() * head_dim);
        assert!(column + (N - 1) * V::LANES + len <= head_dim);
        // SAFETY: columns of the head by the assertions; nobody else touches them.
        unsafe {
            let (mut inputs, mut sums) = ([V::splat(0.0); N], [V::splat(0.0); N]);
            for (lane, input) in inputs.iter_mut().enumerate() {
                let x: V = load_lanes(token.x.as_ptr().add(column + lane * V::LANES), len);
                *input = x.mul(token.dt);
            }
            let mut state = self.state.as_mut_ptr().add(column);
            for (b, c) in token.b.iter().zip(token.c) {
                let (b, c) = (V::splat(*b), V::splat(*c));
                for lane in 0..N {
                    let at = state.add(lane * V::LANES);
                    let value: V = load_lanes(at, len);
                    let value = inputs[lane].mul_add(b, value.mul(token.decay));
                    store_lanes(value, at, len);
                    sums[lane] = value.mul_add(c, sums[lane]);
                }
                state = state.wrapping_add(head_dim);
            }
            let skip = V::splat(self.weights.skip.host()[self.head]);
            for (lane, sum) in sums.iter().enumerate() {
                let column = column + lane * V::LANES;
                let x: V = load_lanes(token.x.as_ptr().add(column), len);
                store_lanes(x.mul_add(skip, *sum), token.y.add(column), len);
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

    /// A head is a few vectors and a part of one; two groups of heads.
    fn weights(head_dim: usize) -> ScanWeights {
        let of_heads = |seed| SourceMatrix::random(1, 4, seed, 1.0).to_vec();
        let held = |values| WeightValues::on_device(&Device::cpu(Some(1)), values).unwrap();
        ScanWeights {
            shape: ScanShape { num_heads: 4, head_dim, num_groups: 2, state_size: 6 },
            decay: held(of_heads(11).iter().map(|a| -0.1 - a.abs()).collect()),
            skip: held(of_heads(12)),
            dt_bias: held(of_heads(13)),
            dt_bounds: [0.2, 1.2],
        }
    }

    /// As the paper has it, in f64.
    fn expected(weights: &ScanWeights, rows: &[f32]) -> Vec<f64> {
        let ScanShape { num_heads, head_dim, num_groups, state_size } = weights.shape;
        let inner = num_heads * head_dim;
        let mut out = Vec::new();
        let mut states = vec![0.0; inner * state_size];
        for row in rows.chunks_exact(weights.shape.row_width()) {
            let at = |index: usize| f64::from(row[index]);
            for value in 0..inner {
                let (head, x) = (value / head_dim, at(inner + value));
                let b = 2 * inner + head / (num_heads / num_groups) * state_size;
                let c = b + num_groups * state_size;
                let dt = at(row.len() - num_heads + head) + f64::from(weights.dt_bias.host()[head]);
                let [least, most] = weights.dt_bounds.map(f64::from);
                let dt = dt.exp().ln_1p().clamp(least, most);
                let mut y = f64::from(weights.skip.host()[head]) * x;
                for n in 0..state_size {
                    let state = &mut states[value * state_size + n];
                    *state *= (dt * f64::from(weights.decay.host()[head])).exp();
                    *state += dt * x * at(b + n);
                    y += *state * at(c + n);
                }
                out.push(y);
            }
        }
        out
    }

    #[test]
    fn agrees_with_a_naive_loop_and_bits_do_not_depend_on_chunks() {
        for (isa, head_dim) in Isa::all_available().into_iter().zip([64, 77, 37, 5]) {
            let device = Device::cpu_with_isa(2, isa);
            let weights = weights(head_dim);
            let width = weights.shape.row_width();
            // The first value of a state is another op's.
            let run = |batch: &Batch, parts: &[Part<'_>], states: StateLayerMut<'_>| {
                let x = Tensor::from_vec(rows_of(parts, width), width);
                let mut out = Tensor::zeros(x.num_rows(), weights.shape.inner_width());
                mamba_scan(&device, (&x, Step::on_host(batch)), &weights, (states, 1), &mut out);
                out.values().to_vec()
            };
            let whole = check(1 + weights.shape.state_len(), &run);
            let rows = rows_of(&[Part { seed: 0, first: 0, end: 50, table: &[] }], width);
            for (got, expected) in whole.iter().zip(expected(&weights, &rows)) {
                let error = (f64::from(*got) - expected).abs();
                assert!(error < 1e-4 * (1.0 + expected.abs()), "{got}, not {expected}");
            }
        }
    }
}
