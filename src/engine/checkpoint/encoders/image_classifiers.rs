//! Classifiers of images: a tower whose last product gives the classes. They read no texts, and
//! have no tokenizer.

use super::classifiers::labels;
use crate::families::BuildTower;
use crate::families::siglip::{self, SIGLIP};
use crate::families::vision::{self, LayerNames, VisionDefaults, VisionKeys};
use crate::hf_config::HfConfig;
use crate::spec::{
    ConnectorSpec, ConnectorStep, GridFit, GridPositions, ImageText, LinearSpec, NormSpec, TokenId,
    TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// A model class that has classes of images.
#[derive(Clone, Copy, Debug)]
pub struct ImageClassifier {
    /// Name in `architectures` of config.json.
    pub name: &'static str,
    /// Builder of its tower, which ends with the classifier.
    pub(super) tower: BuildTower,
}

/// Their classes, by name.
pub const IMAGE_CLASSIFIERS: &[ImageClassifier] = &[
    ImageClassifier { name: "SiglipForImageClassification", tower: siglip_tower },
    ImageClassifier { name: "ViTForImageClassification", tower: vit_tower },
];

/// The first of these classes that is one.
pub(super) fn find(names: &[&str]) -> Option<&'static ImageClassifier> {
    let known = |name: &&str| IMAGE_CLASSIFIERS.iter().find(|known| known.name == *name);
    names.iter().find_map(known)
}

/// Where an image is: no prompt has one.
const PLACE: (TokenId, ImageText) = (TokenId::Known(0), ImageText::Alone);

/// Defaults of `ViTConfig`.
const VIT: VisionDefaults = VisionDefaults {
    hidden_size: 768,
    intermediate_size: 3072,
    num_layers: 12,
    num_heads: 12,
    image_size: 224,
    patch_size: 16,
    layer_norm_eps: 1e-12,
    activation: Activation::Gelu,
};

/// Names of the parts of ViT's layers.
const VIT_NAMES: LayerNames = LayerNames {
    norms: ["layernorm_before", "layernorm_after"],
    qkv: &["attention.attention.query", "attention.attention.key", "attention.attention.value"],
    out: "attention.output.dense",
    up: "intermediate.dense",
    down: "output.dense",
};

/// ViT: the class token behind the last norm.
fn vit_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = config.root();
    keys.expect("qkv_bias", true)?;
    // Of a model that fills images in, and of a pooler that is not there.
    keys.ignore(&["encoder_stride", "pooler_act", "pooler_output_size"]);
    let vision = VisionKeys::of(config, Some(&keys), VIT, 1)?;
    let VisionKeys { width, num_layers, patch_size, eps, .. } = vision;
    let side = vision.side();
    let name = |part: &str| format!("vit.{part}");
    let patches = name("embeddings.patch_embeddings.projection");
    let patches = LinearSpec::of_patches(patches, width, patch_size).with_bias(true);
    // One of one: the tensor is (1, positions, width).
    let table = LinearSpec::new(name("embeddings.position_embeddings"), 1 + side * side, width);
    let norm = NormSpec::layer(name("layernorm"), width, eps);
    let steps = vec![ConnectorStep::ClassToken, ConnectorStep::Norm(norm)];
    let connector = ConnectorSpec { steps, last: classifier(config, width)? };
    let layer = vision.plain_layer();
    let layers = layer.named_layers(&name("encoder.layer"), num_layers, &VIT_NAMES);
    let (token, text) = PLACE;
    Ok(TowerSpec {
        class_token: Some((name("embeddings.cls_token"), vec![1, 1, width])),
        positions: Some(GridPositions {
            table: table.sliced(0, 1).as_parameters(),
            side,
            fit: GridFit::OwnAlone,
        }),
        unused: vec![name("pooler.")],
        ..TowerSpec::new(token, text, patch_size, patches, layers, connector)
    })
}

/// SigLIP: the mean of all patches behind the last norm, without the head that makes vectors.
fn siglip_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    const PREFIX: &str = "vision_model";
    config.root().ignore(&["initializer_factor"]);
    // Of the other tower, which is not there.
    config.ignore_text_part();
    let keys = vision::section(config)?;
    keys.expect("model_type", "siglip_vision_model")?;
    keys.ignore(&["vision_use_head"]);
    let vision = VisionKeys::read(config, SIGLIP, 1)?;
    let last = classifier(config, vision.width)?;
    let connector = ConnectorSpec { steps: vec![ConnectorStep::TileMean], last };
    let norm = NormSpec::layer(format!("{PREFIX}.post_layernorm"), vision.width, vision.eps);
    Ok(TowerSpec {
        final_norm: Some(norm),
        unused: vec![format!("{PREFIX}.head.")],
        ..siglip::tower_at(PREFIX, &vision, PLACE, connector)
    })
}

/// (classes, width)
fn classifier(config: &HfConfig, width: usize) -> Result<LinearSpec, EngineError> {
    Ok(LinearSpec::new("classifier", labels(config)?.len(), width).with_bias(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoders::{ClassActivation, ClassifierHead, classifier};
    use crate::{encoder_spec, tower_spec};

    fn tower(class: &str, keys: &str) -> Result<TowerSpec, String> {
        let text = format!(r#"{{"architectures": ["{class}"], {keys}}}"#);
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let classifier = classifier(&config, None).map_err(|error| error.to_string())?;
        let classifier = classifier.expect("a classifier");
        assert_eq!(classifier.head, ClassifierHead::Tower);
        assert_eq!(classifier.activation, ClassActivation::Softmax);
        let spec = encoder_spec(&config).map_err(|error| error.to_string())?;
        assert!(!spec.reads_texts && spec.tensors().is_empty());
        Ok(tower_spec(&config).map_err(|error| error.to_string())?.expect("a tower"))
    }

    #[test]
    fn sizes_are_those_of_the_file_or_of_the_classes() {
        let vit = tower("ViTForImageClassification", r#""num_labels": 7"#).unwrap();
        assert_eq!((vit.width(), vit.connector.n(), vit.patch_size), (768, 7, 16));
        assert_eq!(vit.tensors().len(), 12 * 16 + 8);
        let has = |name: &str, shape: &[usize]| {
            vit.tensors().iter().any(|(known, of)| known == name && of == shape)
        };
        assert!(has("vit.embeddings.position_embeddings", &[1, 197, 768]));
        assert!(has("vit.embeddings.cls_token", &[1, 1, 768]));
        assert!(has("vit.encoder.layer.11.attention.attention.query.weight", &[768, 768]));
        let keys = r#""num_labels": 3, "text_config": {"model_type": "siglip_text_model",
            "vocab_size": 9, "anything": 1}, "vision_config": {"patch_size": 32}"#;
        let siglip = tower("SiglipForImageClassification", keys).unwrap();
        assert_eq!((siglip.width(), siglip.connector.n(), siglip.patch_size), (768, 3, 32));
        assert_eq!(siglip.tensors().len(), 12 * 16 + 5 + 2);
    }

    #[test]
    fn other_towers_are_refused() {
        for (class, keys, expected) in [
            ("ViTForImageClassification", r#""qkv_bias": false"#, "`qkv_bias`"),
            ("ViTForImageClassification", r#""image_size": [224, 160]"#, "`image_size`"),
            ("ViTForImageClassification", r#""spatial": 3"#, "spatial"),
            ("SiglipForImageClassification", r#""num_labels": 2"#, "`vision_config`"),
        ] {
            let error = tower(class, keys).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
