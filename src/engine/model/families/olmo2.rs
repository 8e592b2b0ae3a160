//! OLMo 2: Llama that normalizes what its blocks add, not what they read, and all of q and all of k
//! together.

use super::llama;
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{BlockNorms, DecoderSpec, NormSpan, NormSpec, QkNormSpec};

/// Llama's spec with the norms.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    // Llama's default is another one.
    let eps = config.root().positive("rms_norm_eps")? as f32;
    let hidden = spec.hidden_size();
    let norm = |index: usize, part: &str, width| {
        NormSpec::rms(format!("model.layers.{index}.{part}"), width, eps)
    };
    for (index, attention) in spec.attentions_mut() {
        let heads = attention.heads;
        let q = norm(index, "self_attn.q_norm", heads.q_width());
        let k = norm(index, "self_attn.k_norm", heads.kv_width());
        attention.qk_norm =
            Some(QkNormSpec { span: NormSpan::AllHeads, ..QkNormSpec::per_head(q, k) });
        attention.norms = BlockNorms::after(norm(index, "post_attention_layernorm", hidden));
    }
    for (index, mlp) in spec.mlps_mut() {
        mlp.norms = BlockNorms::after(norm(index, "post_feedforward_layernorm", hidden));
    }
    Ok(spec)
}
