//! The text parts of multimodal checkpoints: a family's spec of `text_config`. What makes
//! embeddings of images and sounds is left unused; rows with images are error rows.

use super::{BuildSpec, aria, gemma3n, gemma4, llama4, minimax_m3, step3p5};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Keys of the encoders of images and sounds, and of their tokens: text has neither.
const IMAGE_KEYS: &[&str] = &[
    "audio_config",
    "audio_soft_tokens_per_image",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "ignore_index",
    "image_token_id",
    "image_token_index",
    "merged_hidden_size",
    "mm_tokens_per_image",
    "multimodal_projector_bias",
    "out_hidden_size",
    "projector_bias",
    "projector_hidden_act",
    "projector_hidden_size",
    "spatial_merge_size",
    "video_token_id",
    "video_token_index",
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
    "model.vision_adapter.",
    "model.vision_projection.",
    "model.vision_tower.",
    "model.visual.",
    "multi_modal_projector.",
    "patch_merge_mlp.",
    "vision_model.",
    "vit_large_projector.",
    "vision_tower.",
    "visual.",
];

/// Gemma 3n.
pub(super) fn gemma3n(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    text_part(config, gemma3n::spec)
}

/// Gemma 4 that is run for text alone.
pub(super) fn gemma4(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    text_part(config, gemma4::spec)
}

/// Gemma 4 of 12B.
pub(super) fn gemma4_unified(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    text_part(config, gemma4::unified)
}

/// Llama 4.
pub(super) fn llama4(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    text_part(config, llama4::spec)
}

/// MiniMax M3.
pub(super) fn minimax_m3(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.root().ignore(&[
        "image_grid_pinpoints",
        "image_seq_length",
        "img_token_compression_config",
        "process_image_mode",
        "vision_feature_select_strategy",
    ]);
    text_part(config, minimax_m3::spec)
}

/// Step 3.7, whose text part is Step 3.5.
pub(super) fn step3p7(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    text_part(config, step3p5::spec)
}

/// Aria.
pub(super) fn aria(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Of losses, and of what makes tokens of patches.
    config.root().ignore(&[
        "ignore_index",
        "max_value_projector_patch_to_query_dict",
        "projector_patch_to_query_dict",
    ]);
    text_part(config, aria::spec)
}

fn text_part(config: &HfConfig, build: BuildSpec) -> Result<DecoderSpec, EngineError> {
    config.root().ignore(IMAGE_KEYS);
    let mut spec = build(config.text_part())?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}
