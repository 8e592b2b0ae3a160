//! RMSNorm and LayerNorm, alone, after a residual addition, or per attention head.
//!
//! rms: x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich, 2019; Gemma's 1 is added at load).
//! layer: (x - mean) / sqrt(var + eps) * weight + bias (Ba et al., 2016).

use vllm_batch_base::config::DType;
use vllm_batch_base::layers::{Heads, NormKind};
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Gpu, Tensor};

use super::elementwise::add_row;
use super::shared_rows::SharedRows;
use super::{for_row_chunks, gpu_row_block, map2, map2_in_place};

/// A normalization with its weights.
#[derive(Debug)]
pub struct NormWeight {
    /// Kind of norm.
    pub kind: NormKind,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// (1, width); for heads (1, head_dim), or (1, num_heads * head_dim) with a slice for each.
    pub weight: Tensor,
    /// As the weight.
    pub bias: Option<Tensor>,
}

/// residual += delta (if any), then out = norm(residual): the pre-norm step in one pass. `out`
/// takes as many rows as `residual` has.
pub fn add_norm(
    device: &Device,
    residual: &mut Tensor,
    delta: Option<&Tensor>,
    norm: &NormWeight,
    out: &mut Tensor,
) {
    out.set_num_rows(residual.num_rows());
    add_norm_rows(device, (residual, delta), 0, norm, out);
}

/// The same for rows `first..` of `residual` and `delta`, as many as `out` has.
///
/// # Panics
/// Widths differ, there are not so many rows, or a GPU is asked for some of them only.
pub fn add_norm_rows(
    device: &Device,
    (residual, delta): (&mut Tensor, Option<&Tensor>),
    first: usize,
    norm: &NormWeight,
    out: &mut Tensor,
) {
    let (num_rows, width) = (out.num_rows(), residual.width());
    assert!(out.width() == width && norm.weight.width() == width);
    assert!(first + num_rows <= residual.num_rows());
    let of_residual = (residual.num_rows(), width);
    assert!(delta.is_none_or(|delta| (delta.num_rows(), delta.width()) == of_residual));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            assert_eq!(num_rows, residual.num_rows(), "a GPU takes all rows at once");
            return add_norm_on_gpu(gpu, residual, delta, norm, out);
        }
    };
    let bytes_per_value = if delta.is_some() { 16 } else { 8 };
    let work = || Work::elementwise(num_rows * width, bytes_per_value);
    let _timed = cpu.op_timer.timed(Op::new("add_norm"), work);
    let shared = SharedMut::new(residual.values_mut());
    let shared_out = SharedRows::of(out);
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let residual = unsafe { shared.slice((first + row) * width, width) };
            if let Some(delta) = delta {
                add_row(residual, delta.row(first + row));
            }
            let to = RowOut::Other(shared_out, row);
            // SAFETY: as above.
            unsafe { norm_row(cpu.isa, (norm, 0), residual, to) };
        }
    });
}

fn add_norm_on_gpu(
    gpu: &Gpu,
    residual: &Tensor,
    delta: Option<&Tensor>,
    norm: &NormWeight,
    out: &Tensor,
) {
    let mut args = Args::new();
    args.tensor(residual).ptr(delta.map_or(DevicePtr::NULL, Tensor::device_ptr));
    norm.append_to(&mut args).tensor(out);
    let entry = match out.scales_ptr() {
        None => "add_norm",
        Some(scales) => {
            args.ptr(scales);
            "add_norm_fp8"
        }
    };
    args.u32(residual.width() as u32);
    let (grid, block) = ([residual.num_rows() as u32, 1], norm_block(residual.width()));
    gpu.launch(("norm", entry), grid, (block, 0), &mut args);
}

/// Threads of a norm's block. It decides the order of sums: a function of the width alone.
fn norm_block(width: usize) -> u32 {
    gpu_row_block(width, 16).min(512)
}

impl NormWeight {
    /// weight, bias, eps and kind, as kernels take them.
    fn append_to<'a>(&self, args: &'a mut Args) -> &'a mut Args {
        args.tensor(&self.weight)
            .ptr(self.bias.as_ref().map_or(DevicePtr::NULL, Tensor::device_ptr))
            .f32(self.eps)
            .u32(u32::from(self.kind == NormKind::Layer))
    }

    /// From the weights of a head to those of the next: none where all share them.
    pub(super) fn weight_step(&self, num_heads: usize, head_dim: usize) -> usize {
        let width = self.weight.width();
        assert!(width == head_dim || width == num_heads * head_dim, "weights of {width} values");
        assert!(self.bias.as_ref().is_none_or(|bias| bias.width() == width));
        if width == head_dim { 0 } else { head_dim }
    }
}

/// x = norm(x).
pub fn norm_in_place(device: &Device, x: &mut Tensor, norm: &NormWeight) {
    let width = x.width();
    if let Device::Cuda(gpu) = device
        && x.dtype() == DType::Float32
    {
        assert_eq!(norm.weight.width(), width);
        let mut args = Args::new();
        norm.append_to(args.tensor(x)).u32(width as u32);
        let (grid, block) = ([x.num_rows() as u32, 1], norm_block(width));
        return gpu.launch(("norm", "norm_in_place"), grid, (block, 0), &mut args);
    }
    norm_heads(device, x, Heads { start: 0, num_heads: 1, head_dim: width }, norm);
}

/// Normalizes every head of the given columns by itself, in place: with weights that all share
/// (q_norm and k_norm of Qwen3 and Gemma 3), or each with its own (Cohere, StableLM). One head of
/// all columns is a norm over the full width (Olmo 2).
///
/// # Panics
/// The columns are not there, or the weights are neither for one head nor for all.
pub fn norm_heads(device: &Device, x: &mut Tensor, heads: Heads, norm: &NormWeight) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let Heads { start: column, num_heads, head_dim } = heads;
    assert!(column + num_heads * head_dim <= width);
    let weight_step = norm.weight_step(num_heads, head_dim);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(x).dims([width, column, num_heads, head_dim, weight_step]);
            let grid = [num_rows as u32, 1];
            norm.append_to(&mut args);
            let block = if head_dim <= 256 { 128 } else { norm_block(head_dim) };
            return gpu.launch(("norm", "norm_heads"), grid, (block, 0), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * num_heads * head_dim, 8);
    let _timed = cpu.op_timer.timed(Op::new("norm_heads"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, num_heads * head_dim, &|start, end| {
        for row in start..end {
            for head in 0..num_heads {
                // SAFETY: each row belongs to one item.
                unsafe {
                    let values = shared.slice(row * width + column + head * head_dim, head_dim);
                    norm_row(cpu.isa, (norm, head * weight_step), values, RowOut::InPlace);
                }
            }
        }
    });
}

/// Where a normalized row goes.
#[derive(Clone, Copy)]
enum RowOut {
    InPlace,
    /// A row of these.
    Other(SharedRows, usize),
}

/// Normalizes a row with the weights from the given column on.
///
/// # Safety
/// Nobody else touches the row that it goes to.
unsafe fn norm_row(
    isa: Isa,
    (norm, column): (&NormWeight, usize),
    values: &mut [f32],
    out: RowOut,
) {
    let weight = &norm.weight.values()[column..column + values.len()];
    let bias = norm.bias.as_ref().map(|bias| &bias.values()[column..column + values.len()]);
    dispatch(isa, NormRow { kind: norm.kind, eps: norm.eps, weight, bias, values, out });
}

struct NormRow<'a> {
    kind: NormKind,
    eps: f32,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    values: &'a mut [f32],
    out: RowOut,
}

/// Values that are normalized before they go to their place: they stay in the first cache.
const CHUNK: usize = 512;

impl Kernel for NormRow<'_> {
    /// # Safety
    /// As `Kernel::run` and `norm_row`.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { kind, eps, weight, bias, values, out } = self;
        let len = values.len() as f32;
        // SAFETY: dispatched for this CPU; the caller's promise.
        unsafe {
            // To take 0 off changes no bit.
            let mean = match kind {
                NormKind::Layer => sum_of::<V>(values, 0.0, |x| x) / len,
                NormKind::Rms => 0.0,
            };
            let center = V::splat(mean);
            let square = |x: V| x.sub(center).mul(x.sub(center));
            let mean_square = sum_of::<V>(values, mean, square) / len;
            let scale = V::splat(1.0 / (mean_square + eps).sqrt());
            let mut chunk = [0.0f32; CHUNK];
            for start in (0..values.len()).step_by(CHUNK) {
                let end = (start + CHUNK).min(values.len());
                let (from, chunk) = (&mut values[start..end], &mut chunk[..end - start]);
                let normalized = |x: V, weight| x.sub(center).mul(scale).mul(weight);
                map2::<V>(from, &weight[start..end], chunk, normalized);
                if let Some(bias) = bias {
                    map2_in_place::<V>(chunk, &bias[start..end], |x: V, bias| x.add(bias));
                }
                match out {
                    RowOut::InPlace => from.copy_from_slice(chunk),
                    RowOut::Other(rows, row) => rows.put((row, start), chunk),
                }
            }
        }
    }
}

/// Sum of f over a row: lane i takes the elements i, i + LANES, ...; then the lanes by halves.
/// `neutral` is where f is 0.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn sum_of<V: Vector>(values: &[f32], neutral: f32, f: impl Fn(V) -> V) -> f32 {
    let whole = values.len() - values.len() % V::LANES;
    // SAFETY: whole vectors below `whole`; the padded tail has 16 >= LANES elements.
    unsafe {
        let mut sum = V::splat(0.0);
        for i in (0..whole).step_by(V::LANES) {
            sum = sum.add(f(V::load(values.as_ptr().add(i))));
        }
        if whole < values.len() {
            let mut tail = [neutral; 16];
            tail[..values.len() - whole].copy_from_slice(&values[whole..]);
            sum = sum.add(f(V::load(tail.as_ptr())));
        }
        sum.sum()
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use vllm_batch_device::simd::InstructionSet;

    use super::*;
    use vllm_batch_device::Precision;

    fn reference(norm: &NormWeight, x: &[f32]) -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let len = x.len() as f64;
        let mean = if norm.kind == NormKind::Layer { x.iter().sum::<f64>() / len } else { 0.0 };
        let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / len;
        let scale = 1.0 / (square + f64::from(norm.eps)).sqrt();
        let bias = |i: usize| norm.bias.as_ref().map_or(0.0, |bias| f64::from(bias.values()[i]));
        let value = |(i, x): (usize, &f64)| {
            (x - mean) * scale * f64::from(norm.weight.values()[i]) + bias(i)
        };
        x.iter().enumerate().map(value).collect()
    }

    fn row(width: usize, seed: usize) -> Vec<f32> {
        (0..width).map(|i| ((i * 7 + seed * 13) % 29) as f32 * 0.3 - 2.0).collect()
    }

    #[test]
    fn both_kinds_agree_with_f64_with_and_without_residual() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            let layer = |bias| (NormKind::Layer, bias);
            for (kind, bias) in [(NormKind::Rms, None), layer(Some(row(37, 9))), layer(None)] {
                let vector = |values| Tensor::from_vec(values, 37);
                let (weight, bias) = (vector(row(37, 5)), bias.map(vector));
                let norm = NormWeight { kind, eps: 1e-5, weight, bias };
                let mut residual = Tensor::from_vec([row(37, 1), row(37, 2)].concat(), 37);
                let delta = Tensor::from_vec([row(37, 3), row(37, 4)].concat(), 37);
                let mut out = Tensor::zeros(2, 37);
                let before = vector(residual.values().to_vec());
                add_norm(&device, &mut residual, Some(&delta), &norm, &mut out);
                let mut second = Tensor::zeros(1, 37);
                let mut sum_of_second = vector(before.values().to_vec());
                let both = (&mut sum_of_second, Some(&delta));
                add_norm_rows(&device, both, 1, &norm, &mut second);
                assert_eq!(second.row(0), out.row(1), "a row alone");
                assert_eq!(sum_of_second.row(0), before.row(0), "the others are left alone");
                for r in 0..2 {
                    let sum: Vec<f32> =
                        before.row(r).iter().zip(delta.row(r)).map(|(a, b)| a + b).collect();
                    assert_eq!(residual.row(r), &sum[..]);
                    for (got, expected) in out.row(r).iter().zip(reference(&norm, &sum)) {
                        assert!((f64::from(*got) - expected).abs() < 1e-5, "{isa:?} {kind:?}");
                    }
                }
                norm_in_place(&device, &mut residual, &norm);
                assert_eq!(residual.values(), out.values());
            }
        }
    }

    #[test]
    fn rows_of_pairs_are_those_of_f32_rounded() {
        for isa in Isa::all_available().into_iter().filter(|isa| isa.bf16_products().take_pairs()) {
            let device = Device::cpu_with_isa(2, isa);
            for (kind, width) in [(NormKind::Rms, 37), (NormKind::Layer, 1100)] {
                let vector = |values| Tensor::from_vec(values, width);
                let weight = vector(row(width, 5));
                let norm =
                    NormWeight { kind, eps: 1e-5, weight, bias: Some(vector(row(width, 9))) };
                let residual = || vector([row(width, 1), row(width, 2)].concat());
                let mut expected = Tensor::zeros(2, width);
                add_norm(&device, &mut residual(), None, &norm, &mut expected);
                let precision = Precision::LinearInput(DType::BFloat16);
                let mut out = device.tensor(2, width, precision).unwrap();
                add_norm(&device, &mut residual(), None, &norm, &mut out);
                let rounded = |value: &f32| bf16::from_f32(*value).to_f32();
                let expected: Vec<f32> = expected.values().iter().map(rounded).collect();
                assert_eq!(device.read(&out).unwrap(), expected, "{isa:?} {kind:?}");
            }
        }
    }

    /// Weights that the heads share, and a slice for each; with a bias and without.
    #[test]
    fn heads_are_normalized_one_by_one_and_the_rest_is_left_alone() {
        let device = Device::cpu(Some(1));
        for (kind, width, bias) in [
            (NormKind::Rms, 5, None),
            (NormKind::Rms, 10, None),
            (NormKind::Layer, 5, None),
            (NormKind::Layer, 10, Some(row(10, 9))),
        ] {
            let weight = row(width, 5);
            let of_head = |head: usize| {
                let columns = head * 5 % width..head * 5 % width + 5;
                let bias = bias.as_ref().map(|bias| bias[columns.clone()].to_vec());
                let vector = |values| Tensor::from_vec(values, 5);
                let weight = vector(weight[columns].to_vec());
                NormWeight { kind, eps: 1e-6, weight, bias: bias.map(vector) }
            };
            let vector = |values: &Vec<f32>| Tensor::from_vec(values.clone(), width);
            let (weight, bias) = (vector(&weight), bias.as_ref().map(vector));
            let norm = NormWeight { kind, eps: 1e-6, weight, bias };
            let mut x = Tensor::from_vec([row(20, 1), row(20, 2)].concat(), 20);
            let before = Tensor::from_vec(x.values().to_vec(), 20);
            norm_heads(&device, &mut x, Heads { start: 5, num_heads: 2, head_dim: 5 }, &norm);
            for r in 0..2 {
                assert_eq!(x.row(r)[..5], before.row(r)[..5]);
                assert_eq!(x.row(r)[15..], before.row(r)[15..]);
                for head in 0..2 {
                    let columns = 5 + 5 * head..10 + 5 * head;
                    let expected = reference(&of_head(head), &before.row(r)[columns.clone()]);
                    for (got, expected) in x.row(r)[columns].iter().zip(expected) {
                        assert!((f64::from(*got) - expected).abs() < 1e-5, "{kind:?} {width}");
                    }
                }
            }
        }
    }
}
