//! The CUDA driver: one context, one compute stream, one copy stream.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUresult};

use super::compiler::Compiler;
use super::driver::{DevicePtr, Properties, Stream};
use super::error::{CudaError, Result};

mod objects;
mod probe;
mod status;

pub(super) use objects::{CudaEvent, CudaFunction, CudaGraph, CudaModule};
pub use probe::NO_DRIVER;
use status::check;

/// A handle of the driver. The driver's functions may be called from any thread to which the
/// context is bound.
#[derive(Clone, Copy)]
pub(super) struct Handle<T>(pub(super) T);

// SAFETY: handles are names of the driver's objects, and the driver locks inside itself; the one
// exception, an executable graph, lies in a mutex.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// The primary context of a device, released when the last object of it goes.
pub(super) struct Context {
    handle: Handle<sys::CUcontext>,
    device: sys::CUdevice,
}

impl Context {
    /// Retains the primary context and makes it current on the calling thread.
    fn new(device: sys::CUdevice) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { sys::cuDevicePrimaryCtxRetain(&mut handle, device) };
        check("cuDevicePrimaryCtxRetain", "", status)?;
        let context = Self { handle: Handle(handle), device };
        context.bind()?;
        Ok(context)
    }

    fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as self lives.
        check("cuCtxSetCurrent", "", unsafe { sys::cuCtxSetCurrent(self.handle.0) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`. A failure leaves nothing to do.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// An NVIDIA GPU. Made by `probe`.
pub struct CudaDriver {
    context: Arc<Context>,
    compute: Handle<sys::CUstream>,
    copy: Handle<sys::CUstream>,
    properties: Properties,
    compiler: Compiler,
    /// The latest launch, for an error that shows up later.
    last_launch: Mutex<Option<Arc<str>>>,
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        let _ = self.context.bind();
        for stream in [self.compute, self.copy] {
            // SAFETY: made in `probe`, and nothing else destroys it.
            let _ = unsafe { sys::cuStreamDestroy_v2(stream.0) };
        }
    }
}

impl CudaDriver {
    /// The compiler of this device's modules.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The compute stream, for the libraries that queue work themselves.
    pub fn compute_stream(&self) -> sys::CUstream {
        self.compute.0
    }

    /// See `Driver::bind_to_thread`.
    pub fn bind_to_thread(&self) -> Result<()> {
        self.context.bind()
    }

    /// Properties of the device.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    fn stream(&self, stream: Stream) -> sys::CUstream {
        match stream {
            Stream::Compute => self.compute.0,
            Stream::Copy => self.copy.0,
        }
    }

    pub(super) fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        let mut ptr = 0;
        // SAFETY: writes one address. The driver refuses 0 bytes.
        let status = unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes.max(1)) };
        check("cuMemAlloc", || format!("{bytes} bytes"), status)?;
        Ok(DevicePtr(ptr))
    }

    pub(super) fn free(&self, ptr: DevicePtr) -> Result<()> {
        self.context.bind()?;
        // SAFETY: an address that is not of an allocation is an error of the driver.
        check("cuMemFree", "", unsafe { sys::cuMemFree_v2(ptr.0) })
    }

    pub(super) fn memset(&self, ptr: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: device memory only; addresses out of range are errors of the driver.
        let status = unsafe { sys::cuMemsetD8Async(ptr.0, byte, bytes, self.compute.0) };
        check("cuMemsetD8Async", || format!("{bytes} bytes"), status)
    }

    pub(super) fn copy_to_device(&self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        self.copy_to_device_async(dst, src, Stream::Compute)?;
        // The caller's borrow ends here, and no memory is sure to be read by now: not pinned one,
        // and pageable one only where the driver takes a copy, which it may do without (where GPU
        // and CPU share page tables).
        self.wait(Stream::Compute)
    }

    pub(super) fn copy_to_device_async(
        &self,
        dst: DevicePtr,
        src: &[u8],
        stream: Stream,
    ) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        // SAFETY: reads `src`, which the callers keep until the copy is done.
        let status = unsafe {
            sys::cuMemcpyHtoDAsync_v2(dst.0, src.as_ptr().cast(), src.len(), self.stream(stream))
        };
        check("cuMemcpyHtoDAsync", || format!("{} bytes", src.len()), status)
    }

    pub(super) fn copy_from_device(&self, dst: &mut [u8], src: DevicePtr) -> Result<()> {
        self.copy_from_device_async(dst, src, Stream::Compute)?;
        self.wait(Stream::Compute)
    }

    pub(super) fn copy_from_device_async(
        &self,
        dst: &mut [u8],
        src: DevicePtr,
        stream: Stream,
    ) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        let (len, stream) = (dst.len(), self.stream(stream));
        // SAFETY: writes `dst`, which the callers keep until the copy is done.
        let status =
            unsafe { sys::cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), src.0, len, stream) };
        check("cuMemcpyDtoHAsync", || format!("{len} bytes"), status)
    }

    pub(super) fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: device memory only; addresses out of range are errors of the driver.
        let status = unsafe { sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, self.compute.0) };
        check("cuMemcpyDtoDAsync", || format!("{bytes} bytes"), status)
    }

    /// # Safety
    /// As `Driver::launch`.
    pub(super) unsafe fn launch(
        &self,
        name: &Arc<str>,
        function: &CudaFunction,
        [x, y, z]: [u32; 3],
        block: u32,
        smem: usize,
        args: &mut [*mut c_void],
    ) -> Result<()> {
        let (args, none) = (args.as_mut_ptr(), std::ptr::null_mut());
        let (smem, stream) = (smem as u32, self.compute.0);
        // SAFETY: the caller's promise; the module of the function is loaded while it lives.
        let status = unsafe {
            sys::cuLaunchKernel(function.raw(), x, y, z, block, 1, 1, smem, stream, args, none)
        };
        let subject = || format!("{name}, grid {x}x{y}x{z}, block {block}, smem {smem}");
        check("cuLaunchKernel", subject, status)?;
        self.note_launch(name);
        Ok(())
    }

    fn note_launch(&self, name: &Arc<str>) {
        *self.last_launch.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(name));
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        self.wait(Stream::Compute)?;
        self.wait(Stream::Copy)
    }

    fn wait(&self, stream: Stream) -> Result<()> {
        // SAFETY: the stream lives as long as self.
        self.check_wait("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.stream(stream))
        })
    }

    /// An error at a wait is of something queued before it.
    fn check_wait(&self, call: &'static str, status: CUresult) -> Result<()> {
        check(call, "", status).map_err(|mut error| {
            let last = self.last_launch.lock().unwrap_or_else(PoisonError::into_inner);
            let last = last.as_deref().unwrap_or("none");
            error.detail += &format!(" (of work queued before this wait; the last launch: {last})");
            error
        })
    }

    pub(super) fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        check("cuMemGetInfo", "", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// See `Driver::reach`.
    pub(super) fn reach(&self, other: &Self) -> Result<()> {
        let (own, others) = (self.context.device, other.context.device);
        if own == others {
            return Ok(());
        }
        let mut can = 0;
        // SAFETY: writes one number.
        let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, others) };
        check("cuDeviceCanAccessPeer", "", status)?;
        if can == 0 {
            let detail = "the driver offers no access";
            return Err(CudaError::new("cuDeviceCanAccessPeer", "", "0", detail));
        }
        self.context.bind()?;
        // SAFETY: the context is retained for as long as `other` lives.
        let status = unsafe { sys::cuCtxEnablePeerAccess(other.context.handle.0, 0) };
        match status {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            status => check("cuCtxEnablePeerAccess", "", status),
        }
    }

    /// Pinned host memory, cacheable by the CPU (flags 0).
    pub(super) fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8> {
        let mut ptr: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes one address.
        let status = unsafe { sys::cuMemHostAlloc(&mut ptr, bytes, 0) };
        check("cuMemHostAlloc", || format!("{bytes} bytes"), status)?;
        Ok(ptr.cast())
    }

    /// # Safety
    /// From `alloc_pinned`, once.
    pub(super) unsafe fn free_pinned(&self, ptr: *mut u8) {
        // A copy in flight may still use it. Errors leave nothing to do.
        let _ = self.context.bind().and_then(|()| self.synchronize());
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::cuMemFreeHost(ptr.cast()) };
    }
}
