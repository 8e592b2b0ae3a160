//! LLaVA 1.5: a text model, and CLIP or SigLIP up to one of its last layers, or several beside each
//! other, whose patches go through an MLP. LLaVA-NeXT (1.6): the same with tiles. LLaVA-OneVision:
//! more of them, whose picture is made smaller. ViP-LLaVA: LLaVA with a norm of several states.

use serde_json::{Value, json};

use super::pixtral;
use super::siglip::{self, SIGLIP};
use super::vision::{self, IMAGE_TENSORS, VisionDefaults, VisionKeys, image_token_id, text_part};
use crate::hf_config::{HfConfig, Section};
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, GridFit, GridPositions, ImageText, LinearSpec,
    NormSpec, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Defaults of `CLIPVisionConfig`.
pub(crate) const CLIP: VisionDefaults = VisionDefaults {
    hidden_size: 768,
    intermediate_size: 3072,
    num_layers: 12,
    num_heads: 12,
    image_size: 224,
    patch_size: 32,
    layer_norm_eps: 1e-5,
    activation: Activation::QuickGelu,
};

/// The text part, with the defaults of `LlamaConfig`, which published files lack.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let text = config.text_part();
    assume_defaults(text, "llama")?;
    // What it is made of.
    text.root().ignore(&["is_composition"]);
    // Its keys are this file's too.
    tower(config)?;
    // Of training; tokens of an image, which are counted.
    config.root().ignore(&["ignore_index", "image_seq_length"]);
    text_part(config, "llama", IMAGE_TENSORS)
}

/// Defaults of classes of texts, which some published files lack.
pub(super) fn assume_defaults(text: &HfConfig, default: &str) -> Result<(), EngineError> {
    let common = [
        ("hidden_size", json!(4096)),
        ("num_hidden_layers", json!(32)),
        ("num_attention_heads", json!(32)),
    ];
    let own = match text.root().text("model_type")?.unwrap_or(default) {
        "llama" | "granite" => {
            vec![
                ("intermediate_size", json!(11_008)),
                ("max_position_embeddings", json!(2048)),
                ("vocab_size", json!(32_000)),
            ]
        }
        "mistral" => vec![
            ("intermediate_size", json!(14_336)),
            ("max_position_embeddings", json!(131_072)),
            ("num_key_value_heads", json!(8)),
            ("sliding_window", json!(4096)),
            ("vocab_size", json!(32_000)),
        ],
        "qwen2" => vec![
            ("intermediate_size", json!(22_016)),
            ("max_position_embeddings", json!(32_768)),
            ("num_key_value_heads", json!(32)),
            ("vocab_size", json!(151_936)),
        ],
        _ => return Ok(()),
    };
    text.assume(&[&common[..], &own[..]].concat());
    Ok(())
}

/// Prefixes of LLaVA-NeXT's tensors, for those who run the model for text alone.
const NEXT_TENSORS: &[&str] = &[
    "image_newline",
    "model.image_newline",
    "model.multi_modal_projector.",
    "model.vision_tower.",
    "multi_modal_projector.",
    "vision_tower.",
];

/// The text part of LLaVA-NeXT, with the defaults of its class, which some published files lack.
pub(super) fn next_spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume_defaults(config.text_part(), "llama")?;
    // Its keys are this file's too.
    next_tower(config)?;
    spec_of_tiles(config, "llama")
}

/// The text part, of this family if the file names none.
fn spec_of_tiles(config: &HfConfig, default: &str) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("use_image_newline_parameter", true)?;
    // Of training; what the image processor's own file has; tokens of a tile, which are counted.
    root.ignore(&["ignore_index", "image_grid_pinpoints", "image_seq_length"]);
    text_part(config, default, NEXT_TENSORS)
}

/// The tower of LLaVA-NeXT.
pub(super) fn next_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let newline = vec![config.text_part().hidden_size()?];
    Ok(TowerSpec { newline: Some(("model.image_newline".to_owned(), newline)), ..tower(config)? })
}

/// The text part of LLaVA-OneVision.
pub(super) fn onevision_spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume_defaults(config.text_part(), "qwen2")?;
    // Its keys are this file's too.
    onevision_tower(config)?;
    // Of videos, which no row has; where the text part ties, its class does.
    config.root().ignore(&["tie_word_embeddings", "video_token_index"]);
    spec_of_tiles(config, "qwen2")
}

/// The tower of LLaVA-OneVision.
pub(super) fn onevision_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    config.assume(&[
        ("image_token_index", json!(151_646)),
        ("vision_aspect_ratio", json!("anyres_max_9")),
        ("vision_feature_layer", json!(-1)),
        ("vision_feature_select_strategy", json!("full")),
    ]);
    let most = config.root().text("vision_aspect_ratio")?.unwrap_or_default();
    let max_tiles = most.strip_prefix("anyres_max_").and_then(|num| num.parse().ok());
    match max_tiles.filter(|num| (1..=MAX_SHOWN_TILES).contains(num)) {
        Some(num) => Ok(TowerSpec { max_tiles: Some(num), ..next_tower(config)? }),
        None => Err(config.error(format!(
            "`vision_aspect_ratio` of `{most}` is not supported; anyres_max_9 is, also with \
             another number of tiles"
        ))),
    }
}

/// ViP-LLaVA, of Llama.
pub(super) fn vip_spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let text = config.text_part();
    assume_defaults(text, "llama")?;
    // Its keys are this file's too.
    vip_tower(config)?;
    // Of training; tokens of an image, which are counted.
    config.root().ignore(&["ignore_index", "image_seq_length"]);
    text_part(config, "llama", IMAGE_TENSORS)
}

/// The tower of ViP-LLaVA.
pub(super) fn vip_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    // Its name in published files.
    let layers = root.value("vision_feature_layers").cloned();
    config.assume(&[
        ("vision_feature_layer", layers.unwrap_or(json!([-2, -5, -8, -11, 6]))),
        ("vision_feature_select_strategy", json!("default")),
    ]);
    let mut tower = tower(config)?;
    if tower.class_token.is_none() {
        return Err(config.error("a tower without a class token is not supported"));
    }
    let eps = root.number("projector_layernorm_eps")?.unwrap_or(1e-5) as f32;
    let width = tower.width() * tower.num_states();
    let norm = NormSpec::layer(format!("{PROJECTOR}.projector_layernorm"), width, eps);
    tower.connector.steps.insert(0, ConnectorStep::Norm(norm));
    Ok(tower)
}

/// Tiles that a picture may have tokens of, once it is made smaller.
const MAX_SHOWN_TILES: usize = 1 << 10;

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    // Of CLIP's other half, and of training.
    keys.ignore(&["initializer_factor", "projection_dim", "vocab_size"]);
    match keys.text("model_type")? {
        Some("pixtral") => pixtral::tower(config),
        Some("siglip_vision_model") => siglip_tower(config, &keys),
        _ => {
            keys.expect("model_type", "clip_vision_model")?;
            clip_tower(config)
        }
    }
}

/// CLIP, but its class token.
fn clip_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    config.root().expect("vision_feature_select_strategy", "default")?;
    let vision = VisionKeys::read(config, CLIP, 1)?;
    let VisionKeys { width, num_layers, .. } = vision;
    let features = FeatureLayers::read(config, num_layers)?;
    let connector = projector(config, width * features.num_states())?;
    Ok(TowerSpec {
        image_token_id: image_token_id(config, "image_token_index", 32_000)?,
        text: ImageText::Bare,
        unused: unused(features.num_used..num_layers),
        states: features.states,
        ..clip("model.vision_tower.vision_model", vision, features.num_used, connector)
    })
}

/// CLIP's tower up to one of its layers, whose tensors have this prefix, and no place in prompts.
pub(crate) fn clip(
    prefix: &str,
    vision: VisionKeys,
    num_used: usize,
    connector: ConnectorSpec,
) -> TowerSpec {
    let VisionKeys { patch_size, width, eps, .. } = vision;
    let side = vision.side();
    let name = |part: &str| format!("{prefix}.{part}");
    let norm = |part| NormSpec::layer(name(part), width, eps);
    let positions = name("embeddings.position_embedding");
    let patches = LinearSpec::of_patches(name("embeddings.patch_embedding"), width, patch_size);
    let layers = vision.layers(&name("encoder.layers"), num_used);
    let (image_token_id, text) = (TokenId::Known(0), ImageText::Alone);
    TowerSpec {
        class_token: Some((name("embeddings.class_embedding"), vec![width])),
        positions: Some(GridPositions {
            table: LinearSpec::new(positions, 1 + side * side, width),
            side,
            fit: GridFit::OwnAlone,
        }),
        embed_norm: Some(norm("pre_layrnorm")),
        ..TowerSpec::new(image_token_id, text, patch_size, patches, layers, connector)
    }
}

/// SigLIP, all of whose patches are tokens.
fn siglip_tower(config: &HfConfig, keys: &Section<'_>) -> Result<TowerSpec, EngineError> {
    if config.root().text("vision_feature_select_strategy")? != Some("full") {
        let text = "`vision_feature_select_strategy` should be \"full\": SigLIP has no class token";
        return Err(config.error(text));
    }
    // The head is never used, whether it is there or not.
    keys.ignore(&["vision_use_head"]);
    let vision = VisionKeys::read(config, SIGLIP, 1)?;
    let features = FeatureLayers::read(config, vision.num_layers)?;
    let connector = projector(config, vision.width * features.num_states())?;
    let image_token_id = image_token_id(config, "image_token_index", 32_000)?;
    let mut tower = siglip::tower(&vision, (image_token_id, ImageText::Bare), connector);
    tower.layers.truncate(features.num_used);
    tower.unused.extend(unused(features.num_used..vision.num_layers));
    Ok(TowerSpec { states: features.states, ..tower })
}

/// What the names of its tensors begin with.
pub(super) const PROJECTOR: &str = "model.multi_modal_projector";

/// The MLP of two layers that makes tokens of rows of this width.
fn projector(config: &HfConfig, width: usize) -> Result<ConnectorSpec, EngineError> {
    projector_at(PROJECTOR, config, width)
}

/// The same whose tensors have this prefix.
pub(super) fn projector_at(
    prefix: &str,
    config: &HfConfig,
    width: usize,
) -> Result<ConnectorSpec, EngineError> {
    let root = config.root();
    let has_biases = root.flag("multimodal_projector_bias")?.unwrap_or(true);
    let activation =
        config.activation_named_or(root.text("projector_hidden_act")?, Activation::Gelu)?;
    let hidden_size = config.text_part().hidden_size()?;
    let linear = |part: &str, k| {
        let name = format!("{prefix}.{part}");
        LinearSpec::new(name, hidden_size, k).with_bias(has_biases)
    };
    let first = ConnectorStep::Linear(linear("linear_1", width));
    let steps = vec![first, ConnectorStep::Activate(activation)];
    Ok(ConnectorSpec { steps, last: linear("linear_2", hidden_size) })
}

/// Layers of a tower that `vision_feature_layer` names.
pub(super) struct FeatureLayers {
    /// Layers that the last of them needs.
    pub num_used: usize,
    /// Layers before each, where it names several; in its order.
    pub states: Vec<usize>,
}

impl FeatureLayers {
    pub(super) fn read(config: &HfConfig, num_layers: usize) -> Result<Self, EngineError> {
        let read = |value: &Value| layers_before(value.as_i64()?, num_layers);
        let states = match config.root().value("vision_feature_layer") {
            None => read(&json!(-2)).map(|num| (vec![num], false)),
            Some(Value::Array(states)) => {
                states.iter().map(read).collect::<Option<_>>().map(|states| (states, true))
            }
            Some(state) => read(state).map(|num| (vec![num], false)),
        };
        let known = states.and_then(|(states, is_list): (Vec<usize>, bool)| {
            let num_used = states.iter().copied().max().filter(|num| *num > 0)?;
            Some(Self { num_used, states: if is_list { states } else { Vec::new() } })
        });
        known.filter(|known| known.states.len() <= num_layers + 1).ok_or_else(|| {
            config.error("`vision_feature_layer` should be one of the layers of `vision_config`, or a list of them")
        })
    }

    /// Rows of patches that stand beside each other.
    fn num_states(&self) -> usize {
        self.states.len().max(1)
    }
}

/// How many of so many layers there are before a state: the input of the first one is 0, and the
/// output of the last one -1.
pub(super) fn layers_before(state: i64, num_layers: usize) -> Option<usize> {
    let num_before = if state < 0 { num_layers as i64 + 1 + state } else { state };
    usize::try_from(num_before).ok().filter(|num| *num <= num_layers)
}

/// How many layers there are before the one state that `vision_feature_layer` names.
pub(super) fn num_used_layers(config: &HfConfig, num_layers: usize) -> Result<usize, EngineError> {
    let FeatureLayers { num_used, states } = FeatureLayers::read(config, num_layers)?;
    match states.is_empty() {
        true => Ok(num_used),
        false => Err(config.error("`vision_feature_layer` should be one layer")),
    }
}

/// Prefixes of the tensors of layers that no embedding depends on, and of the norm behind them.
pub(super) fn unused(layers: std::ops::Range<usize>) -> Vec<String> {
    let layers = layers.map(|index| format!("encoder.layers.{index}."));
    let parts = layers.chain(["post_layernorm.".to_owned()]);
    let towers = ["model.vision_tower", "vision_tower"];
    let towers = towers.map(|tower| [format!("{tower}."), format!("{tower}.vision_model.")]);
    let towers = towers.as_flattened();
    parts.flat_map(|part| towers.iter().map(move |tower| format!("{tower}{part}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::specs_of;
    use crate::{decoder_spec, tower_spec};
    use vllm_batch_base::layers::Reach;

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 8, {top}
            "vision_config": {{"hidden_size": 24, "num_hidden_layers": 5, {vision}
            "patch_size": 8, "image_size": 32}}, "text_config": {{"hidden_size": 32,
            "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn layers_up_to_the_state_that_is_asked_for_are_the_tower() {
        for (top, num_layers) in [
            ("", 4),
            (r#""vision_feature_layer": -1,"#, 5),
            (r#""vision_feature_layer": -5,"#, 1),
            (r#""vision_feature_layer": 3,"#, 3),
        ] {
            let (_, tower) = specs(top, "").unwrap();
            assert_eq!(tower.layers.len(), num_layers, "{top}");
            assert_eq!(tower.unused.len(), 4 * (5 - num_layers + 1), "{top}");
            let names = tower.tensors().into_iter().map(|(name, _)| name);
            let is_unused = |name: &String| tower.unused.iter().any(|part| name.starts_with(part));
            assert!(!names.into_iter().any(|name| is_unused(&name)), "{top}");
        }
        let (_, several) = specs(r#""vision_feature_layer": [-2, 1, 0],"#, "").unwrap();
        assert_eq!((several.states.as_slice(), several.layers.len()), (&[4, 1, 0][..], 4));
        assert_eq!(several.connector.linears().next().unwrap().k, 3 * 24);
        for top in ["-7", "0", "6", "[]", "[-2, 6]", "[0]", "\"last\""] {
            let error = specs(&format!("\"vision_feature_layer\": {top},"), "").unwrap_err();
            assert!(error.contains("`vision_feature_layer`"), "{error}");
        }
    }

    #[test]
    fn tiles_have_a_newline_and_texts_of_other_families() {
        let config = |text: &str| {
            let text = format!(
                r#"{{"architectures": ["LlavaNextForConditionalGeneration"],
                "image_token_index": 8, "image_grid_pinpoints": [[32, 64]],
                "vision_config": {{"hidden_size": 24, "num_hidden_layers": 5, "patch_size": 8,
                "image_size": 32}}, "text_config": {{{text} "hidden_size": 32,
                "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 9}}}}"#
            );
            HfConfig::parse(&text, "config.json").unwrap()
        };
        let mistral = config(r#""model_type": "mistral", "num_key_value_heads": 2,"#);
        let decoder = decoder_spec(&mistral).unwrap();
        let attention = decoder.attentions().next().unwrap();
        assert_eq!(attention.reach, Reach::Window(4096));
        let tower = tower_spec(&mistral).unwrap().unwrap();
        assert_eq!(tower.newline, Some(("model.image_newline".to_owned(), vec![32])));
        assert!(tower.tensors().iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
        let llama = decoder_spec(&config("")).unwrap();
        assert_eq!(llama.mlps().next().unwrap().down.k, 11_008);
        let error = decoder_spec(&config(r#""model_type": "opt","#)).unwrap_err().to_string();
        assert!(error.contains("a text part of type `opt`"), "{error}");
    }

    #[test]
    fn a_picture_has_tokens_of_so_many_tiles_as_its_name_says() {
        let tower = |more: &str| {
            let text = format!(
                r#"{{"architectures": ["LlavaOnevisionForConditionalGeneration"], {more}
                "image_token_index": 8, "vision_config": {{"model_type": "siglip_vision_model",
                "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 3,
                "patch_size": 8, "image_size": 32}}, "text_config": {{"hidden_size": 32,
                "num_key_value_heads": 4,
                "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 9}}}}"#
            );
            let config = HfConfig::parse(&text, "config.json").unwrap();
            decoder_spec(&config).and_then(|_| tower_spec(&config)).map(|tower| tower.unwrap())
        };
        let usual = tower("").unwrap();
        assert_eq!((usual.max_tiles, usual.layers.len()), (Some(9), 5));
        let two = tower(r#""vision_aspect_ratio": "anyres_max_2","#).unwrap();
        assert_eq!(two.max_tiles, Some(2));
        for name in ["pad", "anyres_max_", "anyres_max_0"] {
            let more = format!(r#""vision_aspect_ratio": "{name}","#);
            let error = tower(&more).unwrap_err().to_string();
            assert!(error.contains("`vision_aspect_ratio`"), "{error}");
        }
    }

    #[test]
    fn a_tower_has_the_defaults_of_clip() {
        let (decoder, tower) = specs("", "").unwrap();
        assert_eq!((decoder.max_model_len, decoder.mlps().next().unwrap().down.k), (2048, 11_008));
        assert_eq!((tower.heads().num_heads, tower.layers[0].inner_width()), (12, 3072));
        assert_eq!(
            (tower.positions.as_ref().unwrap().table.n(), tower.positions.as_ref().unwrap().side),
            (17, 4)
        );
        assert_eq!((tower.connector.n(), tower.merge_size), (32, 1));
        let activation = &tower.layers[0].mlp().unwrap().activation;
        assert_eq!(*activation, crate::spec::ActivationSpec::Known(Activation::QuickGelu));
        for (top, vision, expected) in [
            (
                r#""vision_feature_select_strategy": "full","#,
                "",
                "`vision_feature_select_strategy`",
            ),
            ("", r#""model_type": "siglip_vision_model","#, "SigLIP has no class token"),
            ("", r#""model_type": "vit","#, "`vision_config.model_type`"),
            ("", r#""num_attention_heads": 7,"#, "no 7 equal heads"),
        ] {
            let error = specs(top, vision).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
