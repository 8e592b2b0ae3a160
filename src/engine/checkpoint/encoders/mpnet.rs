//! MPNet: BERT without segments, whose positions begin at 2, with T5's relative bias of scores.

use super::bert::{after_sum, mlp};
use crate::hf_config::HfConfig;
use crate::spec::{
    AttentionSpec, EncoderSpec, LayerSpec, LearnedPositions, LinearSpec, NormSpec, RelativeBiasSpec,
};
use vllm_batch_base::EngineError;

/// Row of the first token's position: transformers fixes the padding id at 1.
const FIRST_POSITION: usize = 2;

/// Distances from which on all are alike; not in the config.
const MAX_DISTANCE: usize = 128;

/// The spec of an MPNet config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let (hidden, num_positions) = (config.hidden_size()?, config.max_position_embeddings()?);
    let eps = config.layer_norm_eps(1e-12)?;
    let name = |part: &str| format!("mpnet.embeddings.{part}");
    let layers = (0..config.num_layers()?).map(|index| layer(config, eps, index));
    let num_buckets = config.root().optional_size("relative_attention_num_buckets")?.unwrap_or(32);
    if num_buckets < 4 || !num_buckets.is_multiple_of(4) || num_buckets / 4 >= MAX_DISTANCE {
        return Err(config.error(format!("{num_buckets} buckets of distances are not supported")));
    }
    let bias = "mpnet.encoder.relative_attention_bias";
    let layers = layers.collect::<Result<_, _>>()?;
    let tokens = LinearSpec::new(name("word_embeddings"), config.vocab_size()?, hidden);
    Ok(EncoderSpec {
        positions: Some(LearnedPositions {
            table: LinearSpec::new(name("position_embeddings"), num_positions, hidden),
            offset: FIRST_POSITION,
        }),
        embed_norm: Some(NormSpec::layer(name("LayerNorm"), hidden, eps)),
        relative_bias: Some(RelativeBiasSpec {
            table: LinearSpec::new(bias, num_buckets, config.num_heads()?),
            max_distance: MAX_DISTANCE,
        }),
        of_heads: &["pooler.", "mpnet.pooler.", "lm_head."],
        ..EncoderSpec::new(num_positions.saturating_sub(FIRST_POSITION), tokens, layers)
    })
}

fn layer(config: &HfConfig, eps: f32, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("mpnet.encoder.layer.{index}.{part}");
    let (hidden, heads) = (config.hidden_size()?, config.equal_heads()?);
    let norm = |part: &str| NormSpec::layer(name(part), hidden, eps);
    let qkv =
        ["q", "k", "v"].map(|part| (name(&format!("attention.attn.{part}")), heads.q_width()));
    let out = LinearSpec::new(name("attention.attn.o"), hidden, heads.q_width());
    let attention = AttentionSpec::new(
        after_sum(norm("attention.LayerNorm")),
        heads,
        LinearSpec::stacked(qkv, hidden).with_bias(true),
        out.with_bias(true),
    );
    let mlp =
        mlp(config, [name("intermediate.dense"), name("output.dense")], norm("output.LayerNorm"))?;
    Ok(LayerSpec::new(attention, mlp))
}
