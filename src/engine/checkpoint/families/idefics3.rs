//! Idefics 3 and SmolVLM: Llama, and a tower of SigLIP's shape whose patches are brought together
//! by squares (pixel shuffle) before one product makes tokens of them.

use super::llama;
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, GridPositions, ImageText, LayerSpec,
    LinearSpec, MlpForm, MlpSpec, NormSpec, QkvHeads, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Prefixes of the tower's tensors, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] =
    &["connector.", "model.connector.", "model.vision_model.", "vision_model."];

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    // Of training; what transformers 5.24 makes of a key that it drops; tokens of a tile, which
    // are counted.
    config.root().ignore(&["use_reentrant_checkpointing", "_pad_token_id", "image_seq_len"]);
    let text = config.text_part().root();
    text.expect("model_type", "llama")?;
    text.expect("qk_layer_norms", false)?;
    text.expect("use_resampler", false)?;
    // Of the first code, which had resamplers too: `scale_factor` counts. And of training.
    text.ignore(&["neftune_noise_alpha", "perceiver_config", "pixel_shuffle_factor"]);
    let mut spec = llama::spec(config.text_part())?;
    spec.embedding.of_images = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower, with the defaults of `Idefics3VisionConfig`.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let vision = root.section("vision_config")?;
    let size = |key: &str, default: usize| match &vision {
        Some(keys) if keys.value(key).is_some() => keys.size(key),
        _ => Ok(default),
    };
    let (patch_size, image_size) = (size("patch_size", 32)?, size("image_size", 224)?);
    let merge_size = root.optional_size("scale_factor")?.unwrap_or(2);
    let num_layers = size("num_hidden_layers", 12)?;
    limits::check_tower_grid(patch_size, image_size, merge_size)
        .and_then(|()| limits::check_tower_layers(num_layers))
        .map_err(|text| config.error(text))?;
    let vision = vision.as_ref();
    let layers = Layers {
        width: size("hidden_size", 1152)?,
        inner: size("intermediate_size", 3072)?,
        num_heads: size("num_attention_heads", 16)?,
        eps: vision.map_or(Ok(None), |keys| keys.number("layer_norm_eps"))?.unwrap_or(1e-6) as f32,
        activation: match vision.map_or(Ok(None), |keys| keys.text("hidden_act"))? {
            None => Activation::GeluTanh,
            Some(name) => config.activation_named(name)?,
        },
    };
    vision.map_or(Ok(()), other_keys)?;
    let side = image_size / patch_size;
    let width = layers.width;
    let name = |part: &str| format!("model.vision_model.{part}");
    let hidden_size = config.text_part().hidden_size()?;
    Ok(TowerSpec {
        patch_size,
        merge_size,
        image_token_id: image_token_id(config)?,
        text: ImageText::Tiles,
        patches: LinearSpec::of_patches(name("embeddings.patch_embedding"), width, patch_size),
        positions: GridPositions {
            table: LinearSpec::new(name("embeddings.position_embedding"), side * side, width),
            side,
        },
        layers: (0..num_layers)
            .map(|index| layers.layer(&name(&format!("encoder.layers.{index}"))))
            .collect::<Result<_, _>>()
            .map_err(|text| config.error(text))?,
        final_norm: Some(NormSpec::layer(name("post_layernorm"), width, layers.eps)),
        connector: LinearSpec::new(
            "model.connector.modality_projection.proj",
            hidden_size,
            merge_size * merge_size * width,
        ),
    })
}

/// Keys of `vision_config` that change no size.
fn other_keys(vision: &Section<'_>) -> Result<(), EngineError> {
    vision.expect("num_channels", 3)?;
    // The image processor's own file has its sizes, and patches have no words. Towers of both
    // kinds of SigLIP differ in sizes alone.
    vision.ignore(&["max_image_size", "size", "tie_word_embeddings", "use_base_siglip"]);
    Ok(())
}

/// The token that stands for one of an image's.
fn image_token_id(config: &HfConfig) -> Result<u32, EngineError> {
    let id = config.root().optional_size("image_token_id")?.unwrap_or(128_257);
    let vocab_size = config.text_part().vocab_size()?;
    match id < vocab_size {
        true => Ok(id as u32),
        false => Err(config.error(format!(
            "`image_token_id` of {id} is not in a vocabulary of {vocab_size} tokens"
        ))),
    }
}

/// What all layers have.
struct Layers {
    width: usize,
    inner: usize,
    num_heads: usize,
    eps: f32,
    activation: Activation,
}

impl Layers {
    /// A layer of SigLIP: norms before both blocks, biases everywhere, an MLP without a gate.
    fn layer(&self, prefix: &str) -> Result<LayerSpec, String> {
        let Self { width, inner, num_heads, eps, activation } = *self;
        if num_heads == 0 || !width.is_multiple_of(num_heads) {
            return Err(format!("a tower of width {width} has no {num_heads} equal heads"));
        }
        let heads = QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: width / num_heads };
        let name = |part: &str| format!("{prefix}.{part}");
        let linear = |part, n, k| LinearSpec::new(name(part), n, k).with_bias(true);
        let norm = |part| BlockNorms::before(NormSpec::layer(name(part), width, eps));
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| name(&format!("self_attn.{part}")));
        let qkv = LinearSpec::stacked(qkv.map(|part| (part, width)), width).with_bias(true);
        let out = linear("self_attn.out_proj", width, width);
        let mlp = MlpSpec {
            norms: norm("layer_norm2"),
            form: MlpForm::Plain,
            activation: ActivationSpec::Known(activation),
            up: linear("mlp.fc1", inner, width),
            down: linear("mlp.fc2", width, inner),
        };
        Ok(LayerSpec::new(AttentionSpec::new(norm("layer_norm1"), heads, qkv, out), mlp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decoder_spec, tower_spec};

    const VISION: &str = r#""hidden_size": 24, "num_attention_heads": 3"#;

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": 8, {top}
            "vision_config": {{{vision}}}, "text_config": {{"model_type": "llama",
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 1, "max_position_embeddings": 64, "vocab_size": 9}}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let decoder = decoder_spec(&config).map_err(|error| error.to_string())?;
        let tower = tower_spec(&config).map_err(|error| error.to_string())?;
        Ok((decoder, tower.expect("a tower")))
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs("", VISION).unwrap();
        assert_eq!((tower.patch_size, tower.merge_size, tower.positions.side), (32, 2, 7));
        assert_eq!((tower.layers.len(), tower.heads().head_dim), (12, 8));
        assert_eq!((tower.image_token_id, tower.connector.n()), (8, decoder.hidden_size()));
        let tensors = tower.tensors();
        let shape = |name: &str| {
            let found = tensors.iter().find(|(found, _)| found == name);
            found.unwrap_or_else(|| panic!("{name}")).1.clone()
        };
        assert_eq!(shape("model.vision_model.embeddings.patch_embedding.weight"), [24, 3, 32, 32]);
        assert_eq!(shape("model.vision_model.embeddings.position_embedding.weight"), [49, 24]);
        assert_eq!(shape("model.vision_model.encoder.layers.11.mlp.fc1.weight"), [3072, 24]);
        assert_eq!(shape("model.connector.modality_projection.proj.weight"), [32, 96]);
        assert_eq!(tensors.len(), 3 + 12 * 16 + 2 + 1);
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_images.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, expected) in [
            ("", r#""num_channels": 1"#, "`vision_config.num_channels`"),
            ("", r#""hidden_act": "quick_gelu""#, "`quick_gelu` is not supported"),
            ("", r#""image_size": [224, 224]"#, "`vision_config.image_size` should be a count"),
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
