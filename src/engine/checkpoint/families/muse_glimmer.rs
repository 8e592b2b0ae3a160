//! Muse Glimmer (text part): Gemma 2's norms with SiLU, q and k normalized without weights, a gate
//! of what heads give, and layers without a rotary embedding.

use serde_json::json;

use super::gemma2;
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{BlockNorms, DecoderSpec, NormSpec, OutputGate, QkNormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// The spec of a text config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[
        ("final_logit_softcapping", json!(20.0)),
        ("head_dim", json!(128)),
        ("hidden_activation", json!("silu")),
        ("rms_norm_eps", json!(1e-5)),
        ("tie_word_embeddings", json!(false)),
    ]);
    let mut spec = gemma2::gemma(config)?;
    let (root, num_layers) = (config.root(), spec.layers.len());
    let number = |key, default| root.number(key).map(|number| number.unwrap_or(default) as f32);
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps()?);
    let eps_after = number("post_norm_eps", 1e-8)?;
    let is_global = |index: usize| (num_layers - 1 - index).is_multiple_of(4);
    let window = root.size_or_none("sliding_window", 2048)?;
    let slides = config.sliding_layers_or(|index| !is_global(index))?;
    let theta = config.rope(LayerType::Full)?.theta;
    let thetas = root.numbers("layer_rope_theta")?;
    let turns = |index: usize| match &thetas {
        None => !is_global(index),
        Some(thetas) => thetas[index] != 0.0,
    };
    let known = |thetas: &Vec<f64>| {
        thetas.len() == num_layers && thetas.iter().all(|of| [0.0, theta].contains(of))
    };
    if !thetas.as_ref().is_none_or(known) {
        let text = format!("`layer_rope_theta` should be {num_layers} numbers, 0 or {theta}");
        return Err(config.error(text));
    }
    let factor = number("qk_scale_factor", 3.87)?;
    let with_eps =
        |norms: &mut BlockNorms| norms.after.iter_mut().for_each(|of| of.eps = eps_after);
    for (index, attention) in spec.attentions_mut() {
        let heads = attention.heads;
        with_eps(&mut attention.norms);
        let norm = || NormSpec::rms("", heads.head_dim, eps).without_weight();
        attention.qk_norm = Some(QkNormSpec::per_head(norm(), norm()));
        attention.scale = factor / (heads.head_dim as f32).sqrt();
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        attention.rope = turns(index).then_some(0);
        let gate = format!("model.layers.{index}.self_attn.gate_proj");
        attention.gate_by(gate, OutputGate::OF_VALUES);
    }
    spec.mlps_mut().for_each(|(_, mlp)| with_eps(&mut mlp.norms));
    spec.embedding.scale = None;
    spec.embedding.norm = Some(NormSpec::rms("", hidden, eps).without_weight());
    spec.output.norm = Some(NormSpec::rms("model.norm", hidden, eps));
    spec.output.lm_head = config.lm_head("lm_head", false)?;
    spec.output.scale = Some(number("output_multiplier", 0.196_116_135_138_184_04)?);
    Ok(spec)
}
