//! One GEMM's descriptors, and the calls of cuBLASLt that take them.

use std::ffi::c_void;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys::{CUfunction, CUstream};

use super::error::{GemmError, cublas};
use super::handle::{Descriptor, Handle, Layout, Preference};
use super::key::{GemmKey, GemmType};
use super::table::Algorithm;
use super::{Operands, WORKSPACE_BYTES};

/// Whether FP8 products are summed in the tensor cores' short accumulators. Measured on an H200
/// with K = 14336: a tenth faster at 8192 rows, ten times the error.
const IS_FP8_SUM_FAST: bool = false;

/// Value of `cublasOperation_t`, which cudarc has no name for here.
const CUBLAS_OP_T: i32 = 1;

/// Candidates that the heuristic is asked for. It offers about 8.
const MAX_CANDIDATES: usize = 16;

/// A mask of reduction schemes for `heuristic`: K stays in one piece.
pub(super) const NO_REDUCTION: u32 = 0;

/// A mask of reduction schemes for `heuristic`: K may be split.
pub(super) const ANY_REDUCTION: u32 = 7;

/// Where GEMMs run.
pub(super) struct Backend {
    pub handle: Handle,
    pub stream: CUstream,
    /// `WORKSPACE_BYTES` of it.
    pub workspace: u64,
    pub count_mismatches: CUfunction,
}

/// A GEMM with any number of rows.
pub(super) struct Operation {
    pub key: GemmKey,
    descriptor: Descriptor,
    /// (n, k)
    w: Layout,
}

/// Matrices with one number of rows.
pub(super) struct Rows {
    pub launched: usize,
    /// (launched, k)
    x: Layout,
    /// (launched, n)
    out: Layout,
}

impl Operation {
    pub(super) fn new(key: GemmKey) -> Result<Self, GemmError> {
        use lt::cublasLtMatmulDescAttributes_t as Attribute;
        let descriptor = Descriptor::new()?;
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T)?;
        if key.bias {
            // Of the output's type, which is what cuBLASLt takes where nothing else is said, and
            // all that it takes for bf16: an f32 bias is CUBLAS_STATUS_INVALID_VALUE.
            let epilogue = lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
        }
        if key.input == GemmType::Fp8E4m3 {
            let mode = lt::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode)?;
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode)?;
            let fast = i8::from(IS_FP8_SUM_FAST);
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast)?;
        }
        Ok(Self { key, descriptor, w: Layout::new(key.input, key.n, key.k)? })
    }

    pub(super) fn rows(&self, launched: usize) -> Result<Rows, GemmError> {
        Ok(Rows {
            launched,
            x: Layout::new(self.key.input, launched, self.key.k)?,
            out: Layout::new(self.key.output, launched, self.key.n)?,
        })
    }

    /// Points the descriptor at the vectors among the operands.
    pub(super) fn bind(&self, operands: &Operands) -> Result<(), GemmError> {
        use lt::cublasLtMatmulDescAttributes_t as Attribute;
        let missing = GemmError::NotPrepared { key: self.key, rows: 0 };
        if self.key.bias {
            let bias = operands.bias.ok_or(missing.clone())?;
            self.descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
        }
        if self.key.input == GemmType::Fp8E4m3 {
            let (x_scales, w_scales) = operands.scales.ok_or(missing)?;
            self.descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales)?;
            self.descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales)?;
        }
        Ok(())
    }

    /// Puts the GEMM into the stream.
    ///
    /// # Safety
    /// The operands are those of the last `bind`, addresses of the device with room for `rows`.
    pub(super) unsafe fn launch(
        &self,
        backend: &Backend,
        rows: &Rows,
        operands: &Operands,
        algorithm: &Algorithm,
    ) -> Result<(), GemmError> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let algorithm = lt::cublasLtMatmulAlgo_t { data: *algorithm };
        let out = operands.out as *mut c_void;
        // SAFETY: the layouts describe the operands, which the caller vouches for; the scalars and
        // the algorithm are read before the call returns.
        let status = unsafe {
            lt::cublasLtMatmul(
                backend.handle.0,
                self.descriptor.0,
                (&raw const one).cast(),
                operands.w as *const c_void,
                self.w.0,
                operands.x as *const c_void,
                rows.x.0,
                (&raw const zero).cast(),
                out,
                rows.out.0,
                out,
                rows.out.0,
                &algorithm,
                backend.workspace as *mut c_void,
                WORKSPACE_BYTES,
                backend.stream.cast(),
            )
        };
        cublas("cublasLtMatmul", status)
    }

    /// Whether this cuBLASLt can run the algorithm here.
    pub(super) fn accepts(&self, backend: &Backend, rows: &Rows, algorithm: &Algorithm) -> bool {
        let algorithm = lt::cublasLtMatmulAlgo_t { data: *algorithm };
        let mut result = no_result();
        // SAFETY: live descriptors of this GEMM; an unsound algorithm is what is asked about.
        let status = unsafe {
            lt::cublasLtMatmulAlgoCheck(
                backend.handle.0,
                self.descriptor.0,
                self.w.0,
                rows.x.0,
                rows.out.0,
                rows.out.0,
                &algorithm,
                &mut result,
            )
        };
        cublas("cublasLtMatmulAlgoCheck", status).is_ok() && result.workspaceSize <= WORKSPACE_BYTES
    }

    /// Offers of cuBLASLt, the most promising first. `reductions` is one of the masks.
    pub(super) fn heuristic(
        &self,
        backend: &Backend,
        rows: &Rows,
        reductions: u32,
    ) -> Result<Vec<Algorithm>, GemmError> {
        let preference = Preference::new(WORKSPACE_BYTES, reductions)?;
        let mut results = [no_result(); MAX_CANDIDATES];
        let mut count = 0;
        // SAFETY: live descriptors of this GEMM; `results` has room for what is asked for.
        let status = unsafe {
            lt::cublasLtMatmulAlgoGetHeuristic(
                backend.handle.0,
                self.descriptor.0,
                self.w.0,
                rows.x.0,
                rows.out.0,
                rows.out.0,
                preference.0,
                MAX_CANDIDATES as i32,
                results.as_mut_ptr(),
                &mut count,
            )
        };
        if status == lt::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        cublas("cublasLtMatmulAlgoGetHeuristic", status)?;
        let found = results.iter().take(count.max(0) as usize);
        let sound =
            found.filter(|result| result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(sound.map(|result| result.algo.data).collect())
    }
}

fn no_result() -> lt::cublasLtMatmulHeuristicResult_t {
    lt::cublasLtMatmulHeuristicResult_t {
        algo: lt::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: lt::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    }
}

/// The algorithm with K in one piece, whatever it did before. Whether that exists, `accepts` tells.
pub(super) fn without_split(algorithm: &Algorithm) -> Option<Algorithm> {
    use lt::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
    let mut algorithm = lt::cublasLtMatmulAlgo_t { data: *algorithm };
    let mut set = |attribute, value: u32| {
        let pointer = (&raw const value).cast();
        // SAFETY: both attributes have 32 bits; `value` lives through the call.
        let status = unsafe {
            lt::cublasLtMatmulAlgoConfigSetAttribute(
                &mut algorithm,
                attribute,
                pointer,
                size_of::<u32>(),
            )
        };
        cublas("cublasLtMatmulAlgoConfigSetAttribute", status)
    };
    set(Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1).ok()?;
    set(Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 0).ok()?;
    Some(algorithm.data)
}

/// Into how many pieces the algorithm cuts K.
pub(super) fn num_splits(algorithm: &Algorithm) -> Result<u32, GemmError> {
    let algorithm = lt::cublasLtMatmulAlgo_t { data: *algorithm };
    let (mut splits, mut written) = (0_u32, 0);
    // SAFETY: the attribute has 32 bits; both writes are to locals.
    let status = unsafe {
        lt::cublasLtMatmulAlgoConfigGetAttribute(
            &algorithm,
            lt::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
            (&raw mut splits).cast(),
            size_of::<u32>(),
            &mut written,
        )
    };
    cublas("cublasLtMatmulAlgoConfigGetAttribute", status)?;
    Ok(splits)
}
