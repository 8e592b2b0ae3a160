//! NanoChat: norms without weights, one of them behind the embedding, a rotation that turns
//! backwards and comes before norms of q and k, and an MLP without a gate.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, LinearSpec, NormSpec, QkNormOrder, QkNormSpec, RowOrder};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { activation: Activation::Relu2, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps()?);
    let head_dim = config.head_dim()?;
    if spec.ropes[0].rotary_dim != head_dim {
        return Err(config.error("a rotary embedding of a part of a head is not supported"));
    }
    let norm = |width| NormSpec::rms("", width, eps).without_weight();
    spec.residual_norms_mut().for_each(|norm| *norm = norm.clone().without_weight());
    spec.embedding.norm = Some(norm(hidden));
    // One for all layers: it has a value per row.
    let order = RowOrder::rotated_backwards(spec.heads());
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.order = order.clone();
        let norms = QkNormSpec::per_head(norm(head_dim), norm(head_dim));
        attention.qk_norm = Some(QkNormSpec { order: QkNormOrder::AfterRotation, ..norms });
    }
    for (index, mlp) in spec.mlps_mut() {
        llama::without_gate(mlp);
        let name = |part: &str| format!("model.layers.{index}.mlp.{part}");
        let inner = mlp.down.k;
        mlp.up = LinearSpec::new(name("fc1"), inner, hidden);
        mlp.down = LinearSpec::new(name("fc2"), hidden, inner);
    }
    let cap = config.root().number("final_logit_softcapping")?;
    spec.output.soft_cap = cap.map(|cap| cap as f32);
    Ok(spec)
}
