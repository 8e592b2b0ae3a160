//! Youtu-LLM: Llama with DeepSeek V3's attention, tied unless the file says otherwise.

use super::latent::{self, LatentBlocks};
use super::llama::Defaults;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's layers around latent attention.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Of training: what weights begin as.
    config.root().ignore(&["embedding_initializer_range"]);
    let defaults = Defaults { is_tied: true, ..Defaults::LLAMA };
    latent::around(config, defaults, &LatentBlocks::interleaved(config)?)
}
