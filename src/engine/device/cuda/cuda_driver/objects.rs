//! Modules, functions, events and graphs, each with its context so that it may go last.

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUresult};

use super::super::driver::Stream;
use super::super::error::{CudaError, Result};
use super::status::check;
use super::{Context, CudaDriver, Handle};

/// A loaded cubin.
pub(in super::super) struct CudaModule {
    handle: Handle<sys::CUmodule>,
    context: Arc<Context>,
}

/// A kernel and the sizes of its parameters.
#[derive(Clone)]
pub(in super::super) struct CudaFunction {
    handle: Handle<sys::CUfunction>,
    pub(in super::super) param_sizes: Arc<[u8]>,
    _module: Arc<CudaModule>,
}

impl CudaDriver {
    pub(in super::super) fn load_module(
        &self,
        source: &str,
        defines: &[(&str, &str)],
    ) -> Result<Arc<CudaModule>> {
        let arch = self.compiler.arch_for(self.properties.compute_capability)?;
        let compiled = self.compiler.compile(source, defines, &arch)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: of NVRTC: a whole cubin, which holds its own length, or text that ends in NUL.
        // The driver copies it.
        let status = unsafe { sys::cuModuleLoadData(&mut handle, compiled.cubin.as_ptr().cast()) };
        check("cuModuleLoadData", source, status)?;
        Ok(Arc::new(CudaModule { handle: Handle(handle), context: Arc::clone(&self.context) }))
    }

    pub(in super::super) fn set_max_smem(
        &self,
        function: &CudaFunction,
        bytes: usize,
    ) -> Result<()> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module is loaded.
        let status = unsafe { sys::cuFuncSetAttribute(function.raw(), attribute, bytes as i32) };
        check("cuFuncSetAttribute", || format!("{bytes} bytes of shared memory"), status)
    }
}

impl CudaModule {
    pub(in super::super) fn function(module: &Arc<Self>, name: &str) -> Result<CudaFunction> {
        let subject = CString::new(name)
            .map_err(|_| CudaError::new("cuModuleGetFunction", name, "a NUL in the name", ""))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in NUL.
        let status =
            unsafe { sys::cuModuleGetFunction(&mut handle, module.handle.0, subject.as_ptr()) };
        check("cuModuleGetFunction", name, status)?;
        let param_sizes = param_sizes(handle, name)?;
        Ok(CudaFunction { handle: Handle(handle), param_sizes, _module: Arc::clone(module) })
    }
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: loaded once; its functions keep it, so none is left.
        let _ = unsafe { sys::cuModuleUnload(self.handle.0) };
    }
}

impl CudaFunction {
    pub(in super::super) fn raw(&self) -> sys::CUfunction {
        self.handle.0
    }
}

fn param_sizes(function: sys::CUfunction, name: &str) -> Result<Arc<[u8]>> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: writes two numbers.
        let status =
            unsafe { sys::cuFuncGetParamInfo(function, sizes.len(), &mut offset, &mut size) };
        // This is how the driver says that there are no more.
        if status == CUresult::CUDA_ERROR_INVALID_VALUE {
            return Ok(sizes.into());
        }
        check("cuFuncGetParamInfo", name, status)?;
        let size = u8::try_from(size)
            .map_err(|_| CudaError::new("cuFuncGetParamInfo", name, "parameter too large", ""))?;
        sizes.push(size);
    }
}

/// An event of the driver.
pub(in super::super) struct CudaEvent {
    handle: Handle<sys::CUevent>,
    context: Arc<Context>,
}

impl CudaEvent {
    pub(in super::super) fn new(driver: &CudaDriver, timing: bool) -> Result<Self> {
        let flags = if timing {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { sys::cuEventCreate(&mut handle, flags as u32) };
        check("cuEventCreate", "", status)?;
        Ok(Self { handle: Handle(handle), context: Arc::clone(&driver.context) })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: created once. The driver keeps it until it has passed.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle.0) };
    }
}

impl CudaDriver {
    pub(in super::super) fn record_event(&self, event: &CudaEvent, stream: Stream) -> Result<()> {
        // SAFETY: both live.
        check("cuEventRecord", "", unsafe {
            sys::cuEventRecord(event.handle.0, self.stream(stream))
        })
    }

    pub(in super::super) fn wait_event(&self, stream: Stream, event: &CudaEvent) -> Result<()> {
        // SAFETY: both live.
        check("cuStreamWaitEvent", "", unsafe {
            sys::cuStreamWaitEvent(self.stream(stream), event.handle.0, 0)
        })
    }

    pub(in super::super) fn synchronize_event(&self, event: &CudaEvent) -> Result<()> {
        // SAFETY: the event lives.
        let status = unsafe { sys::cuEventSynchronize(event.handle.0) };
        self.check_wait("cuEventSynchronize", status)
    }

    pub(in super::super) fn event_has_passed(&self, event: &CudaEvent) -> Result<bool> {
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(event.handle.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => self.check_wait("cuEventQuery", status).map(|()| true),
        }
    }

    pub(in super::super) fn elapsed_ms(&self, start: &CudaEvent, end: &CudaEvent) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: both live; writes one number.
        let status = unsafe { sys::cuEventElapsedTime_v2(&mut ms, start.handle.0, end.handle.0) };
        check("cuEventElapsedTime", "", status)?;
        Ok(ms)
    }

    pub(in super::super) fn begin_capture(&self) -> Result<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        check("cuStreamBeginCapture", "", unsafe {
            sys::cuStreamBeginCapture_v2(self.compute.0, mode)
        })
    }

    pub(in super::super) fn launch_graph(&self, graph: &CudaGraph) -> Result<()> {
        let exec = graph.exec.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both live, and the lock keeps other threads from the graph.
        let status = unsafe { sys::cuGraphLaunch(exec.0, self.compute.0) };
        check("cuGraphLaunch", "", status)?;
        self.note_launch(&graph.name);
        Ok(())
    }
}

/// An executable graph.
pub(in super::super) struct CudaGraph {
    exec: Mutex<Handle<sys::CUgraphExec>>,
    name: Arc<str>,
    context: Arc<Context>,
}

impl CudaGraph {
    /// Ends the capture, makes it executable and uploads it. The functions in it must stay loaded.
    pub(in super::super) fn end_capture(driver: &CudaDriver) -> Result<Self> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { sys::cuStreamEndCapture(driver.compute.0, &mut graph) };
        check("cuStreamEndCapture", "", status)?;
        if graph.is_null() {
            return Err(CudaError::new("cuStreamEndCapture", "", "no graph", "nothing captured"));
        }
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was captured above; the executable does not need it afterwards.
        let status = unsafe {
            let status = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            status
        };
        check("cuGraphInstantiate", "", status)?;
        let context = Arc::clone(&driver.context);
        let graph = Self { exec: Mutex::new(Handle(exec)), name: "a CUDA graph".into(), context };
        // SAFETY: both live.
        check("cuGraphUpload", "", unsafe { sys::cuGraphUpload(exec, driver.compute.0) })?;
        Ok(graph)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let _ = self.context.bind();
        let exec = self.exec.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made once. A launch in flight keeps what it needs.
        let _ = unsafe { sys::cuGraphExecDestroy(exec.0) };
    }
}
