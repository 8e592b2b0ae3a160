//! Why a GEMM could not be prepared or launched.

use std::fmt;

use cudarc::cublaslt::sys::cublasStatus_t;
use cudarc::driver::sys::CUresult;

use super::key::GemmKey;

/// A failed GEMM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GemmError {
    /// A call of cuBLASLt failed.
    Cublas {
        /// The function, as `cublasLtMatmul`.
        call: &'static str,
        /// Status that it returned.
        status: cublasStatus_t,
    },
    /// A call of the CUDA driver failed.
    Cuda {
        /// The function, as `cuMemAlloc`.
        call: &'static str,
        /// Result that it returned.
        result: CUresult,
    },
    /// cuBLASLt has no algorithm that gives the reference's bits for this many rows.
    NoAlgorithm {
        /// The GEMM.
        key: GemmKey,
        /// Rows of x.
        rows: usize,
    },
    /// A launch for more rows than were prepared, of a GEMM that was not, or without its operands.
    NotPrepared {
        /// The GEMM.
        key: GemmKey,
        /// Rows of x.
        rows: usize,
    },
    /// The workspace has fewer bytes than `WORKSPACE_BYTES`.
    Workspace {
        /// The bytes given.
        bytes: usize,
    },
}

impl fmt::Display for GemmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cublas { call, status } => write!(f, "{call}: {status:?}"),
            Self::Cuda { call, result } => write!(f, "{call}: {result:?}"),
            Self::NoAlgorithm { key, rows } => {
                write!(f, "cuBLASLt has no row-independent algorithm for {key} of {rows} rows")
            }
            Self::NotPrepared { key, rows } => {
                write!(f, "the GEMM {key} is not prepared for {rows} rows and its operands")
            }
            Self::Workspace { bytes } => {
                write!(f, "the workspace of the GEMMs has {bytes} bytes, too few")
            }
        }
    }
}

impl std::error::Error for GemmError {}

pub(super) fn cublas(call: &'static str, status: cublasStatus_t) -> Result<(), GemmError> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(GemmError::Cublas { call, status }),
    }
}

pub(super) fn cuda(call: &'static str, result: CUresult) -> Result<(), GemmError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        result => Err(GemmError::Cuda { call, result }),
    }
}
