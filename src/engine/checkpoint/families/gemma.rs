//! Gemma 1 and CodeGemma: Llama with `1 + weight` in its norms, scaled embeddings and GELU.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{ActivationSpec, DecoderSpec, EmbeddingScale};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.root().expect("use_bidirectional_attention", false)?;
    of_any_mask(config)
}

/// The same, whatever tokens may see.
pub(super) fn of_any_mask(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let activation = Activation::GeluTanh;
    let defaults = Defaults { is_tied: true, activation, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    spec.residual_norms_mut().for_each(|norm| norm.weight_offset = Some(1.0));
    for (_, mlp) in spec.mlps_mut() {
        // The first files say "gelu" and mean this.
        if mlp.activation == ActivationSpec::Known(Activation::Gelu) {
            mlp.activation = ActivationSpec::Known(activation);
        }
    }
    let factor = (spec.hidden_size() as f32).sqrt();
    spec.embedding.scale = Some(EmbeddingScale { factor, is_rounded: true });
    Ok(spec)
}
