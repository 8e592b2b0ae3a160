//! rotary: rotary position embedding (Su et al., 2021) in the half-split ("neox") form of
//! Hugging Face.
//!
//! For a head x of width d at position p, with angle a_i = p * inv_freq[i]:
//! x[i], x[i + d/2] = x[i] cos a_i - x[i + d/2] sin a_i, x[i + d/2] cos a_i + x[i] sin a_i.

use crate::engine::EngineError;
use crate::engine::device::cuda::{DeviceBuffer, DevicePtr};
use crate::engine::device::{Device, bytes_of};

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

    /// Width of the heads that it rotates.
    pub(super) fn head_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// (cos, sin) of the angles of a position, head_dim / 2 of them.
    pub(super) fn row(&self, position: u32) -> &[(f32, f32)] {
        let half = self.inv_freq.len();
        &self.table[position as usize * half..(position as usize + 1) * half]
    }
}

/// Rotates heads (num_heads, head_dim) of a token in place, by the angles of its position
/// ([`RotaryTable::row`]). Plain loops: they are made vectors of for the instruction set.
#[inline(always)]
pub(super) fn rotate(heads: &mut [f32], angles: &[(f32, f32)]) {
    for head in heads.chunks_exact_mut(2 * angles.len()) {
        let (low, high) = head.split_at_mut(angles.len());
        for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
            let (x, y) = (*low, *high);
            *low = x * cos - y * sin;
            *high = y * cos + x * sin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_heads_by_the_angle_of_the_position() {
        let inv_freq = vec![1.0, 0.25, 0.01];
        let mut table = RotaryTable::new(inv_freq.clone());
        table.extend_to(10);
        table.extend_to(1000);
        for position in [0, 777] {
            let before: Vec<f32> = (0..12).map(|i| i as f32 * 0.1 - 1.0).collect();
            let mut after = before.clone();
            rotate(&mut after, table.row(position));
            for (i, j) in [0, 6].into_iter().flat_map(|head| (0..3).map(move |i| (i, head + i))) {
                let angle = f64::from(position as f32 * inv_freq[i]);
                let (a, b) = (f64::from(before[j]), f64::from(before[j + 3]));
                let expected =
                    (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
                assert!((f64::from(after[j]) - expected.0).abs() < 1e-5);
                assert!((f64::from(after[j + 3]) - expected.1).abs() < 1e-5);
            }
        }
    }
}
