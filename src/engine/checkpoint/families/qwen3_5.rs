//! Qwen3.5 and what its class has since: Qwen3-Next with its fused matrices apart, with MLPs or
//! with experts in all layers.

use serde_json::json;

use super::qwen3_next::{self, Inputs};
use super::{qwen2_moe, qwen3_vl};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, TowerSpec};
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

/// Counts of frequencies on the axes of positions where the file does not say.
const SECTIONS: [usize; 3] = [11, 11, 10];

/// With MLPs, inside of a multimodal config.
pub(super) fn seeing(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.root().ignore(&["language_model_only"]);
    qwen3_vl::with_tower(config, &tower(config)?, (spec, SECTIONS))
}

/// With experts, inside of a multimodal config.
pub(super) fn seeing_with_experts(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.root().ignore(&["language_model_only"]);
    qwen3_vl::with_tower(config, &tower(config)?, (spec_with_experts, SECTIONS))
}

/// Qwen3-VL's, without layers that go further into the decoder.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    if let Some(keys) = config.root().section("vision_config")? {
        keys.expect("deepstack_visual_indexes", json!([]))?;
    }
    qwen3_vl::tower_with(config, &[])
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
