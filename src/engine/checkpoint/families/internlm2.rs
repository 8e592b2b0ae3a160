//! InternLM2 and 2.5: Llama under other names, with q, k and v in one tensor, stored per K head.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{BlockNorms, DecoderSpec, LinearSpec, RowOrder};
use vllm_batch_base::EngineError;

/// Llama's spec with InternLM2's tensors.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let hidden = spec.hidden_size();
    // One for all layers: it has a value per row.
    let order = RowOrder::grouped_qkv(spec.heads());
    let bias = config.root().flag("bias")?.unwrap_or(true);
    rename_parts(&mut spec.embedding.tokens, &["model.tok_embeddings"]);
    for (index, attention) in spec.attentions_mut() {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let heads = attention.heads;
        rename_norm(&mut attention.norms, name("attention_norm"));
        attention.qkv = LinearSpec::new(name("attention.wqkv"), heads.qkv_width(), hidden)
            .with_bias(bias)
            .in_order(order.clone());
        attention.out.bias = bias;
        rename_parts(&mut attention.out, &[&name("attention.wo")]);
    }
    for (index, mlp) in spec.mlps_mut() {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        rename_norm(&mut mlp.norms, name("ffn_norm"));
        rename_parts(&mut mlp.up, &[&name("feed_forward.w1"), &name("feed_forward.w3")]);
        rename_parts(&mut mlp.down, &[&name("feed_forward.w2")]);
    }
    spec.output.lm_head = config.lm_head("output", false)?;
    Ok(spec)
}

/// Gives the parts of a layer other names.
pub(super) fn rename_parts(linear: &mut LinearSpec, names: &[&str]) {
    linear.parts.iter_mut().zip(names).for_each(|(part, name)| part.name = (*name).to_owned());
}

/// Gives the norm before a block another name.
pub(super) fn rename_norm(norms: &mut BlockNorms, name: String) {
    if let Some(norm) = &mut norms.before {
        norm.parts = vec![name];
    }
}
