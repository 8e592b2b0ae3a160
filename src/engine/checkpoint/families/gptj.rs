//! GPT-J: both blocks read through one norm, a rotary embedding of neighbours in the first
//! `rotary_dim` values of each head, no biases in attention and one in the output layer.

use super::gpt::{Gpt, Names, inner_width};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, LinearSpec, RopeScaling, RopeSpec, RowOrder, Wiring};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a GPT-J config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let qkv = &["attn.q_proj", "attn.k_proj", "attn.v_proj"];
    with_qkv(config, qkv, RowOrder::as_stored())
}

/// GPT-J whose q, k and v are these tensors; `order` takes their rows to q, k, v.
pub(super) fn with_qkv(
    config: &HfConfig,
    qkv: &'static [&'static str],
    order: RowOrder,
) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // transformers computes these whatever the file says.
    root.expect("rotary", true)?;
    root.expect("scale_attn_weights", true)?;
    let heads = config.equal_heads()?;
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.wte",
            layers: "transformer.h",
            norms: ["ln_1", "ln_1"],
            qkv,
            out: "attn.out_proj",
            up: "mlp.fc_in",
            down: "mlp.fc_out",
            final_norm: "transformer.ln_f",
        },
        heads,
        inner: inner_width(config)?,
        activation: config.activation_or(Activation::GeluTanh)?,
        biases: [false, true],
        max_model_len: config.max_position_embeddings()?,
    };
    let mut spec = gpt.spec(config)?;
    let rotary_dim = root.optional_size("rotary_dim")?.unwrap_or(64);
    if rotary_dim == 0 || rotary_dim > heads.head_dim || !rotary_dim.is_multiple_of(2) {
        return Err(root.error(format!(
            "a `rotary_dim` of {rotary_dim} with a head_dim of {} is not supported",
            heads.head_dim
        )));
    }
    let (theta, scaling) = (10_000.0, RopeScaling::None);
    spec.ropes = vec![RopeSpec { theta, rotary_dim, scaling, axes: Vec::new() }];
    let order = order.then(&RowOrder::rotated_in_pairs(heads, rotary_dim));
    for (_, attention) in spec.attentions_mut() {
        attention.rope = Some(0);
        attention.qkv.order = order.clone();
    }
    spec.layers.iter_mut().for_each(|layer| layer.wiring = Wiring::Parallel);
    let head = config.lm_head("lm_head", false)?;
    spec.output.lm_head = head.map(|head| LinearSpec { bias: true, ..head });
    Ok(spec)
}
