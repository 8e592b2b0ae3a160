//! Errors of calls of the CUDA driver, of NVRTC or of the host shim.

use std::fmt;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// The function that failed, as `cuLaunchKernel`.
    pub call: &'static str,
    /// Kernel or source of the call. Empty: nothing to name.
    pub subject: String,
    /// The name of the status, as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub code: String,
    /// The driver's words for it, or a compiler's log.
    pub detail: String,
}

/// Shorthand of this folder.
pub type Result<T> = std::result::Result<T, CudaError>;

impl CudaError {
    /// An error of ours, found before or after the call itself.
    pub fn new(
        call: &'static str,
        subject: impl Into<String>,
        code: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { call, subject: subject.into(), code: code.into(), detail: detail.into() }
    }

    /// Whether what else the program does with the device has ended a recording.
    pub fn is_lost_recording(&self) -> bool {
        self.code == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
    }

    /// Whether a recording was ended by what it cannot have in it.
    pub fn is_unfit_for_recording(&self) -> bool {
        self.code == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    }

    /// Whether the device had no memory left for what was asked.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == "CUDA_ERROR_OUT_OF_MEMORY"
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if !self.subject.is_empty() {
            write!(f, "({})", self.subject)?;
        }
        write!(f, ": {}", self.code)?;
        if !self.detail.is_empty() {
            write!(f, ", {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for CudaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_its_subject_and_the_code_are_named() {
        let mut error = CudaError::new(
            "cuLaunchKernel",
            "paged_attention_decode",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "an illegal memory access",
        );
        assert_eq!(
            error.to_string(),
            "cuLaunchKernel(paged_attention_decode): CUDA_ERROR_ILLEGAL_ADDRESS, \
             an illegal memory access"
        );
        error.subject.clear();
        error.detail.clear();
        assert_eq!(error.to_string(), "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS");
    }
}
