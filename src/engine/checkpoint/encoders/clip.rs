//! CLIP: a causal tower of texts and one of images, whose vectors are of one space.

use serde_json::{Value, json};

use crate::families::llava;
use crate::families::vision::{self, PlainLayer, VisionKeys};
use crate::hf_config::{HfConfig, Section};
use crate::spec::{
    ConnectorSpec, ConnectorStep, EncoderSpec, HeadLayer, HeadSpec, LearnedPositions, LinearSpec,
    NormSpec, TextEnd, TowerSpec,
};
use vllm_batch_base::EngineError;

/// Of the loss of training.
const LOGIT_SCALE: &str = "logit_scale";

/// What no state of a text depends on.
const OF_IMAGES: &[&str] =
    &["vision_model.", "visual_projection.", "text_projection.", LOGIT_SCALE];

/// The tower of texts.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    let (root, text) = (config.root(), config.text_part());
    root.ignore(&["initializer_factor", "logit_scale_init_value"]);
    let defaults = text_defaults();
    text.assume(&defaults);
    let keys = text.root();
    keys.expect("model_type", "clip_text_model")?;
    keys.ignore(&["initializer_factor", "projection_dim", "tie_word_embeddings"]);
    let second = second(config, "text_config_dict", &keys, &defaults)?;
    let (hidden, num_positions) = (text.hidden_size()?, text.max_position_embeddings()?);
    let layer = PlainLayer {
        width: hidden,
        inner: text.intermediate_size()?,
        heads: text.equal_heads()?,
        eps: text.layer_norm_eps(1e-5)?,
        activation: text.activation()?,
    };
    let name = |part: &str| format!("text_model.{part}");
    let table = |part: &str, rows| LinearSpec::new(name(part), rows, hidden);
    let layers = layer.layers(&name("encoder.layers"), text.num_layers()?);
    let tokens = table("embeddings.token_embedding", text.vocab_size()?);
    let positions = table("embeddings.position_embedding", num_positions);
    let projection = LinearSpec::new("text_projection", projection_dim(&root)?, hidden);
    // Files from before 2023 have a wrong id, and transformers then takes the largest one.
    let ends_at = match second.as_ref().unwrap_or(&keys).optional_size("eos_token_id")? {
        Some(2) => TextEnd::Largest,
        id => TextEnd::First(id.unwrap_or(49_407) as u32),
    };
    Ok(EncoderSpec {
        positions: Some(LearnedPositions { table: positions, offset: 0 }),
        is_causal: true,
        final_norm: Some(NormSpec::layer(name("final_layer_norm"), hidden, layer.eps)),
        of_heads: OF_IMAGES,
        ends_at: Some(ends_at),
        projection: Some(HeadSpec { layers: vec![HeadLayer::new(projection)] }),
        ..EncoderSpec::new(num_positions, tokens, layers)
    })
}

/// The tower of images: the class token behind the last norm, in the space of both.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "clip_vision_model")?;
    keys.ignore(&["initializer_factor", "projection_dim", "tie_word_embeddings"]);
    second(config, "vision_config_dict", &keys, &vision_defaults())?;
    let vision = VisionKeys::read(config, llava::CLIP, 1)?;
    let VisionKeys { width, eps, num_layers, .. } = vision;
    let post_norm = NormSpec::layer("vision_model.post_layernorm", width, eps);
    let projection_dim = projection_dim(&config.root())?;
    let connector = ConnectorSpec {
        steps: vec![ConnectorStep::ClassToken, ConnectorStep::Norm(post_norm)],
        last: LinearSpec::new("visual_projection", projection_dim, width),
    };
    let tower = llava::clip("vision_model", vision, num_layers, connector);
    Ok(TowerSpec { unused: vec![LOGIT_SCALE.to_owned()], ..tower })
}

fn projection_dim(root: &Section<'_>) -> Result<usize, EngineError> {
    root.size_or("projection_dim", 512)
}

/// Defaults of `CLIPTextConfig`.
fn text_defaults() -> [(&'static str, Value); 8] {
    [
        ("hidden_act", json!("quick_gelu")),
        ("hidden_size", json!(512)),
        ("intermediate_size", json!(2048)),
        ("layer_norm_eps", json!(1e-5)),
        ("max_position_embeddings", json!(77)),
        ("num_attention_heads", json!(8)),
        ("num_hidden_layers", json!(12)),
        ("vocab_size", json!(49_408)),
    ]
}

/// Defaults of `CLIPVisionConfig`.
fn vision_defaults() -> [(&'static str, Value); 8] {
    [
        ("hidden_act", json!("quick_gelu")),
        ("hidden_size", json!(768)),
        ("image_size", json!(224)),
        ("intermediate_size", json!(3072)),
        ("layer_norm_eps", json!(1e-5)),
        ("num_attention_heads", json!(12)),
        ("num_hidden_layers", json!(12)),
        ("patch_size", json!(32)),
    ]
}

/// What early files say a second time. It counts in transformers, with its class's defaults, and
/// is refused where the config beside it says something else.
fn second<'a>(
    config: &'a HfConfig,
    key: &str,
    part: &Section<'_>,
    defaults: &[(&str, Value)],
) -> Result<Option<Section<'a>>, EngineError> {
    let Some(second) = config.root().section(key)? else { return Ok(None) };
    second.ignore(&["initializer_factor", "model_type", "projection_dim", "tie_word_embeddings"]);
    second.expect("num_channels", 3)?;
    let differs = |(key, default): &&(&str, Value)| {
        second.value(key).unwrap_or(default) != part.value(key).unwrap_or(default)
    };
    match defaults.iter().find(differs) {
        None => Ok(Some(second)),
        Some((other, _)) => Err(config.error(format!(
            "`{other}` of `{key}` is not that of the config beside it; help: leave out `{key}` in \
             a copy of the file if the other is right"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{encoder_spec, tower_spec};

    fn specs(top: &str, text: &str) -> Result<(EncoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["CLIPModel"], {top} "text_config": {{{text} "vocab_size": 60}},
            "vision_config": {{"patch_size": 16}}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let spec = encoder_spec(&config).map_err(|error| error.to_string())?;
        let tower = tower_spec(&config).map_err(|error| error.to_string())?;
        Ok((spec, tower.expect("a tower")))
    }

    #[test]
    fn sizes_are_those_of_the_file_or_of_the_classes() {
        let (spec, tower) = specs("", "").unwrap();
        assert_eq!((spec.max_model_len, spec.hidden_size(), spec.layers.len()), (77, 512, 12));
        assert_eq!((spec.ends_at, spec.is_causal), (Some(TextEnd::First(49_407)), true));
        assert_eq!(spec.projection.as_ref().and_then(HeadSpec::width), Some(512));
        assert_eq!((tower.width(), tower.connector.n(), tower.patch_size), (768, 512, 16));
        assert_eq!(tower.positions.as_ref().map(|positions| positions.side), Some(14));
        assert_eq!(specs("", r#""eos_token_id": 2,"#).unwrap().0.ends_at, Some(TextEnd::Largest));
        // 12 layers of 16 tensors each, and what is around them.
        assert_eq!((spec.tensors().len(), tower.tensors().len()), (12 * 16 + 4, 12 * 16 + 8));
    }

    #[test]
    fn what_early_files_say_twice_is_the_same() {
        let twice = r#""text_config_dict": {"vocab_size": 60, "hidden_size": 64},"#;
        assert!(specs(twice, r#""hidden_size": 64,"#).is_ok());
        for (top, text, expected) in [
            (twice, "", "`hidden_size` of `text_config_dict` is not that of the config beside it"),
            (r#""text_config_dict": {},"#, "", "`vocab_size` of `text_config_dict`"),
            (r#""vision_config_dict": {},"#, "", "`patch_size` of `vision_config_dict`"),
            (r#""text_config_dict": {"vocab_size": 60, "x": 1},"#, "", "text_config_dict.x"),
            ("", r#""model_type": "siglip_text_model","#, "`model_type`"),
        ] {
            let error = specs(top, text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
