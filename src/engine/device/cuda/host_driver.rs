//! The CPU shim: the kernels' own sources, compiled by g++ and run by one thread. For tests.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::driver::{DevicePtr, Properties};
use super::error::{CudaError, Result};
use vllm_batch_base::config::ShimGpu;
use vllm_batch_base::split_mix::{GAMMA, mix};

mod module;
mod recording;

pub(super) use module::{HostFunction, HostModule};
pub(super) use recording::HostGraph;
use recording::{Launch, Recorded};

/// As a bfloat16 or a float: NaN, so that a read of memory nobody wrote shows.
const POISON: u8 = 0xFF;
/// Before and after each allocation; a kernel that writes there is caught.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xA5;
const ALIGN: usize = 64;

/// A device whose memory is the host's.
pub struct HostDriver {
    kernels_dir: PathBuf,
    module_dir: PathBuf,
    seed: u64,
    state: Mutex<State>,
    properties: Properties,
}

#[derive(Default)]
struct State {
    /// Bytes of each allocation, by address.
    allocations: BTreeMap<u64, usize>,
    allocated_bytes: usize,
    num_launches: u64,
    /// Launches that are being captured.
    recording: Option<Vec<Recorded>>,
    /// Whether another thread has ended it.
    has_lost_recording: bool,
}

impl HostDriver {
    /// Runs the sources of `kernels_dir`, built into `module_dir`. The seed shuffles the order of
    /// the threads of a block, differently at each launch; 0: in order.
    pub fn new(kernels_dir: impl Into<PathBuf>, module_dir: impl Into<PathBuf>, seed: u64) -> Self {
        let properties = Properties {
            name: "host shim".to_owned(),
            compute_capability: (9, 0),
            num_sms: 4,
            max_smem_per_block_bytes: 227 << 10,
            max_launch_positions: None,
        };
        let (kernels_dir, module_dir) = (kernels_dir.into(), module_dir.into());
        Self { kernels_dir, module_dir, seed, state: Mutex::default(), properties }
    }

    /// Memory that the shim reports: tests need a number, not a limit.
    pub const TOTAL_BYTES: usize = 8 << 30;

    /// Stands for another GPU: kernels are compiled, and launches sized, as for that one.
    pub fn as_gpu(mut self, gpu: ShimGpu) -> Self {
        self.properties.compute_capability = gpu.compute_capability;
        self.properties.max_smem_per_block_bytes = gpu.max_smem_kb << 10;
        self.properties.max_launch_positions = gpu.max_launch_positions;
        self.properties.num_sms = gpu.num_sms;
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn properties(&self) -> &Properties {
        &self.properties
    }

    pub(super) fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        self.refuse_while_recording("alloc")?;
        let mut state = self.state();
        if state.allocated_bytes + bytes > Self::TOTAL_BYTES {
            let subject = format!("{bytes} bytes");
            return Err(CudaError::new("alloc", subject, "CUDA_ERROR_OUT_OF_MEMORY", ""));
        }
        // SAFETY: not empty, because of the guards; then all of it is written.
        let ptr = unsafe {
            let base = std::alloc::alloc(layout(bytes));
            if base.is_null() {
                std::alloc::handle_alloc_error(layout(bytes));
            }
            base.write_bytes(GUARD, layout(bytes).size());
            base.add(GUARD_BYTES).write_bytes(POISON, bytes);
            base.add(GUARD_BYTES) as u64
        };
        state.allocations.insert(ptr, bytes);
        state.allocated_bytes += bytes;
        Ok(DevicePtr(ptr))
    }

    pub(super) fn free(&self, ptr: DevicePtr) -> Result<()> {
        let mut state = self.state();
        let Some(bytes) = state.allocations.remove(&ptr.0) else {
            return Err(bad_address("free", ptr, 0));
        };
        state.allocated_bytes -= bytes;
        let whole = guards_are_whole(ptr.0, bytes);
        // SAFETY: allocated by `alloc` with this layout, and removed from the table just now.
        unsafe { std::alloc::dealloc((ptr.0 as *mut u8).sub(GUARD_BYTES), layout(bytes)) };
        if whole { Ok(()) } else { Err(overrun("free", ptr.0, bytes)) }
    }

    /// The address of a range that lies inside one allocation.
    fn range(&self, call: &'static str, ptr: DevicePtr, bytes: usize) -> Result<*mut u8> {
        let state = self.state();
        let inside = state
            .allocations
            .range(..=ptr.0)
            .next_back()
            .is_some_and(|(start, len)| ptr.0 + bytes as u64 <= start + *len as u64);
        if inside || bytes == 0 { Ok(ptr.0 as *mut u8) } else { Err(bad_address(call, ptr, bytes)) }
    }

    pub(super) fn memset(&self, ptr: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        let dst = self.range("memset", ptr, bytes)?;
        if bytes > 0 && !self.records(|| Recorded::Memset { ptr, byte, bytes }) {
            // SAFETY: inside an allocation.
            unsafe { dst.write_bytes(byte, bytes) };
        }
        Ok(())
    }

    pub(super) fn copy_to_device(&self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        self.refuse_while_recording("copy_to_device")?;
        let dst = self.range("copy_to_device", dst, src.len())?;
        if !src.is_empty() {
            // SAFETY: inside an allocation.
            unsafe { std::ptr::copy(src.as_ptr(), dst, src.len()) };
        }
        Ok(())
    }

    pub(super) fn copy_from_device(&self, dst: &mut [u8], src: DevicePtr) -> Result<()> {
        self.refuse_while_recording("copy_from_device")?;
        let src = self.range("copy_from_device", src, dst.len())?;
        if !dst.is_empty() {
            // SAFETY: inside an allocation, all of which `alloc` wrote.
            unsafe { std::ptr::copy(src, dst.as_mut_ptr(), dst.len()) };
        }
        Ok(())
    }

    pub(super) fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        let (to, from) = (dst, src);
        let src = self.range("copy_device_to_device", src, bytes)?;
        let dst = self.range("copy_device_to_device", dst, bytes)?;
        if bytes > 0 && !self.records(|| Recorded::Copy { dst: to, src: from, bytes }) {
            // SAFETY: both inside allocations; they may overlap.
            unsafe { std::ptr::copy(src, dst, bytes) };
        }
        Ok(())
    }

    pub(super) fn load_module(
        &self,
        source: &str,
        defines: &[(&str, &str)],
    ) -> Result<Arc<HostModule>> {
        self.refuse_while_recording("load_module")?;
        HostModule::build(&self.kernels_dir, &self.module_dir, source, defines).map(Arc::new)
    }

    pub(super) fn set_max_smem(&self, function: &HostFunction, bytes: usize) -> Result<()> {
        let max = self.properties.max_smem_per_block_bytes;
        if bytes > max {
            let detail = format!("{bytes} bytes, {max} at most");
            let call = "set_max_dynamic_smem";
            return Err(CudaError::new(call, "", "CUDA_ERROR_INVALID_VALUE", detail));
        }
        function.set_max_smem(bytes);
        Ok(())
    }

    /// # Safety
    /// As `Driver::launch`.
    pub(super) unsafe fn launch(
        &self,
        (name, function): (&Arc<str>, &HostFunction),
        grid: [u32; 3],
        (block, smem): (u32, usize),
        (args, sizes): (&mut [*mut c_void], &[u8]),
    ) -> Result<()> {
        let grid_is_fine = !grid.contains(&0) && grid[1..].iter().all(|size| *size < 1 << 16);
        if !grid_is_fine || block == 0 || block > 1024 || !function.has_smem(smem) {
            let detail = format!("grid {grid:?}, block {block}, smem {smem}");
            return Err(CudaError::new("launch", &**name, "CUDA_ERROR_INVALID_VALUE", detail));
        }
        // SAFETY: the caller's promise; what kernels take by value has no padding.
        let record =
            || unsafe { Launch::new((name, function), grid, (block, smem), (&*args, sizes)) };
        if self.records(|| Recorded::Launch(record())) {
            return Ok(());
        }
        let seed = {
            let mut state = self.state();
            state.num_launches += 1;
            match self.seed {
                0 => 0,
                // 0 is for threads in order.
                seed => mix(seed.wrapping_add(state.num_launches).wrapping_mul(GAMMA)) | 1,
            }
        };
        // SAFETY: the caller's promise.
        unsafe { function.launch(name, grid, block, smem, args, seed) }
    }

    /// Every launch has run already; this looks for writes past an allocation's ends.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.refuse_while_recording("synchronize")?;
        let state = self.state();
        let damaged =
            state.allocations.iter().find(|(ptr, bytes)| !guards_are_whole(**ptr, **bytes));
        damaged.map_or(Ok(()), |(ptr, bytes)| Err(overrun("synchronize", *ptr, *bytes)))
    }

    pub(super) fn memory_info(&self) -> Result<(usize, usize)> {
        Ok((Self::TOTAL_BYTES - self.state().allocated_bytes, Self::TOTAL_BYTES))
    }

    /// Null: no memory.
    pub(super) fn alloc_pinned(&self, bytes: usize) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { std::alloc::alloc_zeroed(pinned_layout(bytes)) }
    }

    /// # Safety
    /// From `alloc_pinned` with the same size, once.
    pub(super) unsafe fn free_pinned(&self, ptr: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { std::alloc::dealloc(ptr, pinned_layout(bytes)) };
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        let allocations = std::mem::take(&mut self.state().allocations);
        for (ptr, bytes) in allocations {
            // SAFETY: allocated by `alloc` with this layout, and not freed: it was in the table.
            unsafe { std::alloc::dealloc((ptr as *mut u8).sub(GUARD_BYTES), layout(bytes)) };
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + 2 * GUARD_BYTES, ALIGN).expect("a size below 2^63")
}

/// Aligned no further than zeroed memory comes from the system: pages that nobody touches are free.
fn pinned_layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), 16).expect("a size below 2^63")
}

fn guards_are_whole(ptr: u64, bytes: usize) -> bool {
    let ptr = ptr as *const u8;
    // SAFETY: an allocation of `alloc`, with its guards around it.
    let (before, after) = unsafe {
        (
            std::slice::from_raw_parts(ptr.sub(GUARD_BYTES), GUARD_BYTES),
            std::slice::from_raw_parts(ptr.add(bytes), GUARD_BYTES),
        )
    };
    before.iter().chain(after).all(|&byte| byte == GUARD)
}

fn bad_address(call: &'static str, ptr: DevicePtr, bytes: usize) -> CudaError {
    let detail = format!("{bytes} bytes at {:#x} are not inside an allocation", ptr.0);
    CudaError::new(call, "", "CUDA_ERROR_INVALID_VALUE", detail)
}

fn overrun(call: &'static str, ptr: u64, bytes: usize) -> CudaError {
    let detail = format!("a write outside the allocation of {bytes} bytes at {ptr:#x}");
    CudaError::new(call, "", "CUDA_ERROR_ILLEGAL_ADDRESS", detail)
}

/// When an event was recorded: by then everything before it has run.
#[derive(Default)]
pub(super) struct HostEvent {
    recorded: Mutex<Option<Instant>>,
}

impl HostEvent {
    pub(super) fn record(&self) {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// 0 if either was never recorded.
    pub(super) fn elapsed_ms(start: &Self, end: &Self) -> f32 {
        let at = |event: &Self| *event.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        match (at(start), at(end)) {
            (Some(start), Some(end)) => end.saturating_duration_since(start).as_secs_f32() * 1e3,
            _ => 0.0,
        }
    }
}
