//! Phi-1, Phi-1.5 and Phi-2: blocks that read the same through one LayerNorm, biases everywhere,
//! half of every head rotated, a plain MLP.

use super::layer_norm;
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{DecoderSpec, LayerSpec, LinearSpec, NormSpec, QkNormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a Phi config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = dense(config, false)?;
    let activation = config.activation_or(Activation::GeluTanh)?;
    layer_norm::set_plain_mlps(&mut spec, ["fc1", "fc2"], true, activation);
    spec.attentions_mut().for_each(|(_, attention)| attention.qkv.bias = true);
    spec.layers.iter_mut().for_each(LayerSpec::make_parallel);
    // A table has no bias.
    config.root().expect("tie_word_embeddings", false)?;
    spec.output.lm_head = config.lm_head("lm_head", false)?.map(|head| head.with_bias(true));
    Ok(spec)
}

/// Spec that Phi and Persimmon share.
pub(super) fn dense(config: &HfConfig, is_qk_normed: bool) -> Result<DecoderSpec, EngineError> {
    let mut spec = layer_norm::spec(config)?;
    let (hidden, eps) = (spec.hidden_size(), config.layer_norm_eps(1e-5)?);
    let defaults = RopeDefaults::new(10_000.0, 0.5);
    spec.ropes = vec![config.rope_with(LayerType::Full, defaults)?];
    let is_qk_normed = config.root().flag("qk_layernorm")?.unwrap_or(is_qk_normed);
    for (index, attention) in spec.attentions_mut() {
        let name = |part: &str| format!("model.layers.{index}.self_attn.{part}");
        let norm = |part| NormSpec::layer(name(part), attention.heads.head_dim, eps);
        let norms = || QkNormSpec::per_head(norm("q_layernorm"), norm("k_layernorm"));
        attention.qk_norm = is_qk_normed.then(norms);
        attention.out = LinearSpec::new(name("dense"), hidden, attention.out.k).with_bias(true);
    }
    spec.output.norm = Some(NormSpec::layer("model.final_layernorm", hidden, eps));
    Ok(spec)
}
