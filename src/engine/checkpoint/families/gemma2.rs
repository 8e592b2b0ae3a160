//! Gemma 2: Llama with sandwich norms, `1 + weight`, scaled embeddings, soft caps, and every other
//! layer sliding.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{BlockNorms, DecoderSpec, EmbeddingScale, NormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// The spec of a Gemma 2 config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = gemma(config)?;
    let window = config.sliding_window()?;
    let slides = config.sliding_layers_or(|index| index.is_multiple_of(2))?;
    for (index, attention) in spec.attentions_mut() {
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
    }
    Ok(spec)
}

/// Spec that Gemma 2 and 3 share.
pub(super) fn gemma(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let root = config.root();
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps()?);
    let norm = |name: String| NormSpec::rms(name, hidden, eps).with_weight_offset(1.0);
    let norms = |index: usize, before: &str, after: &str| {
        let norm = |part| Some(norm(format!("model.layers.{index}.{part}")));
        BlockNorms { before: norm(before), after: norm(after), ..BlockNorms::default() }
    };
    let scalar = root.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    let soft_cap = root.number("attn_logit_softcapping")?.map(|cap| cap as f32);
    for (index, attention) in spec.attentions_mut() {
        attention.norms = norms(index, "input_layernorm", "post_attention_layernorm");
        attention.scale = (1.0 / scalar.sqrt()) as f32;
        attention.soft_cap = soft_cap;
    }
    for (index, mlp) in spec.mlps_mut() {
        mlp.norms = norms(index, "pre_feedforward_layernorm", "post_feedforward_layernorm");
    }
    let factor = (hidden as f32).sqrt();
    spec.embedding.scale = Some(EmbeddingScale { factor, is_rounded: true });
    spec.output.norm = Some(norm("model.norm".to_owned()));
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    spec.output.soft_cap = root.number("final_logit_softcapping")?.map(|cap| cap as f32);
    Ok(spec)
}
