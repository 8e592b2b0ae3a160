//! Mistral 4: DeepSeek V3's layers whose queries grow with their position, and experts that are
//! chosen by probabilities.

use serde_json::json;

use super::latent::LatentBlocks;
use super::{deepseek, experts, ministral3};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Score;

/// DeepSeek's layers with the growth that `rope_parameters` has.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[("n_shared_experts", json!(1))]);
    let blocks = LatentBlocks::interleaved(config)?;
    let routing = experts::by_groups(config, Score::Softmax, true)?;
    let mut spec = deepseek::layers(config, blocks, &routing)?;
    ministral3::set_growth(config, &mut spec)?;
    Ok(spec)
}
