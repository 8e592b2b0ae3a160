//! Gemma 1 and CodeGemma: Llama with `1 + weight` in its norms, scaled embeddings and GELU.

use super::llama::{self, Defaults};
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{
    ActivationSpec, BlockNorms, DecoderSpec, EmbeddingScale, NormSpec,
};
use crate::engine::ops::Activation;

/// Llama's spec with what differs.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let activation = Activation::GeluTanh;
    let defaults = Defaults { is_tied: true, activation, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    config.root().expect("use_bidirectional_attention", false)?;
    let gemma = |norm: NormSpec| norm.with_weight_offset(1.0);
    let gemma_norms = |norms: &mut BlockNorms| norms.before = norms.before.take().map(gemma);
    spec.attentions_mut().for_each(|(_, attention)| gemma_norms(&mut attention.norms));
    for (_, mlp) in spec.mlps_mut() {
        gemma_norms(&mut mlp.norms);
        // The first files say "gelu" and mean this.
        if mlp.activation == ActivationSpec::Known(Activation::Gelu) {
            mlp.activation = ActivationSpec::Known(activation);
        }
    }
    spec.output.norm = spec.output.norm.take().map(gemma);
    let factor = (spec.hidden_size() as f32).sqrt();
    spec.embedding.scale = Some(EmbeddingScale { factor, is_rounded: true });
    Ok(spec)
}
