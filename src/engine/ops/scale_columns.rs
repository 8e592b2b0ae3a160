//! scale_columns: every column of rows times a factor of its own (Falcon-H1).

use super::{WeightValues, for_row_chunks, gpu_row_block, map2_in_place};
use vllm_batch_device::cuda::Args;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

/// x *= factors (width), row by row, in place.
///
/// # Panics
/// There are not as many factors as columns.
pub fn scale_columns(device: &Device, x: &mut Tensor, factors: &WeightValues) {
    let (num_rows, width) = (x.num_rows(), x.width());
    assert_eq!(factors.host().len(), width);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(x).ptr(factors.device_ptr()).u32(width as u32);
            let (grid, block) = ([num_rows as u32, 1], gpu_row_block(width, 4));
            return gpu.launch(("elementwise", "scale_columns"), grid, (block, 0), &mut args);
        }
    };
    let factors = factors.host();
    let _timed =
        cpu.op_timer.timed(Op::new("scale_columns"), || Work::elementwise(num_rows * width, 8));
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let values = unsafe { shared.slice(row * width, width) };
            dispatch(cpu.isa, Scaled { values, factors });
        }
    });
}

struct Scaled<'a> {
    values: &'a mut [f32],
    factors: &'a [f32],
}

impl Kernel for Scaled<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { values, factors } = self;
        // SAFETY: dispatched for this CPU.
        unsafe { map2_in_place::<V>(values, factors, |x: V, factor: V| x.mul(factor)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::InstructionSet;
    use vllm_batch_device::simd::Isa;

    #[test]
    fn each_column_has_its_factor() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            let factors: Vec<_> = (0..133).map(|column| column as f32 / 4.0).collect();
            let weights = WeightValues::on_device(&device, factors.clone()).unwrap();
            let mut x = Tensor::from_vec((0..3 * 133).map(|i| i as f32).collect(), 133);
            scale_columns(&device, &mut x, &weights);
            for (index, value) in x.values().iter().enumerate() {
                assert_eq!(*value, index as f32 * factors[index % 133], "{}", isa.name());
            }
        }
    }
}
