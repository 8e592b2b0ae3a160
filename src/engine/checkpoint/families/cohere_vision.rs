//! Aya Vision: a text model of Cohere's, and SigLIP up to one of its last layers, whose patches are
//! brought together by squares (pixel shuffle) before a norm and an MLP with a gate. Command A
//! Vision: all of SigLIP, and no norm before that MLP.

use serde_json::json;

use super::llava::{PROJECTOR, num_used_layers, unused};
use super::siglip::{self, SIGLIP};
use super::vision::{self, IMAGE_TENSORS, VisionKeys, image_token_id, text_part};
use crate::hf_config::HfConfig;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, ImageText, LinearSpec, NormSpec, RowOrder, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The text part, whose class ties its output layer.
pub(super) fn aya(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    aya_tower(config)?;
    text_part(config, "cohere2", IMAGE_TENSORS)
}

/// The tower.
pub(super) fn aya_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    config.assume(&[("vision_feature_layer", json!(-1))]);
    let root = config.root();
    root.expect("vision_feature_select_strategy", "full")?;
    let (vision, merge_size) = vision_keys(config)?;
    let num_used = num_used_layers(config, vision.num_layers)?;
    let eps = root.number("adapter_layer_norm_eps")?.unwrap_or(1e-6) as f32;
    let merged = vision.width * merge_size * merge_size;
    let norm = NormSpec::layer(format!("{PROJECTOR}.layernorm"), merged, eps);
    let connector = connector(config, (merged, None), Some(norm))?;
    let image_token_id = image_token_id(config, "image_token_index", 255_036)?;
    let mut tower = siglip::tower(&vision, (image_token_id, ImageText::NumberedTiles), connector);
    tower.layers.truncate(num_used);
    tower.unused.extend(unused(num_used..vision.num_layers));
    Ok(TowerSpec { merge_size, ..tower })
}

/// The text part of Command A Vision, whose class ties its output layer.
pub(super) fn command_a(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    command_a_tower(config)?;
    text_part(config, "cohere2", IMAGE_TENSORS)
}

/// The tower of Command A Vision.
pub(super) fn command_a_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let (vision, merge_size) = vision_keys(config)?;
    let merged = vision.width * merge_size * merge_size;
    let connector = connector(config, (merged, Some(36_864)), None)?;
    let image_token_id = image_token_id(config, "image_token_id", 255_036)?;
    let tower = siglip::tower(&vision, (image_token_id, ImageText::BrokenTiles), connector);
    Ok(TowerSpec { merge_size, final_norm: Some(siglip::final_norm(&vision)), ..tower })
}

/// Sizes of SigLIP, and patches of the side of a token.
fn vision_keys(config: &HfConfig) -> Result<(VisionKeys, usize), EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "siglip_vision_model")?;
    // The head is never used, whether it is there or not.
    keys.ignore(&["vision_use_head"]);
    vision::require_sizes(&keys)?;
    let merge_size = config.root().optional_size("downsample_factor")?.unwrap_or(2);
    let vision = VisionKeys::read(config, SIGLIP, merge_size)?;
    let side = vision.side();
    match side.is_multiple_of(merge_size) {
        true => Ok((vision, merge_size)),
        false => Err(config.error(format!(
            "`downsample_factor` of {merge_size} makes no whole tokens of {side}x{side} patches"
        ))),
    }
}

/// From squares of patches to tokens: an MLP whose gates are the second half of its first product.
/// `aligned`: outputs of that where the file does not say them; None: as many as a token has.
fn connector(
    config: &HfConfig,
    (merged, aligned): (usize, Option<usize>),
    norm: Option<NormSpec>,
) -> Result<ConnectorSpec, EngineError> {
    let hidden_size = config.text_part().hidden_size()?;
    let given = config.root().optional_size("alignment_intermediate_size")?;
    let aligned = given.or(aligned).unwrap_or(hidden_size);
    if !aligned.is_multiple_of(2) {
        return Err(
            config.error(format!("`alignment_intermediate_size` of {aligned} has no equal halves"))
        );
    }
    let inner = aligned / 2;
    let linear =
        |part: &str, n, k| LinearSpec::new(format!("{PROJECTOR}.{part}"), n, k).with_bias(true);
    let up = linear("linear_1", aligned, merged).in_order(RowOrder::second_half_first(aligned));
    let norm = norm.map(ConnectorStep::Norm);
    let mlp = [ConnectorStep::Linear(up), ConnectorStep::Gate(Activation::Silu)];
    let steps = [ConnectorStep::Merge].into_iter().chain(norm).chain(mlp).collect();
    Ok(ConnectorSpec { steps, last: linear("linear_2", hidden_size, inner) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};
    use crate::spec::TokenId;
    use crate::tower_spec;

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["AyaVisionForConditionalGeneration"], {top}
            "vision_config": {{{vision} "model_type": "siglip_vision_model", "hidden_size": 24,
            "intermediate_size": 40, "num_attention_heads": 3, "num_hidden_layers": 2,
            "image_size": 32, "patch_size": 8}}, "text_config": {{"model_type": "cohere2",
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
            "vocab_size": 256000}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs("", "").unwrap();
        assert_eq!((tower.merge_size, tower.image_token_id), (2, TokenId::Known(255_036)));
        let tensors = tower.tensors();
        assert_eq!(tensors.len(), 3 + 2 * 16 + 2 + 4);
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.multi_modal_projector.linear_1.weight"), [32, 96]);
        assert_eq!(shape("model.multi_modal_projector.linear_2.weight"), [32, 16]);
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    #[test]
    fn command_a_has_all_of_its_tower_and_no_norm_before_its_tokens() {
        let text = r#"{"architectures": ["Cohere2VisionForConditionalGeneration"],
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 24,
            "intermediate_size": 40, "num_attention_heads": 3, "num_hidden_layers": 2,
            "image_size": 32, "patch_size": 8}, "text_config": {"model_type": "cohere2",
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
            "vocab_size": 256000}}"#;
        let tower = tower_spec(&HfConfig::parse(text, "config.json").unwrap()).unwrap();
        let tower = tower.expect("a tower");
        assert_eq!((tower.text, tower.final_norm.is_some()), (ImageText::BrokenTiles, true));
        let tensors = tower.tensors();
        assert_eq!(tensors.len(), 3 + 2 * 16 + 2 + 4);
        let name = "model.multi_modal_projector.linear_1.weight".to_owned();
        assert!(tensors.contains(&(name, vec![36_864, 96])));
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, expected) in [
            (r#""vision_feature_select_strategy": "default","#, "", "`vision_feature_select"),
            (r#""vision_feature_layer": [0, 1],"#, "", "`vision_feature_layer`"),
            (r#""alignment_intermediate_size": 33,"#, "", "no equal halves"),
            (r#""downsample_factor": 3,"#, "", "no whole tokens"),
            (r#""image_token_index": 256000,"#, "", "`image_token_index` of 256000"),
            ("", r#""qk_norm": true,"#, "`vision_config.qk_norm` is not known"),
        ] {
            let error = specs(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
