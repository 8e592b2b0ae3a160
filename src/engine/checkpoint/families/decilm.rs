//! DeciLM (Llama-Nemotron): Llama with blocks missing, and KV heads and widths of each layer.

use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, Section};
use crate::spec::{AttentionSpec, DecoderSpec, LayerSpec, MlpSpec, QkvHeads};
use vllm_batch_base::EngineError;

/// Widths of MLPs are multiples of this.
const WIDTH_STEP: usize = 256;

/// Llama's parts, as `block_configs` has them.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let blocks = config.root().sections("block_configs")?.unwrap_or_default();
    // Each layer has its own.
    config.root().ignore(&["num_key_value_heads", "intermediate_size"]);
    if blocks.len() != config.num_layers()? {
        return Err(config.error("`block_configs` and `num_hidden_layers` disagree"));
    }
    llama::around(config, Defaults::LLAMA, |index| {
        let attention = part(&blocks[index], "attention")?;
        let attention = attention.map(|part| attention_of(config, index, &part)).transpose()?;
        let mlp = part(&blocks[index], "ffn")?;
        let mlp = mlp.map(|part| mlp_of(config, index, &part)).transpose()?;
        Ok(LayerSpec { attention, feed_forward: mlp.map(Into::into), ..LayerSpec::default() })
    })
}

/// A block's keys; None: the layer is without it.
fn part<'a>(block: &Section<'a>, key: &str) -> Result<Option<Section<'a>>, EngineError> {
    let Some(part) = block.section(key)? else {
        return Err(block.error(format!("`{key}` is missing in `block_configs`")));
    };
    part.expect("replace_with_linear", false)?;
    part.expect("unshifted_sink", false)?;
    part.expect("use_prefill_window_in_sink_attention", false)?;
    // Which weights the makers made sparse; the checkpoint has the result.
    part.ignore(&["sparsify"]);
    let is_there = !part.flag("no_op")?.unwrap_or(false);
    Ok(Some(part).filter(|_| is_there))
}

fn attention_of(
    config: &HfConfig,
    index: usize,
    part: &Section<'_>,
) -> Result<AttentionSpec, EngineError> {
    let (num_heads, head_dim) = (config.num_heads()?, config.head_dim()?);
    let group = part.size("n_heads_in_group")?;
    if !num_heads.is_multiple_of(group) {
        return Err(config.error(format!("{num_heads} attention heads are no groups of {group}")));
    }
    let num_kv_heads = num_heads / group;
    llama::attention(
        config,
        Defaults::LLAMA,
        (index, QkvHeads { num_heads, num_kv_heads, head_dim }),
    )
}

fn mlp_of(config: &HfConfig, index: usize, part: &Section<'_>) -> Result<MlpSpec, EngineError> {
    let width = 2.0 * part.positive("ffn_mult")? * config.hidden_size()? as f64 / 3.0;
    // Of a number without bounds: the largest is refused with its layer's width.
    let inner = (width as u32 as usize).next_multiple_of(WIDTH_STEP);
    llama::mlp(config, Defaults::LLAMA, (index, inner))
}
