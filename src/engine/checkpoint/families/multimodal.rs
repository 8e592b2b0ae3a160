//! The text parts of multimodal checkpoints: a family's spec of `text_config`. What makes
//! embeddings of images and sounds is left unused; rows with images are error rows.

use super::{BuildSpec, gemma4};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Keys of the encoders of images and sounds, and of their tokens: text has neither.
const IMAGE_KEYS: &[&str] = &[
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "image_token_id",
    "image_token_index",
    "mm_tokens_per_image",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_soft_tokens_per_image",
    "vision_start_token_id",
    "vision_token_id",
];

/// Prefixes of tensors that make embeddings of images and sounds.
const IMAGE_TENSORS: &[&str] = &[
    "model.audio_tower.",
    "model.embed_audio.",
    "model.embed_vision.",
    "model.multi_modal_projector.",
    "model.vision_tower.",
    "model.visual.",
    "multi_modal_projector.",
    "vision_tower.",
    "visual.",
];

/// Gemma 4 that is run for text alone.
pub(super) fn gemma4(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    text_part(config, gemma4::spec)
}

/// Gemma 4 of 12B.
pub(super) fn gemma4_unified(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    text_part(config, gemma4::unified)
}

fn text_part(config: &HfConfig, build: BuildSpec) -> Result<DecoderSpec, EngineError> {
    config.root().ignore(IMAGE_KEYS);
    let mut spec = build(config.text_part())?;
    spec.embedding.of_images = IMAGE_TENSORS;
    Ok(spec)
}
