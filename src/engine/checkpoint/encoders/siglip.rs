//! SigLIP and SigLIP 2: a tower of texts of one length, and one of images, whose vectors are of one
//! space. The second one's checkpoints of one resolution are of the first one's class.

use serde_json::{Value, json};

use crate::families::siglip::{self, SIGLIP};
use crate::families::vision::{self, PlainLayer, VisionKeys};
use crate::hf_config::HfConfig;
use crate::spec::{
    AttentionPool, ConnectorSpec, ConnectorStep, EncoderSpec, HeadLayer, HeadSpec, ImageText,
    LearnedPositions, LinearSpec, NormSpec, TextEnd, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;

/// Of the loss of training.
const OF_LOSS: [&str; 2] = ["logit_bias", "logit_scale"];

/// What the names of the tower of images' tensors begin with.
const PREFIX: &str = "vision_model";

/// What no state of a text depends on.
const OF_IMAGES: &[&str] = &["vision_model.", "text_model.head.", OF_LOSS[0], OF_LOSS[1]];

/// Defaults of `SiglipTextConfig`.
fn defaults() -> [(&'static str, Value); 8] {
    [
        ("hidden_act", json!("gelu_pytorch_tanh")),
        ("hidden_size", json!(768)),
        ("intermediate_size", json!(3072)),
        ("layer_norm_eps", json!(1e-6)),
        ("max_position_embeddings", json!(64)),
        ("num_attention_heads", json!(12)),
        ("num_hidden_layers", json!(12)),
        ("vocab_size", json!(32_000)),
    ]
}

/// The tower of texts, all of whose tokens see each other, those that fill a text up too.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    texts(config, tower(config)?, "siglip_text_model")
}

/// The same of the second one.
pub(super) fn second_spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    texts(config, second_tower(config)?, "siglip2_text_model")
}

fn texts(
    config: &HfConfig,
    tower: TowerSpec,
    model_type: &'static str,
) -> Result<EncoderSpec, EngineError> {
    let width_of_images = tower.connector.n();
    config.root().ignore(&["initializer_factor"]);
    let text = config.text_part();
    text.assume(&defaults());
    let keys = text.root();
    keys.expect("model_type", model_type)?;
    let (hidden, num_positions) = (text.hidden_size()?, text.max_position_embeddings()?);
    let layer = PlainLayer {
        width: hidden,
        inner: text.intermediate_size()?,
        heads: text.equal_heads()?,
        eps: text.layer_norm_eps(1e-6)?,
        activation: text.activation()?,
    };
    let name = |part: &str| format!("text_model.{part}");
    let table = |part: &str, rows| LinearSpec::new(name(part), rows, hidden);
    let layers = layer.layers(&name("encoder.layers"), text.num_layers()?);
    let tokens = table("embeddings.token_embedding", text.vocab_size()?);
    let positions = table("embeddings.position_embedding", num_positions);
    let width = keys.size_or("projection_size", hidden)?;
    if width != width_of_images {
        return Err(config.error(format!(
            "vectors of texts have {width} values, and those of images {width_of_images}"
        )));
    }
    let head = LinearSpec::new(name("head"), width, hidden).with_bias(true);
    Ok(EncoderSpec {
        positions: Some(LearnedPositions { table: positions, offset: 0 }),
        final_norm: Some(NormSpec::layer(name("final_layer_norm"), hidden, layer.eps)),
        of_heads: OF_IMAGES,
        ends_at: Some(TextEnd::Filled(num_positions)),
        projection: Some(HeadSpec { layers: vec![HeadLayer::new(head)] }),
        ..EncoderSpec::new(num_positions, tokens, layers)
    })
}

/// The tower of images, whose head makes one vector of what a learned query finds.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "siglip_vision_model")?;
    let vision = VisionKeys::read(config, SIGLIP, 1)?;
    pooled(config, &vision)
}

/// The same of the second one, which has images of any shape.
pub(super) fn second_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let (vision, side) = siglip::second_keys(config, 1)?;
    Ok(siglip::second(PREFIX, pooled(config, &vision)?, side))
}

fn pooled(config: &HfConfig, vision: &VisionKeys) -> Result<TowerSpec, EngineError> {
    vision::section(config)?.expect("vision_use_head", true)?;
    let place = (TokenId::Known(0), ImageText::Alone);
    let post_norm = format!("{PREFIX}.post_layernorm");
    Ok(TowerSpec {
        final_norm: Some(NormSpec::layer(post_norm, vision.width, vision.eps)),
        unused: OF_LOSS.map(str::to_owned).to_vec(),
        ..siglip::tower_at(PREFIX, vision, place, pooling_head(vision))
    })
}

/// Attention of one query over all patches, and an MLP behind it.
fn pooling_head(vision: &VisionKeys) -> ConnectorSpec {
    let VisionKeys { width, inner, heads, eps, activation, .. } = *vision;
    let name = |part: &str| format!("{PREFIX}.head.{part}");
    let linear = |part, n, k| LinearSpec::new(name(part), n, k).with_bias(true);
    ConnectorSpec {
        steps: vec![
            ConnectorStep::AttentionPool(AttentionPool {
                query: (name("probe"), vec![1, 1, width]),
                qkv: linear("attention.in_proj", 3 * width, width).in_its_module(),
                num_heads: heads.num_heads,
            }),
            ConnectorStep::Linear(linear("attention.out_proj", width, width)),
            ConnectorStep::Keep,
            ConnectorStep::Norm(NormSpec::layer(name("layernorm"), width, eps)),
            ConnectorStep::Linear(linear("mlp.fc1", inner, width)),
            ConnectorStep::Activate(activation),
        ],
        last: linear("mlp.fc2", width, inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::GridFit;
    use crate::{encoder_spec, tower_spec};

    fn specs(text: &str, vision: &str) -> Result<(EncoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["SiglipModel"], "initializer_factor": 1.0,
            "text_config": {{{text} "model_type": "siglip_text_model"}},
            "vision_config": {{{vision} "model_type": "siglip_vision_model"}}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let spec = encoder_spec(&config).map_err(|error| error.to_string())?;
        let tower = tower_spec(&config).map_err(|error| error.to_string())?;
        Ok((spec, tower.expect("a tower")))
    }

    #[test]
    fn sizes_are_those_of_the_file_or_of_the_classes() {
        let (spec, tower) = specs("", "").unwrap();
        assert_eq!((spec.max_model_len, spec.hidden_size(), spec.layers.len()), (64, 768, 12));
        assert_eq!((spec.ends_at, spec.is_causal), (Some(TextEnd::Filled(64)), false));
        assert_eq!((tower.width(), tower.connector.n(), tower.patch_size), (768, 768, 16));
        assert_eq!(tower.positions.as_ref().map(|positions| positions.side), Some(14));
        // 12 layers of 16 tensors each, and what is around them.
        assert_eq!((spec.tensors().len(), tower.tensors().len()), (12 * 16 + 4, 12 * 16 + 5 + 11));
        let tensors = tower.tensors();
        let has = |name: &str, shape: &[usize]| {
            tensors.iter().any(|(known, of)| known == name && of == shape)
        };
        assert!(has("vision_model.head.attention.in_proj_weight", &[3 * 768, 768]));
        assert!(has("vision_model.head.attention.in_proj_bias", &[3 * 768]));
        assert!(has("vision_model.head.probe", &[1, 1, 768]));
    }

    #[test]
    fn the_second_one_has_images_of_any_shape() {
        let specs = |vision: &str| {
            let text = format!(
                r#"{{"architectures": ["Siglip2Model"],
                "text_config": {{"model_type": "siglip2_text_model"}},
                "vision_config": {{{vision} "model_type": "siglip2_vision_model"}}}}"#
            );
            let config = HfConfig::parse(&text, "config.json").unwrap();
            encoder_spec(&config).and_then(|_| tower_spec(&config)).map(Option::unwrap)
        };
        let tower = specs("").unwrap();
        let positions = tower.positions.as_ref().unwrap();
        assert_eq!((positions.side, positions.fit), (16, GridFit::Linear));
        assert_eq!((tower.patches.k, tower.tensors().len()), (768, 12 * 16 + 5 + 11));
        let error = specs(r#""num_patches": 255,"#).unwrap_err().to_string();
        assert!(error.contains("`num_patches` of 255 is no square"), "{error}");
    }

    #[test]
    fn other_towers_are_refused() {
        for (text, vision, expected) in [
            (r#""projection_size": 24,"#, "", "vectors of texts have 24 values"),
            ("", r#""vision_use_head": false,"#, "`vision_config.vision_use_head`"),
            ("", r#""spatial": 3,"#, "vision_config.spatial"),
        ] {
            let error = specs(text, vision).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
