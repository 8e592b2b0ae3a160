//! all_reduce: the sum of what the ranks of a group have computed, on each of them.

use vllm_batch_device::cuda::Args;
use vllm_batch_device::{Device, Tensor};

use super::GPU_BLOCK;

/// x (rows, width) = x of rank 0 + x of rank 1 + .., in this order in f32, rounded once. Every rank
/// calls it with a tensor of the same shape, and gets the same bits. A device that is alone in a
/// model leaves x as it is; so does the CPU, which is never one of several.
///
/// # Panics
/// There are more values than the group was made for, or they are no activations.
pub fn all_reduce(device: &Device, x: &mut Tensor) {
    let Device::Cuda(gpu) = device else { return };
    let Some(rank) = gpu.rank() else { return };
    let num_values = x.num_rows() * x.width();
    assert!(num_values <= rank.capacity(), "{num_values} values in a group of fewer");
    assert_eq!(x.dtype(), gpu.dtype(), "activations are summed");
    let mut args = Args::new();
    args.tensor(x).ptr(rank.memories()).ptr(rank.epochs()).ptr(rank.stop());
    args.dims([rank.index(), rank.num_ranks()]);
    args.u64(rank.capacity() as u64).u64(num_values as u64);
    let grid = [rank.num_blocks(), 1];
    gpu.launch(("all_reduce", "all_reduce"), grid, (GPU_BLOCK, 0), &mut args);
}
