//! Launch sizes of kernels/paged_attention.cu and paged_attention_decode.cu, by the shared
//! memory of a GPU. The kernels are compiled for it, and check that it is what they lay out.

use super::defines::{AttentionDefines, DecodeSizes, LaunchDefines, PrefillSizes};
use vllm_batch_base::config::KvCacheDType;
use vllm_batch_device::Gpu;
use vllm_batch_device::gpu::Kernel;

use super::{AttentionParams, ROWS, TILE, parts, wgmma};

/// Sizes for heads of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Sizes for tokens that decode.
    pub decode: DecodeSizes,
    /// Sizes for prompts, and for rows that compute together.
    pub prefill: PrefillSizes,
    /// Blocks of prefill that a multiprocessor has the shared memory for.
    pub prefill_blocks_per_sm: u32,
}

/// Bytes of shared memory that the GPU takes of each block's.
const RESERVED: usize = 1024;

/// Tensor cores of a multiprocessor, each with warps of its own.
const TENSOR_CORES: usize = 4;

/// Bytes of what the kernels lay out.
struct Layout {
    /// Width of a head, padded for tensor cores.
    head_dim: usize,
    smem: usize,
    /// The merged splits of 16 rows.
    state: usize,
    /// A tile of K or V, as it is multiplied.
    tile: usize,
    /// As it comes from a cache of E4M3.
    narrow: usize,
    /// The queries of 16 rows.
    query: usize,
    has_fp8_cache: bool,
}

impl Layout {
    fn new(head_dim: usize, max_smem_bytes: usize, has_fp8_cache: bool) -> Self {
        let padded_dim = head_dim.next_multiple_of(ROWS);
        let padding = if padded_dim.is_multiple_of(64) { 0 } else { 16 };
        Self {
            head_dim: padded_dim,
            smem: max_smem_bytes >> 10 << 10,
            state: 64 * head_dim + 128,
            tile: TILE * (2 * padded_dim + padding),
            narrow: TILE * padded_dim,
            query: ROWS * padded_dim * 2,
            has_fp8_cache,
        }
    }

    /// Blocks that a multiprocessor has the memory for, as far as the registers go.
    fn blocks_of(&self, bytes: usize) -> u32 {
        let most = match self.head_dim {
            ..=32 => 4,
            33..=96 => 3,
            _ => 2,
        };
        ((self.smem + RESERVED) / (bytes + RESERVED)).min(most) as u32
    }

    fn decode(&self) -> DecodeSizes {
        let &Self { head_dim, smem, state, tile, narrow, query, has_fp8_cache } = self;
        let slot = if has_fp8_cache { narrow } else { tile };
        // Of heads whose E4M3 is not widened in registers.
        let wide = if has_fp8_cache && head_dim > 192 { tile } else { 0 };
        let fixed = wide + if head_dim > 128 { query } else { 0 };
        let of_block = state + 16;
        let warps = if 4 * (2 * slot + fixed) + of_block <= smem { 4 } else { 2 };
        // Two blocks on a multiprocessor where it has the memory.
        let share = if smem >= 160 << 10 { smem / 2 - RESERVED } else { smem };
        let of_warp = (share - of_block) / warps;
        let most = of_warp.saturating_sub(fixed) / slot;
        let bytes_of = |stages: usize| warps * (stages * slot + fixed) + of_block;
        let mut stages = most.clamp(2, 4);
        let blocks = self.blocks_of(bytes_of(stages));
        // As many bytes on their way as without E4M3, where no block is lost for it.
        while has_fp8_cache
            && stages < most.min(8)
            && self.blocks_of(bytes_of(stages + 1)) == blocks
        {
            stages += 1;
        }
        let bytes = bytes_of(stages);
        DecodeSizes { warps: warps as u32, stages: stages as u32, blocks, bytes: bytes as u32 }
    }

    /// With `state` bytes for each group.
    fn of_prefill(&self, warps: usize, groups: usize, state: usize) -> usize {
        let tiles = if self.has_fp8_cache { 2 * (self.tile + self.narrow) } else { 4 * self.tile };
        // The others' queries are in registers.
        let shared_groups = match self.head_dim {
            64 | 129.. => groups,
            33.. => groups - 1,
            _ => 0,
        };
        tiles + warps * (groups * state + shared_groups * self.query)
    }

    fn prefill(&self) -> PrefillSizes {
        let fits = |blocks: usize, warps: usize, groups: usize| {
            let bytes = self.of_prefill(warps, groups, self.state);
            blocks * (bytes + RESERVED) <= self.smem + RESERVED
        };
        // With two groups each fragment of a tile that is read serves twice.
        let groups = if self.head_dim <= 128 && fits(2, 4, 2) { 2 } else { 1 };
        let mut choices = [(2, 4), (1, 8), (1, 4), (1, 2)].into_iter();
        let fitting = choices.find(|&(blocks, warps)| fits(blocks, warps, groups));
        let warps = fitting.map_or(1, |(_, warps)| warps);
        // A warp for each of a multiprocessor's tensor cores, whatever the states take.
        let fits_apart = self.of_prefill(TENSOR_CORES, groups, 0) <= self.smem;
        let (warps, state, apart) = match warps < TENSOR_CORES && fits_apart {
            true => (TENSOR_CORES, 0, self.state),
            false => (warps, self.state, 0),
        };
        PrefillSizes {
            warps: warps as u32,
            groups: groups as u32,
            blocks: if self.head_dim <= 64 && fits(3, warps, groups) { 3 } else { 1 },
            bytes: self.of_prefill(warps, groups, state) as u32,
            states_apart_bytes: (warps * groups * apart) as u32,
        }
    }
}

impl Launch {
    /// For heads up to 256 wide, on a GPU whose blocks may have so much shared memory.
    pub fn new(head_dim: usize, max_smem_bytes: usize, has_fp8_cache: bool) -> Self {
        let layout = Layout::new(head_dim, max_smem_bytes, has_fp8_cache);
        let (decode, prefill) = (layout.decode(), layout.prefill());
        let prefill_blocks_per_sm = layout.blocks_of(prefill.bytes as usize);
        Self { decode, prefill, prefill_blocks_per_sm }
    }

    pub(super) fn of(gpu: &Gpu, head_dim: usize) -> Self {
        let max_smem_bytes = gpu.properties().max_smem_per_block_bytes;
        Self::new(head_dim, max_smem_bytes, gpu.kv_cache_dtype() == KvCacheDType::Fp8)
    }

    /// A kernel that is compiled for these sizes.
    pub(super) fn kernel(
        &self,
        entry: &'static str,
        defines: AttentionDefines,
        params: &AttentionParams,
    ) -> Kernel {
        let (source, launch) = match entry {
            parts::DECODE => {
                let launch = LaunchDefines::Decode(self.decode, params.decode_layer());
                ("paged_attention_decode", launch)
            }
            wgmma::ENTRY => {
                let sizes = wgmma::sizes(defines.head_dim as usize).expect("heads that it takes");
                ("paged_attention_wgmma", LaunchDefines::Prefill(sizes))
            }
            _ => ("paged_attention", LaunchDefines::Prefill(self.prefill)),
        };
        AttentionDefines { launch: Some(launch), ..defines }.kernel(source, entry)
    }

    /// Bytes of the states of all blocks that a GPU has resident. 0: they need no memory.
    pub(super) fn states_bytes(&self, num_sms: u32) -> usize {
        (num_sms * self.prefill_blocks_per_sm * self.prefill.states_apart_bytes) as usize
    }

    /// Blocks of prefill, at most: as many as have states.
    pub(super) fn max_prefill_blocks(&self, num_sms: u32) -> u32 {
        match self.prefill.states_apart_bytes {
            0 => u32::MAX,
            _ => num_sms * self.prefill_blocks_per_sm,
        }
    }

    /// Threads of a block and bytes of its shared memory, as are those of `prefill_block`.
    pub(super) fn decode_block(&self) -> (u32, usize) {
        (32 * self.decode.warps, self.decode.bytes as usize)
    }

    pub(super) fn prefill_block(&self) -> (u32, usize) {
        block_of(self.prefill)
    }

    /// The kernel of prompts on this GPU, and its block.
    pub(super) fn prefill_kernel(
        &self,
        gpu: &Gpu,
        defines: &AttentionDefines,
    ) -> (&'static str, (u32, usize)) {
        match wgmma::sizes_on(gpu, defines) {
            Some(sizes) => (wgmma::ENTRY, block_of(sizes)),
            None => ("paged_attention_prefill", self.prefill_block()),
        }
    }

    /// Rows, each a query token with a query head, of a unit of prefill.
    pub(super) fn prefill_rows(&self) -> usize {
        ROWS * (self.prefill.warps * self.prefill.groups) as usize
    }
}

fn block_of(sizes: PrefillSizes) -> (u32, usize) {
    (32 * sizes.warps, sizes.bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::cuda::DevicePtr;

    #[test]
    fn sizes_fit_every_generation() {
        for (smem_kb, head_dims) in
            [(227, &[16, 24, 64, 120, 160, 192, 256][..]), (163, &[64, 128, 256]), (99, &[64, 128])]
        {
            for (head_dim, has_fp8_cache) in
                head_dims.iter().flat_map(|&head_dim| [(head_dim, false), (head_dim, true)])
            {
                let launch = Launch::new(head_dim, smem_kb << 10, has_fp8_cache);
                assert!(launch.decode_block().1 <= smem_kb << 10, "{launch:?}");
                assert!(launch.prefill_block().1 <= smem_kb << 10, "{launch:?}");
                assert!(launch.decode.blocks > 0, "{launch:?}");
            }
        }
        // As measured on an H200.
        let hopper = Launch::new(128, 227 << 10, false);
        assert_eq!((hopper.decode.blocks, hopper.prefill_block()), (2, (128, 115_712)));
        assert_eq!((hopper.prefill_rows(), hopper.prefill_blocks_per_sm), (128, 2));
        let narrow = Launch::new(128, 227 << 10, true);
        assert_eq!((narrow.decode.bytes, narrow.prefill.bytes), (106_640, 107_520));
        // More tiles of E4M3 are on their way than of 16 bits, and no block is lost for them.
        let decode = |smem_kb: usize, head_dim| Launch::new(head_dim, smem_kb << 10, true).decode;
        let sizes = [(227, 128), (227, 64), (99, 64)]
            .map(|(smem_kb, head_dim)| decode(smem_kb, head_dim))
            .map(|sizes| (sizes.stages, sizes.blocks));
        assert_eq!(sizes, [(6, 2), (8, 3), (5, 2)]);
        // Wider heads have a tile more for each warp.
        assert_eq!(Launch::new(256, 227 << 10, true).decode.bytes, 180_368);
        assert_eq!(Launch::new(64, 227 << 10, false).prefill.bytes, 66_560);
        let padded = Launch::new(120, 227 << 10, false);
        let expected = Launch {
            decode: DecodeSizes { bytes: 106_128, ..hopper.decode },
            prefill: PrefillSizes { bytes: 111_616, ..hopper.prefill },
            ..hopper
        };
        assert_eq!(padded, expected);
    }

    /// On cards with 99 KB, where states in shared memory would leave a warp or two of wide heads.
    #[test]
    fn each_tensor_core_has_a_warp_of_prefill() {
        for (smem_kb, head_dim, has_fp8_cache, states_apart_bytes) in [
            (99, 128, false, 0),
            (99, 160, false, 4 * 10_368),
            (99, 192, false, 4 * 12_416),
            (99, 192, true, 4 * 12_416),
            (99, 256, false, 4 * 16_512),
            (99, 256, true, 4 * 16_512),
            (163, 256, false, 0),
            (227, 256, false, 0),
        ] {
            let launch = Launch::new(head_dim, smem_kb << 10, has_fp8_cache);
            let what = format!("{smem_kb} KB, {head_dim}: {launch:?}");
            assert_eq!(launch.prefill.states_apart_bytes, states_apart_bytes, "{what}");
            assert!(launch.prefill.warps >= 4, "{what}");
            // Narrower heads fit in what is kept for the widest.
            let widest = Launch::new(256, smem_kb << 10, has_fp8_cache);
            assert!(launch.states_bytes(128) <= widest.states_bytes(128), "{what}");
            let is_bounded = launch.max_prefill_blocks(128) == 128;
            assert_eq!(is_bounded, states_apart_bytes > 0, "{what}");
        }
    }

    /// A window is a kind of layer, its scale is none: kernels that are compiled are few.
    #[test]
    fn decode_alone_is_compiled_for_a_kind_of_layer() {
        let of_window = |window, scale| AttentionParams {
            num_heads: 8,
            num_kv_heads: 2,
            cache_kv_heads: 2,
            block_size: 16,
            max_blocks_per_seq: 1,
            qkv_stride: 768,
            window,
            after: 0,
            bias_stride: 0,
            bias_origin: 0,
            scale,
            soft_cap: 0.0,
            biases: DevicePtr::NULL,
            sinks: DevicePtr::NULL,
            states: DevicePtr::NULL,
            ends: DevicePtr::NULL,
        };
        let defines = AttentionDefines {
            head_dim: 64,
            latent_dim: 0,
            is_of_texts: false,
            has_images: false,
            has_biases: false,
            has_sinks: false,
            is_chunked: false,
            is_chosen: false,
            launch: None,
        };
        let launch = Launch::new(64, 227 << 10, false);
        let kernel = |entry, params: &AttentionParams| launch.kernel(entry, defines, params);
        let (all, again, windowed) = (of_window(0, 0.1), of_window(0, 0.2), of_window(9, 0.1));
        assert_eq!(kernel(parts::DECODE, &all), kernel(parts::DECODE, &again));
        assert_ne!(kernel(parts::DECODE, &all), kernel(parts::DECODE, &windowed));
        let prefill = "paged_attention_prefill";
        assert_eq!(kernel(prefill, &all), kernel(prefill, &windowed));
    }
}
