//! patch_values: from the bytes of an image's patches to the numbers that a vision tower's first
//! product reads. Patches stay bytes until then: as floats they are four times as many.

use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor};

use super::for_row_chunks;

/// The number of each byte, for red, green and blue.
pub type BandTables = [[f32; 256]; 3];

/// out[i] = the numbers of patch i of `samples`, each three bands one after the other, and each
/// band `num_frames` times. `out` takes as many rows as there are patches.
///
/// # Panics
/// The samples fill no whole rows of whole bands, or there is no room. Or the device is a GPU,
/// where no tower is loaded.
pub fn patch_values(
    device: &Device,
    samples: &[u8],
    (tables, num_frames): (&BandTables, usize),
    out: &mut Tensor,
) {
    let width = out.width();
    let len = width / num_frames;
    assert!(width == len * num_frames && len.is_multiple_of(3), "whole bands");
    assert!(samples.len().is_multiple_of(len), "whole patches");
    out.set_num_rows(samples.len() / len);
    let Device::Cpu(cpu) = device else { unreachable!("no tower is loaded on a GPU") };
    let num_rows = out.num_rows();
    let _timed =
        cpu.op_timer.timed(Op::new("patch_values"), || Work::elementwise(samples.len(), 5));
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        // SAFETY: each row belongs to one item.
        let values = unsafe { shared.slice(start * width, (end - start) * width) };
        let bands = samples[start * len..end * len].chunks_exact(len / 3);
        for (band, (values, samples)) in values.chunks_exact_mut(width / 3).zip(bands).enumerate() {
            let table = &tables[band % 3];
            for frame in values.chunks_exact_mut(len / 3) {
                for (value, sample) in frame.iter_mut().zip(samples) {
                    *value = table[usize::from(*sample)];
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_the_number_of_its_band() {
        let device = Device::cpu(Some(2));
        let mut tables = [[0.0; 256]; 3];
        for (band, table) in tables.iter_mut().enumerate() {
            for (byte, number) in table.iter_mut().enumerate() {
                *number = (1000 * band + byte) as f32;
            }
        }
        let (num_patches, len) = (700, 16);
        let samples: Vec<u8> = (0..num_patches * 3 * len).map(|i| (i * 31 % 251) as u8).collect();
        let mut out = Tensor::zeros(num_patches, 3 * len);
        patch_values(&device, &samples, (&tables, 1), &mut out);
        for (index, (value, sample)) in out.values().iter().zip(&samples).enumerate() {
            let band = index / len % 3;
            assert_eq!(*value, (1000 * band) as f32 + f32::from(*sample), "{index}");
        }
        patch_values(&device, &samples[..3 * len], (&tables, 1), &mut out);
        assert_eq!(out.num_rows(), 1);
        let mut frames = Tensor::zeros(num_patches, 2 * 3 * len);
        patch_values(&device, &samples[..3 * len], (&tables, 2), &mut frames);
        let twice = out.row(0).chunks(len).flat_map(|band| [band, band].concat());
        assert!(frames.num_rows() == 1 && frames.row(0).iter().copied().eq(twice));
    }
}
