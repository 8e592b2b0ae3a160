//! ModernBERT: norms before blocks and at the end, a gated MLP, rotary positions; two layers of
//! three see their neighbourhood alone, with a rotary base of their own.

use crate::families::modernbert_decoder::{self, norm};
use crate::hf_config::HfConfig;
use crate::spec::{EncoderSpec, LinearSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Keys of heads.
const OF_HEADS: &[&str] = &["classifier_activation", "classifier_bias", "decoder_bias"];

/// The spec of a ModernBERT config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    root.ignore(OF_HEADS);
    root.ignore(modernbert_decoder::OF_OTHERS);
    let (hidden, q_width) = (config.hidden_size()?, config.equal_heads()?.q_width());
    let every = root.optional_size("global_attn_every_n_layers")?.unwrap_or(3).max(1);
    let slides = config.sliding_layers_or(|index| !index.is_multiple_of(every))?;
    let reach = root.optional_size("local_attention")?.unwrap_or(128) / 2;
    let layers = slides.iter().enumerate().map(|(index, slides)| {
        let qkv = format!("model.layers.{index}.attn.Wqkv");
        let qkv = LinearSpec::new(qkv, 3 * q_width, hidden);
        let mut layer = modernbert_decoder::layer(config, index, qkv)?;
        if let Some(attention) = &mut layer.attention {
            attention.rope = Some(usize::from(*slides));
            attention.reach = Reach::of_window(slides.then_some(reach));
        }
        Ok(layer)
    });
    let layers = layers.collect::<Result<_, EngineError>>()?;
    let tokens = LinearSpec::new("model.embeddings.tok_embeddings", config.vocab_size()?, hidden);
    Ok(EncoderSpec {
        embed_norm: Some(norm(config, "model.embeddings.norm")?),
        ropes: modernbert_decoder::ropes(config)?,
        final_norm: Some(norm(config, "model.final_norm")?),
        of_heads: &["head.", "decoder.", "classifier."],
        ..EncoderSpec::new(config.max_position_embeddings()?, tokens, layers)
    })
}
