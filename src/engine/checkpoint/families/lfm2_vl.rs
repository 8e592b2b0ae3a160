//! LFM2-VL: LFM2, and SigLIP 2, which has images of any shape; squares of its patches go through an
//! MLP.

use super::lfm2;
use super::siglip;
use super::vision::{self, IMAGE_TENSORS, image_token_id};
use crate::hf_config::HfConfig;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, ImageText, LinearSpec, NormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::Activation;

/// Epsilon of the projector's norm, `LayerNorm` of torch.
const EPS: f32 = 1e-5;

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    let root = config.root();
    root.expect("use_image_special_tokens", true)?;
    // What the image processor's own file has; what transformers does not read; of training.
    root.ignore(&[
        "do_image_splitting",
        "encoder_patch_size",
        "max_image_tokens",
        "max_num_patches",
        "max_pixels_tolerance",
        "max_tiles",
        "min_image_tokens",
        "min_tiles",
        "tile_size",
        "use_thumbnail",
    ]);
    let text = config.text_part();
    let mut spec = match text.root().text("model_type")? {
        None | Some("lfm2") => lfm2::spec(text)?,
        Some("lfm2_moe") => lfm2::spec_with_experts(text)?,
        Some(name) => {
            let name = quoted(name);
            return Err(config.error(format!("a text part of type {name} is not supported")));
        }
    };
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let keys = vision::section(config)?;
    vision::require_sizes(&keys)?;
    // The head is never used, whether it is there or not.
    keys.ignore(&["vision_use_head"]);
    root.expect("vision_feature_layer", -1)?;
    let merge_size = root.size_or("downsample_factor", 2)?;
    let (vision, side) = siglip::second_keys(config, merge_size)?;
    let connector = projector(config, vision.width * merge_size * merge_size)?;
    let image_token_id = image_token_id(config, "image_token_id", 396)?;
    let tower = siglip::tower(&vision, (image_token_id, ImageText::EnclosedTiles), connector);
    Ok(TowerSpec {
        merge_size,
        final_norm: Some(siglip::final_norm(&vision)),
        ..siglip::second(siglip::PREFIX, tower, side)
    })
}

/// From rows of this width, the patches of a token beside each other.
fn projector(config: &HfConfig, merged: usize) -> Result<ConnectorSpec, EngineError> {
    let root = config.root();
    let has_biases = root.flag("projector_bias")?.unwrap_or(true);
    let inner = root.size_or("projector_hidden_size", 2560)?;
    let activation =
        config.activation_named_or(root.text("projector_hidden_act")?, Activation::Gelu)?;
    let name = |part: &str| format!("model.multi_modal_projector.{part}");
    let linear = |part, n, k| LinearSpec::new(name(part), n, k).with_bias(has_biases);
    let mut steps = vec![ConnectorStep::Merge];
    if root.flag("projector_use_layernorm")?.unwrap_or(true) {
        steps.push(ConnectorStep::Norm(NormSpec::layer(name("layer_norm"), merged, EPS)));
    }
    steps.push(ConnectorStep::Linear(linear("linear_1", inner, merged)));
    steps.push(ConnectorStep::Activate(activation));
    let last = linear("linear_2", config.text_part().hidden_size()?, inner);
    Ok(ConnectorSpec { steps, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::shape_of;
    use crate::tower_spec;

    fn tower_of(top: &str, vision: &str) -> Result<TowerSpec, String> {
        let text = format!(
            r#"{{"architectures": ["Lfm2VlForConditionalGeneration"], {top} "image_token_id": 8,
            "vision_config": {{{vision} "hidden_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 3, "intermediate_size": 40}},
            "text_config": {{"hidden_size": 32, "vocab_size": 9}}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let tower = tower_spec(&config).map_err(|error| error.to_string())?;
        Ok(tower.expect("a tower"))
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let tower = tower_of("", "").unwrap();
        assert_eq!((tower.patch_size, tower.merge_size), (16, 2));
        assert_eq!(tower.positions.as_ref().unwrap().side, 16);
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        let tower_of_files = "model.vision_tower.vision_model.embeddings";
        assert_eq!(shape(&format!("{tower_of_files}.patch_embedding.weight")), [24, 768]);
        assert_eq!(shape("model.multi_modal_projector.layer_norm.weight"), [96]);
        assert_eq!(shape("model.multi_modal_projector.linear_1.weight"), [2560, 96]);
        assert_eq!(tensors.len(), 3 + 2 * 16 + 2 + 2 + 4);
        let bare = tower_of(r#""projector_use_layernorm": false, "projector_bias": false,"#, "");
        assert_eq!(bare.unwrap().tensors().len(), tensors.len() - 4);
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        for (top, vision, expected) in [
            ("", r#""num_patches": 255,"#, "`num_patches` of 255 is no square"),
            ("", r#""model_type": "siglip_vision_model","#, "`vision_config.model_type`"),
            (r#""vision_feature_layer": -2,"#, "", "`vision_feature_layer`"),
        ] {
            let error = tower_of(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
