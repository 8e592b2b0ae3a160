//! Granite with windows, a sink of each head and a rotary base per layer, dense and with experts.

use super::granite_moe::ExpertNames;
use super::llama::{self, Defaults};
use super::{granite, granite_moe};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, RopeSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Granite's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rms_norm_eps: 1e-5, is_tied: true, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    granite::set_multipliers(config, &mut spec)?;
    set_attention(config, &mut spec)?;
    Ok(spec)
}

/// The same of Granite with experts and an MLP of all tokens.
pub(super) fn spec_with_experts(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = granite_moe::shared_with(config, ExpertNames::Parameters)?;
    set_attention(config, &mut spec)?;
    Ok(spec)
}

/// Windows but in every fourth layer, sinks, and the base of each layer; 0: it turns nothing.
fn set_attention(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    let window = root.size_or_none("sliding_window", 128)?;
    let slides = config.sliding_layers_or(|index| !index.is_multiple_of(4))?;
    let num_layers = slides.len();
    let of_all = spec.ropes.remove(0);
    let bases = root.numbers("layer_rope_theta")?;
    let bases = bases.unwrap_or_else(|| vec![of_all.theta; num_layers]);
    if bases.len() != num_layers {
        return Err(config.error("`layer_rope_theta` has not one base per layer"));
    }
    let mut ropes: Vec<RopeSpec> = Vec::new();
    for (index, attention) in spec.attentions_mut() {
        attention.sinks = Some(format!("model.layers.{index}.self_attn.sinks"));
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        let base = bases[index];
        attention.rope = (base != 0.0).then(|| {
            let known = ropes.iter().position(|rope| rope.theta == base);
            known.unwrap_or_else(|| {
                ropes.push(RopeSpec { theta: base, ..of_all.clone() });
                ropes.len() - 1
            })
        });
    }
    spec.ropes = ropes;
    Ok(())
}
