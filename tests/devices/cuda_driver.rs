//! The interface over the host shim, with the real kernels. Skipped where there is no g++.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vllm_batch::engine::device::cuda::memory::bytes_of;
use vllm_batch::engine::device::cuda::*;

fn kernels_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// Built modules stay between runs: their names hold the hash of what they are made of.
fn module_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("shim")
}

fn gpu(seed: u64) -> Option<Runtime> {
    if std::process::Command::new("g++").arg("--version").output().is_err() {
        println!("SKIP: the CPU shim of the GPU's kernels is built with g++, which is not here");
        return None;
    }
    Some(Runtime::new(Driver::Host(HostDriver::new(kernels_dir(), module_dir(), seed))))
}

fn to_bf16(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16
}

#[test]
fn elementwise_runs_alike_under_every_order_of_threads() {
    for seed in [0, 1, 7] {
        let Some(gpu) = gpu(seed) else { return };
        let add = gpu.function("elementwise", &[("DTYPE", "bf16")], "add").unwrap();
        let n = 1000;
        let residual: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let delta: Vec<u16> = (0..n).map(|i| to_bf16((i % 7) as f32)).collect();
        let residual = DeviceBuffer::from_slice(gpu.driver(), &residual).unwrap();
        let delta = DeviceBuffer::from_slice(gpu.driver(), &delta).unwrap();
        for _ in 0..2 {
            let mut args = Args::new();
            args.ptr(residual.ptr()).ptr(delta.ptr()).u64(n as u64);
            gpu.launch(&add, [3, 1, 1], 64, 0, &mut args).unwrap();
        }
        gpu.synchronize().unwrap();
        let sums: Vec<f32> = residual.read(n).unwrap();
        for (i, sum) in sums.into_iter().enumerate() {
            assert_eq!(sum, (i + 2 * (i % 7)) as f32, "element {i}, seed {seed}");
        }
    }
}

#[test]
fn embedding_takes_rows_and_two_modules_do_not_disturb_each_other() {
    let Some(gpu) = gpu(3) else { return };
    let narrow = gpu.function("embedding", &[("DTYPE", "bf16")], "embedding").unwrap();
    let wide = gpu.function("embedding", &[("DTYPE", "float")], "embedding").unwrap();
    let (vocab, width) = (5, 24);
    let table: Vec<f32> = (0..vocab * width).map(|i| i as f32).collect();
    let narrow_table: Vec<u16> = table.iter().map(|x| to_bf16(*x)).collect();
    let ids = DeviceBuffer::from_slice(gpu.driver(), &[4u32, 0, 5]).unwrap();
    let tables = [
        DeviceBuffer::from_slice(gpu.driver(), &narrow_table).unwrap(),
        DeviceBuffer::from_slice(gpu.driver(), &table).unwrap(),
    ];
    for (function, table) in [&narrow, &wide].into_iter().zip(&tables) {
        let out = gpu.alloc(3 * width * 4).unwrap();
        let mut args = Args::new();
        args.ptr(ids.ptr()).ptr(table.ptr()).f32(2.0).ptr(out.ptr());
        args.u32(width as u32).u32(vocab as u32).u32(1);
        gpu.launch(function, [3, 1, 1], 32, 0, &mut args).unwrap();
        let rows: Vec<f32> = out.read(3 * width).unwrap();
        let expected = [4, 0, 0].map(|id| (0..width).map(move |i| (id * width + i) as f32 * 2.0));
        assert_eq!(rows, expected.into_iter().flatten().collect::<Vec<f32>>());
    }
}

#[test]
fn memory_is_poisoned_checked_and_given_back() {
    let driver = Arc::new(Driver::Host(HostDriver::new(kernels_dir(), module_dir(), 0)));
    let (free, total) = driver.memory_info().unwrap();
    let buffer = DeviceBuffer::new(&driver, 100).unwrap();
    assert_eq!(buffer.ptr().0 % 64, 0);
    assert_eq!(buffer.read::<u8>(100).unwrap(), [0xFF; 100]);
    assert_eq!(driver.memory_info().unwrap(), (free - 100, total));
    driver.memset(buffer.ptr().offset(1), 7, 2).unwrap();
    let copy = DeviceBuffer::zeroed(&driver, 8).unwrap();
    driver.copy_device_to_device(copy.ptr().offset(4), buffer.ptr(), 4).unwrap();
    assert_eq!(copy.read::<u8>(8).unwrap(), [0, 0, 0, 0, 0xFF, 7, 7, 0xFF]);
    assert!(driver.memset(buffer.ptr().offset(99), 0, 2).is_err());
    assert!(driver.copy_to_device(DevicePtr(4096), &[0]).is_err());
    assert!(driver.alloc(total).unwrap_err().is_out_of_memory());
    drop((buffer, copy));
    assert_eq!(driver.memory_info().unwrap(), (free, total));
}

#[test]
fn a_kernel_that_writes_past_its_buffer_is_found() {
    let Some(gpu) = gpu(0) else { return };
    let convert = gpu.function("elementwise", &[("DTYPE", "bf16")], "convert").unwrap();
    let x = DeviceBuffer::from_slice(gpu.driver(), &[1.0f32; 16]).unwrap();
    let out = gpu.alloc(30).unwrap();
    let mut args = Args::new();
    args.ptr(x.ptr()).ptr(out.ptr()).u64(16);
    gpu.launch(&convert, [1, 1, 1], 32, 0, &mut args).unwrap();
    let error = gpu.synchronize().unwrap_err();
    assert!(error.to_string().contains("outside the allocation of 30 bytes"), "{error}");
}

#[test]
fn failures_name_the_kernel_or_the_source() {
    let Some(gpu) = gpu(0) else { return };
    let defines = [("DTYPE", "bf16")];
    let absent = gpu.function("elementwise", &defines, "absent").unwrap();
    let error = gpu.launch(&absent, [1, 1, 1], 32, 0, &mut Args::new()).unwrap_err();
    assert!(error.to_string().starts_with("shim_launch(absent): "), "{error}");
    let add = gpu.function("elementwise", &defines, "add").unwrap();
    let mut args = Args::new();
    args.ptr(DevicePtr::NULL).ptr(DevicePtr::NULL);
    let error = gpu.launch(&add, [1, 1, 1], 32, 0, &mut args).unwrap_err();
    assert!(error.to_string().contains("parameters [8, 8, 8], given [8, 8]"), "{error}");
    args.u32(0);
    let error = gpu.launch(&add, [1, 1, 1], 32, 0, &mut args).unwrap_err();
    assert!(error.to_string().contains("parameters [8, 8, 8], given [8, 8, 4]"), "{error}");
    let mut args = Args::new();
    args.ptr(DevicePtr::NULL).ptr(DevicePtr::NULL).u64(0);
    assert!(gpu.launch(&add, [0, 1, 1], 32, 0, &mut args).is_err());
    let smem = 100 << 10;
    assert!(gpu.launch(&add, [1, 1, 1], 32, smem, &mut args).is_err(), "48 KiB unless asked for");
    gpu.driver().set_max_dynamic_smem(&add, smem).unwrap();
    gpu.launch(&add, [1, 1, 1], 32, smem, &mut args).unwrap();
    assert!(gpu.driver().set_max_dynamic_smem(&add, 228 << 10).is_err());
    let error = gpu.module("no_such_source", &defines).err().unwrap();
    assert!(error.to_string().contains("no_such_source"), "{error}");
    let error = gpu.module("elementwise", &[("DTYPE", "no_such_type")]).err().unwrap();
    assert!(error.detail.contains("no_such_type"), "{error}");
}

/// Adds 1, 2, 3, ... to a row, in a recording.
fn record_add(gpu: &Runtime, add: &Function, row: &DeviceBuffer, more: DevicePtr, n: u64) -> Graph {
    gpu.driver().begin_capture().unwrap();
    let mut args = Args::new();
    args.ptr(row.ptr()).ptr(more).u64(n);
    gpu.launch(add, [1, 1, 1], 32, 0, &mut args).unwrap();
    gpu.driver().end_capture().unwrap()
}

#[test]
fn the_shim_replays_what_it_recorded_with_the_arguments_of_then() {
    let Some(gpu) = gpu(5) else { return };
    let add = gpu.function("elementwise", &[("DTYPE", "float")], "add").unwrap();
    let row = DeviceBuffer::from_slice(gpu.driver(), &[0.0f32; 4]).unwrap();
    let more = DeviceBuffer::from_slice(gpu.driver(), &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let graph = record_add(&gpu, &add, &row, more.ptr(), 4);
    assert_eq!(row.read::<f32>(4).unwrap(), [0.0; 4], "recorded, not run");
    gpu.driver().launch_graph(&graph).unwrap();
    more.write(&[10.0f32; 4]).unwrap();
    gpu.driver().launch_graph(&graph).unwrap();
    assert_eq!(row.read::<f32>(4).unwrap(), [11.0, 12.0, 13.0, 14.0], "what buffers hold is new");
    let launch = |n: u64| {
        let mut args = Args::new();
        args.ptr(row.ptr()).ptr(more.ptr()).u64(n);
        gpu.launch(&add, [1, 1, 1], 32, 0, &mut args)
    };
    gpu.driver().check_graph(&graph, &mut || launch(4)).unwrap();
    let difference = |queue: &mut dyn FnMut() -> Result<()>| {
        gpu.driver().check_graph(&graph, queue).unwrap_err().to_string()
    };
    let error = difference(&mut || launch(3));
    assert!(error.contains("argument 2 of add has changed"), "{error}");
    let error = difference(&mut || [4, 4].into_iter().try_for_each(launch));
    assert!(error.contains("1 launches were recorded, and 2 are queued"), "{error}");
}

#[test]
fn what_a_capture_refuses_the_shim_refuses() {
    let Some(gpu) = gpu(0) else { return };
    let buffer = DeviceBuffer::new(gpu.driver(), 4).unwrap();
    gpu.driver().begin_capture().unwrap();
    assert!(gpu.driver().begin_capture().is_err());
    assert!(gpu.alloc(4).is_err());
    assert!(gpu.synchronize().is_err());
    assert!(buffer.write(&[1u32]).is_err());
    assert!(gpu.module("soft_cap", &[]).is_err());
    assert!(gpu.driver().end_capture().is_err(), "nothing was queued");
    assert_eq!(buffer.read::<u32>(1).unwrap(), [u32::MAX]);
}

#[test]
fn staging_uploads_in_chunks_and_stops_at_the_callers_error() {
    let driver = Arc::new(Driver::Host(HostDriver::new(kernels_dir(), module_dir(), 0)));
    let mut staging = Staging::with_chunk_bytes(&driver, 512).unwrap();
    let weights: Vec<u32> = (0..1000).collect();
    let bytes = bytes_of(&weights);
    let buffers: Vec<DeviceBuffer> =
        [4000, 0, 20, 2048].map(|len| DeviceBuffer::new(&driver, len).unwrap()).into();
    for buffer in &buffers {
        let fill = |offset: usize, chunk: &mut [u8]| {
            assert!(offset.is_multiple_of(256) && chunk.len() <= 512);
            chunk.copy_from_slice(&bytes[offset..offset + chunk.len()]);
            Ok::<(), CudaError>(())
        };
        staging.upload(buffer.ptr(), buffer.bytes(), fill).unwrap();
    }
    staging.finish().unwrap();
    for buffer in &buffers {
        assert_eq!(buffer.read::<u8>(buffer.bytes()).unwrap(), bytes[..buffer.bytes()]);
    }
    let failed = staging.upload(buffers[0].ptr(), 4000, |offset, _| {
        if offset < 1024 { Ok(()) } else { Err(CudaError::new("read", "", "end of file", "")) }
    });
    assert_eq!(failed.unwrap_err().code, "end of file");
}

#[test]
fn pinned_buffers_copy_both_ways_and_events_take_the_time() {
    let driver = Arc::new(Driver::Host(HostDriver::new(kernels_dir(), module_dir(), 0)));
    let mut pinned = PinnedBuffer::new(&driver, 64).unwrap();
    assert_eq!(pinned.as_slice(), [0; 64]);
    let device = DeviceBuffer::new(&driver, 8).unwrap();
    let events = [driver.create_event(true).unwrap(), driver.create_event(true).unwrap()];
    driver.record_event(&events[0], Stream::Compute).unwrap();
    pinned.write(4, &[5u32, 6]);
    driver.copy_to_device_async(device.ptr(), &pinned, 4..12, Stream::Copy).unwrap();
    driver.copy_from_device_async(&mut pinned, 32..40, device.ptr(), Stream::Compute).unwrap();
    driver.record_event(&events[1], Stream::Compute).unwrap();
    driver.synchronize_event(&events[1]).unwrap();
    assert!(driver.event_has_passed(&events[1]).unwrap());
    assert!(driver.elapsed_ms(&events[0], &events[1]).unwrap() >= 0.0);
    assert_eq!(pinned.read::<u32>(32, 2), [5, 6]);
}

#[test]
fn everything_may_go_to_another_thread() {
    fn check<T: Send + Sync>() {}
    check::<Runtime>();
    check::<(DeviceBuffer, PinnedBuffer, Staging)>();
    check::<(Module, Function, Event, Graph)>();
}

#[test]
fn probe_gives_a_gpu_or_one_line() {
    let probed = CudaDriver::probe(0, &SearchHints::default(), Compiler::new(&[], None));
    if let Err(reason) = probed {
        assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
    }
    let probed = CudaDriver::probe(1 << 20, &SearchHints::default(), Compiler::new(&[], None));
    assert!(probed.is_err());
}
