//! Mellum 2: Qwen3 with experts, whose layers have windows and rotary embeddings by their types.

use serde_json::{Value, json};

use super::experts::{self, PROJECTIONS, Sizes};
use super::llama;
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let of_type = |base: f64| json!({"rope_type": "default", "rope_theta": base});
    let ropes = json!({"full_attention": of_type(5e5), "sliding_attention": of_type(1e4)});
    config.assume(&[("head_dim", json!(128)), ("rope_parameters", ropes)]);
    // Of one kind of layers alone.
    config.root().expect("partial_rotary_factor", Value::Null)?;
    let mut spec = llama::spec(config)?;
    let (root, eps) = (config.root(), config.rms_norm_eps()?);
    spec.ropes = vec![config.rope(LayerType::Full)?, config.rope(LayerType::Sliding)?];
    let window = root.size_or_none("sliding_window", 1024)?;
    let slides = config.sliding_layers_or(|_| false)?;
    for (index, attention) in spec.attentions_mut() {
        let head_dim = attention.heads.head_dim;
        attention.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps));
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        attention.rope = Some(usize::from(slides[index]));
    }
    spec.output.of_further_tokens.push("mtp.".to_owned());
    root.ignore(&["mtp_layer_types", "mtp_mlp_layer_types"]);
    let is_sparse = experts::sparse_layers(config, |_| true)?;
    let sizes =
        Sizes::read(config, &["num_experts", "num_local_experts"], "moe_intermediate_size")?;
    let is_share = root.flag("norm_topk_prob")?.unwrap_or(true);
    let routing = experts::by_softmax(experts::num_of_token(config)?, is_share);
    let activation = config.activation()?;
    experts::set(
        &mut spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.mlp");
            sizes.block(&name, PROJECTIONS, (&routing, activation))
        },
    );
    Ok(spec)
}
