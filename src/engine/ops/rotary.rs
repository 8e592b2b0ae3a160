//! rotary: rotary position embedding (Su et al., 2021) in the half-split ("neox") form of
//! Hugging Face.
//!
//! For a head x of width d at position p, with angle a_i = p * inv_freq[i]:
//! x[i], x[i + d/2] = x[i] cos a_i - x[i + d/2] sin a_i, x[i + d/2] cos a_i + x[i] sin a_i.

use crate::engine::EngineError;
use crate::engine::device::cuda::{DeviceBuffer, DevicePtr};
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::simd::{Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, Device, Tensor, bytes_of};

use super::{Heads, for_row_chunks};

/// cos and sin of every position so far asked for; grows by doubling. A GPU's is whole from the
/// start, since CUDA graphs keep its address.
#[derive(Debug)]
pub struct RotaryTable {
    /// (head_dim / 2) angle per position step.
    inv_freq: Vec<f32>,
    /// (num_positions, head_dim / 2) of (cos, sin).
    table: Vec<(f32, f32)>,
    /// The same on a GPU.
    on_gpu: Option<DeviceBuffer>,
}

impl RotaryTable {
    /// A table of these frequencies, empty so far.
    pub fn new(inv_freq: Vec<f32>) -> Self {
        Self { inv_freq, table: Vec::new(), on_gpu: None }
    }

    /// A table on the device; on a GPU for positions below `max_model_len`, all others grow.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn on_device(
        device: &Device,
        inv_freq: Vec<f32>,
        max_model_len: usize,
    ) -> Result<Self, EngineError> {
        let mut table = Self::new(inv_freq);
        if let Device::Cuda(gpu) = device {
            table.extend_to(max_model_len);
            let values: Vec<f32> = table.table.iter().flat_map(|&(cos, sin)| [cos, sin]).collect();
            let buffer = gpu.alloc(size_of_val(&values[..]))?;
            gpu.upload(&buffer, bytes_of(&values));
            table.on_gpu = Some(buffer);
        }
        Ok(table)
    }

    pub(super) fn device_ptr(&self) -> DevicePtr {
        self.on_gpu.as_ref().expect("the table of a GPU").ptr()
    }

    /// Makes positions below `num_positions` known.
    pub fn extend_to(&mut self, num_positions: usize) {
        let half = self.inv_freq.len();
        let known = self.table.len() / half;
        if num_positions <= known {
            return;
        }
        assert!(self.on_gpu.is_none(), "position {num_positions} is past the GPU's table");
        let target = num_positions.max(2 * known).max(256);
        self.table.reserve_exact((target - known) * half);
        for position in known..target {
            // f32 throughout, as transformers computes it.
            let angles = self.inv_freq.iter().map(|inv_freq| position as f32 * inv_freq);
            self.table.extend(angles.map(|angle| (angle.cos(), angle.sin())));
        }
    }

    fn row(&self, position: u32) -> &[(f32, f32)] {
        let half = self.inv_freq.len();
        &self.table[position as usize * half..(position as usize + 1) * half]
    }
}

/// Rotates the given heads of every row of `x` in place. positions (num_tokens) are in the table.
pub(super) fn rotary(
    cpu: &Cpu,
    x: &mut Tensor,
    heads: Heads,
    positions: &[u32],
    table: &RotaryTable,
) {
    let (num_rows, width) = (x.num_rows(), x.width());
    let Heads { start: column, num_heads, head_dim } = heads;
    assert!(positions.len() == num_rows && table.inv_freq.len() * 2 == head_dim);
    assert!(column + num_heads * head_dim <= width);
    let work = || Work::elementwise(num_rows * num_heads * head_dim, 8);
    let _timed = cpu.op_timer.timed(Op::new("rotary"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, num_heads * head_dim, &|start, end| {
        for (row, &position) in (start..end).zip(&positions[start..end]) {
            // SAFETY: each row belongs to one item.
            let values = unsafe { shared.slice(row * width + column, num_heads * head_dim) };
            dispatch(cpu.isa, RotateHeads { values, head_dim, angles: table.row(position) });
        }
    });
}

/// All heads of one row. Plain loops: they are made vectors of for the instruction set.
struct RotateHeads<'a> {
    values: &'a mut [f32],
    head_dim: usize,
    angles: &'a [(f32, f32)],
}

impl Kernel for RotateHeads<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for head in self.values.chunks_exact_mut(self.head_dim) {
            rotate_head(head, self.angles);
        }
    }
}

#[inline(always)]
fn rotate_head(head: &mut [f32], angles: &[(f32, f32)]) {
    let (low, high) = head.split_at_mut(angles.len());
    for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
        let (x, y) = (*low, *high);
        *low = x * cos - y * sin;
        *high = y * cos + x * sin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_only_its_heads_by_the_angle_of_each_position() {
        let inv_freq = vec![1.0, 0.25, 0.01];
        let mut table = RotaryTable::new(inv_freq.clone());
        table.extend_to(10);
        table.extend_to(1000);
        let Device::Cpu(cpu) = &Device::cpu(Some(2)) else { panic!("the CPU") };
        let values: Vec<f32> = (0..2 * 14).map(|i| i as f32 * 0.1 - 1.0).collect();
        let mut x = Tensor::from_vec(values, 14);
        let before = Tensor::from_vec(x.values().to_vec(), 14);
        let heads = Heads { start: 1, num_heads: 2, head_dim: 6 };
        rotary(cpu, &mut x, heads, &[0, 777], &table);
        assert_eq!(x.row(0), before.row(0));
        assert_eq!((x.row(1)[0], x.row(1)[13]), (before.row(1)[0], before.row(1)[13]));
        for head in [1, 7] {
            for (i, inv_freq) in inv_freq.iter().enumerate() {
                let angle = f64::from(777.0f32 * inv_freq);
                let (a, b) = (before.row(1)[head + i], before.row(1)[head + i + 3]);
                let (a, b) = (f64::from(a), f64::from(b));
                let expected =
                    (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
                assert!((f64::from(x.row(1)[head + i]) - expected.0).abs() < 1e-5);
                assert!((f64::from(x.row(1)[head + i + 3]) - expected.1).abs() < 1e-5);
            }
        }
    }
}
