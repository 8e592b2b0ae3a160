//! One interface over the CUDA driver and over the CPU shim that runs the same kernels in tests.
//! Knows no model and no op.

use std::ffi::c_void;
use std::ops::Range;

use super::cuda_driver::CudaDriver;
use super::error::Result;
pub use super::handles::{Event, Function, Graph, Module};
use super::handles::{FunctionKind, ModuleKind};
use super::host_driver::HostDriver;
use super::memory::PinnedBuffer;

/// An address on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// No address: what a kernel takes for an absent tensor.
    pub const NULL: Self = Self(0);

    /// The address this many bytes on.
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Dynamic shared memory that a kernel may have without being asked.
pub const DEFAULT_SMEM_BYTES: usize = 48 << 10;

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// As `NVIDIA H200`.
    pub name: String,
    /// (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub num_sms: u32,
    /// Shared memory that one block may have, after `set_max_dynamic_smem`.
    pub max_smem_per_block_bytes: usize,
    /// Positions that the units of one launch of attention shall see in all, where a launch may
    /// not last: a watchdog ends those that keep a display from being drawn.
    pub max_launch_positions: Option<u32>,
}

/// The two queues of work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Every launch, and the copies that are in order with them.
    Compute,
    /// Uploads that run beside the launches.
    Copy,
}

/// A device and its memory. A thread other than the one that made it calls `bind_to_thread` first.
pub enum Driver {
    /// An NVIDIA GPU.
    Cuda(CudaDriver),
    /// The CPU shim.
    Host(HostDriver),
}

macro_rules! each {
    ($self:ident, $driver:ident => $body:expr) => {
        match $self {
            Driver::Cuda($driver) => $body,
            Driver::Host($driver) => $body,
        }
    };
}

impl Driver {
    /// Makes the device current on the calling thread.
    pub fn bind_to_thread(&self) -> Result<()> {
        match self {
            Driver::Cuda(driver) => driver.bind_to_thread(),
            Driver::Host(_) => Ok(()),
        }
    }

    /// Properties of the device.
    pub fn properties(&self) -> &Properties {
        each!(self, driver => driver.properties())
    }

    /// Memory of the device, uninitialised. Prefer a `DeviceBuffer`.
    pub fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        each!(self, driver => driver.alloc(bytes))
    }

    /// Gives back what `alloc` gave. Waits for the device.
    pub fn free(&self, ptr: DevicePtr) -> Result<()> {
        each!(self, driver => driver.free(ptr))
    }

    /// Fills with one byte, in order with the launches.
    pub fn memset(&self, ptr: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        each!(self, driver => driver.memset(ptr, byte, bytes))
    }

    /// Copies to the device, in order with the launches; `src` may be reused on return.
    pub fn copy_to_device(&self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        each!(self, driver => driver.copy_to_device(dst, src))
    }

    /// Copies a range of a pinned buffer to the device and returns before it is done. The range
    /// must not be written until an event recorded after it, or `synchronize`.
    ///
    /// # Panics
    /// The range is not of the buffer.
    pub fn copy_to_device_async(
        &self,
        dst: DevicePtr,
        src: &PinnedBuffer,
        range: Range<usize>,
        stream: Stream,
    ) -> Result<()> {
        let src = &src.as_slice()[range];
        match self {
            Driver::Cuda(driver) => driver.copy_to_device_async(dst, src, stream),
            Driver::Host(driver) => driver.copy_to_device(dst, src),
        }
    }

    /// Copies from the device after all launches before, and waits for it.
    pub fn copy_from_device(&self, dst: &mut [u8], src: DevicePtr) -> Result<()> {
        each!(self, driver => driver.copy_from_device(dst, src))
    }

    /// Copies from the device into a range of a pinned buffer and returns before it is done. The
    /// range must not be read until an event recorded after it, or `synchronize`.
    ///
    /// # Panics
    /// The range is not of the buffer.
    pub fn copy_from_device_async(
        &self,
        dst: &mut PinnedBuffer,
        range: Range<usize>,
        src: DevicePtr,
        stream: Stream,
    ) -> Result<()> {
        let dst = &mut dst.as_mut_slice()[range];
        match self {
            Driver::Cuda(driver) => driver.copy_from_device_async(dst, src, stream),
            Driver::Host(driver) => driver.copy_from_device(dst, src),
        }
    }

    /// Copies inside the device, in order with the launches.
    pub fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        each!(self, driver => driver.copy_device_to_device(dst, src, bytes))
    }

    /// Compiles `kernels/<source>.cu` with `-D<name>=<value>` for each define, or takes it from the
    /// disk cache, and loads it. Prefer `Gpu::module`, which keeps it.
    pub fn load_module(&self, source: &str, defines: &[(&str, &str)]) -> Result<Module> {
        let kind = match self {
            Driver::Cuda(driver) => ModuleKind::Cuda(driver.load_module(source, defines)?),
            Driver::Host(driver) => ModuleKind::Host(driver.load_module(source, defines)?),
        };
        Ok(Module { kind })
    }

    /// Lets a kernel have this much dynamic shared memory; `DEFAULT_SMEM_BYTES` needs no asking.
    pub fn set_max_dynamic_smem(&self, function: &Function, bytes: usize) -> Result<()> {
        match (self, &function.kind) {
            (Driver::Cuda(driver), FunctionKind::Cuda(f)) => driver.set_max_smem(f, bytes),
            (Driver::Host(driver), FunctionKind::Host(f)) => driver.set_max_smem(f, bytes),
            _ => panic!("{}: a function of another driver", function.name),
        }
    }

    /// Queues a kernel on the compute stream. Prefer `Gpu::launch`.
    ///
    /// # Safety
    /// Each pointer is at a value of the type of the kernel's parameter in that place, of the size
    /// that is given with it and without padding; what the kernel reads and writes through them is
    /// allocated.
    ///
    /// # Panics
    /// The function is of another driver.
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        block: u32,
        smem: usize,
        (args, sizes): (&mut [*mut c_void], &[u8]),
    ) -> Result<()> {
        match (self, &function.kind) {
            (Driver::Cuda(driver), FunctionKind::Cuda(f)) => {
                // SAFETY: the caller's promise.
                unsafe { driver.launch(&function.name, f, grid, block, smem, args) }
            }
            (Driver::Host(driver), FunctionKind::Host(f)) => {
                // SAFETY: the caller's promise.
                unsafe { driver.launch((&function.name, f), grid, (block, smem), (args, sizes)) }
            }
            _ => panic!("{}: a function of another driver", function.name),
        }
    }

    /// Waits for both streams. An error may be of any launch since the last wait.
    pub fn synchronize(&self) -> Result<()> {
        each!(self, driver => driver.synchronize())
    }

    /// Lets kernels of this device read and write the memory of another one, from now on.
    pub fn reach(&self, other: &Driver) -> Result<()> {
        match (self, other) {
            (Driver::Cuda(driver), Driver::Cuda(other)) => driver.reach(other),
            (Driver::Host(_), Driver::Host(_)) => Ok(()),
            _ => panic!("a GPU and the shim have no memory in common"),
        }
    }

    /// (free, total) bytes of the device.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        each!(self, driver => driver.memory_info())
    }
}
