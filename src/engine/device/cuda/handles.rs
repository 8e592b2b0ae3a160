//! Modules, functions, events and graphs of either driver.

use std::sync::Arc;

use cudarc::driver::sys;

use super::cuda_driver::{CudaEvent, CudaFunction, CudaGraph, CudaModule};
use super::error::{CudaError, Result};
use super::host_driver::{HostEvent, HostFunction, HostGraph, HostModule};

/// A compiled source, specialised by its defines.
#[derive(Clone)]
pub struct Module {
    pub(super) kind: ModuleKind,
}

#[derive(Clone)]
pub(super) enum ModuleKind {
    Cuda(Arc<CudaModule>),
    Host(Arc<HostModule>),
}

/// A kernel of a module, which it keeps loaded.
#[derive(Clone)]
pub struct Function {
    pub(super) name: Arc<str>,
    pub(super) kind: FunctionKind,
}

#[derive(Clone)]
pub(super) enum FunctionKind {
    Cuda(CudaFunction),
    Host(HostFunction),
}

/// A point of a stream, to wait for or to take the time at.
pub struct Event {
    pub(super) kind: EventKind,
}

pub(super) enum EventKind {
    Cuda(CudaEvent),
    Host(HostEvent),
}

/// Launches recorded once and replayed as one.
pub struct Graph {
    pub(super) kind: GraphKind,
}

pub(super) enum GraphKind {
    Cuda(CudaGraph),
    Host(HostGraph),
}

impl Module {
    /// The kernel of this name.
    pub fn function(&self, name: &str) -> Result<Function> {
        let kind = match &self.kind {
            ModuleKind::Cuda(module) => FunctionKind::Cuda(CudaModule::function(module, name)?),
            ModuleKind::Host(module) => FunctionKind::Host(HostModule::function(module, name)?),
        };
        Ok(Function { name: name.into(), kind })
    }
}

impl Function {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver's handle, for those who launch by themselves; None on the host. Valid while this
    /// function lives.
    pub fn raw(&self) -> Option<sys::CUfunction> {
        match &self.kind {
            FunctionKind::Cuda(function) => Some(function.raw()),
            FunctionKind::Host(_) => None,
        }
    }

    /// Fails when the arguments' sizes are not those of the kernel's parameters, which the launch
    /// itself would not notice.
    pub(super) fn check_args(&self, sizes: &[u8]) -> Result<()> {
        let param_sizes = match &self.kind {
            FunctionKind::Cuda(function) => &function.param_sizes,
            FunctionKind::Host(function) => function.param_sizes(self.name())?,
        };
        if **param_sizes == *sizes {
            return Ok(());
        }
        let detail = format!("parameters {param_sizes:?}, given {sizes:?}");
        Err(CudaError::new("launch", self.name(), "sizes of the arguments", detail))
    }
}
