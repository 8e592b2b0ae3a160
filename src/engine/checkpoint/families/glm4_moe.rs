//! GLM-4.5, 4.6 and 4.7: Llama with half of every head rotated, biases on q, k and v, perhaps norms
//! of q and k, and DeepSeek's experts.

use super::llama::Defaults;
use super::{experts, llama};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let root = config.root();
    let rope = RopeDefaults::new(defaults.rope_theta, 0.5);
    spec.ropes = vec![config.rope_with(LayerType::Full, rope)?];
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let is_normed = root.flag("use_qk_norm")?.unwrap_or(false);
    for (index, attention) in spec.attentions_mut() {
        attention.out.bias = false;
        let head_dim = attention.heads.head_dim;
        let norms = || llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps);
        attention.qk_norm = is_normed.then(norms);
    }
    let routing = experts::by_sigmoid(config, true)?;
    experts::set_of_deepseek(config, &mut spec, &routing)?;
    Ok(spec)
}
