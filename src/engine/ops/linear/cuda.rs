//! The GPU's GEMM: weights in rows, as checkpoints hold them, and cuBLASLt; or codes, and a kernel
//! of our own.

mod code_defines;
mod coded;
mod repack;
mod sorted;
mod widened;

pub(crate) use sorted::{SortedRows, Sorting};

use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, Quantization};
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr};
use vllm_batch_device::{Gpu, Matmul, MatmulInput, MatmulShape, Rows, RowsMut, Tensor};

use coded::{CodedWeight, Product};
use repack::{CodedRows, STRIP};

use crate::gpu_row_block;
use vllm_batch_base::matrix::{SourceMatrix, SourceRows, SourceValues};

/// Weights of a linear layer in a GPU's memory.
#[derive(Debug)]
pub(crate) struct Weight {
    n: usize,
    k: usize,
    values: Values,
    /// (n) in the model's dtype.
    bias: Option<DeviceBuffer>,
}

#[derive(Debug)]
enum Values {
    /// As many values as there are weights.
    Rows(WeightRows),
    /// Codes, as the checkpoint has them.
    Codes(CodedWeight),
}

#[derive(Debug)]
struct WeightRows {
    input: MatmulInput,
    /// (n, k) in the model's dtype, or in E4M3.
    rows: DeviceBuffer,
    /// (n) f32, when quantized: what a row's elements are multiples of.
    scales: Option<DeviceBuffer>,
}

impl Weight {
    /// Copies the rows, as codes where they have some; a quantizing GPU then narrows them.
    pub(super) fn load(
        gpu: &Gpu,
        dtype: DType,
        source: &SourceRows<'_>,
        bias: Option<&[f32]>,
    ) -> Result<Self, EngineError> {
        let codes = if keeps_codes(gpu, dtype) { CodedWeight::load(gpu, source)? } else { None };
        let Some(codes) = codes else { return Self::load_rows(gpu, dtype, source, bias) };
        let bias = load_bias(gpu, dtype, bias)?;
        let (n, k) = (source.num_rows(), source.num_columns());
        Ok(Self { n, k, values: Values::Codes(codes), bias })
    }

    /// As `load`, for the layers of so many experts, one after the other.
    pub(super) fn load_experts(
        gpu: &Gpu,
        dtype: DType,
        source: &SourceRows<'_>,
        (bias, num_experts): (Option<&[f32]>, usize),
    ) -> Result<Self, EngineError> {
        match keeps_codes_of_experts(gpu, dtype, source, num_experts) {
            true => Self::load(gpu, dtype, source, bias),
            false => Self::load_rows(gpu, dtype, source, bias),
        }
    }

    /// As `load`, each weight in `dtype`.
    pub(super) fn load_rows(
        gpu: &Gpu,
        dtype: DType,
        source: &SourceRows<'_>,
        bias: Option<&[f32]>,
    ) -> Result<Self, EngineError> {
        let (n, k) = (source.num_rows(), source.num_columns());
        let element = dtype.size_bytes();
        let rows = gpu.alloc(n * k * element)?;
        match source.in_parts() {
            Some(parts) => {
                let mut start = 0;
                for part in parts {
                    upload(gpu, part, dtype, rows.ptr().offset(start))?;
                    start += part.num_rows * k * element;
                }
            }
            None => gpu.upload_weights(rows.ptr(), n * k * element, |offset, chunk| {
                source.write_as(dtype, offset / element, chunk);
            })?,
        }
        let bias = load_bias(gpu, dtype, bias)?;
        let rows = WeightRows { input: MatmulInput::Plain(dtype), rows, scales: None };
        Ok(Self { n, k, values: Values::Rows(rows), bias })
    }

    /// Narrows the rows to E4M3 with a scale per output.
    pub(super) fn quantize(&mut self, gpu: &Gpu) -> Result<(), EngineError> {
        let (n, k) = (self.n, self.k);
        let Values::Rows(weights) = &mut self.values else { return Ok(()) };
        let MatmulInput::Plain(dtype) = weights.input else { return Ok(()) };
        let (narrow, scales) = (gpu.alloc(n * k)?, gpu.alloc(n * 4)?);
        gpu.wait_for_weights()?;
        quantize_rows(gpu, weights.rows.ptr(), (narrow.ptr(), scales.ptr()), (n, k));
        gpu.synchronize()?;
        let input = MatmulInput::Fp8(dtype);
        *weights = WeightRows { input, rows: narrow, scales: Some(scales) };
        Ok(())
    }

    /// As `quantize`, for the layers of experts, whose kernels read them as codes: (strips, k).
    pub(super) fn quantize_experts(&mut self, gpu: &Gpu) -> Result<(), EngineError> {
        self.quantize(gpu)?;
        let Values::Rows(WeightRows { rows, scales: Some(scales), .. }) = &self.values else {
            return Ok(());
        };
        let codes = CodedWeight::of_e4m3(gpu, (rows, scales), (self.n, self.k))?;
        gpu.synchronize()?;
        self.values = Values::Codes(codes);
        Ok(())
    }

    pub(super) fn num_bytes(&self) -> usize {
        match &self.values {
            Values::Rows(WeightRows { rows, scales, .. }) => {
                rows.bytes() + scales.as_ref().map_or(0, DeviceBuffer::bytes)
            }
            Values::Codes(codes) => codes.num_bytes(),
        }
    }

    /// Inputs, when they are quantized too.
    pub(super) fn quantized_width(&self) -> Option<usize> {
        match &self.values {
            Values::Rows(WeightRows { scales: Some(_), .. }) => Some(self.k),
            _ => None,
        }
    }

    pub(super) fn rows_ptr(&self) -> DevicePtr {
        match &self.values {
            Values::Rows(WeightRows { input: MatmulInput::Plain(_), rows, .. }) => rows.ptr(),
            _ => panic!("a quantized table"),
        }
    }

    pub(super) fn bias_ptr(&self) -> Option<DevicePtr> {
        self.bias.as_ref().map(DeviceBuffer::ptr)
    }

    pub(super) fn prepare(
        &self,
        gpu: &Gpu,
        output: DType,
        max_rows: usize,
    ) -> Result<(), EngineError> {
        match &self.values {
            Values::Rows(rows) => gpu.prepare_matmul(self.shape(rows.input, output), max_rows),
            Values::Codes(codes) => {
                let shape = self.shape(MatmulInput::Plain(gpu.dtype()), output);
                codes.prepare(gpu, (shape, self.bias_ptr()), max_rows)
            }
        }
    }

    /// `num_rows` rows of `out` = those of x Wᵀ + b.
    pub(super) fn linear(&self, gpu: &Gpu, x: Rows<'_>, out: RowsMut<'_>, num_rows: usize) {
        let at = |tensor: &Tensor, row: usize| tensor.device_ptr().offset(row * tensor.row_bytes());
        let Rows { tensor: x, first } = x;
        let (x_ptr, out_ptr) = (at(x, first), at(out.tensor, out.first));
        let output = out.tensor.dtype();
        let bias = self.bias_ptr();
        let weights = match &self.values {
            Values::Rows(rows) => rows,
            Values::Codes(codes) => {
                let shape = (self.n, self.k);
                let product = Product { x: x_ptr, out: out_ptr, output, bias, num_rows, shape };
                return codes.multiply(gpu, &product);
            }
        };
        let (x, scales) = match (&weights.scales, x.scales_ptr()) {
            (None, None) => (x_ptr, None),
            (Some(of_weight), Some(of_x)) => {
                (x_ptr, Some((of_x.offset(4 * first), of_weight.ptr())))
            }
            (Some(of_weight), None) => {
                let narrow = gpu.fp8_scratch();
                quantize_rows(gpu, x_ptr, narrow, (num_rows, self.k));
                (narrow.0, Some((narrow.1, of_weight.ptr())))
            }
            (None, Some(_)) => panic!("E4M3 rows were given to a layer that is not quantized"),
        };
        let matmul = Matmul { x, weight: weights.rows.ptr(), bias, scales, out: out_ptr };
        gpu.matmul(self.shape(weights.input, output), num_rows, &matmul);
    }

    fn shape(&self, input: MatmulInput, output: DType) -> MatmulShape {
        MatmulShape { n: self.n, k: self.k, input, output, bias: self.bias.is_some() }
    }
}

/// Whether codes stay. float32 is for exactness, and E4M3 has matrix units of its own.
fn keeps_codes(gpu: &Gpu, dtype: DType) -> bool {
    dtype != DType::Float32 && gpu.quantization() != Some(Quantization::Fp8)
}

/// Whether the codes of experts' layers, one after the other, stay: a kernel takes those of one
/// kind, and of whole strips of each expert.
pub(super) fn keeps_codes_of_experts(
    gpu: &Gpu,
    dtype: DType,
    source: &SourceRows<'_>,
    num_experts: usize,
) -> bool {
    let has_whole_strips = (source.num_rows() / num_experts).is_multiple_of(STRIP);
    keeps_codes(gpu, dtype)
        && has_whole_strips
        && CodedRows::runs(source).is_some_and(|runs| runs.len() == 1)
}

/// Bytes of a layer of this matrix, where its codes stay.
pub(super) fn code_bytes(gpu: &Gpu, dtype: DType, matrix: SourceMatrix<'_>) -> Option<usize> {
    let rows = [matrix].into();
    let runs = CodedRows::runs(&rows).filter(|_| keeps_codes(gpu, dtype))?;
    Some(runs.iter().map(CodedRows::num_bytes).sum())
}

fn load_bias(
    gpu: &Gpu,
    dtype: DType,
    bias: Option<&[f32]>,
) -> Result<Option<DeviceBuffer>, EngineError> {
    let Some(values) = bias else { return Ok(None) };
    let source = SourceMatrix::new(1, values.len(), SourceValues::Slice(values));
    let buffer = gpu.alloc(values.len() * dtype.size_bytes())?;
    upload(gpu, &source, dtype, buffer.ptr())?;
    Ok(Some(buffer))
}

/// Rows of x in the model's dtype to E4M3 with a scale per row.
fn quantize_rows(
    gpu: &Gpu,
    x: DevicePtr,
    (out, scales): (DevicePtr, DevicePtr),
    (num_rows, width): (usize, usize),
) {
    let mut args = Args::new();
    args.ptr(x).ptr(out).ptr(scales).dims([width]);
    let kernel = ("quantize_rows", "quantize_rows");
    gpu.launch(kernel, [num_rows as u32, 1], (gpu_row_block(width, 32).min(512), 0), &mut args);
}

/// A matrix to the GPU: bytes of its own dtype are copied as they are, random ones are made there.
fn upload(
    gpu: &Gpu,
    source: &SourceMatrix<'_>,
    dtype: DType,
    to: DevicePtr,
) -> Result<(), EngineError> {
    let num_values = source.num_rows * source.num_columns;
    if let Some(bytes) = source.all_bytes_of(dtype) {
        return gpu.upload_weights(to, bytes.len(), |offset, chunk| {
            chunk.copy_from_slice(&bytes[offset..offset + chunk.len()]);
        });
    }
    if let Some((seed, scale)) = source.as_random() {
        let mut args = Args::new();
        args.ptr(to).u64(num_values as u64).u64(seed).f32(scale);
        gpu.launch_over(num_values, ("random_fill", "random_fill"), &mut args);
        return Ok(());
    }
    gpu.upload_weights(to, num_values * dtype.size_bytes(), |offset, chunk| {
        source.write_as(dtype, offset / dtype.size_bytes(), chunk);
    })
}
