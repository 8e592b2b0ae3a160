//! MiniCPM 1, 2 and 4 (dense, `MiniCPMForCausalLM`): Llama with multipliers of embeddings,
//! residuals and logits, tied unless the file says otherwise.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, EmbeddingScale};
use vllm_batch_base::EngineError;

/// Llama's spec with the multipliers.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec_with(config, Defaults { is_tied: true, ..Defaults::LLAMA })?;
    multiply(config, &mut spec)?;
    config.root().expect("num_experts", 0)?;
    Ok(spec)
}

/// MiniCPM's multipliers.
pub(super) fn multiply(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    let number = |key| root.number(key).map(|number| number.unwrap_or(1.0));
    let factor = number("scale_emb")? as f32;
    let residual = number("scale_depth")? / (spec.layers.len() as f64).sqrt();
    let logits = number("dim_model_base")? / spec.hidden_size() as f64;
    // Of heads for speculative decoding.
    root.ignore(&["mup_denominator"]);
    spec.embedding.scale = Some(EmbeddingScale { factor, is_rounded: false });
    spec.layers.iter_mut().for_each(|layer| layer.residual_scale = Some(residual as f32));
    spec.output.scale = Some(logits as f32);
    Ok(())
}
