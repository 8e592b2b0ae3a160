//! scale_columns: every column of rows times a factor of its own (Falcon-H1).

use super::{for_row_chunks, map2_in_place};
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::simd::{Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Device, Tensor};

/// x *= factors, row by row, in place.
///
/// # Panics
/// There are not as many factors as columns, or the device is a GPU: models that need this run on
/// the CPU.
pub fn scale_columns(device: &Device, x: &mut Tensor, factors: &[f32]) {
    let Device::Cpu(cpu) = device else { panic!("a GPU has no kernel for factors of columns") };
    let (num_rows, width) = (x.num_rows(), x.width());
    assert_eq!(factors.len(), width);
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
    use crate::engine::device::simd::Isa;

    #[test]
    fn each_column_has_its_factor() {
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            let factors: Vec<_> = (0..133).map(|column| column as f32 / 4.0).collect();
            let mut x = Tensor::from_vec((0..3 * 133).map(|i| i as f32).collect(), 133);
            scale_columns(&device, &mut x, &factors);
            for (index, value) in x.values().iter().enumerate() {
                assert_eq!(*value, index as f32 * factors[index % 133], "{}", isa.name());
            }
        }
    }
}
