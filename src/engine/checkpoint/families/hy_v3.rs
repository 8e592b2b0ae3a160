//! Hy3: Llama with norms of q and k, and experts chosen by sigmoids and a bias after a dense layer.

use serde_json::json;

use super::experts::{self, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, ExpertsSpec, SharedExpertSpec};
use vllm_batch_base::EngineError;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[("head_dim", json!(128))]);
    let defaults = Defaults { rope_theta: 11_158_840.0, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let (root, bias) = (config.root(), config.mlp_bias()?);
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    for (index, attention) in spec.attentions_mut() {
        let head_dim = attention.heads.head_dim;
        attention.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps));
    }
    // What vLLM reads of them, transformers does always; in f32 sums are in f32.
    root.expect("qk_norm", true)?;
    root.expect("route_norm", true)?;
    root.ignore(&["enable_moe_fp32_combine"]);
    let num_further = root.optional_size("num_nextn_predict_layers")?.unwrap_or(0);
    spec.output.of_further_tokens = experts::further_layers(config, num_further)?;
    let first = root.optional_size("first_k_dense_replace")?.unwrap_or(1);
    let is_sparse = experts::sparse_layers(config, |index| index >= first)?;
    let sizes =
        Sizes::read(config, &["num_experts", "num_local_experts"], "moe_intermediate_size")?;
    root.expect("expert_hidden_dim", sizes.inner)?;
    let num_shared = root.optional_size("num_shared_experts")?.unwrap_or(1);
    let scale = root.number("router_scaling_factor")?.unwrap_or(2.826) as f32;
    let num = experts::num_of_token(config)?;
    let routing = experts::by_sigmoid_of_all(num, experts::SHARE, scale);
    let activation = config.activation()?;
    experts::set(
        &mut spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.mlp");
            let shared = sizes.shared(&format!("{name}.shared_mlp"), num_shared);
            let with_bias =
                |of: SharedExpertSpec| SharedExpertSpec { mlp: of.mlp.with_bias(bias), ..of };
            ExpertsSpec {
                router: sizes.router(format!("{name}.router.gate")),
                choice_bias: Some((format!("{name}.expert_bias"), vec![sizes.num])),
                shared: shared.map(with_bias),
                ..sizes.block(&name, PROJECTIONS, (&routing, activation))
            }
        },
    );
    Ok(spec)
}
