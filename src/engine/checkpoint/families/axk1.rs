//! A.X K1: DeepSeek V3 with a norm behind the experts.

use serde_json::json;

use super::{deepseek, experts};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, FeedForwardSpec, NormSpec};
use vllm_batch_base::EngineError;

/// DeepSeek's spec with the norms.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let says = experts::says_which_are_sparse(config);
    let first = (!says).then_some(("first_k_dense_replace", json!(1)));
    let defaults = [
        ("n_group", json!(8)),
        ("n_shared_experts", json!(1)),
        ("routed_scaling_factor", json!(2.5)),
        ("topk_group", json!(4)),
    ];
    config.assume(&defaults.into_iter().chain(first).collect::<Vec<_>>());
    config.root().size("q_lora_rank")?;
    let mut spec = deepseek::v3(config)?;
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps()?);
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let name = format!("model.layers.{index}.post_mlp_layernorm");
        match &mut layer.feed_forward {
            Some(FeedForwardSpec::Experts(experts)) => {
                experts.norms.after = Some(NormSpec::rms(name, hidden, eps));
                // Published files have none.
                experts.lacks_bias_as_zeros = true;
            }
            // MLPs have one in published files that nothing reads.
            _ => layer.attention.iter_mut().for_each(|a| a.unused.push(format!("{name}."))),
        }
    }
    Ok(spec)
}
