//! Finds out whether a GPU can be used, and why not. Never panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::super::compiler::Compiler;
use super::super::driver::Properties;
use super::super::error::{CudaError, Result};
use super::super::library::{self, SearchHints};
use super::status::check;
use super::{Context, CudaDriver, Handle};

/// CUDA 12.8, the first with all the functions in use.
const MIN_DRIVER_VERSION: u32 = 12_080;
/// Ampere, the first with the instructions in use (cp.async, mma of bf16).
const MIN_COMPUTE_CAPABILITY: (u32, u32) = (8, 0);

/// Positions of a multiprocessor's share of a launch of attention if the GPU draws a display,
/// whose watchdog ends a launch after a few seconds: in float32, with 32 heads of 128 for K and V,
/// less than half a second by a count of instructions. Not measured.
const POSITIONS_PER_SM: u32 = 1 << 16;

impl CudaDriver {
    /// The GPU of this ordinal, with its context current on the calling thread, or one line that
    /// says why it cannot be used.
    pub fn probe(
        ordinal: usize,
        hints: &SearchHints,
        compiler: Compiler,
    ) -> std::result::Result<Self, String> {
        // cudarc panics on a missing library or function.
        catch_unwind(AssertUnwindSafe(|| probe(ordinal, hints, compiler)))
            .unwrap_or_else(|panic| Err(panic_reason(panic.as_ref())))
    }

    /// Bytes of memory of the GPU of this ordinal, or why it cannot be used. Opens nothing.
    pub fn memory_bytes(ordinal: usize, hints: &SearchHints) -> std::result::Result<u64, String> {
        catch_unwind(AssertUnwindSafe(|| {
            let (device, _) = usable_device(ordinal, hints)?;
            let mut bytes = 0;
            // SAFETY: writes one number; the device is one of the driver's.
            let status = unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, device) };
            check("cuDeviceTotalMem", "", status).map_err(one_line)?;
            Ok(bytes as u64)
        }))
        .unwrap_or_else(|panic| Err(panic_reason(panic.as_ref())))
    }

    /// GPUs that the driver shows, or one line that says why it shows none.
    pub fn num_gpus() -> std::result::Result<usize, String> {
        catch_unwind(|| {
            initialize()?;
            num_devices().map_err(one_line)
        })
        .unwrap_or_else(|panic| Err(panic_reason(panic.as_ref())))
    }
}

fn panic_reason(panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    format!("a CUDA library is not usable: {}", message.replace('\n', " "))
}

fn one_line(error: CudaError) -> String {
    error.to_string().replace('\n', " ")
}

/// Why there is no GPU, where there is no driver.
pub const NO_DRIVER: &str = "the NVIDIA driver is not installed (no libcuda.so.1)";

fn initialize() -> std::result::Result<(), String> {
    // SAFETY: loads the library and its initialisers, as every program that uses CUDA does.
    if !unsafe { sys::is_culib_present() } {
        return Err(NO_DRIVER.to_owned());
    }
    // SAFETY: no arguments.
    check("cuInit", "", unsafe { sys::cuInit(0) }).map_err(one_line)
}

fn probe(
    ordinal: usize,
    hints: &SearchHints,
    compiler: Compiler,
) -> std::result::Result<CudaDriver, String> {
    let (device, properties) = usable_device(ordinal, hints)?;
    CudaDriver::open(device, properties, compiler).map_err(one_line)
}

/// The GPU, if the driver, the libraries and itself are what is needed.
fn usable_device(
    ordinal: usize,
    hints: &SearchHints,
) -> std::result::Result<(sys::CUdevice, Properties), String> {
    initialize()?;
    let driver_version = driver_version().map_err(one_line)?;
    if driver_version < MIN_DRIVER_VERSION {
        return Err(format!(
            "the NVIDIA driver supports CUDA {}, and 12.8 is needed: update the driver",
            version_text(driver_version)
        ));
    }
    let num_devices = num_devices().map_err(one_line)?;
    if ordinal >= num_devices {
        return Err(format!("there is no GPU {ordinal}: the driver shows {num_devices}"));
    }
    let mut device = 0;
    // SAFETY: writes one handle; the ordinal is below the number of devices.
    let status = unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) };
    check("cuDeviceGet", "", status).map_err(one_line)?;
    let properties = properties(device).map_err(one_line)?;
    if properties.compute_capability < MIN_COMPUTE_CAPABILITY {
        let (major, minor) = properties.compute_capability;
        return Err(format!(
            "{} has compute capability {major}.{minor}, and 8.0 is needed",
            properties.name
        ));
    }
    let found = library::find(hints, driver_version / 1000);
    found.nvrtc?;
    found.cublas_lt?;
    Ok((device, properties))
}

impl CudaDriver {
    fn open(device: sys::CUdevice, properties: Properties, compiler: Compiler) -> Result<Self> {
        let context = Arc::new(Context::new(device)?);
        let compute = new_stream()?;
        let copy = new_stream().inspect_err(|_| {
            // SAFETY: made above, used by nothing.
            let _ = unsafe { sys::cuStreamDestroy_v2(compute.0) };
        })?;
        let last_launch = Mutex::default();
        Ok(Self { context, compute, copy, properties, compiler, last_launch })
    }
}

/// A stream that does not wait for the legacy default stream.
fn new_stream() -> Result<Handle<sys::CUstream>> {
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    let mut stream = std::ptr::null_mut();
    // SAFETY: writes one handle.
    check("cuStreamCreate", "", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
    Ok(Handle(stream))
}

fn driver_version() -> Result<u32> {
    let mut version = 0;
    // SAFETY: writes one number.
    check("cuDriverGetVersion", "", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(version as u32)
}

fn num_devices() -> Result<usize> {
    let mut count = 0;
    // SAFETY: writes one number.
    check("cuDeviceGetCount", "", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(count as usize)
}

fn version_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn properties(device: sys::CUdevice) -> Result<Properties> {
    let mut name = [0u8; 256];
    // SAFETY: writes at most 256 bytes, with a NUL.
    let status = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), 256, device) };
    check("cuDeviceGetName", "", status)?;
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let attribute = |attribute: Attribute| -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one number.
        let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
        check("cuDeviceGetAttribute", || format!("{attribute:?}"), status)?;
        Ok(value as u32)
    };
    let smem = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let num_sms = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let has_watchdog = attribute(Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)? != 0;
    Ok(Properties {
        name: String::from_utf8_lossy(&name[..len]).into_owned(),
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        num_sms,
        max_smem_per_block_bytes: smem as usize,
        max_launch_positions: has_watchdog.then(|| num_sms.saturating_mul(POSITIONS_PER_SM)),
    })
}
