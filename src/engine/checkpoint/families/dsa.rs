//! DeepSeek V3.2 and GLM-5: DeepSeek V3 whose tokens attend to the best `index_topk` of those
//! before them. Up to so many tokens these are all, and no indexer is computed.

use serde_json::{Value, json};

use super::{deepseek, experts};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// DeepSeek V3.2.
pub(super) fn deepseek_v32(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    spec(config, &[("n_group", json!(8)), ("topk_group", json!(4))])
}

/// GLM-5.
pub(super) fn glm5(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Which layers take the choice of another.
    config.root().ignore(&[
        "index_share_for_mtp_iteration",
        "index_skip_topk_offset",
        "index_topk_freq",
        "index_topk_pattern",
        "indexer_types",
    ]);
    let groups = [("n_group", json!(1)), ("topk_group", json!(1))];
    spec(config, &[&groups[..], &[("rms_norm_eps", json!(1e-5))]].concat())
}

fn spec(config: &HfConfig, defaults: &[(&str, Value)]) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let says = experts::says_which_are_sparse(config);
    let first = (!says).then_some(("first_k_dense_replace", json!(3)));
    let of_both = [
        ("index_topk", json!(2048)),
        ("n_shared_experts", json!(1)),
        ("routed_scaling_factor", json!(2.5)),
    ];
    config.assume(&of_both.into_iter().chain(first).collect::<Vec<_>>());
    config.assume(defaults);
    // Both classes turn pairs.
    root.expect("rope_interleave", true)?;
    // Of the indexer.
    root.ignore(&["index_head_dim", "index_n_heads", "indexer_rope_interleave"]);
    let types = root.texts("layer_types")?.unwrap_or_default();
    if let Some(other) = types.iter().find(|name| **name != "indexed_attention") {
        return Err(config.error(format!("a layer type of `{other}` is not supported")));
    }
    let num_seen = root.size("index_topk")?;
    let mut spec = deepseek::v3(config)?;
    spec.max_model_len = spec.max_model_len.min(num_seen);
    for (index, attention) in spec.attentions_mut() {
        attention.seen_at_most = Some(num_seen);
        attention.unused.push(format!("model.layers.{index}.self_attn.indexer."));
    }
    Ok(spec)
}
