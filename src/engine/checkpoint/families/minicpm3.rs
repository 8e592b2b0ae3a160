//! MiniCPM3: MiniCPM with latent attention, tied unless the file says otherwise.

use super::latent::{self, LatentBlocks, Turning};
use super::llama::Defaults;
use super::minicpm;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's layers around latent attention, with MiniCPM's multipliers.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // Published files have them all; transformers' class has others than MiniCPM's without.
    for key in ["scale_emb", "scale_depth", "dim_model_base"] {
        root.positive(key)?;
    }
    let defaults = Defaults { is_tied: true, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let blocks = LatentBlocks::of(config, Turning::Halves)?;
    let mut spec = latent::around(config, defaults, &blocks)?;
    minicpm::multiply(config, &mut spec)?;
    Ok(spec)
}
