//! DeepSeek V2 and V3, and what has their classes or their layers (Kimi K2, GLM-4.7-Flash): latent
//! attention, and experts after some dense layers. The first DeepSeek with experts has Llama's
//! attention.

use serde_json::json;

use super::experts;
use super::latent::{self, LatentBlocks, Turning};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{ExpertGroups, ExpertWeight, GroupScore, Routing, Score, TopK};

/// Keys of training.
const OF_TRAINING: [&str; 3] = ["aux_loss_alpha", "ep_size", "seq_aux"];

/// The first one: Llama's attention, and the best by a softmax.
pub(super) fn v1(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("scoring_func", "softmax")?;
    root.ignore(&OF_TRAINING);
    let is_share = root.flag("norm_topk_prob")?.unwrap_or(false);
    let routing = experts::by_softmax(experts::num_of_token(config)?, is_share);
    let mut spec = llama::spec(config)?;
    experts::set_of_deepseek(config, &mut spec, &routing)?;
    Ok(spec)
}

/// V2: the best by a softmax, perhaps from the groups with the best ones.
pub(super) fn v2(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("scoring_func", "softmax")?;
    root.expect("norm_topk_prob", false)?;
    let groups = match root.text("topk_method")?.unwrap_or("greedy") {
        "greedy" => {
            // One group, in published files.
            root.ignore(&["n_group", "topk_group"]);
            None
        }
        "group_limited_greedy" => Some(ExpertGroups {
            num: root.size("n_group")?,
            num_kept: root.size("topk_group")?,
            score: GroupScore::Best,
        }),
        _ => return Err(config.error("this `topk_method` is not supported")),
    };
    let routing = Routing::TopK(TopK {
        num: experts::num_of_token(config)?,
        score: Score::Softmax,
        groups,
        weight: ExpertWeight::Score,
        scale: root.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
    });
    layers(config, LatentBlocks::of(config, Turning::Pairs)?, &routing)
}

/// V3: the best by sigmoids and a bias, from the groups with the best two.
pub(super) fn v3(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("topk_method", "noaux_tc")?;
    root.expect("scoring_func", "sigmoid")?;
    // transformers' class has defaults of V3's own, published files have them all.
    for key in ["n_group", "topk_group"] {
        root.size(key)?;
    }
    root.size_of(experts::NUM_SHARED)?;
    root.positive("routed_scaling_factor")?;
    if !experts::says_which_are_sparse(config) {
        return Err(config.error("`first_k_dense_replace` is missing"));
    }
    let blocks = LatentBlocks::interleaved(config)?;
    layers(config, blocks, &experts::by_sigmoid(config, true)?)
}

/// Sarvam of 105B: V3 with other defaults.
pub(super) fn sarvam(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[
        ("first_k_dense_replace", json!(1)),
        ("n_group", json!(1)),
        ("routed_scaling_factor", json!(2.5)),
        ("topk_group", json!(1)),
    ]);
    v3(config)
}

/// Llama's layers around latent attention, and DeepSeek's experts.
pub(super) fn layers(
    config: &HfConfig,
    blocks: LatentBlocks,
    routing: &Routing,
) -> Result<DecoderSpec, EngineError> {
    config.root().ignore(&OF_TRAINING);
    let mut spec = latent::around(config, Defaults::LLAMA, &blocks)?;
    experts::set_of_deepseek(config, &mut spec, routing)?;
    Ok(spec)
}
