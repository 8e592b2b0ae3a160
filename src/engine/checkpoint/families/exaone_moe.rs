//! K-EXAONE: EXAONE 4's attention in Llama's order of norms, and DeepSeek's experts after some
//! dense layers.

use serde_json::json;

use super::exaone4;
use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, ExpertsSpec};
use vllm_batch_base::EngineError;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[("routed_scaling_factor", json!(2.5))]);
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    exaone4::set_attention(config, &mut spec, config.rms_norm_eps_or(defaults.rms_norm_eps)?)?;
    let root = config.root();
    let first = root.optional_size("first_k_dense_replace")?.unwrap_or(1);
    let is_sparse = experts::sparse_layers(config, |index| index >= first)?;
    let sizes =
        Sizes::read(config, &["num_experts", "num_local_experts"], "moe_intermediate_size")?;
    let num_shared = root.optional_size("num_shared_experts")?.unwrap_or(1);
    let routing = experts::by_sigmoid(config, true)?;
    let activation = config.activation()?;
    spec.output.of_further_tokens.push("mtp.".to_owned());
    experts::set(
        &mut spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.mlp");
            // EXAONE's own place of the bias.
            let bias = (format!("{name}.e_score_correction_bias"), vec![sizes.num]);
            let block = sizes.block_of_deepseek(&name, (&routing, activation), num_shared);
            ExpertsSpec { choice_bias: Some(bias), ..block }
        },
    );
    Ok(spec)
}
