//! The GPU's GEMM: weights in rows, as checkpoints hold them, and cuBLASLt.

use crate::engine::EngineError;
use crate::engine::config::DType;
use crate::engine::device::cuda::{Args, DeviceBuffer, DevicePtr};
use crate::engine::device::{Gpu, Matmul, MatmulInput, MatmulShape, Rows, RowsMut, Tensor};

use super::source::{SourceMatrix, SourceRows, SourceValues};
use crate::engine::ops::gpu_row_block;

/// Weights of a linear layer in a GPU's memory.
#[derive(Debug)]
pub(super) struct Weight {
    n: usize,
    k: usize,
    input: MatmulInput,
    /// (n, k) in the model's dtype, or in E4M3.
    rows: DeviceBuffer,
    /// (n) f32, when quantized: what a row's elements are multiples of.
    scales: Option<DeviceBuffer>,
    /// (n) in the model's dtype.
    bias: Option<DeviceBuffer>,
}

impl Weight {
    /// Copies the rows; a quantizing GPU then narrows them.
    pub(super) fn load(
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
        let bias = match bias {
            None => None,
            Some(values) => {
                let source = SourceMatrix::new(1, n, SourceValues::Slice(values));
                let buffer = gpu.alloc(n * element)?;
                upload(gpu, &source, dtype, buffer.ptr())?;
                Some(buffer)
            }
        };
        let input = MatmulInput::Plain(dtype);
        Ok(Self { n, k, input, rows, scales: None, bias })
    }

    /// Narrows the rows to E4M3 with a scale per output.
    pub(super) fn quantize(&mut self, gpu: &Gpu) -> Result<(), EngineError> {
        let MatmulInput::Plain(dtype) = self.input else { return Ok(()) };
        let (narrow, scales) = (gpu.alloc(self.n * self.k)?, gpu.alloc(self.n * 4)?);
        gpu.wait_for_weights()?;
        quantize_rows(gpu, self.rows.ptr(), (narrow.ptr(), scales.ptr()), (self.n, self.k));
        gpu.synchronize()?;
        self.rows = narrow;
        self.scales = Some(scales);
        self.input = MatmulInput::Fp8(dtype);
        Ok(())
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.rows.bytes() + self.scales.as_ref().map_or(0, DeviceBuffer::bytes)
    }

    /// Inputs, when they are quantized too.
    pub(super) fn quantized_width(&self) -> Option<usize> {
        self.scales.as_ref().map(|_| self.k)
    }

    pub(super) fn rows_ptr(&self) -> DevicePtr {
        assert!(matches!(self.input, MatmulInput::Plain(_)), "a quantized table");
        self.rows.ptr()
    }

    pub(super) fn prepare(
        &self,
        gpu: &Gpu,
        output: DType,
        max_rows: usize,
    ) -> Result<(), EngineError> {
        gpu.prepare_matmul(self.shape(output), max_rows)
    }

    /// `num_rows` rows of `out` = those of x Wᵀ + b.
    pub(super) fn linear(&self, gpu: &Gpu, x: Rows<'_>, out: RowsMut<'_>, num_rows: usize) {
        let at = |tensor: &Tensor, row: usize| tensor.device_ptr().offset(row * tensor.row_bytes());
        let Rows { tensor: x, first } = x;
        let (x_ptr, out_ptr) = (at(x, first), at(out.tensor, out.first));
        let output = out.tensor.dtype();
        let (x, scales) = match (&self.scales, x.scales_ptr()) {
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
        let bias = self.bias.as_ref().map(DeviceBuffer::ptr);
        let matmul = Matmul { x, weight: self.rows.ptr(), bias, scales, out: out_ptr };
        gpu.matmul(self.shape(output), num_rows, &matmul);
    }

    fn shape(&self, output: DType) -> MatmulShape {
        MatmulShape { n: self.n, k: self.k, input: self.input, output, bias: self.bias.is_some() }
    }
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
