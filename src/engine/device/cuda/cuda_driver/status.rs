//! Statuses of the driver as errors.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUresult};

use super::super::error::{CudaError, Result};

/// Subject of a call, made only when it failed.
pub(super) trait Subject {
    fn text(self) -> String;
}

impl Subject for &str {
    fn text(self) -> String {
        self.to_owned()
    }
}

impl<F: FnOnce() -> String> Subject for F {
    fn text(self) -> String {
        self()
    }
}

/// Turns a status of the driver into an error with the driver's own words.
pub(super) fn check(call: &'static str, subject: impl Subject, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: writes the address of a static string, or null for a code it does not know.
    let known = unsafe { sys::cuGetErrorString(status, &mut text) };
    let detail = if known == CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: a static string of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        String::new()
    };
    Err(CudaError::new(call, subject.text(), format!("{status:?}"), detail))
}
