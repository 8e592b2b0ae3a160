//! Apertus: Llama with xIELU without a gate, norms of q and k, and other names of norms.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{BlockNorms, DecoderSpec, NormSpec};
use vllm_batch_base::EngineError;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.expect_rope_scaling()?;
    let root = config.root();
    root.expect("post_norm", false)?;
    root.expect("qk_norm", true)?;
    let defaults = Defaults { rope_theta: 12_000_000.0, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps_or(defaults.rms_norm_eps)?);
    let norm = |index, part| NormSpec::rms(format!("model.layers.{index}.{part}"), hidden, eps);
    for (index, attention) in spec.attentions_mut() {
        let head_dim = attention.heads.head_dim;
        attention.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps));
        attention.norms = BlockNorms::before(norm(index, "attention_layernorm"));
    }
    for (index, mlp) in spec.mlps_mut() {
        llama::without_gate(mlp);
        mlp.norms = BlockNorms::before(norm(index, "feedforward_layernorm"));
    }
    Ok(spec)
}
