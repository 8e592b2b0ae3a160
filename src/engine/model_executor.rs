//! `ModelExecutor`: a decoder with its KV cache on a device.

use std::sync::Arc;

use super::EngineError;
use super::batch::Batch;
use super::config::{CacheConfig, DType, EngineConfig, LoadFormat};
use super::device::kv_cache::{KV_GROUP_TOKENS, KvCacheShape};
use super::device::{Device, KvCache, Tensor, memory};
use super::executor::{Executor, ExecutorError, Logits};
use super::model::decoder::Decoder;
use super::model::spec::DecoderSpec;
use super::model::weights::Checkpoint;

/// Runs a decoder over batches.
pub struct ModelExecutor {
    device: Arc<Device>,
    decoder: Decoder,
    cache: KvCache,
    /// (num_logits, vocab_size)
    logits: Tensor,
}

/// Tokens that the pool should hold at least when it is sized from free memory.
const MIN_POOL_TOKENS: usize = 512;

impl ModelExecutor {
    /// Loads the weights, then gives the KV cache its share of the memory that is left.
    ///
    /// # Errors
    /// The weights do not fit the spec, or the memory does not hold a useful KV cache.
    pub fn load(
        config: &EngineConfig,
        spec: DecoderSpec,
        dtype: DType,
        max_model_len: usize,
        device: Arc<Device>,
    ) -> Result<Self, EngineError> {
        let checkpoint = match config.model.load_format {
            LoadFormat::Auto => Checkpoint::open(&config.model.model_dir)?,
            LoadFormat::Dummy => Checkpoint::Dummy { seed: config.model.seed },
        };
        let vocab_size = spec.vocab_size;
        let max_num_tokens = config.scheduler.max_num_batched_tokens;
        let decoder = Decoder::load(spec, dtype, &device, checkpoint, max_num_tokens)?;
        let max_num_seqs = config.scheduler.max_num_seqs;
        let shape = cache_shape(&config.cache, decoder.spec(), dtype, max_num_seqs, max_model_len)?;
        let cache = KvCache::new(shape, dtype);
        Ok(Self { device, decoder, cache, logits: Tensor::zeros(0, vocab_size) })
    }

    /// Sizes of the KV cache.
    pub fn cache_shape(&self) -> KvCacheShape {
        self.cache.shape
    }
}

impl Executor for ModelExecutor {
    fn execute(&mut self, batch: &Batch) -> Result<Logits<'_>, ExecutorError> {
        self.decoder.forward(&self.device, batch, &mut self.cache, &mut self.logits);
        let vocab_size = self.logits.width();
        Ok(Logits { values: self.logits.values_mut(), vocab_size })
    }
}

/// Blocks by what was asked for: a number, bytes, or a share of free memory, though never more than
/// all sequences at full length could use.
fn cache_shape(
    cache: &CacheConfig,
    spec: &DecoderSpec,
    dtype: DType,
    max_num_seqs: usize,
    max_model_len: usize,
) -> Result<KvCacheShape, EngineError> {
    let block_size = cache.block_size;
    if block_size == 0 || !block_size.is_multiple_of(KV_GROUP_TOKENS) {
        return Err(EngineError::Config(format!(
            "--block-size {block_size}: it must be a multiple of {KV_GROUP_TOKENS} on the CPU"
        )));
    }
    let mut shape = KvCacheShape {
        num_layers: spec.layers.len(),
        num_blocks: 0,
        block_size,
        num_kv_heads: spec.attention.num_kv_heads,
        head_dim: spec.attention.head_dim,
    };
    let block_bytes = shape.block_bytes(dtype) as u64;
    let useful = max_num_seqs.saturating_mul(max_model_len.div_ceil(block_size));
    shape.num_blocks = match (cache.num_blocks, cache.kv_cache_memory_bytes) {
        (Some(num_blocks), _) => num_blocks,
        (None, Some(bytes)) => (bytes / block_bytes) as usize,
        (None, None) => {
            let free = memory::available_bytes().unwrap_or(4 << 30);
            let bytes = (free as f64 * cache.memory_share) as u64;
            let num_blocks = ((bytes / block_bytes) as usize).min(useful);
            let needed = MIN_POOL_TOKENS.min(max_model_len).div_ceil(block_size);
            if num_blocks < needed {
                return Err(EngineError::Config(format!(
                    "{} MiB of memory are free, too little for a KV cache of {MIN_POOL_TOKENS} tokens; \
                     give --kv-cache-memory-bytes, or a smaller --max-model-len",
                    free >> 20
                )));
            }
            num_blocks
        }
    };
    match shape.num_blocks {
        0 => Err(EngineError::Config(format!(
            "the KV cache has no block: one block of {block_size} tokens takes {block_bytes} bytes"
        ))),
        _ => Ok(shape),
    }
}
