//! A draft model's executor: a second decoder on the device, with as many KV blocks as the target.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::cache_size::block_bytes;
use super::model_executor::ModelExecutor;
use crate::load::combinations::{Side, Sides};
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use crate::plan::speculation::{DraftModel, DraftSizes};
use vllm_batch_base::config::{
    CacheConfig, EngineConfig, LoraConfig, ModelConfig, SpeculationMethod,
};
use vllm_batch_base::hf_overrides::HfOverrides;
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::Device;

/// Most tokens of a step of a draft model: its buffers are small beside the target's.
const MAX_STEP_TOKENS: usize = 512;

/// A draft model that is to be loaded.
pub struct DraftToLoad {
    config: EngineConfig,
    sizes: StepSizes,
    summary: ModelSummary,
}

/// One that is loaded.
pub struct LoadedDraft {
    /// Guesses by it.
    pub proposer: DraftModel,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Bytes of its KV cache.
    pub kv_cache_bytes: usize,
}

impl DraftToLoad {
    /// The draft model that is asked for. None: none is.
    ///
    /// # Errors
    /// It cannot be read, or does not fit its target.
    pub fn read(
        config: &EngineConfig,
        sizes: &StepSizes,
        target: &ModelSummary,
    ) -> Result<Option<Self>, EngineError> {
        let method = config.speculation.as_ref().map(|speculation| &speculation.method);
        let Some(SpeculationMethod::DraftModel { model_dir }) = method else { return Ok(None) };
        let model = ModelConfig {
            model_dir: model_dir.clone(),
            tokenizer_dir: None,
            mmproj: None,
            max_model_len: None,
            hf_overrides: HfOverrides::default(),
            ..config.model.clone()
        };
        let summary = ModelSummary::read(&model)?;
        let is_recurrent = summary.spec.state_width() > 0;
        Sides::of_config(config).with([(Side::RecurrentDraft, is_recurrent)]).check()?;
        let (own, of_target) = (summary.spec.vocab_size(), target.spec.vocab_size());
        if own != of_target {
            let dir = model_dir.display();
            let text = format!("the draft model {dir} has {own} tokens and the model {of_target}");
            let help = "give one of the same vocabulary";
            return Err(EngineError::setting(Setting::SpeculativeConfig, text, help));
        }
        let sizes = StepSizes {
            max_num_batched_tokens: sizes.max_num_batched_tokens.min(MAX_STEP_TOKENS),
            max_num_drafts: 0,
            ..*sizes
        };
        let block_size = Some(target.block_size(&config.cache));
        let config = EngineConfig {
            model,
            cache: CacheConfig { block_size, ..config.cache.clone() },
            lora: LoraConfig::default(),
            speculation: None,
            ..config.clone()
        };
        Ok(Some(Self { config, sizes, summary }))
    }

    /// The target's configuration, with room for this cache beside each of its blocks.
    pub fn beside(&self, target: &EngineConfig, device: &Device) -> EngineConfig {
        let bytes_beside = block_bytes(&self.config.cache, &self.summary, device);
        let cache = CacheConfig { bytes_beside, ..target.cache.clone() };
        EngineConfig { cache, ..target.clone() }
    }

    /// Loads it with a KV cache of so many blocks.
    ///
    /// # Errors
    /// As `ModelExecutor::load`.
    pub fn load(
        mut self,
        num_blocks: usize,
        device: Arc<Device>,
        given_up: &Arc<AtomicBool>,
    ) -> Result<LoadedDraft, EngineError> {
        self.config.cache.num_blocks = Some(num_blocks);
        let Self { config, sizes, summary } = &self;
        let executor = ModelExecutor::load(config, sizes, summary, device, given_up)?;
        let shape = executor.cache_shape();
        let element_bytes = config.cache.kv_cache_dtype.size_bytes(summary.dtype);
        let of_draft = DraftSizes {
            block_size: shape.block_size,
            max_model_len: summary.max_model_len,
            max_num_tokens: sizes.max_num_batched_tokens,
        };
        Ok(LoadedDraft {
            weight_bytes: executor.weight_bytes(),
            kv_cache_bytes: shape.num_bytes(element_bytes),
            proposer: DraftModel::new(Box::new(executor), of_draft),
        })
    }
}
