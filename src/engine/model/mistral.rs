//! Mistral: Llama with a sliding window on every layer (none since v0.2), and never a bias.

use super::hf_config::HfConfig;
use super::llama;
use super::spec::DecoderSpec;
use crate::engine::EngineError;

/// Llama's spec with the window.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let sliding_window = config.sliding_window()?;
    spec.layers.iter_mut().for_each(|layer| layer.sliding_window = sliding_window);
    Ok(spec)
}
