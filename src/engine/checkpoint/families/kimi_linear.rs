//! Kimi Linear: delta attention in most layers, latent attention without a rotation in the others,
//! and DeepSeek's experts.

use serde_json::json;

use super::experts::{self, Sizes};
use super::kda::{self, Blocks};
use super::latent::{LatentBlocks, Turning};
use super::llama::{self, Defaults};
use super::mixtral;
use crate::hf_config::{HfConfig, Section};
use crate::spec::{AttentionSpec, DecoderSpec, ExpertsSpec, LayerSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::DecayForm;

/// Llama's frame around layers of both kinds.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    kda::assume(
        config,
        &[
            ("max_position_embeddings", json!(1 << 20)),
            ("n_group", json!(1)),
            ("norm_topk_prob", json!(true)),
            ("num_experts_per_tok", json!(8)),
            ("routed_scaling_factor", json!(2.446)),
            ("topk_group", json!(1)),
        ],
    )?;
    let (root, defaults) = (config.root(), Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA });
    kda::expect_experts(config)?;
    root.expect("mla_use_nope", true)?;
    root.expect("moe_router_activation_func", "sigmoid")?;
    if root.value("rope_scaling").is_some() {
        return Err(config.error("`rope_scaling` without a rotation is not supported"));
    }
    // Nothing turns; the widths of both kinds of heads are other keys; and one group is no choice.
    root.ignore(&["head_dim", "rope_theta", "use_grouped_topk"]);
    let of_layers = root.section("linear_attn_config")?;
    let blocks = blocks(config, of_layers.as_ref(), defaults)?;
    let attends = layers_with_attention(config, of_layers.as_ref())?;
    let latent = LatentBlocks::of(config, Turning::Halves)?;
    let inner = config.intermediate_size()?;
    let max_model_len = config.max_position_embeddings()?;
    let mut spec = llama::around_with(config, defaults, (Vec::new(), max_model_len), |index| {
        let mlp = llama::mlp(config, defaults, (index, inner))?;
        if attends[index] {
            let attention = latent.block(config, defaults, index)?;
            return Ok(LayerSpec::new(AttentionSpec { rope: None, ..attention }, mlp));
        }
        let recurrent = Some(blocks.block(index));
        Ok(LayerSpec { recurrent, feed_forward: Some(mlp.into()), ..LayerSpec::default() })
    })?;
    set_experts(config, &mut spec)?;
    Ok(spec)
}

fn blocks(
    config: &HfConfig,
    of_layers: Option<&Section<'_>>,
    defaults: Defaults,
) -> Result<Blocks, EngineError> {
    let root = config.root();
    // In a section of published files, at the top of those that transformers writes.
    let size = |own: &str, usual: &str, default| {
        let usual = root.optional_size(usual)?;
        let own = of_layers.map(|section| section.optional_size(own)).transpose()?.flatten();
        match (own, usual) {
            (Some(own), Some(usual)) if own != usual => {
                Err(config.error(format!("`linear_attn_config` disagrees with {usual} at the top")))
            }
            (own, usual) => Ok(own.or(usual).unwrap_or(default)),
        }
    };
    let num_heads = size("num_heads", "linear_num_heads", 32)?;
    let head_dim = size("head_dim", "linear_head_dim", 128)?;
    Ok(Blocks {
        hidden: config.hidden_size()?,
        heads: kda::heads(config, num_heads, head_dim)?,
        num_taps: size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?,
        eps: config.rms_norm_eps_or(defaults.rms_norm_eps)?,
        decay: DecayForm::Softplus,
        is_low_rank: true,
        names: ["self_attn", "o_proj"],
        rates_shape: |num_heads| vec![1, 1, num_heads, 1],
    })
}

/// By the lists of published files, which count layers from 1, or by their types.
fn layers_with_attention(
    config: &HfConfig,
    of_layers: Option<&Section<'_>>,
) -> Result<Vec<bool>, EngineError> {
    let lists = match of_layers {
        None => None,
        Some(section) => section.numbers("full_attn_layers")?.zip(section.numbers("kda_layers")?),
    };
    let Some((full, linear)) = lists else {
        return config.full_layers_or(|index| index > 0 && index.is_multiple_of(4));
    };
    let is_of = |list: &[f64], index: usize| list.contains(&(index as f64 + 1.0));
    let num_layers = config.num_layers()?;
    let is_split = (0..num_layers).all(|index| is_of(&full, index) != is_of(&linear, index));
    if !is_split || full.len() + linear.len() != num_layers {
        return Err(config.error("the lists of `linear_attn_config` do not share out the layers"));
    }
    let attends: Vec<_> = (0..num_layers).map(|index| is_of(&full, index)).collect();
    if config.full_layers_or(|index| attends[index])? != attends {
        return Err(config.error("`layer_types` disagrees with `linear_attn_config`"));
    }
    Ok(attends)
}

fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    let sizes =
        Sizes::read(config, &["num_experts", "num_local_experts"], "moe_intermediate_size")?;
    root.number_of(experts::NUM_SHARED)?;
    let num_shared = experts::NUM_SHARED.iter().find(|key| root.value(key).is_some());
    let num_shared = num_shared.map_or(Ok(None), |key| root.optional_size(key))?.unwrap_or(1);
    let num_further = root.optional_size("num_nextn_predict_layers")?.unwrap_or(0);
    spec.output.of_further_tokens = experts::further_layers(config, num_further)?;
    let is_sparse = experts::sparse_behind(config, 1)?;
    let (routing, activation) = (experts::by_sigmoid(config, true)?, config.activation()?);
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.block_sparse_moe");
            let block = sizes.block_of_deepseek(&name, (&routing, activation), num_shared);
            let experts = sizes.experts(&format!("{name}.experts"), mixtral::PARTS);
            ExpertsSpec { experts, ..block }
        },
    );
    Ok(())
}
