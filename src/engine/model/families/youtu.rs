//! Youtu-LLM: Llama with DeepSeek V3's attention, tied unless the file says otherwise.

use super::latent::LatentBlocks;
use super::llama::{self, Defaults};
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{DecoderSpec, LayerSpec};

/// Llama's layers around latent attention.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { is_tied: true, ..Defaults::LLAMA };
    let blocks = LatentBlocks::interleaved(config)?;
    let inner = config.intermediate_size()?;
    // Of training: what weights begin as.
    config.root().ignore(&["embedding_initializer_range"]);
    llama::around(config, defaults, |index| {
        let attention = blocks.block(config, defaults, index)?;
        Ok(LayerSpec::new(attention, llama::mlp(config, defaults, (index, inner))?))
    })
}
