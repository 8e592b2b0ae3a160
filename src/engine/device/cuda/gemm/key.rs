//! Key of a GEMM: its sizes and its types. The bits of a row of its result depend on nothing else.

use std::fmt;

use cudarc::cublaslt::sys::cudaDataType_t;

/// The type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single; as an input it is multiplied as f32, never as TF32.
    F32,
    /// FP8 E4M3 with one f32 scale per row of x and per row of w; an input only.
    Fp8E4m3,
}

impl GemmType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::Fp8E4m3 => 1,
        }
    }

    pub(super) fn data_type(self) -> cudaDataType_t {
        match self {
            Self::Bf16 => cudaDataType_t::CUDA_R_16BF,
            Self::F16 => cudaDataType_t::CUDA_R_16F,
            Self::F32 => cudaDataType_t::CUDA_R_32F,
            Self::Fp8E4m3 => cudaDataType_t::CUDA_R_8F_E4M3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Fp8E4m3 => "e4m3",
        }
    }
}

/// out (m, n) = x (m, k) w (n, k)^T, plus bias (n): everything but the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmKey {
    /// Columns of the result: rows of w.
    pub n: usize,
    /// Columns of x and of w. 16 bytes must divide a row.
    pub k: usize,
    /// The type of x and of w.
    pub input: GemmType,
    /// The type of out and of bias.
    pub output: GemmType,
    /// Whether a bias is added, in f32 before the result is rounded.
    pub bias: bool,
}

impl fmt::Display for GemmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, k, input, output, bias } = self;
        write!(f, "{n}x{k}.{}.{}", input.name(), output.name())?;
        if *bias { f.write_str(".bias") } else { Ok(()) }
    }
}
