//! Bailing (Ling, Ring; Sarvam 30B): Llama with q, k and v in one tensor, norms of every q and k
//! head, and experts, under names of its own. The first generation chooses by a softmax.

use serde_json::json;

use super::experts;
use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{DecoderSpec, EmbeddingSpec, LinearSpec, NormSpec, QkNormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Routing;

/// The least length of a column of the first generation's output layer.
const LEAST_LENGTH: f32 = 1e-7;

/// The first generation.
pub(super) fn v1(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("score_function", "softmax")?;
    root.expect("moe_router_enable_expert_bias", false)?;
    root.expect("multi_gate", false)?;
    root.expect("n_group", 1)?;
    root.expect("topk_group", 1)?;
    if root.number("routed_scaling_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(config.error("`routed_scaling_factor` of other than 1 is not supported"));
    }
    let is_share = root.flag("norm_topk_prob")?.unwrap_or(true);
    let routing = experts::by_softmax(experts::num_of_token(config)?, is_share);
    let mut spec = attention(config, RopeDefaults::new(10_000.0, 1.0))?;
    set_experts_by(config, &mut spec, &routing)?;
    if root.flag("norm_head")?.unwrap_or(false) {
        let Some(head) = &mut spec.output.lm_head else {
            return Err(config.error("`tie_word_embeddings` beside `norm_head` is not supported"));
        };
        head.least_length = Some(LEAST_LENGTH);
    }
    Ok(spec)
}

/// The second generation, half of whose heads turns.
pub(super) fn v2(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Published files have them all, and its class has other defaults than Sarvam's.
    for key in ["n_group", "topk_group"] {
        config.root().size(key)?;
    }
    spec(config, RopeDefaults::new(600_000.0, 0.5))
}

/// Sarvam, whose heads turn whole.
pub(super) fn sarvam(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.root().size_of(experts::NUM_SHARED)?;
    config.assume(&[
        ("first_k_dense_replace", json!(1)),
        ("head_dim", json!(64)),
        ("routed_scaling_factor", json!(2.5)),
        ("use_qk_norm", json!(true)),
    ]);
    spec(config, RopeDefaults::new(8_000_000.0, 1.0))
}

fn spec(config: &HfConfig, rope: RopeDefaults) -> Result<DecoderSpec, EngineError> {
    let mut spec = attention(config, rope)?;
    set_experts(config, &mut spec)?;
    Ok(spec)
}

/// Llama with this attention, under these names.
fn attention(config: &HfConfig, rope: RopeDefaults) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: rope.base, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let root = config.root();
    spec.ropes = vec![config.rope_with(LayerType::Full, rope)?];
    root.expect("rotary_dim", spec.ropes[0].rotary_dim)?;
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps()?);
    let table = LinearSpec::new("model.word_embeddings", spec.vocab_size(), hidden);
    spec.embedding = EmbeddingSpec::of(table);
    let is_normed = root.flag("use_qk_norm")?.unwrap_or(false);
    // transformers has both words for it.
    let bias = root.flag("use_qkv_bias")?.unwrap_or(config.attention_bias()?);
    root.expect("attention_bias", bias)?;
    root.expect("use_bias", false)?;
    // What every model of these classes computes, in words of their own.
    root.expect("norm_softmax", false)?;
    root.expect("use_rmsnorm", true)?;
    // The router is computed in f32 whatever it says. The others are of training.
    root.ignore(&["router_dtype", "max_window_layers", "output_dropout"]);
    for (index, attention) in spec.attentions_mut() {
        let name = |part: &str| format!("model.layers.{index}.attention.{part}");
        let heads = attention.heads;
        let qkv = LinearSpec::new(name("query_key_value"), heads.qkv_width(), hidden);
        attention.qkv = qkv.with_bias(bias);
        attention.out = LinearSpec::new(name("dense"), hidden, heads.q_width());
        let norm = |part| NormSpec::rms(name(part), heads.head_dim, eps);
        let norms = || QkNormSpec::per_head(norm("query_layernorm"), norm("key_layernorm"));
        attention.qk_norm = is_normed.then(norms);
    }
    Ok(spec)
}

/// DeepSeek's, with another name of the bias.
fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    root.expect("score_function", "sigmoid")?;
    root.expect("moe_router_enable_expert_bias", true)?;
    root.expect("norm_head", false)?;
    set_experts_by(config, spec, &experts::by_sigmoid(config, true)?)
}

/// The same by this choice.
pub(super) fn set_experts_by(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    routing: &Routing,
) -> Result<(), EngineError> {
    let inner = config.root().size("moe_intermediate_size")?;
    config.root().expect("moe_shared_expert_intermediate_size", inner)?;
    experts::set_of_deepseek(config, spec, routing)?;
    for experts in spec.layers.iter_mut().filter_map(|layer| layer.experts_mut()) {
        if let Some((name, _)) = &mut experts.choice_bias {
            *name = name.replace("e_score_correction_bias", "expert_bias");
        }
    }
    Ok(())
}
