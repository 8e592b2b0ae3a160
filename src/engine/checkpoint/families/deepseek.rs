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
    let routing = routing_of_v2(config)?;
    layers(config, LatentBlocks::of(config, Turning::Pairs)?, &routing)
}

fn routing_of_v2(config: &HfConfig) -> Result<Routing, EngineError> {
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
    Ok(Routing::TopK(TopK {
        num: experts::num_of_token(config)?,
        score: Score::Softmax,
        groups,
        weight: ExpertWeight::Score,
        scale: root.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
    }))
}

/// The text part of DeepSeek-VL2: V2 with the choice of V3 where it says so, or with Llama's
/// attention.
pub(super) fn vl2(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let has_latents = root.flag("use_mla")?.unwrap_or(true);
    // What its class has where a file is silent.
    let of_latents = [
        ("kv_lora_rank", json!(512)),
        ("q_lora_rank", json!(1536)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
    ];
    let of_all = [("max_position_embeddings", json!(2048)), ("rms_norm_eps", json!(1e-6))];
    let of_latents = of_latents.into_iter().filter(|_| has_latents);
    config.assume(&of_all.into_iter().chain(of_latents).collect::<Vec<_>>());
    // Which heads it was trained with.
    root.expect("lm_head", true)?;
    root.expect("rm_head", false)?;
    let routing = match root.text("topk_method")? {
        Some("noaux_tc") => {
            root.expect("scoring_func", "sigmoid")?;
            experts::by_sigmoid(config, false)?
        }
        _ => routing_of_v2(config)?,
    };
    if has_latents {
        return layers(config, LatentBlocks::of(config, Turning::Pairs)?, &routing);
    }
    root.ignore(&OF_TRAINING);
    // Whole heads turn.
    root.expect("qk_rope_head_dim", 0)?;
    // Of latents.
    root.ignore(&["kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"]);
    let mut spec = llama::spec(config)?;
    experts::set_of_deepseek(config, &mut spec, &routing)?;
    Ok(spec)
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
