//! What kernels are called and compiled with.

use crate::engine::config::{DType, KvCacheDType};

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

/// What a kernel of attention is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDefines {
    /// Width of a K head.
    pub head_dim: u32,
    /// How many of a K head's last values are its V; 0: V is as wide as K, and apart.
    pub latent_dim: u32,
    /// Sequences are whole texts, whose tokens may see those after them.
    pub is_of_texts: bool,
    /// Scores have biases: from a table in texts, else ALiBi's.
    pub has_biases: bool,
    /// Heads have sinks.
    pub has_sinks: bool,
}

/// What a kernel over codes is compiled for, in the words of kernels/linear_codes.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeDefines {
    /// What a code stands for.
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
    /// biases; SINKS.
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

    /// Whether it is compiled for the type of the KV cache.
    fn touches_cache(self) -> bool {
        let sources = ["norm_rotary_and_cache", "rotary_and_cache", "paged_attention"];
        sources.contains(&self.source)
    }

    /// Names and values that it is compiled with, on a device with so much shared memory a block.
    pub(super) fn defines(
        self,
        dtype: DType,
        kv_cache_dtype: KvCacheDType,
        max_smem_bytes: usize,
    ) -> Vec<(&'static str, String)> {
        let mut defines = vec![("DTYPE", name(dtype).to_owned())];
        match self.compiled_for {
            CompiledFor::Any => {}
            CompiledFor::Attention(attention) => {
                let AttentionDefines { head_dim, latent_dim, is_of_texts, has_biases, has_sinks } =
                    attention;
                defines.push(("HEAD_DIM", head_dim.to_string()));
                if latent_dim > 0 {
                    defines.push(("LATENT_DIM", latent_dim.to_string()));
                }
                defines.push(("MAX_SMEM_KB", (max_smem_bytes >> 10).to_string()));
                let of_biases = if is_of_texts { "BIAS" } else { "ALIBI" };
                let switches =
                    [("TEXTS", is_of_texts), (of_biases, has_biases), ("SINKS", has_sinks)];
                let switched_on = switches.into_iter().filter(|(_, is_on)| *is_on);
                defines.extend(switched_on.map(|(name, _)| (name, "1".to_owned())));
            }
            CompiledFor::Codes(CodeDefines { levels, bits, scale, group }) => {
                defines.push(("LEVELS", levels.to_owned()));
                defines.push(("CODE_BITS", bits.to_string()));
                defines.push(("SCALE", name(scale).to_owned()));
                defines.push(("GROUP", group.to_string()));
            }
            CompiledFor::States(num_rows) => defines.push(("STATE_ROWS", num_rows.to_string())),
        }
        if kv_cache_dtype == KvCacheDType::Fp8 && self.touches_cache() {
            defines.push(("KV_FP8", "1".to_owned()));
        }
        defines
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
