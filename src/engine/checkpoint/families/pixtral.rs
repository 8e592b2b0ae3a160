//! Pixtral's tower: RMSNorm, gated MLPs, no biases, and rotary embeddings of rows and columns that
//! have their frequencies by turns. Pixtral is Mistral and this in LLaVA's class; Mistral 3 brings
//! squares of patches together before the MLP that makes tokens, and so does LightOnOCR, which is
//! Qwen3.

use super::llava::{PROJECTOR, num_used_layers, projector_at};
use super::vision::{
    self, IMAGE_TENSORS, VisionDefaults, VisionKeys, axial_theta, image_token_id, text_part,
};
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, AxisFrequency, BlockNorms, ConnectorSpec, ConnectorStep,
    DecoderSpec, ImageText, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec, RopeScaling,
    RopeSpec, TokenId, TowerSpec,
};
use serde_json::json;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Defaults of `PixtralVisionConfig`, and an epsilon that no file names.
const PIXTRAL: VisionDefaults = VisionDefaults {
    hidden_size: 1024,
    intermediate_size: 4096,
    num_layers: 24,
    num_heads: 16,
    image_size: 1024,
    patch_size: 16,
    layer_norm_eps: 1e-5,
    activation: Activation::Gelu,
};

/// What the names of its tensors begin with.
#[derive(Clone, Copy)]
struct Names {
    tower: &'static str,
    projector: &'static str,
}

const NAMES: Names = Names { tower: "model.vision_tower", projector: PROJECTOR };

/// Those of LightOnOCR.
const LIGHTON_NAMES: Names =
    Names { tower: "model.vision_encoder", projector: "model.vision_projection" };

/// Prefixes of its tensors, for those who run the model for text alone.
const LIGHTON_TENSORS: &[&str] = &["model.vision_encoder.", "model.vision_projection."];

/// The text part of LightOnOCR, whose class ties its output layer.
pub(super) fn lighton_ocr(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    lighton_ocr_tower(config)?;
    config.text_part().assume(&[("tie_word_embeddings", json!(true))]);
    text_part(config, "qwen3", LIGHTON_TENSORS)
}

/// The tower of LightOnOCR, whose class has one kind of projector.
pub(super) fn lighton_ocr_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    vision::require_sizes(&vision::section(config)?)?;
    root.expect("multimodal_projector_bias", false)?;
    root.expect("projector_hidden_act", "gelu")?;
    root.expect("vision_feature_layer", -1)?;
    let image_token_id = image_token_id(config, "image_token_id", 151_655)?;
    let tower = merging_tower(config, LIGHTON_NAMES, image_token_id)?;
    Ok(TowerSpec { text: ImageText::Bare, ..tower })
}

/// The text part of Mistral Small from 3.1 on, and of Ministral 3.
pub(super) fn mistral3(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    mistral3_tower(config)?;
    text_part(config, "mistral", IMAGE_TENSORS)
}

/// The tower of Pixtral.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    if config.root().text("vision_feature_select_strategy")? != Some("full") {
        let text =
            "`vision_feature_select_strategy` should be \"full\": patches have no class token";
        return Err(config.error(text));
    }
    let vision = VisionKeys::read(config, PIXTRAL, 1)?;
    let connector = projector_at(NAMES.projector, config, vision.width)?;
    let image_token_id = image_token_id(config, "image_token_index", 32_000)?;
    tower_of(config, NAMES.tower, &vision, (1, image_token_id), connector)
}

/// The tower of Mistral 3.
pub(super) fn mistral3_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let image_token_id = image_token_id(config, "image_token_index", 10)?;
    merging_tower(config, NAMES, image_token_id)
}

/// A tower whose squares of patches are brought together before the MLP.
fn merging_tower(
    config: &HfConfig,
    names: Names,
    image_token_id: TokenId,
) -> Result<TowerSpec, EngineError> {
    config.assume(&[
        ("multimodal_projector_bias", json!(false)),
        ("vision_feature_layer", json!(-1)),
    ]);
    let merge_size = config.root().optional_size("spatial_merge_size")?.unwrap_or(2);
    let vision = VisionKeys::read(config, PIXTRAL, merge_size)?;
    let (width, num_merged) = (vision.width, merge_size * merge_size);
    let eps = config.text_part().rms_norm_eps_or(1e-6)?;
    let name = |part: &str| format!("{}.{part}", names.projector);
    let merging = LinearSpec::new(name("patch_merger.merging_layer"), width, num_merged * width);
    let mut connector = projector_at(names.projector, config, width)?;
    let merge = [
        ConnectorStep::Norm(NormSpec::rms(name("norm"), width, eps)),
        ConnectorStep::Merge,
        ConnectorStep::Linear(merging.by_channel(num_merged)),
    ];
    connector.steps.splice(..0, merge);
    tower_of(config, names.tower, &vision, (merge_size, image_token_id), connector)
}

/// A tower of these sizes, with what makes tokens of its patches.
fn tower_of(
    config: &HfConfig,
    prefix: &str,
    sizes: &VisionKeys,
    (merge_size, image_token_id): (usize, TokenId),
    connector: ConnectorSpec,
) -> Result<TowerSpec, EngineError> {
    let VisionKeys { patch_size, width, eps, num_layers, heads, .. } = *sizes;
    let keys = vision::section(config)?;
    keys.expect("model_type", "pixtral")?;
    keys.expect("head_dim", heads.head_dim)?;
    // All files have it, and the text part has one of the same name.
    if keys.text("hidden_act")?.is_none() {
        return Err(config.error("`vision_config.hidden_act` is missing"));
    }
    // Patches have no words.
    keys.ignore(&["is_composition", "tie_word_embeddings", "vocab_size"]);
    if !heads.head_dim.is_multiple_of(4) {
        return Err(config.error(format!(
            "heads of {} values are not turned by rows and columns",
            heads.head_dim
        )));
    }
    let num_used = num_used_layers(config, num_layers)?;
    let bare = prefix.trim_start_matches("model.");
    let unused = (num_used..num_layers)
        .flat_map(|index| [prefix, bare].map(|tower| layer_name(tower, index)));
    let patches = LinearSpec::of_patches(format!("{prefix}.patch_conv"), width, patch_size);
    let layers = (0..num_used).map(|index| layer(sizes, &layer_name(prefix, index))).collect();
    let text = ImageText::Rows;
    Ok(TowerSpec {
        merge_size,
        rope: Some(RopeSpec {
            theta: axial_theta(&keys, 10_000.0)?,
            rotary_dim: heads.head_dim,
            scaling: RopeScaling::None,
            axes: AxisFrequency::rows_and_columns(heads.head_dim / 2, [0, 1]),
        }),
        embed_norm: Some(NormSpec::rms(format!("{prefix}.ln_pre"), width, eps)),
        unused: unused.collect(),
        ..TowerSpec::new(image_token_id, text, patch_size, patches, layers, connector)
    })
}

/// What the names of a layer's tensors begin with.
fn layer_name(tower: &str, index: usize) -> String {
    format!("{tower}.transformer.layers.{index}.")
}

fn layer(vision: &VisionKeys, prefix: &str) -> LayerSpec {
    let VisionKeys { width, inner, heads, eps, activation, .. } = *vision;
    let name = |part: &str| format!("{prefix}{part}");
    let norm = |part| BlockNorms::before(NormSpec::rms(name(part), width, eps));
    let qkv = ["attention.q_proj", "attention.k_proj", "attention.v_proj"];
    let qkv = LinearSpec::stacked(qkv.map(|part| (name(part), width)), width);
    let out = LinearSpec::new(name("attention.o_proj"), width, width);
    let up = ["feed_forward.gate_proj", "feed_forward.up_proj"].map(|part| (name(part), inner));
    let mlp = MlpSpec {
        norms: norm("ffn_norm"),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(activation),
        up: LinearSpec::stacked(up, width),
        down: LinearSpec::new(name("feed_forward.down_proj"), width, inner),
    };
    let attention = AttentionSpec::new(norm("attention_norm"), heads, qkv, out);
    LayerSpec::new(AttentionSpec { rope: Some(0), ..attention }, mlp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};
    use crate::spec::TokenId;

    fn specs(
        architecture: &str,
        top: &str,
        vision: &str,
    ) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["{architecture}"], {top} "vision_config": {{{vision}
            "model_type": "pixtral", "hidden_act": "silu", "hidden_size": 24, "head_dim": 8,
            "num_attention_heads": 3}}, "text_config": {{"model_type": "mistral",
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
            "vocab_size": 13}}}}"#
        );
        specs_of(&text)
    }

    const LLAVA: &str = "LlavaForConditionalGeneration";
    const PIXTRAL_TOP: &str = r#""vision_feature_layer": -1, "image_token_index": 12,
        "vision_feature_select_strategy": "full","#;
    const MISTRAL3: &str = "Mistral3ForConditionalGeneration";
    const LIGHTON: &str = "LightOnOCRForConditionalGeneration";
    /// Sizes that its files have, and Pixtral's may lack.
    const LIGHTON_SIZES: &str = r#""intermediate_size": 40, "num_hidden_layers": 2,"#;

    #[test]
    fn towers_have_the_defaults_of_their_classes_and_all_tensors() {
        let of_layers = 24 * 9;
        let (decoder, tower) = specs(LLAVA, PIXTRAL_TOP, "").unwrap();
        let sizes = (tower.patch_size, tower.merge_size);
        assert_eq!((sizes, tower.image_token_id), ((16, 1), TokenId::Known(12)));
        assert_eq!(tower.tensors().len(), 2 + of_layers + 4);
        let (_, merging) = specs(MISTRAL3, "", "").unwrap();
        let sizes = (merging.patch_size, merging.merge_size);
        assert_eq!((sizes, merging.image_token_id), ((16, 2), TokenId::Known(10)));
        let tensors = merging.tensors();
        assert_eq!(tensors.len(), 2 + of_layers + 4);
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.vision_tower.patch_conv.weight"), [24, 3, 16, 16]);
        let layer = "model.vision_tower.transformer.layers.23.feed_forward.down_proj.weight";
        assert_eq!(shape(layer), [24, 4096]);
        let merger = "model.multi_modal_projector.patch_merger.merging_layer.weight";
        assert_eq!(shape(merger), [24, 96]);
        assert_eq!(shape("model.multi_modal_projector.linear_1.weight"), [32, 24]);
        let rope = tower.rope.unwrap();
        let pairs: Vec<_> = rope.axes.iter().map(|pair| (pair.axis, pair.frequency)).collect();
        assert_eq!(pairs, [(0, 0), (0, 2), (1, 1), (1, 3)]);
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    #[test]
    fn names_and_texts_are_those_of_the_class() {
        let (decoder, tower) = specs(LIGHTON, r#""image_token_id": 12,"#, LIGHTON_SIZES).unwrap();
        assert_eq!((tower.text, tower.image_token_id), (ImageText::Bare, TokenId::Known(12)));
        assert!(decoder.output.lm_head.is_none());
        let tensors = tower.tensors();
        let has = |name: &str| tensors.iter().any(|(found, _)| found == name);
        assert!(has("model.vision_encoder.transformer.layers.0.attention.q_proj.weight"));
        assert!(has("model.vision_projection.patch_merger.merging_layer.weight"));
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    #[test]
    fn layers_behind_the_one_that_is_named_are_left_unused() {
        let (_, tower) = specs(MISTRAL3, r#""vision_feature_layer": 22,"#, "").unwrap();
        assert_eq!(tower.layers.len(), 22);
        assert_eq!(tower.unused.len(), 4);
        assert_eq!(tower.unused[3], "vision_tower.transformer.layers.23.");
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        let default = PIXTRAL_TOP.replace("full", "default");
        for (architecture, top, vision, expected) in [
            (LLAVA, &default[..], "", "should be \"full\""),
            (LLAVA, PIXTRAL_TOP, r#""rope_theta": 0,"#, "frequencies of its vision tower"),
            (MISTRAL3, r#""vision_feature_layer": [1, 2],"#, "", "`vision_feature_layer`"),
            (MISTRAL3, r#""image_token_index": 13,"#, "", "`image_token_index` of 13"),
            (MISTRAL3, r#""spatial_merge_size": 90,"#, "", "token in patches of 90"),
            (
                LIGHTON,
                r#""projector_hidden_act": "relu","#,
                LIGHTON_SIZES,
                "`projector_hidden_act`",
            ),
            (LIGHTON, "", "", "`vision_config.intermediate_size` is missing"),
            (MISTRAL3, "", r#""qk_norm": true,"#, "`vision_config.qk_norm` is not known"),
            (
                MISTRAL3,
                "",
                r#""rope_parameters": {"rope_type": "yarn"},"#,
                "`vision_config.rope_parameters.rope_type`",
            ),
        ] {
            let error = specs(architecture, top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
