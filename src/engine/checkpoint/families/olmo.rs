//! OLMo 1: Llama with LayerNorms that have no weights, and bounds of q, k and v.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, NormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::NormKind;

/// OLMo has no key for it.
const LAYER_NORM_EPS: f32 = 1e-5;

/// Llama's spec with the norms and bounds.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    for norm in spec.residual_norms_mut() {
        let (kind, eps) = (NormKind::Layer, LAYER_NORM_EPS);
        *norm = NormSpec { kind, eps, ..norm.clone().without_weight() };
    }
    let clip = config.root().number("clip_qkv")?.map(|clip| clip as f32);
    spec.attentions_mut().for_each(|(_, attention)| attention.clip_qkv = clip);
    Ok(spec)
}
