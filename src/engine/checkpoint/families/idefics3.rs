//! Idefics 3 and SmolVLM: Llama, and a tower of SigLIP's shape whose patches are brought together
//! by squares (pixel shuffle) before one product makes tokens of them.

use super::siglip;
use super::vision::{VisionDefaults, VisionKeys, image_token_id, text_part};
use crate::hf_config::HfConfig;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, GridFit, ImageText, LinearSpec, NormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Prefixes of the tower's tensors, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] =
    &["connector.", "model.connector.", "model.vision_model.", "vision_model."];

/// What the names of the tower's tensors begin with.
const PREFIX: &str = "model.vision_model";

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    // Of training; what transformers 5.24 makes of a key that it drops; tokens of a tile, which
    // are counted.
    config.root().ignore(&["use_reentrant_checkpointing", "_pad_token_id", "image_seq_len"]);
    let text = config.text_part().root();
    text.expect("qk_layer_norms", false)?;
    text.expect("use_resampler", false)?;
    // Of the first code, which had resamplers too: `scale_factor` counts. And of training.
    text.ignore(&["neftune_noise_alpha", "perceiver_config", "pixel_shuffle_factor"]);
    text_part(config, "llama", IMAGE_TENSORS)
}

/// Defaults of `Idefics3VisionConfig`.
const DEFAULTS: VisionDefaults = VisionDefaults {
    hidden_size: 1152,
    intermediate_size: 3072,
    num_layers: 12,
    num_heads: 16,
    image_size: 224,
    patch_size: 32,
    layer_norm_eps: 1e-6,
    activation: Activation::GeluTanh,
};

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let merge_size = config.root().optional_size("scale_factor")?.unwrap_or(2);
    let vision = VisionKeys::read(config, DEFAULTS, merge_size)?;
    if let Some(keys) = config.root().section("vision_config")? {
        // The image processor's own file has its sizes, and patches have no words. Towers of both
        // kinds of SigLIP differ in sizes alone.
        keys.ignore(&["max_image_size", "size", "tie_word_embeddings", "use_base_siglip"]);
    }
    let VisionKeys { width, eps, .. } = vision;
    let connector = ConnectorSpec {
        steps: vec![ConnectorStep::Merge],
        last: LinearSpec::new(
            "model.connector.modality_projection.proj",
            config.text_part().hidden_size()?,
            merge_size * merge_size * width,
        ),
    };
    let image_token_id = image_token_id(config, "image_token_id", 128_257)?;
    let mut tower =
        siglip::tower_at(PREFIX, &vision, (image_token_id, ImageText::Tiles), connector);
    if let Some(positions) = &mut tower.positions {
        positions.fit = GridFit::SameShare;
    }
    let final_norm = Some(NormSpec::layer(format!("{PREFIX}.post_layernorm"), width, eps));
    Ok(TowerSpec { merge_size, final_norm, ..tower })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};
    use crate::spec::TokenId;

    const VISION: &str = r#""hidden_size": 24, "num_attention_heads": 3"#;

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": 8, {top}
            "vision_config": {{{vision}}}, "text_config": {{"model_type": "llama",
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 1, "max_position_embeddings": 64, "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs("", VISION).unwrap();
        assert_eq!(
            (tower.patch_size, tower.merge_size, tower.positions.as_ref().unwrap().side),
            (32, 2, 7)
        );
        assert_eq!((tower.layers.len(), tower.heads().head_dim), (12, 8));
        let token = (tower.image_token_id, tower.connector.n());
        assert_eq!(token, (TokenId::Known(8), decoder.hidden_size()));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.vision_model.embeddings.patch_embedding.weight"), [24, 3, 32, 32]);
        assert_eq!(shape("model.vision_model.embeddings.position_embedding.weight"), [49, 24]);
        assert_eq!(shape("model.vision_model.encoder.layers.11.mlp.fc1.weight"), [3072, 24]);
        assert_eq!(shape("model.connector.modality_projection.proj.weight"), [32, 96]);
        assert_eq!(tensors.len(), 3 + 12 * 16 + 2 + 1);
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, expected) in [
            ("", r#""num_channels": 1"#, "`vision_config.num_channels`"),
            ("", r#""hidden_act": "gelu_10""#, "`gelu_10` is not supported"),
            ("", r#""image_size": [224, 225]"#, "`vision_config.image_size` should be a side"),
            ("", r#""num_hidden_layers": 5000"#, "layers of a vision tower of 5000"),
            ("", r#""patch_size": 4096"#, "patches of a vision tower of 4096"),
            ("", r#""patch_size": 0"#, "`vision_config.patch_size` is 0"),
            ("", r#""intermediate_size": 4000000"#, "intermediate size of a vision tower"),
            ("", r#""layer_norm_eps": 2.0"#, "epsilon"),
            ("", r#""qk_norm": true"#, "`vision_config.qk_norm` is not known"),
            (r#""scale_factor": 0,"#, "", "token in patches of 0"),
            (r#""scale_factor": 90,"#, "", "token in patches of 90"),
            (r#""use_resampler": true,"#, "", "`use_resampler`"),
        ] {
            let vision = [VISION, vision].join(if vision.is_empty() { "" } else { ", " });
            let error = specs(top, &vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
        let error = specs("", r#""hidden_size": 24, "num_attention_heads": 5"#).unwrap_err();
        assert!(error.contains("no 5 equal heads"), "{error}");
        let error = specs(r#""image_token_id": 9,"#, VISION).unwrap_err();
        assert!(error.contains("`image_token_id` of 9"), "{error}");
    }
}
