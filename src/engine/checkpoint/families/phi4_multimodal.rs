//! Phi-4-multimodal: Phi-4-mini, and SigLIP up to its last layer but one. Means of squares of its
//! patches, rows that stand behind lines of them and one before the whole image go through an MLP.
//! Sounds are left out.

use super::llava::layers_before;
use super::phi3;
use super::siglip::{self, SIGLIP};
use super::vision::{self, VisionDefaults, VisionKeys};
use crate::hf_config::{HfConfig, Section};
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, GridFit, GridPositions, ImageText, LinearSpec,
    TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// What names of tensors of images begin with, and of those of sounds.
const IMAGES: &str = "model.embed_tokens_extend.image_embed";
const SOUNDS: &str = "model.embed_tokens_extend.audio_embed.";

/// Prefixes of both, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] = &["model.embed_tokens_extend."];

/// Patches of the side of a square that becomes one token.
const MERGE_SIZE: usize = 2;

/// Defaults of `Phi4MultimodalVisionConfig`.
const DEFAULTS: VisionDefaults = VisionDefaults {
    hidden_size: 1152,
    intermediate_size: 4304,
    num_layers: 27,
    num_heads: 16,
    image_size: 448,
    patch_size: 14,
    ..SIGLIP
};

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    // Of sounds, which no row has.
    config.root().ignore(&["audio_config"]);
    let mut spec = phi3::spec(config)?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "phi4_multimodal_vision")?;
    let vision = VisionKeys::read(config, DEFAULTS, MERGE_SIZE)?;
    check_tiles(config, &vision, &keys, "vision_config")?;
    let layer = keys.value("feature_layer").map_or(Some(-2), serde_json::Value::as_i64);
    let num_used = layer.and_then(|layer| layers_before(layer, vision.num_layers));
    let num_used = num_used.filter(|num| *num > 0).ok_or_else(|| {
        let text = "`vision_config.feature_layer` should be one of the layers of `vision_config`";
        config.error(text)
    })?;
    let id = keys.size_or("image_token_id", 200_010)?;
    let vocab_size = config.vocab_size()?;
    if id >= vocab_size {
        return Err(config.error(format!(
            "`vision_config.image_token_id` of {id} is not in a vocabulary of {vocab_size} tokens"
        )));
    }
    tower_of(config, &vision, num_used, TokenId::Known(id as u32))
}

/// The text part of files of its own code, whose adapters of images and of sounds are within.
pub(super) fn own_spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    own_tower(config)?;
    // Of sounds, and of those adapters.
    config.root().ignore(&["audio_processor", "speech_lora", "vision_lora"]);
    let mut spec = phi3::spec(config)?;
    spec.embedding.of_media = IMAGE_TENSORS;
    for (index, attention) in spec.attentions_mut() {
        let adapter = |module: &str| format!("model.layers.{index}.{module}.lora_");
        attention.unused = ADAPTED.map(adapter).to_vec();
    }
    Ok(spec)
}

/// Modules that have adapters within such files.
const ADAPTED: [&str; 4] =
    ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"];

/// The tower of such files, whose sizes its code has: no published file has `vision_config`.
pub(super) fn own_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let missing = || config.error("`embd_layer.image_embd_layer` is missing");
    let layer = root.section("embd_layer")?.ok_or_else(missing)?;
    layer.expect("embedding_cls", "image_audio")?;
    // Of sounds.
    layer.ignore(&["audio_embd_layer"]);
    let images = layer.section("image_embd_layer")?.ok_or_else(missing)?;
    images.expect("embedding_cls", "tune_image")?;
    images.expect("hd_transform_order", "sub_glb")?;
    images.expect("image_token_compression_cls", "avg_pool_2d")?;
    images.expect("projection_cls", "mlp")?;
    images.expect("use_hd_transform", true)?;
    images.expect("with_learnable_separator", true)?;
    // Of training.
    images.ignore(&["enable_gradient_checkpointing"]);
    if let Some(processor) = root.section("img_processor")? {
        processor.expect("layer_idx", -2)?;
        processor.expect("type_feature", "patch")?;
    }
    let vision = VisionKeys::read(config, DEFAULTS, MERGE_SIZE)?;
    check_tiles(config, &vision, &images, "embd_layer.image_embd_layer")?;
    let num_used = layers_before(-2, vision.num_layers).filter(|num| *num > 0);
    let num_used = num_used.ok_or_else(|| config.error("`vision_config` has one layer"))?;
    let tower = tower_of(config, &vision, num_used, TokenId::OfText("<|endoftext10|>"))?;
    Ok(TowerSpec { wants_adapter: true, ..tower })
}

/// Refuses tiles that are not those of the tower, or that have no whole tokens.
fn check_tiles(
    config: &HfConfig,
    vision: &VisionKeys,
    keys: &Section<'_>,
    name: &str,
) -> Result<(), EngineError> {
    let (crop, side) = (keys.size_or("crop_size", DEFAULTS.image_size)?, vision.side());
    match crop == side * vision.patch_size && side.is_multiple_of(MERGE_SIZE) {
        true => Ok(()),
        false => Err(config.error(format!(
            "`{name}.crop_size` of {crop} is not that of {side}x{side} patches of {} pixels, an \
             even number of them",
            vision.patch_size
        ))),
    }
}

/// The tower up to so many layers.
fn tower_of(
    config: &HfConfig,
    vision: &VisionKeys,
    num_used: usize,
    image_token_id: TokenId,
) -> Result<TowerSpec, EngineError> {
    let name = |part: &str| format!("{IMAGES}.{part}");
    let (width, hidden) = (vision.width, config.hidden_size()?);
    let linear = |part, k| LinearSpec::new(name(part), hidden, k).with_bias(true);
    let connector = ConnectorSpec {
        steps: vec![
            ConnectorStep::MeanPool,
            ConnectorStep::Linear(linear("img_projection_up", width)),
            ConnectorStep::Activate(Activation::Gelu),
        ],
        last: linear("img_projection_down", hidden),
    };
    let prefix = name("img_processor");
    let behind = (num_used..vision.num_layers).map(|index| format!("encoder.layers.{index}."));
    let behind = behind.chain(["head.", "post_layernorm."].map(str::to_owned));
    let unused = behind.map(|part| format!("{prefix}.{part}"));
    let place = (image_token_id, ImageText::Bare);
    let mut tower = siglip::tower_at(&prefix, vision, place, connector);
    tower.layers.truncate(num_used);
    let table = tower.positions.take().expect("SigLIP has positions").table;
    Ok(TowerSpec {
        merge_size: MERGE_SIZE,
        overhangs: true,
        // Of what of a tile is the image.
        positions: Some(GridPositions { table, side: vision.side(), fit: GridFit::SameShare }),
        newline: Some((name("sub_img_feature_extensor"), vec![1, 1, 1, width])),
        separator: Some((name("global_img_feature_extensor"), vec![1, 1, width])),
        connects_lines: true,
        unused: unused.chain([SOUNDS.to_owned()]).collect(),
        ..tower
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        specs_of(&format!(
            r#"{{"architectures": ["Phi4MultimodalForCausalLM"], "hidden_size": 32,
            "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1,
            "num_hidden_layers": 2, "vocab_size": 200064, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "audio_config": {{"hidden_size": 8, "num_blocks": 1}},
            "vision_config": {{{vision} "attention_dropout": 0.0}}}}"#
        ))
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_the_tensors_that_are_read() {
        let (decoder, tower) = specs("").unwrap();
        assert_eq!((tower.layers.len(), tower.positions.as_ref().unwrap().side), (26, 32));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, &format!("{IMAGES}.{name}"));
        assert_eq!(shape("img_processor.embeddings.position_embedding.weight"), [1024, 1152]);
        assert_eq!(shape("img_processor.encoder.layers.25.mlp.fc1.weight"), [4304, 1152]);
        assert_eq!(shape("img_projection_up.weight"), [32, 1152]);
        assert_eq!(shape("img_projection_down.bias"), [32]);
        assert_eq!(shape("sub_img_feature_extensor"), [1, 1, 1, 1152]);
        assert_eq!(tensors.len(), 3 + 26 * 16 + 4 + 2);
        assert!(tower.unused.iter().any(|name| name.ends_with("encoder.layers.26.")));
        assert!(tower.unused.contains(&SOUNDS.to_owned()));
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
        assert_eq!(specs(r#""feature_layer": 3,"#).unwrap().1.layers.len(), 3);
        assert_eq!(specs(r#""feature_layer": -1,"#).unwrap().1.layers.len(), 27);
    }

    fn own(keys: &str, images: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        specs_of(&format!(
            r#"{{"architectures": ["Phi4MMForCausalLM"], "hidden_size": 32, {keys}
            "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1,
            "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "audio_processor": {{"name": "cascades"}},
            "embd_layer": {{"embedding_cls": "image_audio", "audio_embd_layer": {{"a": 1}},
            "image_embd_layer": {{{images} "use_hd_transform": true}}}}}}"#
        ))
    }

    #[test]
    fn files_of_its_own_code_have_the_same_tower_and_adapters_of_every_layer() {
        let lora = r#""vision_lora": {"r": 256}, "img_processor": null,"#;
        let (decoder, tower) = own(lora, r#""crop_size": 448,"#).unwrap();
        assert_eq!(tower.tensors(), specs("").unwrap().1.tensors());
        assert!(tower.wants_adapter && !specs("").unwrap().1.wants_adapter);
        let unused: Vec<_> = decoder.attentions().flat_map(|layer| &layer.unused).collect();
        assert_eq!((unused.len(), &unused[7][..]), (8, "model.layers.1.mlp.down_proj.lora_"));
        for (keys, images, expected) in [
            ("", r#""crop_size": 336,"#, "`embd_layer.image_embd_layer.crop_size` of 336"),
            ("", r#""hd_transform_order": "glb_sub","#, "hd_transform_order`"),
            ("", r#""projection_cls": "linear","#, "projection_cls`"),
            (r#""img_processor": {"layer_idx": -1},"#, "", "`img_processor.layer_idx`"),
        ] {
            let error = own(keys, images).unwrap_err();
            assert!(error.contains(expected), "{keys} {images}: {error}");
        }
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        for (vision, expected) in [
            (r#""crop_size": 336,"#, "`vision_config.crop_size` of 336"),
            (r#""crop_size": 462, "image_size": 462,"#, "an even number of them"),
            (r#""feature_layer": 0,"#, "`vision_config.feature_layer`"),
            (r#""feature_layer": -29,"#, "`vision_config.feature_layer`"),
            (r#""feature_layer": "last","#, "`vision_config.feature_layer`"),
            (r#""image_token_id": 200064,"#, "`vision_config.image_token_id` of 200064"),
            (r#""model_type": "siglip_vision_model","#, "`vision_config.model_type`"),
            (r#""num_channels": 1,"#, "`vision_config.num_channels`"),
        ] {
            let error = specs(vision).unwrap_err();
            assert!(error.contains(expected), "{vision}: {error}");
        }
    }
}
