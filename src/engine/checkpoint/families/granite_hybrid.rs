//! Granite 4: Granite whose layers have Mamba 2's recurrence or attention, experts and an MLP of
//! all tokens, or that MLP alone.

use super::experts::EXPERTS_APART;
use super::granite_moe::ExpertNames;
use super::llama::{self, Defaults};
use super::mamba;
use super::{granite, granite_moe};
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, ExpertSpec, LayerSpec, MlpForm,
    MlpSpec, NormSpec,
};
use vllm_batch_base::EngineError;

/// Granite's spec around layers of both kinds.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let (root, defaults) = (config.root(), Defaults::LLAMA);
    root.expect("normalization_function", "rmsnorm")?;
    // Of training: how weights begin.
    root.ignore(&["init_method"]);
    let rotates = match root.text("position_embedding_type")? {
        Some("rope") => true,
        None | Some("nope") => false,
        Some(_) => return Err(config.error("`position_embedding_type` should be rope or nope")),
    };
    let num_experts = mamba::size(config, "num_local_experts", 8)?;
    let inner = mamba::size(config, "shared_intermediate_size", 1024)?;
    let (hidden, heads) = (config.hidden_size()?, config.heads()?);
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let blocks = mamba::keys(config, None, eps)?;
    let attends = mamba::layers_with_attention(config)?;
    let mut spec = llama::around(config, defaults, |index| {
        let mlp = mlp(config, (index, hidden, inner))?;
        let attention = llama::attention(config, defaults, (index, heads))?;
        if attends[index] {
            let rope = attention.rope.filter(|_| rotates);
            return Ok(LayerSpec::new(AttentionSpec { rope, ..attention }, mlp));
        }
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norms = BlockNorms::before(NormSpec::rms(name("input_layernorm"), hidden, eps));
        let recurrent = Some(blocks.block(&name("mamba"), norms));
        Ok(LayerSpec { recurrent, feed_forward: Some(mlp.into()), ..LayerSpec::default() })
    })?;
    if !rotates {
        spec.ropes.clear();
    }
    granite::set_multipliers(config, &mut spec)?;
    match num_experts {
        // Of experts, which there are none of.
        0 => root.ignore(&["intermediate_size", "num_experts_per_tok"]),
        _ => granite_moe::set_experts(config, &mut spec, (inner, ExpertNames::Layers))?,
    }
    Ok(spec)
}

/// The MLP of all tokens.
fn mlp(
    config: &HfConfig,
    (index, hidden, inner): (usize, usize, usize),
) -> Result<MlpSpec, EngineError> {
    let is_apart = config.root().flag(EXPERTS_APART)?.unwrap_or(false);
    let name = format!("model.layers.{index}.shared_mlp");
    let ExpertSpec { up, down } = granite_moe::shared_mlp(is_apart, &name, (hidden, inner));
    Ok(MlpSpec {
        norms: llama::mlp_norms(config, Defaults::LLAMA, index)?,
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(config.activation()?),
        up,
        down,
    })
}
