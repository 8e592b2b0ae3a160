//! Persimmon: Phi's norms and rotation with blocks one after the other, q, k and v in one tensor by
//! heads, and norms of q and k heads.

use super::{layer_norm, phi};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, LinearSpec, RowOrder};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a Persimmon config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = phi::dense(config, true)?;
    let activation = config.activation_or(Activation::Relu2)?;
    layer_norm::set_plain_mlps(&mut spec, ["dense_h_to_4h", "dense_4h_to_h"], true, activation);
    let order = RowOrder::grouped_qkv(config.heads()?);
    for (index, attention) in spec.attentions_mut() {
        let name = format!("model.layers.{index}.self_attn.query_key_value");
        let qkv = LinearSpec::new(name, attention.qkv.n(), attention.qkv.k).with_bias(true);
        attention.qkv = qkv.in_order(order.clone());
    }
    Ok(spec)
}
