//! Bamba: Llama whose layers have Mamba 2's recurrence but where they attend, with half of each
//! head rotated.

use super::llama::{self, Defaults};
use super::mamba;
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{BlockNorms, DecoderSpec, LayerSpec, LinearSpec, MlpSpec, NormSpec};
use vllm_batch_base::EngineError;

/// Llama's spec around layers of both kinds.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let root = config.root();
    // The class has one value, whatever is at the top.
    root.expect("partial_rotary_factor", 0.5)?;
    root.expect("attn_rotary_emb", config.head_dim()? / 2)?;
    // Of training; and how many logits of a prompt are wanted.
    root.ignore(&["num_logits_to_keep", "z_loss_coefficient"]);
    let rope = config.rope_with(LayerType::Full, RopeDefaults::new(defaults.rope_theta, 0.5))?;
    let max_model_len = rope.scaling.context_len(config.max_position_embeddings()?);
    let (hidden, heads) = (config.hidden_size()?, config.heads()?);
    let inner = config.intermediate_size()?;
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let blocks = mamba::keys(config, None, eps)?;
    let attends = layers_with_attention(config)?;
    let mut spec = llama::around_with(config, defaults, (vec![rope], max_model_len), |index| {
        let mlp = mlp(llama::mlp(config, defaults, (index, inner))?, (index, eps));
        if attends[index] {
            let attention = llama::attention(config, defaults, (index, heads))?;
            return Ok(LayerSpec::new(attention, mlp));
        }
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norms = BlockNorms::before(NormSpec::rms(name("input_layernorm"), hidden, eps));
        let recurrent = Some(blocks.block(&name("mamba"), norms));
        Ok(LayerSpec { recurrent, feed_forward: Some(mlp.into()), ..LayerSpec::default() })
    })?;
    spec.output.norm = Some(NormSpec::rms("model.final_layernorm", hidden, eps));
    if !attends.contains(&true) {
        spec.ropes.clear();
        root.ignore(&["attention_bias"]);
    }
    Ok(spec)
}

/// By `attn_layer_indices`, with which a list of types should agree.
fn layers_with_attention(config: &HfConfig) -> Result<Vec<bool>, EngineError> {
    let (root, num_layers) = (config.root(), config.num_layers()?);
    let numbers = root.numbers("attn_layer_indices")?.unwrap_or_default();
    let attends: Vec<_> = (0..num_layers).map(|index| numbers.contains(&(index as f64))).collect();
    mamba::expect_types(config, &attends, "attn_layer_indices")?;
    Ok(attends)
}

/// An MLP under Bamba's names.
fn mlp(block: MlpSpec, (index, eps): (usize, f32)) -> MlpSpec {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, inner, bias) = (block.down.n(), block.down.k, block.down.bias);
    let up = ["feed_forward.gate_proj", "feed_forward.up_proj"].map(|part| (name(part), inner));
    MlpSpec {
        norms: BlockNorms::before(NormSpec::rms(name("pre_ff_layernorm"), hidden, eps)),
        up: LinearSpec::stacked(up, hidden).with_bias(bias),
        down: LinearSpec::new(name("feed_forward.down_proj"), hidden, inner).with_bias(bias),
        ..block
    }
}
