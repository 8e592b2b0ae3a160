//! MiniMax M2: Llama with norms of all of q and all of k, half of every head rotated, and experts
//! chosen by sigmoids and a bias.

use serde_json::json;

use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use super::{mixtral, olmo2};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{DecoderSpec, ExpertsSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::ExpertWeight;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[("head_dim", json!(128))]);
    let defaults = Defaults { rope_theta: 5e6, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let (root, head_dim) = (config.root(), config.head_dim()?);
    let part = root.optional_size("rotary_dim")?.map_or(1.0, |dim| dim as f64 / head_dim as f64);
    let rope = RopeDefaults::new(defaults.rope_theta, part);
    spec.ropes = vec![config.rope_with(LayerType::Full, rope)?];
    let eps = config.rms_norm_eps()?;
    for (index, attention) in spec.attentions_mut() {
        attention.qk_norm = Some(olmo2::norms_of_all_heads(index, attention.heads, eps));
    }
    check_other_keys(config)?;
    let num_further = root.optional_size("num_mtp_modules")?.unwrap_or(0);
    spec.output.of_further_tokens = experts::further_layers(config, num_further)?;
    let sizes = Sizes::read(config, &["num_local_experts", "num_experts"], "intermediate_size")?;
    let num = experts::num_of_token(config)?;
    let routing = experts::by_sigmoid_of_all(num, ExpertWeight::SHARE, 1.0);
    let activation = config.activation()?;
    experts::set(
        &mut spec,
        |_| true,
        |index| {
            let name = format!("model.layers.{index}.block_sparse_moe");
            ExpertsSpec {
                choice_bias: Some((format!("{name}.e_score_correction_bias"), vec![sizes.num])),
                ..sizes.block(&name, mixtral::PARTS, (&routing, activation))
            }
        },
    );
    Ok(spec)
}

/// Keys of published files that transformers does not read; they say what its code does anyway.
fn check_other_keys(config: &HfConfig) -> Result<(), EngineError> {
    let root = config.root();
    if root.numbers("attn_type_list")?.is_some_and(|types| types.iter().any(|kind| *kind != 1.0)) {
        return Err(config.error("layers of `attn_type_list` other than 1 are not supported"));
    }
    root.expect("scoring_func", "sigmoid")?;
    root.expect("use_qk_norm", true)?;
    root.expect("qk_norm_type", "per_layer")?;
    root.expect("use_routing_bias", true)?;
    root.expect("shared_intermediate_size", 0)?;
    // Noise of training; of an expert of all tokens, of dense layers, of factors of residuals and
    // of layers of further tokens, which are not there.
    root.ignore(&[
        "layernorm_full_attention_beta",
        "layernorm_linear_attention_beta",
        "layernorm_mlp_beta",
        "mlp_intermediate_size",
        "mtp_transformer_layers",
        "router_jitter_noise",
        "shared_moe_mode",
        "use_mtp",
    ]);
    Ok(())
}
