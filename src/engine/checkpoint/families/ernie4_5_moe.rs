//! ERNIE 4.5 with experts: chosen by probabilities and a bias, beside some of all tokens.

use super::ernie4_5;
use super::experts::{self, PROJECTIONS, Sizes};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, ExpertsSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{ExpertWeight, Routing, Score, TopK};

/// ERNIE's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = ernie4_5::spec(config)?;
    let root = config.root();
    root.expect("use_bias", false)?;
    root.expect("use_rmsnorm", true)?;
    root.expect("num_nextn_predict_layers", 0)?;
    root.expect("moe_gate", "topk")?;
    root.expect("moe_use_aux_free", true)?;
    // How many tokens an expert takes in training.
    root.ignore(&["moe_capacity"]);
    let keys = ["moe_num_experts", "num_experts"];
    let sizes = Sizes::read(config, &keys, "moe_intermediate_size")?;
    let routing = Routing::TopK(TopK {
        num: root.size_of(&["moe_k", "num_experts_per_tok"])?,
        score: Score::Softmax,
        groups: None,
        weight: ExpertWeight::Share {
            added: 0.0,
            at_least: root.number("moe_norm_min")?.unwrap_or(1e-12) as f32,
        },
        scale: 1.0,
    });
    let count = |key, default| root.optional_size(key).map(|count| count.unwrap_or(default));
    let (num_shared, interval) =
        (count("moe_num_shared_experts", 2)?, count("moe_layer_interval", 1)?);
    let first = count("moe_layer_start_index", 1)?;
    // -1 is the last one.
    let last = root.number("moe_layer_end_index")?.filter(|last| *last != -1.0);
    let last = last.unwrap_or(f64::INFINITY);
    if interval == 0 {
        return Err(root.error("`moe_layer_interval` is 0"));
    }
    let is_sparse = |index: usize| {
        (index + 1).is_multiple_of(interval) && index >= first && index as f64 <= last
    };
    let activation = config.activation()?;
    experts::set(&mut spec, is_sparse, |index| {
        let name = format!("model.layers.{index}.mlp");
        let bias = format!("{name}.moe_statics.e_score_correction_bias");
        ExpertsSpec {
            choice_bias: Some((bias, vec![1, sizes.num])),
            shared: sizes.shared(&format!("{name}.shared_experts"), num_shared),
            ..sizes.block(&name, PROJECTIONS, (&routing, activation))
        }
    });
    Ok(spec)
}
