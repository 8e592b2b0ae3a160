//! GPT-2: learned positions, matrices stored (inputs, outputs), tied embeddings.

use super::gpt::{Gpt, Names, inner_width};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, Layout, LearnedPositions, LinearSpec, QkvHeads};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a GPT-2 config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // Nothing reads the one; the other is about rounding.
    root.ignore(&["n_ctx", "reorder_and_upcast_attn"]);
    let by_index = root.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    let mut spec = with_positions(config, config.equal_heads()?)?;
    for (index, attention) in spec.attentions_mut() {
        if by_index {
            attention.scale /= (index + 1) as f32;
        }
    }
    transpose(&mut spec);
    Ok(spec)
}

/// The matrices of layers are stored (inputs, outputs).
pub(super) fn transpose(spec: &mut DecoderSpec) {
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.layout = Layout::Transposed;
        attention.out.layout = Layout::Transposed;
    }
    for (_, mlp) in spec.mlps_mut() {
        mlp.up.layout = Layout::Transposed;
        mlp.down.layout = Layout::Transposed;
    }
}

/// Positions are learned: each has a row of this table.
pub(super) fn add_positions(spec: &mut DecoderSpec, name: &str) {
    let table = LinearSpec::new(name, spec.max_model_len, spec.hidden_size());
    spec.embedding.positions = Some(LearnedPositions { table, offset: 0 });
}

/// GPT-2 with other heads, its matrices stored as usual.
pub(super) fn with_positions(
    config: &HfConfig,
    heads: QkvHeads,
) -> Result<DecoderSpec, EngineError> {
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.wte",
            layers: "transformer.h",
            norms: ["ln_1", "ln_2"],
            qkv: &["attn.c_attn"],
            out: "attn.c_proj",
            up: "mlp.c_fc",
            down: "mlp.c_proj",
            final_norm: "transformer.ln_f",
        },
        heads,
        inner: inner_width(config)?,
        activation: config.activation_or(Activation::GeluTanh)?,
        biases: [true, true],
        max_model_len: config.max_position_embeddings()?,
    };
    let mut spec = gpt.spec(config)?;
    add_positions(&mut spec, "transformer.wpe");
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    let is_scaled = config.root().flag("scale_attn_weights")?.unwrap_or(true);
    for (_, attention) in spec.attentions_mut().filter(|_| !is_scaled) {
        attention.scale = 1.0;
    }
    Ok(spec)
}
