//! Matrices of heads on a GPU: kernels/linear_by_head.cu, or linear_by_head_plain.cu for exactness.

use super::{HeadMatrices, Values};
use crate::columns::Columns;
use crate::weight_tiles::{Product, WeightTiles};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::SourceMatrix;
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr};
use vllm_batch_device::{Gpu, Tensor};

/// The values of a matrix in the GPU's memory.
pub(super) fn upload(
    gpu: &Gpu,
    dtype: DType,
    matrix: &SourceMatrix<'_>,
) -> Result<DeviceBuffer, EngineError> {
    let num_bytes = matrix.num_rows * matrix.num_columns * dtype.size_bytes();
    let buffer = gpu.alloc(num_bytes)?;
    gpu.upload_weights(buffer.ptr(), num_bytes, |offset, chunk| {
        matrix.write_as(dtype, offset / dtype.size_bytes(), chunk);
    })?;
    Ok(buffer)
}

/// `struct ByHead` of kernels/by_head.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct ByHead {
    x: DevicePtr,
    weights: DevicePtr,
    out: DevicePtr,
    num_rows: u32,
    n: u32,
    k: u32,
    from: [u32; 3],
    to: [u32; 3],
    /// Behind the last one C++ has as many bytes. A launch is compared with its recording byte by
    /// byte, so that they are set.
    padding: u32,
}

const KERNELS: WeightTiles = WeightTiles {
    plain: "linear_by_head_plain",
    file: "linear_by_head",
    entries: ["linear_by_head_128x128", "linear_by_head_64x128", "linear_by_head_16x64"],
};

pub(super) fn linear_by_head(
    gpu: &Gpu,
    (x, from): (&Tensor, Columns),
    matrices: &HeadMatrices,
    (out, to): (&Tensor, Columns),
) {
    let Values::OnGpu(weights) = &matrices.values else {
        panic!("matrices of the CPU were given to a GPU")
    };
    assert!(x.dtype() == gpu.dtype() && out.dtype() == gpu.dtype());
    let &HeadMatrices { num_heads, n, k, .. } = matrices;
    let num_rows = x.num_rows();
    let of_rows =
        |width: usize, of: Columns| [width, of.start, of.stride].map(|number| number as u32);
    let (from, to) = (of_rows(x.width(), from), of_rows(out.width(), to));
    let mut args = Args::new();
    args.value(ByHead {
        x: x.device_ptr(),
        weights: weights.ptr(),
        out: out.device_ptr(),
        num_rows: num_rows as u32,
        n: n as u32,
        k: k as u32,
        from,
        to,
        padding: 0,
    });
    let has_whole_chunks = k.is_multiple_of(8) && from.iter().all(|it| it.is_multiple_of(8));
    let product = Product { gpu, n, num_rows, has_whole_chunks };
    KERNELS.launch(&product, |rows| num_heads * num_rows.div_ceil(rows), &mut args);
}
