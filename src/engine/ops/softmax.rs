//! softmax_rows: shares of each row, as Ovis 2 makes words of patches.

use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

use super::{GPU_BLOCK, for_row_chunks};

/// Each value of `x` = e^value over the sum of these in its row, in place.
pub fn softmax_rows(device: &Device, x: &mut Tensor) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(x).dims([width]);
            let grid = [num_rows as u32, 1];
            return gpu.launch(("softmax", "softmax_rows"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("softmax_rows"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            of_row(unsafe { shared.slice(row * width, width) });
        }
    });
}

fn of_row(row: &mut [f32]) {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = (*value - top).exp());
    let sum: f64 = row.iter().map(|value| f64::from(*value)).sum();
    row.iter_mut().for_each(|value| *value /= sum as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_shares_of_its_exponentials() {
        let device = Device::cpu(Some(2));
        let values: Vec<f32> =
            (0..210).map(|at| ((at * 37 + 11) % 23) as f32 * 0.7 - 3.0).collect();
        let mut x = Tensor::from_vec(values.clone(), 70);
        softmax_rows(&device, &mut x);
        for row in 0..3 {
            let of_row = &values[row * 70..][..70];
            let sum: f64 = of_row.iter().map(|value| f64::from(*value).exp()).sum();
            for (got, value) in x.row(row).iter().zip(of_row) {
                assert!((f64::from(*got) - f64::from(*value).exp() / sum).abs() < 1e-6);
            }
        }
    }
}
