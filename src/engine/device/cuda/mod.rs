//! The CUDA path: one GPU (or the CPU shim that stands for it), its memory and its kernels.
//! Knows no model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub mod args;
pub mod compiler;
mod cuda_driver;
mod disk_cache;
pub mod driver;
pub mod error;
pub mod gemm;
mod handles;
mod host_driver;
pub mod library;
pub mod memory;
mod sync;

pub use args::Args;
pub use compiler::Compiler;
pub use cuda_driver::{CudaDriver, NO_DRIVER};
pub use driver::{DevicePtr, Driver, Event, Function, Graph, Module, Properties, Stream};
pub use error::{CudaError, Result};
pub use host_driver::HostDriver;
pub use library::SearchHints;
pub use memory::{DeviceBuffer, PinnedBuffer, Plain, Staging, bytes_of};

/// A device with the modules that have been compiled for it.
pub struct Runtime {
    driver: Arc<Driver>,
    /// By source and defines.
    modules: Mutex<HashMap<String, Module>>,
}

impl Runtime {
    /// No modules yet.
    pub fn new(driver: Driver) -> Self {
        Self { driver: Arc::new(driver), modules: Mutex::default() }
    }

    /// The device, for buffers, events and graphs.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// `kernels/<source>.cu` with these defines, compiled at the first call.
    pub fn module(&self, source: &str, defines: &[(&str, &str)]) -> Result<Module> {
        let mut key = source.to_owned();
        for (name, value) in defines {
            key += &format!(" -D{name}={value}");
        }
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&key) {
            return Ok(module.clone());
        }
        let module = self.driver.load_module(source, defines)?;
        modules.insert(key, module.clone());
        Ok(module)
    }

    /// A kernel of such a module. To be kept: it is looked up by name.
    pub fn function(&self, source: &str, defines: &[(&str, &str)], name: &str) -> Result<Function> {
        self.module(source, defines)?.function(name)
    }

    /// Uninitialised memory.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceBuffer> {
        DeviceBuffer::new(&self.driver, bytes)
    }

    /// Queues a kernel on the compute stream:
    /// `gpu.launch(&add, [n, 1, 1], 256, 0, Args::new().ptr(x).u64(n))`. The arguments' sizes are
    /// checked; that the addresses are the kernel's to read and write is the caller's to know.
    pub fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        block: u32,
        smem: usize,
        args: &mut Args,
    ) -> Result<()> {
        function.check_args(args.sizes())?;
        args.with_pointers(|pointers, sizes| {
            // SAFETY: the pointers are at values of the parameters' sizes. What the kernel does
            // with the addresses in them is device memory, outside of Rust's (the host shim's
            // guards find a kernel that strays, in tests).
            unsafe { self.driver.launch(function, grid, block, smem, (pointers, sizes)) }
        })
    }

    /// Waits for everything queued.
    pub fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()
    }
}
