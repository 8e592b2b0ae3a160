//! HyperCLOVA X: Granite with norms behind both blocks, and logits that are multiplied where
//! Granite's are divided.

use super::granite;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, NormSpec};
use vllm_batch_base::EngineError;

/// Granite's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = granite::spec(config)?;
    let root = config.root();
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps()?);
    let is_normed = root.flag("use_post_norm")?.unwrap_or(true);
    let norm = |index: usize, part: &str| {
        let norm = NormSpec::rms(format!("model.layers.{index}.{part}"), hidden, eps);
        is_normed.then_some(norm)
    };
    let scores = root.number("attention_multiplier")?;
    for (index, attention) in spec.attentions_mut() {
        let default = 1.0 / (attention.heads.head_dim as f32).sqrt();
        attention.scale = scores.map_or(default, |scores| scores as f32);
        attention.norms.after = norm(index, "post_norm1");
    }
    for (index, mlp) in spec.mlps_mut() {
        mlp.norms.after = norm(index, "post_norm2");
    }
    spec.output.scale = Some(root.number("logits_scaling")?.unwrap_or(1.0) as f32);
    Ok(spec)
}
