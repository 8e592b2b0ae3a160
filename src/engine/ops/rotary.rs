//! rotary: rotary position embedding (Su et al., 2021) in the half-split ("neox") form of
//! Hugging Face.
//!
//! For a head x at position p, with n frequencies and angle a_i = p * inv_freq[i]:
//! x[i], x[i + n] = x[i] cos a_i - x[i + n] sin a_i, x[i + n] cos a_i + x[i] sin a_i.
//! What follows the first 2 n values of a head stays as it is (partial rotary).
//!
//! A token of an image has a position on each of several axes, and p is then that on the axis of i.

use crate::Step;
use crate::batch::Batch;
use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{DeviceBuffer, DevicePtr};
use vllm_batch_device::{Device, bytes_of};

/// cos and sin of every position so far asked for; grows by doubling. A GPU's is whole from the
/// start, since CUDA graphs keep its address.
#[derive(Debug)]
pub struct RotaryTable {
    /// (rotary_dim / 2) angle per position step.
    inv_freq: Vec<f32>,
    /// Factor of cos and sin.
    factor: f32,
    /// (rotary_dim / 2) axis whose position each angle is of; empty: there is one position.
    axes: Vec<u8>,
    /// (num_positions, rotary_dim / 2) of (cos, sin), times the factor.
    table: Vec<(f32, f32)>,
    /// Both on a GPU.
    on_gpu: Option<OnGpu>,
}

#[derive(Debug)]
struct OnGpu {
    table: DeviceBuffer,
    /// None: there is one position.
    axes: Option<DeviceBuffer>,
}

/// Where kernels find a table. `struct Angles` of kernels/rotary.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Angles {
    /// (num_positions, rotary_dim / 2) of (cos, sin); null: nothing is rotated.
    cos_sin: DevicePtr,
    /// (num_tokens)
    positions: DevicePtr,
    /// (num_tokens, 3); null: there is one position.
    axes: DevicePtr,
    /// (rotary_dim / 2) axes as bytes.
    of_pairs: DevicePtr,
}

impl RotaryTable {
    /// A table of these frequencies, empty so far. cos and sin are multiplied by `factor`: YaRN's
    /// and LongRoPE's attention factor, else 1.
    pub fn new(inv_freq: Vec<f32>, factor: f32) -> Self {
        Self { inv_freq, factor, axes: Vec::new(), table: Vec::new(), on_gpu: None }
    }

    /// The same, where the position on one of three axes turns each frequency; empty: there is one
    /// axis.
    ///
    /// # Panics
    /// There are more axes, or not one for each frequency.
    pub fn with_axes(self, axes: Vec<u8>) -> Self {
        assert!(axes.is_empty() || axes.len() == self.inv_freq.len());
        assert!(axes.iter().all(|axis| *axis < 3), "a token has three positions");
        Self { axes, ..self }
    }

    /// The same on the device; on a GPU for positions below `max_model_len`, all others grow.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn on_device(mut self, device: &Device, max_model_len: usize) -> Result<Self, EngineError> {
        if let Device::Cuda(_) = device {
            self.reach(device, max_model_len)?;
        }
        Ok(self)
    }

    /// Makes positions below `num_positions` known on the device. Not between steps that a GPU
    /// records, which keep the address.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn reach(&mut self, device: &Device, num_positions: usize) -> Result<(), EngineError> {
        let is_known = num_positions * self.inv_freq.len() <= self.table.len();
        let gpu = match device {
            Device::Cpu(_) => {
                self.extend_to(num_positions);
                return Ok(());
            }
            Device::Cuda(_) if is_known && self.on_gpu.is_some() => return Ok(()),
            Device::Cuda(gpu) => gpu,
        };
        self.on_gpu = None;
        self.extend_to(num_positions);
        let values: Vec<f32> = self.table.iter().flat_map(|&(cos, sin)| [cos, sin]).collect();
        let uploaded = |bytes: &[u8]| {
            let buffer = gpu.alloc(bytes.len())?;
            gpu.upload(&buffer, bytes);
            Ok::<_, EngineError>(buffer)
        };
        let axes = (!self.axes.is_empty()).then(|| uploaded(&self.axes)).transpose()?;
        self.on_gpu = Some(OnGpu { table: uploaded(bytes_of(&values))?, axes });
        Ok(())
    }

    /// The angles of a step for kernels; None: nothing is rotated.
    pub(super) fn angles(table: Option<&Self>, step: Step<'_>) -> Angles {
        let on_gpu = table.map(|table| table.on_gpu.as_ref().expect("the table of a GPU"));
        let of_pairs = on_gpu.and_then(|on_gpu| on_gpu.axes.as_ref());
        let ptr = |buffer: Option<&DeviceBuffer>| buffer.map_or(DevicePtr::NULL, DeviceBuffer::ptr);
        Angles {
            cos_sin: ptr(on_gpu.map(|on_gpu| &on_gpu.table)),
            positions: step.positions().device_ptr,
            axes: of_pairs.map_or(DevicePtr::NULL, |_| step.axes_ptr()),
            of_pairs: ptr(of_pairs),
        }
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
            let factor = self.factor;
            self.table.extend(angles.map(|angle| (angle.cos() * factor, angle.sin() * factor)));
        }
    }

    /// Values of a head that it rotates, the first ones.
    pub(super) fn rotary_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// (cos, sin) of the angles of a position, rotary_dim / 2 of them.
    pub(super) fn row(&self, position: u32) -> &[(f32, f32)] {
        let half = self.inv_freq.len();
        &self.table[position as usize * half..(position as usize + 1) * half]
    }

    /// The same of a token of a step, made in `room` where its positions on the axes differ.
    #[inline]
    pub(super) fn of_token<'a>(
        &'a self,
        batch: &Batch,
        token: usize,
        room: &'a mut Vec<(f32, f32)>,
    ) -> &'a [(f32, f32)] {
        let of_axes = batch.axes.get(token).filter(|_| !self.axes.is_empty());
        let Some(positions) = of_axes else { return self.row(batch.positions[token]) };
        if positions.iter().all(|position| *position == positions[0]) {
            return self.row(positions[0]);
        }
        let rows = positions.map(|position| self.row(position));
        room.clear();
        room.extend(self.axes.iter().enumerate().map(|(i, axis)| rows[usize::from(*axis)][i]));
        room
    }
}

/// Rotates heads (num_heads, head_dim) of a token in place, by the angles of its position
/// ([`RotaryTable::row`]). Plain loops: they are made vectors of for the instruction set.
#[inline(always)]
pub(super) fn rotate_heads(heads: &mut [f32], head_dim: usize, angles: &[(f32, f32)]) {
    for head in heads.chunks_exact_mut(head_dim) {
        let (low, high) = head[..2 * angles.len()].split_at_mut(angles.len());
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
    fn rotates_the_first_values_of_heads_by_the_angle_of_the_position() {
        let inv_freq = vec![1.0, 0.25, 0.01];
        for (head_dim, factor) in [(6, 1.0), (10, 1.0), (7, 1.5)] {
            let mut table = RotaryTable::new(inv_freq.clone(), factor);
            table.extend_to(10);
            table.extend_to(1000);
            for position in [0, 777] {
                let before: Vec<f32> = (0..2 * head_dim).map(|i| i as f32 * 0.1 - 1.0).collect();
                let mut after = before.clone();
                rotate_heads(&mut after, head_dim, table.row(position));
                for head in [0, head_dim] {
                    for (i, inv_freq) in inv_freq.iter().enumerate() {
                        let (i, j) = (head + i, head + i + 3);
                        let angle = f64::from(position as f32 * inv_freq);
                        let (a, b) = (f64::from(before[i]), f64::from(before[j]));
                        let (cos, sin) = (angle.cos(), angle.sin());
                        let low = (a * cos - b * sin) * f64::from(factor);
                        let high = (b * cos + a * sin) * f64::from(factor);
                        assert!((f64::from(after[i]) - low).abs() < 1e-5);
                        assert!((f64::from(after[j]) - high).abs() < 1e-5);
                    }
                    let rest = head + 6..head + head_dim;
                    assert_eq!(after[rest.clone()], before[rest], "what is not rotated");
                }
            }
        }
    }

    #[test]
    fn a_factor_of_one_changes_no_bit() {
        let mut table = RotaryTable::new(vec![1.0, 0.25, 0.01], 1.0);
        table.extend_to(1000);
        for position in 0..1000 {
            for (got, inv_freq) in table.row(position).iter().zip([1.0, 0.25, 0.01]) {
                let angle = position as f32 * inv_freq;
                assert_eq!(*got, (angle.cos(), angle.sin()));
            }
        }
    }

    /// Each angle is of the position on its axis, so a token with equal ones is one of text.
    #[test]
    fn angles_are_of_the_positions_on_their_axes() {
        let plain = || RotaryTable::new(vec![1.0, 0.25, 0.01, 0.001], 1.5);
        let mut table = plain().with_axes(vec![0, 2, 1, 2]);
        table.extend_to(1000);
        let axes = vec![[7, 7, 7], [3, 900, 41]];
        let batch = Batch { positions: vec![8, 999], axes, ..Batch::default() };
        let mut room = Vec::new();
        assert_eq!(table.of_token(&batch, 0, &mut room), table.row(7));
        let row = |position| table.row(position);
        let expected = [row(3)[0], row(41)[1], row(900)[2], row(41)[3]];
        assert_eq!(table.of_token(&batch, 1, &mut room), expected);
        let text = Batch { axes: Vec::new(), ..batch.clone() };
        assert_eq!(table.of_token(&text, 1, &mut room), table.row(999));
        let mut plain = plain();
        plain.extend_to(1000);
        assert_eq!(plain.of_token(&batch, 1, &mut room), table.row(999), "it has one axis");
    }
}
