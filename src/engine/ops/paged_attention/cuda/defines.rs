//! Constants that kernels of attention are compiled with.

use vllm_batch_device::gpu::{Defines, Kernel};

/// Constants that a kernel of attention is compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionDefines {
    /// Width of a K head.
    pub head_dim: u32,
    /// Width of V if it is the last values of a K head; 0: V is as wide as K, and apart.
    pub latent_dim: u32,
    /// Sequences are whole texts, whose tokens may see those after them.
    pub is_of_texts: bool,
    /// Tokens of images see all of theirs.
    pub has_images: bool,
    /// Scores have biases: from a table in texts, else ALiBi's.
    pub has_biases: bool,
    /// Heads have sinks.
    pub has_sinks: bool,
    /// Tokens see their own chunk of positions, of the window's length.
    pub is_chunked: bool,
    /// Blocks are single positions, which a token has chosen.
    pub is_chosen: bool,
    /// Of kernels that are compiled for how they are launched.
    pub launch: Option<LaunchDefines>,
}

/// How kernels over heads that one warp holds are launched, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchDefines {
    /// kernels/paged_attention_decode.cu.
    Decode(DecodeSizes, DecodeLayer),
    /// kernels/paged_attention.cu and paged_attention_wgmma.cu.
    Prefill(PrefillSizes),
}

/// Launch sizes of kernels/paged_attention_decode.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeSizes {
    /// Warps of a block.
    pub warps: u32,
    /// Tiles of a warp's ring.
    pub stages: u32,
    /// Blocks of a multiprocessor, which the registers have to allow.
    pub blocks: u32,
    /// Of shared memory.
    pub bytes: u32,
}

/// What kernels/paged_attention_decode.cu knows of a layer. A model has a kind or two of them, and
/// each is one more compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecodeLayer {
    /// K and V heads.
    pub num_kv_heads: u32,
    /// Query heads that share each.
    pub group_size: u32,
    /// Tokens of a block of the cache.
    pub block_size: u32,
    /// Positions that a token sees up to itself, itself included; 0: all.
    pub window: u32,
    /// Scores are bounded.
    pub has_soft_cap: bool,
}

/// Launch sizes of kernels/paged_attention.cu and paged_attention_wgmma.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillSizes {
    /// Warps of a block.
    pub warps: u32,
    /// Groups of 16 rows of a warp.
    pub groups: u32,
    /// Blocks of a multiprocessor that the registers have to allow.
    pub blocks: u32,
    /// Of shared memory.
    pub bytes: u32,
    /// Of a block's states, where they are in global memory. 0: they are in shared memory.
    pub states_apart_bytes: u32,
}

impl DecodeSizes {
    /// Names and values that the kernel is compiled with.
    pub fn defines(&self) -> Vec<(&'static str, u32)> {
        vec![
            ("DECODE_WARPS", self.warps),
            ("DECODE_STAGES", self.stages),
            ("DECODE_BLOCKS", self.blocks),
            ("DECODE_BYTES", self.bytes),
        ]
    }
}

impl DecodeLayer {
    fn defines(&self) -> Vec<(&'static str, u32)> {
        vec![
            ("NUM_KV_HEADS", self.num_kv_heads),
            ("GROUP_SIZE", self.group_size),
            ("BLOCK_SIZE", self.block_size),
            ("WINDOW", self.window),
            ("SOFT_CAP", u32::from(self.has_soft_cap)),
        ]
    }
}

impl PrefillSizes {
    /// Names and values that the kernels are compiled with.
    pub fn defines(&self) -> Vec<(&'static str, u32)> {
        vec![
            ("PREFILL_WARPS", self.warps),
            ("PREFILL_GROUPS", self.groups),
            ("PREFILL_BLOCKS", self.blocks),
            ("PREFILL_BYTES", self.bytes),
            ("PREFILL_STATES_APART", u32::from(self.states_apart_bytes > 0)),
        ]
    }
}

impl AttentionDefines {
    /// `entry` of kernels/`source`.cu, compiled with these constants.
    pub(super) fn kernel(&self, source: &'static str, entry: &'static str) -> Kernel {
        Kernel::with_defines(source, entry, self.defines())
    }

    fn defines(&self) -> Defines {
        let latent = (self.latent_dim > 0).then_some(("LATENT_DIM", self.latent_dim));
        let of_launch = match &self.launch {
            None => Vec::new(),
            Some(LaunchDefines::Decode(sizes, layer)) => {
                [sizes.defines(), layer.defines()].concat()
            }
            Some(LaunchDefines::Prefill(sizes)) => sizes.defines(),
        };
        let of_biases = if self.is_of_texts { "BIAS" } else { "ALIBI" };
        let switches = [
            ("TEXTS", self.is_of_texts),
            ("IMAGES", self.has_images),
            (of_biases, self.has_biases),
            ("SINKS", self.has_sinks),
            ("REACH_CHUNKS", self.is_chunked),
            ("CHOSEN", self.is_chosen),
        ];
        let switched_on = switches.into_iter().filter(|(_, is_on)| *is_on);
        let numbers = latent.into_iter().chain(of_launch);
        let numbers = numbers.chain(switched_on.map(|(name, _)| (name, 1)));
        numbers.fold(Defines::NONE.number("HEAD_DIM", self.head_dim), |defines, (name, value)| {
            defines.number(name, value)
        })
    }
}
