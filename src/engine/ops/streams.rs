//! Streams beside each other, and what mixes them (Gemma 3n's AltUp): N streams of width H are
//! rows of N * H values in f32, one stream after the other. And keep_largest, the gates that its
//! first layers keep.

use super::norm::sum_of;
use super::soft_cap::soft_cap;
use super::{GPU_BLOCK, LinearWeight, WeightValues, for_row_chunks, linear};
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, Gpu, Tensor};

/// Most streams that kernels hold.
pub const MAX_STREAMS: usize = 4;

/// The least mean square that a stream is divided by the root of.
const LEAST_SQUARE: f32 = 1e-5;

/// out (T, M) = coefs (M, N) tanh(router (N, H) x (T, H)), both in f32; `kinds` is (T, N).
///
/// # Panics
/// Shapes do not fit, here and below.
pub fn mixing_weights(
    device: &Device,
    x: &Tensor,
    (router, coefs): (&LinearWeight, &LinearWeight),
    kinds: &mut Tensor,
    out: &mut Tensor,
) {
    let ((num_streams, width), num_weights) = (router.shape(), coefs.shape().0);
    assert!(x.width() == width && coefs.shape().1 == num_streams && num_streams <= MAX_STREAMS);
    let num_rows = x.num_rows();
    kinds.reshape(num_rows, num_streams);
    out.reshape(num_rows, num_weights);
    if let Device::Cuda(gpu) = device {
        let mut args = Args::new();
        args.tensor(x).ptr(router.device_ptr()).ptr(coefs.device_ptr()).tensor(out);
        args.dims([width, num_streams, num_weights]);
        let grid = [num_rows as u32, 1];
        return gpu.launch(("streams", "mixing_weights"), grid, (GPU_BLOCK, 0), &mut args);
    }
    linear(device, x, router, kinds);
    soft_cap(device, 1.0, kinds);
    linear(device, kinds, coefs, out);
}

/// Stream i += sum over j of weights (T, N * N)[i][j] * stream j, of all streams as they were.
pub fn predict_streams(device: &Device, streams: &mut Tensor, weights: &Tensor) {
    let num_streams = weights.width().isqrt();
    assert_eq!(num_streams * num_streams, weights.width());
    let width = streams.width() / num_streams;
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(streams).tensor(weights).dims([width, num_streams]);
            return launch_over_columns(gpu, "predict_streams", streams, width, &mut args);
        }
    };
    for_each_row(cpu, "predict_streams", streams, &|row, streams| {
        let weights = weights.row(row);
        let mut before = [0.0; MAX_STREAMS];
        for column in 0..width {
            for (stream, before) in before[..num_streams].iter_mut().enumerate() {
                *before = streams[stream * width + column];
            }
            for stream in 0..num_streams {
                let weights = &weights[stream * num_streams..][..num_streams];
                let sum = weights.iter().zip(&before).fold(0.0, |sum, (w, x)| w * x + sum);
                streams[stream * width + column] += sum;
            }
        }
    });
}

/// Stream i += (x (T, H) - stream `active`, as it was) * (weights (T, N)[i] + 1).
pub fn correct_streams(
    device: &Device,
    streams: &mut Tensor,
    active: usize,
    (x, weights): (&Tensor, &Tensor),
) {
    let (num_streams, width) = (weights.width(), x.width());
    assert_eq!(streams.width(), num_streams * width);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(streams).tensor(x).tensor(weights).dims([width, num_streams, active]);
            return launch_over_columns(gpu, "correct_streams", streams, width, &mut args);
        }
    };
    for_each_row(cpu, "correct_streams", streams, &|row, streams| {
        let (x, weights) = (x.row(row), weights.row(row));
        for column in 0..width {
            let news = x[column] - streams[active * width + column];
            for (stream, weight) in weights.iter().enumerate() {
                streams[stream * width + column] += news * (weight + 1.0);
            }
        }
    });
}

/// Streams 1 .. += x (T, H).
pub fn add_to_streams(device: &Device, streams: &mut Tensor, x: &Tensor) {
    let width = x.width();
    let num_streams = streams.width() / width;
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(streams).tensor(x).dims([width, num_streams]);
            return launch_over_columns(gpu, "add_to_streams", streams, width, &mut args);
        }
    };
    for_each_row(cpu, "add_to_streams", streams, &|row, streams| {
        for stream in streams.chunks_exact_mut(width).skip(1) {
            stream.iter_mut().zip(x.row(row)).for_each(|(value, added)| *value += added);
        }
    });
}

/// x (T, H) becomes stream 0.
pub fn put_first_stream(device: &Device, x: &Tensor, streams: &mut Tensor) {
    let width = x.width();
    copy(device, (x, 0), None, (streams, 0), width);
}

/// out (T, H) = a stream, times factors (H) if there are some.
pub fn take_stream(
    device: &Device,
    (streams, stream): (&Tensor, usize),
    factors: Option<&WeightValues>,
    out: &mut Tensor,
) {
    let width = out.width();
    assert!(factors.is_none_or(|factors| factors.host().len() == width));
    out.set_num_rows(streams.num_rows());
    copy(device, (streams, stream * width), factors, (out, 0), width);
}

/// Columns of `to` = columns of `from`, times factors.
fn copy(
    device: &Device,
    (from, from_start): (&Tensor, usize),
    factors: Option<&WeightValues>,
    (to, to_start): (&mut Tensor, usize),
    width: usize,
) {
    let (from_stride, to_stride) = (from.width(), to.width());
    assert!(from_start + width <= from_stride && to_start + width <= to_stride);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let factors = factors.map_or(DevicePtr::NULL, WeightValues::device_ptr);
            let mut args = Args::new();
            args.tensor(from).dims([from_stride, from_start]).ptr(factors);
            args.tensor(to).dims([to_stride, to_start, width]);
            return launch_over_columns(gpu, "copy_stream", to, width, &mut args);
        }
    };
    for_each_row(cpu, "copy_stream", to, &|row, to| {
        let (from, to) = (&from.row(row)[from_start..][..width], &mut to[to_start..][..width]);
        to.copy_from_slice(from);
        if let Some(factors) = factors {
            to.iter_mut().zip(factors.host()).for_each(|(value, factor)| *value *= factor);
        }
    });
}

/// A stream = x (T, H) at the root mean square of stream 0.
pub fn set_stream(device: &Device, streams: &mut Tensor, stream: usize, x: &Tensor) {
    let width = x.width();
    let num_streams = streams.width() / width;
    assert!(stream < num_streams);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(streams).tensor(x).dims([width, num_streams, stream]).f32(LEAST_SQUARE);
            let grid = [streams.num_rows() as u32, 1];
            return gpu.launch(("streams", "set_stream"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    for_each_row(cpu, "set_stream", streams, &|row, streams| {
        let mut squares = [0.0; 2];
        let of = [&streams[..width], x.row(row)];
        dispatch(cpu.isa, MeanSquares { of, squares: &mut squares });
        let factor = squares[0].sqrt() / squares[1].max(LEAST_SQUARE).sqrt();
        let values = streams[stream * width..][..width].iter_mut();
        values.zip(x.row(row)).for_each(|(value, x)| *value = x * factor);
    });
}

/// Mean squares of two rows.
struct MeanSquares<'a> {
    of: [&'a [f32]; 2],
    squares: &'a mut [f32; 2],
}

impl Kernel for MeanSquares<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for (values, square) in self.of.into_iter().zip(self.squares) {
            // SAFETY: dispatched for this CPU.
            *square = unsafe { sum_of::<V>(values, 0.0, |x| x.mul(x)) } / values.len() as f32;
        }
    }
}

/// out (T, H) = the mean of all streams.
pub fn mean_streams(device: &Device, streams: &Tensor, out: &mut Tensor) {
    let width = out.width();
    let num_streams = streams.width() / width;
    out.set_num_rows(streams.num_rows());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(streams).tensor(out).dims([width, num_streams]);
            return launch_over_columns(gpu, "mean_streams", out, width, &mut args);
        }
    };
    for_each_row(cpu, "mean_streams", out, &|row, out| {
        out.fill(0.0);
        for stream in streams.row(row).chunks_exact(width) {
            out.iter_mut().zip(stream).for_each(|(sum, value)| *sum += value);
        }
        out.iter_mut().for_each(|sum| *sum /= num_streams as f32);
    });
}

/// The first `width` values of each row of x = max(value - (mean + deviation * multiplier), 0), of
/// their mean and standard deviation.
pub fn keep_largest(device: &Device, x: &mut Tensor, width: usize, multiplier: f32) {
    let row_stride = x.width();
    assert!(width <= row_stride);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(x).dims([row_stride, width]).f32(multiplier);
            let grid = [x.num_rows() as u32, 1];
            return gpu.launch(("streams", "keep_largest"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    for_each_row(cpu, "keep_largest", x, &|_, x| {
        dispatch(cpu.isa, KeepLargest { values: &mut x[..width], multiplier });
    });
}

struct KeepLargest<'a> {
    values: &'a mut [f32],
    multiplier: f32,
}

impl Kernel for KeepLargest<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { values, multiplier } = self;
        let len = values.len() as f32;
        // SAFETY: dispatched for this CPU.
        unsafe {
            let mean = sum_of::<V>(values, 0.0, |x| x) / len;
            let center = V::splat(mean);
            let square = |x: V| x.sub(center).mul(x.sub(center));
            let deviation = (sum_of::<V>(values, mean, square) / len).sqrt();
            let least = mean + deviation * multiplier;
            values.iter_mut().for_each(|value| *value = (*value - least).max(0.0));
        }
    }
}

/// A kernel over `width` columns of all rows of a tensor.
fn launch_over_columns(gpu: &Gpu, entry: &'static str, of: &Tensor, width: usize, args: &mut Args) {
    let parts = width.div_ceil(GPU_BLOCK as usize * 4) as u32;
    gpu.launch(("streams", entry), [of.num_rows() as u32, parts], (GPU_BLOCK, 0), args);
}

/// Runs an op over all rows of a tensor, each by itself.
fn for_each_row(
    cpu: &Cpu,
    name: &'static str,
    x: &mut Tensor,
    op: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let _timed = cpu.op_timer.timed(Op::new(name), || Work::elementwise(num_rows * width, 8));
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            op(row, unsafe { shared.slice(row * width, width) });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::{InstructionSet, Isa};

    const NUM_ROWS: usize = 3;
    const WIDTH: usize = 37;

    fn values(num_rows: usize, width: usize, step: f32) -> Tensor {
        let values = (0..num_rows * width).map(|i| (i as f32 * step).sin() * 2.0).collect();
        Tensor::from_vec(values, width)
    }

    /// For every instruction set, and for 2 to 4 streams.
    fn for_each(test: impl Fn(&Device, usize)) {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            (2..=MAX_STREAMS).for_each(|num_streams| test(&device, num_streams));
        }
    }

    fn assert_close(got: f32, expected: f64) {
        assert!((f64::from(got) - expected).abs() < 1e-5, "{got}, expected {expected}");
    }

    #[test]
    fn streams_are_predicted_of_what_they_were() {
        for_each(|device, num| {
            let before = values(NUM_ROWS, num * WIDTH, 0.37);
            let weights = values(NUM_ROWS, num * num, 0.91);
            let mut streams = values(NUM_ROWS, num * WIDTH, 0.37);
            predict_streams(device, &mut streams, &weights);
            for row in 0..NUM_ROWS {
                for i in 0..num * WIDTH {
                    let (stream, column) = (i / WIDTH, i % WIDTH);
                    let part = |j: usize| {
                        let weight = weights.row(row)[stream * num + j];
                        f64::from(weight) * f64::from(before.row(row)[j * WIDTH + column])
                    };
                    let sum: f64 = (0..num).map(part).sum();
                    assert_close(streams.row(row)[i], f64::from(before.row(row)[i]) + sum);
                }
            }
        });
    }

    #[test]
    fn streams_are_corrected_by_what_the_active_one_became() {
        for_each(|device, num| {
            let active = num - 1;
            let before = values(NUM_ROWS, num * WIDTH, 0.37);
            let (weights, x) = (values(NUM_ROWS, num, 0.91), values(NUM_ROWS, WIDTH, 0.23));
            let mut streams = values(NUM_ROWS, num * WIDTH, 0.37);
            correct_streams(device, &mut streams, active, (&x, &weights));
            add_to_streams(device, &mut streams, &x);
            for row in 0..NUM_ROWS {
                for i in 0..num * WIDTH {
                    let (stream, column) = (i / WIDTH, i % WIDTH);
                    let x = f64::from(x.row(row)[column]);
                    let news = x - f64::from(before.row(row)[active * WIDTH + column]);
                    let factor = f64::from(weights.row(row)[stream]) + 1.0;
                    let added = if stream == 0 { 0.0 } else { x };
                    let expected = f64::from(before.row(row)[i]) + news * factor + added;
                    assert_close(streams.row(row)[i], expected);
                }
            }
        });
    }

    #[test]
    fn streams_begin_and_end_at_the_size_of_the_first() {
        for_each(|device, num| {
            let (x, y) = (values(NUM_ROWS, WIDTH, 0.37), values(NUM_ROWS, WIDTH, 0.11));
            let mut streams = Tensor::zeros(NUM_ROWS, num * WIDTH);
            streams.set_num_rows(NUM_ROWS);
            put_first_stream(device, &x, &mut streams);
            (1..num).for_each(|stream| set_stream(device, &mut streams, stream, &y));
            let mut mean = Tensor::zeros(NUM_ROWS, WIDTH);
            mean_streams(device, &streams, &mut mean);
            let factors = (0..WIDTH).map(|i| i as f32 / 4.0).collect();
            let factors = WeightValues::on_device(device, factors).unwrap();
            let mut taken = Tensor::zeros(NUM_ROWS, WIDTH);
            take_stream(device, (&streams, 1), Some(&factors), &mut taken);
            for row in 0..NUM_ROWS {
                let square = |of: &[f32]| of.iter().map(|x| f64::from(x * x)).sum::<f64>();
                let factor = (square(x.row(row)) / square(y.row(row))).sqrt();
                for column in 0..WIDTH {
                    let [x, y] = [x.row(row)[column], y.row(row)[column]].map(f64::from);
                    assert_close(taken.row(row)[column], y * factor * column as f64 / 4.0);
                    let sum = x + (num - 1) as f64 * y * factor;
                    assert_close(mean.row(row)[column], sum / num as f64);
                }
            }
        });
    }

    #[test]
    fn values_above_the_mean_and_some_deviations_are_kept() {
        for_each(|device, _| {
            let before = values(NUM_ROWS, WIDTH + 5, 0.37);
            let mut x = values(NUM_ROWS, WIDTH + 5, 0.37);
            keep_largest(device, &mut x, WIDTH, 0.5);
            for row in 0..NUM_ROWS {
                let all: Vec<f64> = before.row(row).iter().map(|x| f64::from(*x)).collect();
                let gates = &all[..WIDTH];
                let mean = gates.iter().sum::<f64>() / WIDTH as f64;
                let square = gates.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / WIDTH as f64;
                let least = mean + 0.5 * square.sqrt();
                for (column, (got, before)) in x.row(row).iter().zip(&all).enumerate() {
                    let kept = (before - least).max(0.0);
                    assert_close(*got, if column < WIDTH { kept } else { *before });
                }
            }
        });
    }
}
