//! Arguments of kernels, and the constants that they are compiled with.

mod defines;

use std::sync::atomic::Ordering;

pub use defines::Defines;

use super::Gpu;
use crate::cuda::compiler::mentions;
use crate::open::KERNEL_SOURCES;
use vllm_batch_base::config::{DType, KvCacheDType, PrefillKernel};

/// Kernel: `entry` of kernels/`source`.cu, compiled with the constants of its op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    pub(super) source: &'static str,
    pub(super) entry: &'static str,
    defines: Defines,
}

impl From<(&'static str, &'static str)> for Kernel {
    fn from((source, entry): (&'static str, &'static str)) -> Self {
        Self { source, entry, defines: Defines::NONE }
    }
}

impl Kernel {
    /// A kernel that is compiled with these constants.
    pub fn with_defines(source: &'static str, entry: &'static str, defines: Defines) -> Self {
        Self { source, entry, defines }
    }

    /// Whether it is compiled for the type of the KV cache: its source, or a header of it, asks.
    fn reads_cache(self) -> bool {
        mentions(KERNEL_SOURCES, self.source, "KV_FP8")
    }

    /// Names and values that it is compiled with.
    pub(super) fn defines(
        self,
        dtype: DType,
        kv_cache_dtype: KvCacheDType,
    ) -> Vec<(&'static str, String)> {
        let mut defines = vec![("DTYPE", cuda_name(dtype).to_owned())];
        defines.extend(self.defines.to_texts());
        if kv_cache_dtype == KvCacheDType::Fp8 && self.reads_cache() {
            defines.push(("KV_FP8", "1".to_owned()));
        }
        defines
    }
}

impl Gpu {
    /// Kernel of prefill.
    pub fn prefill_kernel(&self) -> PrefillKernel {
        match self.has_wgmma.load(Ordering::Relaxed) {
            true => PrefillKernel::Wgmma,
            false => PrefillKernel::MmaSync,
        }
    }

    /// Chooses what computes prefill from then on: of a model, by `ops::prefill_by_wgmma`, which
    /// has compared the bits.
    pub fn set_prefill_kernel(&self, kernel: PrefillKernel) {
        self.has_wgmma.store(kernel == PrefillKernel::Wgmma, Ordering::Relaxed);
    }
}

/// A type's name in kernels.
fn cuda_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Float32 => "float",
        DType::BFloat16 => "bf16",
        DType::Float16 => "f16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_read_the_cache_are_known_by_their_sources() {
        let reads = |source: &'static str| Kernel::from((source, "entry")).reads_cache();
        for source in ["rotary_and_cache", "paged_attention", "paged_attention_decode"] {
            assert!(reads(source), "{source}");
        }
        assert!(reads("unseen_values"), "by a header");
        for source in ["norm", "activation", "linear_codes", "copy_segments", "sample"] {
            assert!(!reads(source), "{source}");
        }
    }
}
