//! Decoders that make vectors: the layers of a family of `run`, over whole texts and without a
//! cache.

use crate::families::{Architecture, gemma3, llama};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{DecoderSpec, EncoderSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// The spec of a decoder's config. A file may say that its tokens see those after them too
/// (gte-Qwen2).
pub(super) fn spec(config: &HfConfig, family: &Architecture) -> Result<EncoderSpec, EngineError> {
    let is_causal = config.root().flag("is_causal")?.unwrap_or(true);
    let decoder = (family.spec)(config)?;
    let slides = decoder.attentions().any(|attention| attention.reach != Reach::All);
    if slides && !is_causal {
        let text = "`is_causal` of `false` is not supported beside sliding windows";
        return Err(config.error(text));
    }
    layers(config, decoder, is_causal)
}

/// The spec of a Gemma 3 text config. In EmbeddingGemma tokens see those after them too, and half
/// of a window is on each side.
pub(super) fn gemma3(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let sees_both = config.root().flag("use_bidirectional_attention")?.unwrap_or(false);
    let mut decoder = gemma3::layers(config)?;
    if sees_both {
        for (_, attention) in decoder.attentions_mut() {
            attention.reach = Reach::of_window(attention.reach.window().map(|window| window / 2));
        }
    }
    layers(config, decoder, !sees_both)
}

/// The spec of a EuroBERT config: Llama whose tokens all see each other, with an encoder's heads.
pub(super) fn eurobert(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    config.root().ignore(&["classifier_pooling", "clf_pooling"]);
    let spec = layers(config, llama::spec(config)?, false)?;
    Ok(EncoderSpec { of_heads: &["lm_head."], output: None, ..spec })
}

fn layers(
    config: &HfConfig,
    decoder: DecoderSpec,
    is_causal: bool,
) -> Result<EncoderSpec, EngineError> {
    limits::check(&decoder).map_err(|text| config.error(text))?;
    EncoderSpec::of_decoder(decoder, is_causal)
        .map_err(|part| config.error(format!("{part} is not supported in models of vectors")))
}
