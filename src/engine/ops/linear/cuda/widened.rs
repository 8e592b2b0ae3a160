//! Layers of codes over many rows: the weights are widened to the model's dtype, once a step, and
//! multiplied as those of other layers are. The kernels over codes make each weight anew for every
//! tile of rows.
//!
//! The number of rows decides which it is, so both must have the same bits. The kernels and
//! cuBLASLt's algorithms have one order of sums on the GPUs that were asked; a trial at load asks
//! this one.

use std::sync::OnceLock;

use super::coded::{CodedWeight, Product};
use super::{SourceMatrix, SourceValues, upload};
use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::DevicePtr;
use vllm_batch_device::cuda::gemm::Random;
use vllm_batch_device::{Gpu, Matmul, MatmulShape};

/// Fewest rows that are widened. On an H200 widening takes as long as the kernels lose at about 64.
const MIN_ROWS: usize = 96;

/// A layer is widened if its weights take no more of the memory than this share.
const MAX_SHARE: usize = 32;

/// Outputs that a trial compares, about: other orders of sums change one of some 30,000 in 16 bits.
const NUM_OUTPUTS: usize = 1 << 20;

/// Whether a layer's weights are widened for many rows: the product that then takes its place.
#[derive(Debug, Default)]
pub(super) struct Widened(OnceLock<MatmulShape>);

impl Widened {
    /// Decides it for a layer that computes up to `max_rows` rows.
    ///
    /// # Errors
    /// The GPU failed.
    pub(super) fn prepare(
        &self,
        gpu: &Gpu,
        layer: &CodedWeight,
        (shape, bias): (MatmulShape, Option<DevicePtr>),
        max_rows: usize,
    ) -> Result<(), EngineError> {
        let bytes = shape.n * shape.k * gpu.dtype().size_bytes();
        let (_, total) = gpu.memory_info()?;
        if max_rows < MIN_ROWS || bytes > total / MAX_SHARE {
            return Ok(());
        }
        // For want of an algorithm or of memory, kernels over codes have all rows. A GPU that has
        // failed says so again at once.
        let ready = gpu.prepare_matmul(shape, max_rows).and_then(|()| gpu.reserve_widened(bytes));
        if ready.is_err() {
            return Ok(());
        }
        let has_equal_bits = gpu
            .tried(shape, layer.kinds(), || has_equal_bits(gpu, layer, (shape, bias), max_rows))?;
        if has_equal_bits {
            self.0.get_or_init(|| shape);
        }
        Ok(())
    }

    /// Queues the product, if it is by widened weights.
    pub(super) fn multiply(&self, gpu: &Gpu, layer: &CodedWeight, product: &Product) -> bool {
        let is_of =
            |shape: &&MatmulShape| product.num_rows >= MIN_ROWS && shape.output == product.output;
        let Some(&shape) = self.0.get().filter(is_of) else { return false };
        multiply(gpu, layer, shape, product);
        true
    }
}

fn multiply(gpu: &Gpu, layer: &CodedWeight, shape: MatmulShape, product: &Product) {
    let Product { x, out, bias, num_rows, .. } = *product;
    let weight = gpu.widened_scratch();
    layer.widen(gpu, weight, shape.k);
    gpu.matmul(shape, num_rows, &Matmul { x, weight, bias, scales: None, out });
}

/// Whether the kernels over codes and the product of the widened weights have the same bits, over
/// rows whose exponents vary widely.
fn has_equal_bits(
    gpu: &Gpu,
    layer: &CodedWeight,
    (shape, bias): (MatmulShape, Option<DevicePtr>),
    max_rows: usize,
) -> Result<bool, EngineError> {
    let MatmulShape { n, k, output, .. } = shape;
    let num_rows = (NUM_OUTPUTS / n).clamp(128, 512).min(max_rows);
    let rows = gpu.max_padded_rows(num_rows);
    let mut random = Random(0x5EED);
    let values: Vec<f32> = (0..num_rows * k).map(|_| random.value(2)).collect();
    let values = SourceMatrix::new(num_rows, k, SourceValues::Slice(&values));
    let x = gpu.alloc(rows * k * gpu.dtype().size_bytes())?;
    upload(gpu, &values, gpu.dtype(), x.ptr())?;
    gpu.wait_for_weights()?;
    let outs =
        [gpu.alloc(rows * n * output.size_bytes())?, gpu.alloc(rows * n * output.size_bytes())?];
    let product = |out| Product { x: x.ptr(), out, output, bias, num_rows, shape: (n, k) };
    layer.multiply_codes(gpu, &product(outs[0].ptr()));
    multiply(gpu, layer, shape, &product(outs[1].ptr()));
    gpu.synchronize()?;
    let bytes = num_rows * n * output.size_bytes();
    Ok(outs[0].read::<u8>(bytes)? == outs[1].read::<u8>(bytes)?)
}
