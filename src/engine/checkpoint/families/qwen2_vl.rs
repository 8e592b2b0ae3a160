//! Qwen2-VL: Qwen2 with positions on three axes, and a tower with norms before both blocks, biases
//! everywhere and an MLP without a gate.

use super::qwen_vision::{self, QwenVision, name};
use super::qwen2;
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AxisFrequency, BlockNorms, ConnectorSpec, DecoderSpec, LayerSpec, LinearSpec,
    MlpForm, MlpSpec, NormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

const EPS: f32 = 1e-6;

/// The text part, whose keys are at the top of early files.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    text_part(config)
}

/// The text part beside any tower.
pub(super) fn text_part(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let axes = AxisFrequency::sections([16, 24, 24], false);
    qwen_vision::text_part(config, qwen2::spec, &axes)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let vision = QwenVision::read(config, ("embed_dim", 1280), [14, 32, 16])?;
    let ratio = vision.keys.size_or("mlp_ratio", 4)?;
    let hidden_size = vision.keys.size_or("hidden_size", 3584)?;
    let activation =
        config.activation_named_or(vision.keys.text("hidden_act")?, Activation::QuickGelu)?;
    let (width, inner) = (vision.width, vision.width.saturating_mul(ratio));
    let layer = |index: usize| {
        let prefix = name(&format!("blocks.{index}"));
        let norm =
            |part| BlockNorms::before(NormSpec::layer(format!("{prefix}.{part}"), width, EPS));
        let linear = |part, n, k| LinearSpec::new(format!("{prefix}.{part}"), n, k).with_bias(true);
        let mlp = MlpSpec {
            norms: norm("norm2"),
            form: MlpForm::Plain,
            activation: ActivationSpec::Known(activation),
            up: linear("mlp.fc1", inner, width),
            down: linear("mlp.fc2", width, inner),
        };
        LayerSpec::new(vision.attention(&prefix, norm("norm1")), mlp)
    };
    let layers = (0..vision.num_layers).map(layer).collect();
    let norm = NormSpec::layer(name("merger.ln_q"), width, EPS);
    vision.tower(config, layers, merger(&vision, norm, hidden_size))
}

/// What makes embeddings of patches that are normalized: an MLP of those of a token together.
pub(super) fn merger(vision: &QwenVision<'_>, norm: NormSpec, hidden_size: usize) -> ConnectorSpec {
    let merged = vision.width * vision.merge_size * vision.merge_size;
    let parts = ["merger.mlp.0", "merger.mlp.2"].map(name);
    qwen_vision::merger(norm, parts, (merged, hidden_size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["Qwen2VLForConditionalGeneration"], "image_token_id": 8, {top}
            "vision_config": {{"hidden_size": 32, {vision} "num_heads": 2, "embed_dim": 16}},
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
            "num_hidden_layers": 1, "max_position_embeddings": 64, "vocab_size": 9}}"#
        );
        specs_of(&text)
    }

    const MROPE: &str = r#""rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},"#;

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs(MROPE, "").unwrap();
        assert_eq!(decoder.ropes[0].axes, AxisFrequency::sections([2, 3, 3], false));
        assert_eq!((tower.patch_size, tower.merge_size, tower.num_frames()), (14, 2, 2));
        assert_eq!((tower.layers.len(), tower.heads().head_dim, tower.connector.n()), (32, 8, 32));
        let rope = tower.rope.as_ref().unwrap().frequencies(1);
        assert_eq!(rope.inv_freq, [1.0, 0.01, 1.0, 0.01]);
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.visual.patch_embed.proj.weight"), [16, 3, 2, 14, 14]);
        assert_eq!(shape("model.visual.blocks.31.mlp.fc1.weight"), [64, 16]);
        assert_eq!(shape("model.visual.merger.mlp.2.weight"), [32, 64]);
        assert_eq!(tensors.len(), 1 + 32 * 12 + 6);
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, expected) in [
            ("", "", "`mrope_section` is missing"),
            (MROPE, r#""in_chans": 1,"#, "`vision_config.in_chans`"),
            (MROPE, r#""temporal_patch_size": 17,"#, "frames of an image's patch of 17"),
            (MROPE, r#""spatial_merge_size": 0,"#, "`vision_config.spatial_merge_size` is 0"),
            (MROPE, r#""mlp_ratio": 4000000,"#, "intermediate size of a vision tower"),
            (MROPE, r#""rope_parameters": {"rope_type": "linear"},"#, "rope_type"),
            (MROPE, r#""qk_norm": true,"#, "`vision_config.qk_norm` is not known"),
        ] {
            let error = specs(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
        let other = MROPE.replace("3]", "4]");
        let error = specs(&other, "").unwrap_err();
        assert!(error.contains("should be three counts, 8 together"), "{error}");
    }
}
