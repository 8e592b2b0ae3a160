//! Llama with LayerNorms, from which several families start; and MLPs without a gate.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{ActivationSpec, DecoderSpec, LinearSpec, MlpForm, NormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, NormKind};

/// Llama's spec with LayerNorms and their biases.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let eps = config.layer_norm_eps(1e-5)?;
    for norm in spec.residual_norms_mut() {
        *norm = NormSpec { kind: NormKind::Layer, bias: true, eps, ..norm.clone() };
    }
    Ok(spec)
}

/// Gives every layer an MLP without a gate, of two layers with these names.
pub(super) fn set_plain_mlps(
    spec: &mut DecoderSpec,
    [up, down]: [&str; 2],
    bias: bool,
    activation: Activation,
) {
    let hidden = spec.hidden_size();
    for (index, mlp) in spec.mlps_mut() {
        let name = |part| format!("model.layers.{index}.mlp.{part}");
        let inner = mlp.down.k;
        mlp.form = MlpForm::Plain;
        mlp.activation = ActivationSpec::Known(activation);
        mlp.up = LinearSpec::new(name(up), inner, hidden).with_bias(bias);
        mlp.down = LinearSpec::new(name(down), hidden, inner).with_bias(bias);
    }
}
