//! patch_values: from the bytes of an image's patches to the numbers that a vision tower's first
//! product reads. Patches stay bytes until then: as floats they are four times as many.

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{Args, DeviceBuffer};
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Tensor, bytes_of};

use super::{GPU_BLOCK, for_row_chunks};

/// The number of each byte, for red, green and blue.
pub type BandTables = [[f32; 256]; 3];

/// Where a GPU has the bytes of patches; nothing on the CPU, which reads them where they are.
#[derive(Debug)]
pub struct PatchScratch {
    on_gpu: Option<OnGpu>,
}

#[derive(Debug)]
struct OnGpu {
    bytes: DeviceBuffer,
    /// (3, 256) f32
    tables: DeviceBuffer,
}

impl PatchScratch {
    /// Room for so many bytes at a time.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(device: &Device, max_bytes: usize) -> Result<Self, EngineError> {
        let on_gpu = match device {
            Device::Cpu(_) => None,
            Device::Cuda(gpu) => Some(OnGpu {
                bytes: gpu.alloc(max_bytes)?,
                tables: gpu.alloc(size_of::<BandTables>())?,
            }),
        };
        Ok(Self { on_gpu })
    }
}

/// out[i] = the numbers of patch i of `samples`, each three bands one after the other, and each
/// band `num_frames` times. `out` takes as many rows as there are patches.
///
/// # Panics
/// The samples fill no whole rows of whole bands, or there is no room.
pub fn patch_values(
    device: &Device,
    (samples, scratch): (&[u8], &PatchScratch),
    (tables, num_frames): (&BandTables, usize),
    out: &mut Tensor,
) {
    let width = out.width();
    let len = width / num_frames;
    assert!(width == len * num_frames && len.is_multiple_of(3), "whole bands");
    assert!(samples.len().is_multiple_of(len), "whole patches");
    out.set_num_rows(samples.len() / len);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let OnGpu { bytes, tables: on_gpu } = scratch.on_gpu.as_ref().expect("a GPU's scratch");
            gpu.upload(bytes, samples);
            gpu.upload(on_gpu, bytes_of(tables.as_flattened()));
            let mut args = Args::new();
            args.ptr(bytes.ptr()).ptr(on_gpu.ptr()).tensor(out).dims([len / 3, num_frames]);
            let grid = [out.num_rows() as u32, 1];
            return gpu.launch(("patches", "patch_values"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
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
        let scratch = PatchScratch::new(&device, 0).unwrap();
        let mut out = Tensor::zeros(num_patches, 3 * len);
        patch_values(&device, (&samples, &scratch), (&tables, 1), &mut out);
        for (index, (value, sample)) in out.values().iter().zip(&samples).enumerate() {
            let band = index / len % 3;
            assert_eq!(*value, (1000 * band) as f32 + f32::from(*sample), "{index}");
        }
        patch_values(&device, (&samples[..3 * len], &scratch), (&tables, 1), &mut out);
        assert_eq!(out.num_rows(), 1);
        let mut frames = Tensor::zeros(num_patches, 2 * 3 * len);
        patch_values(&device, (&samples[..3 * len], &scratch), (&tables, 2), &mut frames);
        let twice = out.row(0).chunks(len).flat_map(|band| [band, band].concat());
        assert!(frames.num_rows() == 1 && frames.row(0).iter().copied().eq(twice));
    }
}
