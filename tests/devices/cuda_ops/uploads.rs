//! Packed uploads: what `copy_segments` brings, in order with everything else, through many turns
//! of the pinned memory.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::core::stats::GivenLimits;
use vllm_batch::engine::device::cuda::DeviceBuffer;
use vllm_batch::engine::device::{Device, Gpu};

use crate::cuda_ops::pair::Pair;

/// Calls `test` with a GPU; says how many kernels of this name it has launched then.
fn on_gpu(seed: u64, test: impl FnOnce(&Gpu)) -> Option<u64> {
    let pair = Pair::open(DType::BFloat16, seed, None)?;
    let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
    let given = GivenLimits::default();
    pair.gpu.start_op_times(DType::BFloat16, given);
    test(gpu);
    let times = pair.gpu.finish_op_times(DType::BFloat16, given).expect("no failure");
    let ops = times.expect("it was on").ops;
    let copies = ops.iter().find(|op| op.op.name == "copy_segments");
    Some(copies.map_or(0, |op| op.num_calls))
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + index / 251 + seed * 7) as u8).collect()
}

fn contents(buffer: &DeviceBuffer) -> Vec<u8> {
    buffer.read::<u8>(buffer.bytes()).expect("the uploads arrived")
}

/// Words and halves of them, aligned to 16 bytes and not, one block's share and more.
#[test]
fn copy_segments_brings_packed_uploads_where_they_belong() {
    let parts = [
        (0, 4),
        (0, 16),
        (16, 20),
        (4, 16),
        (12, 4096),
        (0, 100_000),
        (8, 70_004),
        // No whole words: copied by themselves.
        (0, 6),
        (2, 8),
        (0, 0),
    ];
    let num_copies = on_gpu(700, |gpu| {
        let buffers = parts.map(|(start, len)| gpu.alloc(start + len + 16).expect("memory"));
        gpu.pack_uploads();
        for (index, ((start, len), buffer)) in parts.iter().zip(&buffers).enumerate() {
            gpu.upload_at(buffer, *start, &bytes(*len, index));
        }
        gpu.synchronize().expect("the uploads arrive");
        for (index, ((start, len), buffer)) in parts.iter().zip(&buffers).enumerate() {
            let mut expected = vec![0; start + len + 16];
            expected[*start..start + len].copy_from_slice(&bytes(*len, index));
            assert!(contents(buffer) == expected, "{len} bytes from {start} on");
        }
        // Not packed any more: a copy of its own.
        gpu.upload(&buffers[0], &[9; 4]);
        assert_eq!(contents(&buffers[0])[..4], [9; 4]);
    });
    assert!(num_copies.is_none_or(|num_copies| num_copies == 1), "{num_copies:?}");
}

/// What goes to the same place comes there in order, packed or not.
#[test]
fn copy_segments_keeps_the_order_of_uploads_and_of_what_is_queued() {
    let num_copies = on_gpu(710, |gpu| {
        let buffer = gpu.alloc(64).expect("memory");
        gpu.pack_uploads();
        gpu.upload(&buffer, &[1; 64]);
        gpu.upload_at(&buffer, 32, &[2; 8]);
        gpu.fill_zero(buffer.ptr(), 16);
        gpu.upload_at(&buffer, 4, &[3; 4]);
        let mut expected = vec![1; 64];
        expected[..16].fill(0);
        expected[32..40].fill(2);
        expected[4..8].fill(3);
        gpu.synchronize().expect("the uploads arrive");
        assert_eq!(contents(&buffer), expected);
    });
    assert!(num_copies.is_none_or(|num_copies| num_copies == 2), "{num_copies:?}");
}

/// More than the pinned memory holds, packed and not, with parts that are larger than it.
#[test]
fn copy_segments_takes_turns_of_the_pinned_memory() {
    on_gpu(720, |gpu| {
        let buffers = [0; 7].map(|_| gpu.alloc(5 << 20).expect("memory"));
        let large = gpu.alloc(20 << 20).expect("memory");
        for turn in 0..3 {
            gpu.pack_uploads();
            for (index, buffer) in buffers.iter().enumerate() {
                gpu.upload(buffer, &bytes((5 << 20) - 4 * turn, turn + index));
            }
            gpu.upload(&large, &bytes(20 << 20, turn));
            gpu.synchronize().expect("the uploads arrive");
            for (index, buffer) in buffers.iter().enumerate() {
                let len = (5 << 20) - 4 * turn;
                assert!(contents(buffer)[..len] == bytes(len, turn + index), "{turn}: {index}");
            }
            assert!(contents(&large) == bytes(20 << 20, turn), "{turn}");
        }
    });
}
