//! OLMo 2: Llama that normalizes what its blocks add, not what they read, and all of q and all of k
//! together.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{BlockNorms, DecoderSpec, NormSpan, NormSpec, QkNormSpec, QkvHeads};
use vllm_batch_base::EngineError;

/// Llama's spec with the norms.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    // Llama's default is another one.
    let eps = config.root().positive("rms_norm_eps")? as f32;
    let hidden = spec.hidden_size();
    let norm = |index: usize, part: &str| {
        NormSpec::rms(format!("model.layers.{index}.{part}"), hidden, eps)
    };
    for (index, attention) in spec.attentions_mut() {
        attention.qk_norm = Some(norms_of_all_heads(index, attention.heads, eps));
        attention.norms = BlockNorms::after(norm(index, "post_attention_layernorm"));
    }
    for (index, mlp) in spec.mlps_mut() {
        mlp.norms = BlockNorms::after(norm(index, "post_feedforward_layernorm"));
    }
    Ok(spec)
}

/// Norms of all of q and all of k.
pub(super) fn norms_of_all_heads(index: usize, heads: QkvHeads, eps: f32) -> QkNormSpec {
    let norm = |part: &str, width| {
        NormSpec::rms(format!("model.layers.{index}.self_attn.{part}"), width, eps)
    };
    let (q, k) = (norm("q_norm", heads.q_width()), norm("k_norm", heads.kv_width()));
    QkNormSpec { span: NormSpan::AllHeads, ..QkNormSpec::per_head(q, k) }
}
