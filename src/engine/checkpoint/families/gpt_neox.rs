//! GPT-NeoX (Pythia, Dolly 2, RedPajama): q, k and v stored per head, a rotary embedding of a part
//! of each head; both blocks read the same, each through its own norm.

use super::gpt::{Gpt, Names};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{DecoderSpec, RowOrder, Wiring};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a GPT-NeoX config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // Dolly 2: names of transformers' pipelines.
    root.ignore(&["custom_pipelines"]);
    let heads = config.equal_heads()?;
    let base = root.number("rotary_emb_base")?.unwrap_or(10_000.0);
    let rope = config.rope_with(LayerType::Full, RopeDefaults::new(base, 0.25))?;
    let gpt = Gpt {
        names: Names {
            tokens: "gpt_neox.embed_in",
            layers: "gpt_neox.layers",
            norms: ["input_layernorm", "post_attention_layernorm"],
            qkv: &["attention.query_key_value"],
            out: "attention.dense",
            up: "mlp.dense_h_to_4h",
            down: "mlp.dense_4h_to_h",
            final_norm: "gpt_neox.final_layer_norm",
        },
        heads,
        inner: config.intermediate_size()?,
        activation: config.activation_or(Activation::Gelu)?,
        biases: [root.flag("attention_bias")?.unwrap_or(true), true],
        max_model_len: rope.scaling.context_len(config.max_position_embeddings()?),
    };
    let mut spec = gpt.spec(config)?;
    spec.ropes = vec![rope];
    spec.output.lm_head = config.lm_head("embed_out", false)?;
    let order = RowOrder::grouped_qkv(heads);
    for (_, attention) in spec.attentions_mut() {
        attention.rope = Some(0);
        attention.qkv.order = order.clone();
    }
    let is_parallel = root.flag("use_parallel_residual")?.unwrap_or(true);
    for layer in spec.layers.iter_mut().filter(|_| is_parallel) {
        layer.wiring = Wiring::Parallel;
    }
    Ok(spec)
}
