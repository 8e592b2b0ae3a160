//! PaddleOCR-VL: ERNIE 4.5 whose rotary embedding turns halves, by positions on three axes. Its
//! tower is SigLIP's, for images of any shape, with rotary embeddings of rows and columns.

use serde_json::json;

use super::qwen_vision::{axial_rope, merger, text_part};
use super::vision::{self, VisionDefaults, VisionKeys, image_token_id};
use super::{ernie4_5, siglip};
use crate::hf_config::HfConfig;
use crate::spec::{AxisFrequency, DecoderSpec, GridFit, ImageText, NormSpec, TowerSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Prefixes of the tower's tensors, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] = &["mlp_AR.", "model.projector.", "model.visual.", "visual."];

const PREFIX: &str = "model.visual.vision_model";

/// What nobody reads of SigLIP.
const UNUSED: [&str; 4] = [
    "model.visual.vision_model.embeddings.packing_position_embedding.",
    "model.visual.vision_model.head.",
    "visual.vision_model.embeddings.packing_position_embedding.",
    "visual.vision_model.head.",
];

/// The text part, whose keys are at the top of published files.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    let text = config.text_part();
    text.assume(&[("head_dim", json!(128)), ("num_key_value_heads", json!(2))]);
    // Files that are saved again have a text part, and these still at the top.
    for keys in [config.root(), text.root()] {
        // What its class always does.
        keys.expect("compression_ratio", 1.0)?;
        keys.expect("rope_is_neox_style", true)?;
        keys.expect("use_3d_rope", true)?;
        keys.ignore(&["ignored_index", "use_flash_attention", "weight_share_add_bias"]);
    }
    let axes = AxisFrequency::sections([16, 24, 24], false);
    let mut spec = text_part(config, ernie4_5::with_halves, &axes)?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    let defaults = VisionDefaults {
        hidden_size: 1152,
        intermediate_size: 4304,
        num_layers: 27,
        num_heads: 16,
        image_size: 384,
        patch_size: 14,
        layer_norm_eps: 1e-6,
        activation: Activation::GeluTanh,
    };
    let merge_size = keys.size_or("spatial_merge_size", 2)?;
    let vision = VisionKeys::read(config, defaults, merge_size)?;
    // Of videos, and of another image processor.
    keys.ignore(&["temporal_patch_size", "tokens_per_second"]);
    let (width, head_dim) = (vision.width, vision.heads.head_dim);
    if !head_dim.is_multiple_of(4) {
        return Err(config.error(format!("heads of {head_dim} have no rows and columns")));
    }
    let part = |part: &str| format!("model.projector.{part}");
    let norm = NormSpec::layer(part("pre_norm"), width, 1e-5);
    let hidden_size = config.text_part().hidden_size()?;
    let merged = (width * merge_size * merge_size, hidden_size);
    let connector = merger(norm, ["linear_1", "linear_2"].map(part), merged);
    let place = (image_token_id(config, "image_token_id", 100_295)?, ImageText::Bare);
    let mut tower = siglip::tower_at(PREFIX, &vision, place, connector);
    let attentions = tower.layers.iter_mut().filter_map(|layer| layer.attention.as_mut());
    attentions.for_each(|attention| attention.rope = Some(0));
    if let Some(positions) = &mut tower.positions {
        positions.fit = GridFit::BetweenMiddles;
    }
    Ok(TowerSpec {
        merge_size,
        rope: Some(axial_rope(&keys, head_dim)?),
        final_norm: Some(NormSpec::layer(format!("{PREFIX}.post_layernorm"), width, vision.eps)),
        unused: UNUSED.map(str::to_owned).to_vec(),
        ..tower
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["PaddleOCRVLForConditionalGeneration"], "image_token_id": 8,
            {top} "vision_config": {{{vision} "image_size": 56, "num_hidden_layers": 2}},
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
            "rope_theta": 500000, "vocab_size": 9}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs("", "").unwrap();
        assert_eq!(decoder.ropes[0].axes, AxisFrequency::sections([16, 24, 24], false));
        assert_eq!((decoder.heads().num_kv_heads, decoder.heads().head_dim), (2, 128));
        assert!(decoder.output.lm_head.is_none());
        assert_eq!((tower.patch_size, tower.merge_size, tower.num_frames()), (14, 2, 1));
        assert_eq!(tower.rope.as_ref().map(|rope| rope.rotary_dim), Some(72));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        let table = "model.visual.vision_model.embeddings.position_embedding.weight";
        assert_eq!(shape(table), [16, 1152]);
        assert_eq!(shape("model.projector.linear_2.weight"), [32, 4 * 1152]);
        assert_eq!(tensors.len(), 3 + 2 * 16 + 2 + 6);
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        for (top, vision, expected) in [
            (r#""use_3d_rope": false,"#, "", "`use_3d_rope`"),
            (r#""rope_is_neox_style": false,"#, "", "`rope_is_neox_style`"),
            ("", r#""num_attention_heads": 64,"#, "no rows and columns"),
            ("", r#""spatial_merge_size": 0,"#, "`vision_config.spatial_merge_size` is 0"),
        ] {
            let error = specs(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
