//! Constants that kernels over codes are compiled with.

use vllm_batch_base::config::DType;
use vllm_batch_device::gpu::{Defines, Kernel};

/// Constants of a kernel over codes, in the words of kernels/code_tiles.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeDefines {
    /// Values of codes.
    pub levels: &'static str,
    /// Bits of a code: 4 or 8.
    pub bits: u32,
    /// Type of scales and offsets.
    pub scale: DType,
    /// Inputs that share them: 16, 32, 64 or 128.
    pub group: u32,
}

impl CodeDefines {
    /// `entry` of kernels/linear_codes.cu, compiled with these constants.
    pub(super) fn kernel(self, entry: &'static str) -> Kernel {
        Kernel::with_defines("linear_codes", entry, self.defines())
    }

    /// The same of kernels/linear_expert_codes.cu.
    pub(super) fn kernel_of_experts(self, entry: &'static str) -> Kernel {
        Kernel::with_defines("linear_expert_codes", entry, self.defines())
    }

    pub(super) fn defines(self) -> Defines {
        Defines::NONE
            .word("LEVELS", self.levels)
            .number("CODE_BITS", self.bits)
            .dtype("SCALE", self.scale)
            .number("GROUP", self.group)
    }
}
