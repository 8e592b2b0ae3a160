//! Solar Open: Llama whose layers all have DeepSeek's experts.

use serde_json::json;

use super::experts;
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // Of dense layers, which there are none of.
    config.assume(&[
        ("head_dim", json!(128)),
        ("intermediate_size", root.value("moe_intermediate_size").cloned().unwrap_or_default()),
        ("n_shared_experts", json!(1)),
    ]);
    let defaults = Defaults { rope_theta: 1e6, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    spec.attentions_mut().for_each(|(_, attention)| attention.out.bias = false);
    let routing = experts::by_sigmoid(config, true)?;
    experts::set_of_deepseek(config, &mut spec, &routing)?;
    Ok(spec)
}
