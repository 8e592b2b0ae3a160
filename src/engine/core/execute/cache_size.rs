//! The size of a KV cache: by a number of blocks, by bytes, or by a share of memory.

use super::encoded_media::EncodedMedia;
use super::model::decoder::Output;
use super::model_executor::DecoderToLoad;
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use vllm_batch_base::config::{CacheConfig, DType};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_checkpoint::spec::{
    AttentionSpec, DecoderSpec, IndexerSpec, LatentSpec, QkvHeads, SourceSpec,
};
use vllm_batch_device::kv_cache::{KV_GROUP_TOKENS, KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::{Device, KvCache, memory};

/// Share of free memory of the machine that the KV cache takes.
const CPU_MEMORY_SHARE: f64 = 0.4;
/// Share of a GPU's memory that is used, weights and buffers included: vLLM's default.
const GPU_MEMORY_SHARE: f64 = 0.9;

/// Steps of texts that the pool holds where states are asked for, when no size is given.
const STATE_STEPS: usize = 4;

/// Tokens that the pool should hold at least when it is sized from free memory.
const MIN_POOL_TOKENS: usize = 512;

/// Bytes that the KV cache may take, and what they are a share of, in words. `kept` are others', on
/// a GPU.
fn cache_budget(
    cache: &CacheConfig,
    device: &Device,
    kept: u64,
) -> Result<(u64, String), EngineError> {
    let (free, total) = match device {
        Device::Cpu(_) => {
            let free = memory::available_bytes().unwrap_or(4 << 30);
            (free, free)
        }
        Device::Cuda(gpu) => {
            let (free, total) = gpu.memory_info()?;
            ((free as u64).saturating_sub(kept), total as u64)
        }
    };
    let share = cache.memory_share.unwrap_or(match device {
        Device::Cpu(_) => CPU_MEMORY_SHARE,
        Device::Cuda(_) => GPU_MEMORY_SHARE,
    });
    let share = share / cache.engines_in_memory as f64;
    // As in vLLM the share is of a GPU's whole memory, what is taken already included; weights and
    // the buffers of the largest step are in place by now.
    let bytes = ((total as f64 * share) as u64).saturating_sub(total - free);
    Ok((bytes, format!("{} MiB of memory are free, and a share of {share}", free >> 20)))
}

/// Blocks that sequences can use: all of them at their full length. Those whose state is asked for
/// end when they are read, so the longest one and a few steps are enough, with what they share.
fn useful_blocks(sizes: &StepSizes, cache: &CacheConfig, decoder: &DecoderToLoad) -> usize {
    let StepSizes { max_num_seqs, max_num_batched_tokens, .. } = *sizes;
    let max_model_len = decoder.max_model_len;
    let num_tokens = match decoder.output {
        Output::Logits => max_num_seqs * max_model_len,
        Output::States => max_model_len + STATE_STEPS * max_num_batched_tokens,
    };
    num_tokens.div_ceil(decoder.block_size(cache)) + max_num_seqs
}

/// Blocks by what was asked for: a number, bytes, or a share of memory, though never more than are
/// `useful`.
pub(super) fn cache_shape(
    cache: &CacheConfig,
    sizes: &StepSizes,
    device: &Device,
    decoder: &DecoderToLoad,
) -> Result<KvCacheShape, EngineError> {
    let DecoderToLoad { spec, max_model_len, .. } = decoder;
    let block_size = decoder.block_size(cache);
    if block_size == 0 || !block_size.is_multiple_of(KV_GROUP_TOKENS) {
        let text = format!("{block_size} is no multiple of {KV_GROUP_TOKENS}");
        return Err(EngineError::setting(Setting::BlockSize, text, "give a multiple"));
    }
    if let Some(chosen) = spec.chosen_block().filter(|len| !len.is_multiple_of(block_size)) {
        let text = format!("the model chooses blocks of {chosen} tokens, {block_size} are no part");
        let help = format!("leave it out, or give a divisor of {chosen}");
        return Err(EngineError::setting(Setting::BlockSize, text, &help));
    }
    if let Some(source) = spec.source().filter(|s| !s.num_positions.is_multiple_of(block_size)) {
        let SourceSpec { num_positions, .. } = source;
        let text = format!("a sound takes {num_positions} positions, {block_size} are no part");
        let help = format!("leave it out, or give a divisor of {}", SourceSpec::WHOLE_BLOCKS);
        return Err(EngineError::setting(Setting::BlockSize, text, &help));
    }
    let mut shape = shape_without_blocks(spec, device, block_size);
    let block_bytes = shape.block_bytes(cache.kv_cache_dtype.size_bytes(decoder.dtype));
    // A stage may have layers that keep nothing.
    let block_bytes = (block_bytes + cache.bytes_beside).max(1) as u64;
    let num_pools = cache.num_pools;
    let useful = useful_blocks(sizes, cache, decoder) * num_pools;
    let num_blocks = match (cache.num_blocks, cache.kv_cache_memory_bytes) {
        (Some(num_blocks), _) => num_blocks * num_pools,
        (None, Some(bytes)) => (bytes / block_bytes) as usize,
        (None, None) => {
            let kept_bytes = decoder.media.as_ref().map_or(0, EncodedMedia::max_bytes);
            let (bytes, of_what) = cache_budget(cache, device, kept_bytes)?;
            let num_blocks = ((bytes / block_bytes) as usize).min(useful);
            let needed = num_pools * MIN_POOL_TOKENS.min(*max_model_len).div_ceil(block_size);
            if num_blocks < needed {
                return Err(EngineError::Config(format!(
                    "{of_what} of them (`settings.gpu_memory_utilization`) is too little for a KV cache of {} \
                     tokens; raise the share, or give `settings.kv_cache_memory_bytes` or a smaller \
                     `settings.max_model_len`",
                    needed * block_size
                )));
            }
            num_blocks
        }
    };
    shape.num_blocks = num_blocks / num_pools * num_pools;
    // Tables of blocks have numbers of 32 bits.
    let most = u32::MAX as usize - 1;
    match shape.num_blocks {
        too_many if too_many > most => Err(EngineError::Config(format!(
            "a KV cache of {too_many} blocks: the most is {most}; give a smaller \
             `settings.num_gpu_blocks_override` or `settings.kv_cache_memory_bytes`"
        ))),
        0 => Err(EngineError::Config(format!(
            "the KV cache has no block: one block of {block_size} tokens takes {block_bytes} bytes"
        ))),
        _ => Ok(shape),
    }
}

fn shape_without_blocks(spec: &DecoderSpec, device: &Device, block_size: usize) -> KvCacheShape {
    KvCacheShape {
        layers: cache_layers(spec, device),
        num_blocks: 0,
        block_size,
        states: StateShape { num_layers: spec.recurrents().count(), width: spec.state_width() },
        panel_width: device.kv_panel_width(),
    }
}

/// Bytes of a block of a model's KV cache.
pub fn block_bytes(cache: &CacheConfig, summary: &ModelSummary, device: &Device) -> usize {
    let shape = shape_without_blocks(&summary.spec, device, summary.block_size(cache));
    shape.block_bytes(cache.kv_cache_dtype.size_bytes(summary.dtype))
}

/// What layers have in the cache.
fn cache_layers(spec: &DecoderSpec, device: &Device) -> Vec<KvHeads> {
    let heads = |block: &AttentionSpec| {
        let QkvHeads { num_kv_heads: num, head_dim, .. } = block.heads;
        let of_latent = |latent: &LatentSpec| device.latent_v_dim(latent.dims.rank);
        KvHeads { num, head_dim, v_dim: block.latent.as_ref().map_or(head_dim, of_latent) }
    };
    // Keys of indexers have no values.
    let keys =
        |indexer: &IndexerSpec| KvHeads { num: 1, head_dim: indexer.heads.head_dim, v_dim: 0 };
    spec.cached_attentions().map(heads).chain(spec.indexers().map(keys)).collect()
}

/// The cache, and a note when the device had room for a smaller one only, which is no error unless
/// a size was asked for.
pub(super) fn allocate(
    device: &Device,
    mut shape: KvCacheShape,
    dtype: DType,
    cache: &CacheConfig,
) -> Result<(KvCache, Option<String>), EngineError> {
    let is_asked_for = cache.num_blocks.is_some() || cache.kv_cache_memory_bytes.is_some();
    let wanted = shape.num_blocks;
    loop {
        let error = match KvCache::on_device(device, shape.clone(), dtype) {
            Ok(cache) if shape.num_blocks == wanted => return Ok((cache, None)),
            Ok(cache) => {
                let note = format!(
                    "the device had no room for a KV cache of {wanted} blocks; it has {}",
                    shape.num_blocks
                );
                return Ok((cache, Some(note)));
            }
            Err(error) => error,
        };
        let smaller = shape.num_blocks - shape.num_blocks.div_ceil(10);
        if is_asked_for || smaller * shape.block_size < MIN_POOL_TOKENS {
            let element_bytes = cache.kv_cache_dtype.size_bytes(dtype);
            let mib = shape.num_bytes(element_bytes) >> 20;
            let flag = match (cache.num_blocks, cache.kv_cache_memory_bytes) {
                (Some(_), _) => "`settings.num_gpu_blocks_override`",
                (None, Some(_)) => "`settings.kv_cache_memory_bytes`",
                (None, None) => {
                    "`settings.kv_cache_memory_bytes` or `settings.gpu_memory_utilization`"
                }
            };
            let text =
                format!("no room for a KV cache of {mib} MiB ({error}); give a smaller {flag}");
            return Err(match error {
                EngineError::Machine(_) if !is_asked_for => EngineError::Machine(text),
                _ => EngineError::Config(text),
            });
        }
        shape.num_blocks = smaller;
    }
}

/// Adds the blocks in the host's memory that were asked for.
pub(super) fn add_host_blocks(
    cache: &mut KvCache,
    config: &CacheConfig,
    device: &Device,
) -> Result<(), EngineError> {
    let Some(bytes) = config.kv_offloading_bytes else { return Ok(()) };
    let refused =
        |why: String| EngineError::setting(Setting::KvOffloadingSize, why, "give another size");
    let Device::Cuda(gpu) = device else { unreachable!("`combinations` refuses it on the CPU") };
    let block_bytes = cache.shape.block_bytes(cache.element_bytes());
    let num_blocks = bytes / block_bytes as u64;
    // With those of the device they have numbers of 32 bits.
    let most = u32::MAX as usize - 1 - cache.shape.num_blocks;
    if num_blocks == 0 || num_blocks > most as u64 {
        return Err(refused(format!(
            "a block of {} tokens takes {block_bytes} bytes, and there may be 1 to {most} of them",
            cache.shape.block_size
        )));
    }
    cache.add_host_blocks(gpu, num_blocks as usize).map_err(|error| {
        refused(format!("no room for {} MiB in main memory ({error})", bytes >> 20))
    })
}
