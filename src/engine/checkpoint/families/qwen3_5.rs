//! Qwen3.5 and what its class has since: Qwen3-Next with its fused matrices apart, with MLPs or
//! with experts in all layers.

use serde_json::json;

use super::qwen2_moe;
use super::qwen3_next::{self, Inputs};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// With MLPs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // All layers have an MLP.
    config.root().ignore(&["mlp_only_layers"]);
    layers(config, config.intermediate_size()?)
}

/// With experts, and one of all tokens.
pub(super) fn spec_with_experts(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // No layer has an MLP.
    root.expect("decoder_sparse_step", 1)?;
    root.expect("mlp_only_layers", json!([]))?;
    root.expect("norm_topk_prob", true)?;
    root.ignore(&["intermediate_size"]);
    let mut spec = layers(config, root.size("shared_expert_intermediate_size")?)?;
    qwen2_moe::set_experts(config, &mut spec, qwen2_moe::gated_expert(config)?)?;
    Ok(spec)
}

fn layers(config: &HfConfig, inner: usize) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("attn_output_gate", true)?;
    root.expect("mamba_ssm_dtype", "float32")?;
    root.expect("output_gate_type", "swish")?;
    // Of the layers that predict further tokens.
    root.ignore(&["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"]);
    qwen3_next::layers(config, Inputs::Apart, inner)
}
