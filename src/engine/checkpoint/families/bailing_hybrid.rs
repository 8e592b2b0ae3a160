//! Ling 3: delta attention with bounded decays in most layers, latent attention with gates of heads
//! in the others, and DeepSeek's experts.

use serde_json::json;

use super::bailing;
use super::experts;
use super::kda::{self, Blocks};
use super::latent::{LatentBlocks, Turning};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, EmbeddingSpec, LayerSpec, LinearSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::DecayForm;

/// Llama's frame around layers of both kinds.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    kda::assume(
        config,
        &[
            ("head_dim", json!(128)),
            ("max_position_embeddings", json!(1 << 18)),
            ("n_group", json!(8)),
            ("norm_topk_prob", json!(true)),
            ("num_experts_per_tok", json!(8)),
            ("num_nextn_predict_layers", json!(1)),
            ("num_shared_experts", json!(1)),
            ("routed_scaling_factor", json!(2.5)),
            ("short_conv_kernel_size", json!(4)),
            ("topk_group", json!(4)),
        ],
    )?;
    kda::expect_experts(config)?;
    let (root, defaults) = (config.root(), Defaults { rope_theta: 6e6, ..Defaults::LLAMA });
    // Of training.
    root.ignore(&["mtp_loss_scaling_factor"]);
    let group = root.size_or("layer_group_size", 6)?;
    let attends = config.full_layers_or(|index| (index + 1).is_multiple_of(group))?;
    let blocks = blocks(config, defaults)?;
    let latent = LatentBlocks::of(config, Turning::Pairs)?
        .named(["attention", "dense"])
        .with_gates_of_heads("g_proj");
    let inner = config.intermediate_size()?;
    let mut spec = llama::around(config, defaults, |index| {
        let mlp = llama::mlp(config, defaults, (index, inner))?;
        if attends[index] {
            return Ok(LayerSpec::new(latent.block(config, defaults, index)?, mlp));
        }
        let recurrent = Some(blocks.block(index));
        Ok(LayerSpec { recurrent, feed_forward: Some(mlp.into()), ..LayerSpec::default() })
    })?;
    let table = LinearSpec::new("model.word_embeddings", spec.vocab_size(), spec.hidden_size());
    spec.embedding = EmbeddingSpec::of(table);
    if !experts::says_which_are_sparse(config) {
        return Err(config.error("`first_k_dense_replace` is missing"));
    }
    bailing::set_experts_by(config, &mut spec, &experts::by_sigmoid(config, true)?)?;
    Ok(spec)
}

fn blocks(config: &HfConfig, defaults: Defaults) -> Result<Blocks, EngineError> {
    let root = config.root();
    let bound = root.number("kda_lower_bound")?.unwrap_or(-5.0) as f32;
    let decay = match root.flag("kda_safe_gate")?.unwrap_or(true) {
        false => DecayForm::Softplus,
        true if bound < 0.0 && bound.is_finite() => DecayForm::Bounded(bound),
        true => return Err(config.error("`kda_lower_bound` should be below 0")),
    };
    // As transformers writes them; it then has another width in `head_dim`, that of what turns.
    let size = |own: &str, usual: &str| {
        let usual = root.size(usual)?;
        root.size_or(own, usual)
    };
    let num_heads = size("linear_num_heads", "num_attention_heads")?;
    let head_dim = size("linear_head_dim", "head_dim")?;
    Ok(Blocks {
        hidden: config.hidden_size()?,
        heads: kda::heads(config, num_heads, head_dim)?,
        num_taps: size("linear_conv_kernel_dim", "short_conv_kernel_size")?,
        eps: config.rms_norm_eps_or(defaults.rms_norm_eps)?,
        decay,
        is_low_rank: false,
        names: ["attention", "dense"],
        rates_shape: |num_heads| vec![num_heads],
    })
}
