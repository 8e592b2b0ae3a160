//! Arguments of kernels, and the constants that they are compiled with.

mod attention;

use std::sync::atomic::Ordering;

pub use attention::{AttentionDefines, DecodeLayer, DecodeSizes, LaunchDefines, PrefillSizes};

use super::Gpu;
use crate::cuda::compiler::mentions;
use crate::open::KERNEL_SOURCES;
use vllm_batch_base::config::{DType, KvCacheDType, PrefillKernel};

/// A kernel: `entry` of kernels/`source`.cu, compiled for attention, codes or states of one kind
/// where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    pub(super) source: &'static str,
    pub(super) entry: &'static str,
    compiled_for: CompiledFor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CompiledFor {
    Any,
    Attention(AttentionDefines),
    Codes(CodeDefines),
    /// Rows of a state.
    States(u32),
}

/// Constants of a kernel over codes, in the words of kernels/linear_codes.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeDefines {
    /// Values of codes.
    pub levels: &'static str,
    /// Bits of a code: 4 or 8.
    pub bits: u32,
    /// Type of scales and offsets.
    pub scale: DType,
    /// Inputs that share them: 16, 32, 64 or 128.
    pub group: u32,
}

impl From<(&'static str, &'static str)> for Kernel {
    fn from((source, entry): (&'static str, &'static str)) -> Self {
        Self { source, entry, compiled_for: CompiledFor::Any }
    }
}

impl Kernel {
    /// A kernel with HEAD_DIM defined; LATENT_DIM of latents; TEXTS for texts; BIAS or ALIBI for
    /// biases; SINKS; the sizes of its launches, and of decode what it knows of a layer.
    pub fn of_attention(
        source: &'static str,
        entry: &'static str,
        defines: AttentionDefines,
    ) -> Self {
        Self { source, entry, compiled_for: CompiledFor::Attention(defines) }
    }

    /// A kernel with LEVELS, CODE_BITS, SCALE and GROUP defined.
    pub fn of_codes(source: &'static str, entry: &'static str, defines: CodeDefines) -> Self {
        Self { source, entry, compiled_for: CompiledFor::Codes(defines) }
    }

    /// A kernel with STATE_ROWS defined.
    pub fn of_states(source: &'static str, entry: &'static str, num_rows: usize) -> Self {
        Self { source, entry, compiled_for: CompiledFor::States(num_rows as u32) }
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
        let mut defines = vec![("DTYPE", name(dtype).to_owned())];
        match self.compiled_for {
            CompiledFor::Any => {}
            CompiledFor::Attention(attention) => {
                let of_attention = attention.defines().into_iter();
                defines.extend(of_attention.map(|(name, value)| (name, value.to_string())));
            }
            CompiledFor::Codes(CodeDefines { levels, bits, scale, group }) => {
                defines.push(("LEVELS", levels.to_owned()));
                defines.push(("CODE_BITS", bits.to_string()));
                defines.push(("SCALE", name(scale).to_owned()));
                defines.push(("GROUP", group.to_string()));
            }
            CompiledFor::States(num_rows) => defines.push(("STATE_ROWS", num_rows.to_string())),
        }
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
fn name(dtype: DType) -> &'static str {
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
