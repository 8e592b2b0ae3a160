//! GLM-4.1V, GLM-4.6V-Flash: GLM-4-0414 with positions on three axes. GLM-4.5V, GLM-4.6V: GLM-4.5
//! so. Their tower is of Qwen2.5-VL's kind, with learned positions besides and without windows.

use serde_json::json;

use super::qwen_vision::{self, QwenVision, name};
use super::{BuildSpec, glm4, glm4_moe};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    ActivationSpec, AxisFrequency, BlockNorms, ConnectorSpec, ConnectorStep, DecoderSpec, GridFit,
    GridPositions, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Epsilon of the merger's norm, `LayerNorm` of torch.
const EPS: f32 = 1e-5;

/// The text part of GLM-4.1V, whose keys are at the top of early files.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let text = config.text_part();
    let keys = text.root();
    let head_dim = text.hidden_size()? / keys.size("num_attention_heads")?;
    // Its class has no keys for a width of heads, nor for the lack of biases.
    text.assume(&[
        ("head_dim", json!(head_dim)),
        ("num_key_value_heads", json!(2)),
        ("rms_norm_eps", json!(1e-5)),
    ]);
    keys.expect("head_dim", head_dim)?;
    keys.expect("attention_bias", true)?;
    with_tower(config, glm4::spec)
}

/// The text part of GLM-4.5V.
pub(super) fn spec_with_experts(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let text = config.text_part();
    text.assume(&[("attention_bias", json!(true))]);
    // Its class has no such norms.
    text.root().expect("use_qk_norm", false)?;
    with_tower(config, glm4_moe::spec)
}

fn with_tower(config: &HfConfig, build: BuildSpec) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    for keys in [config.root(), config.text_part().root()] {
        keys.ignore(&[
            "image_end_token_id",
            "image_start_token_id",
            "video_end_token_id",
            "video_start_token_id",
        ]);
    }
    qwen_vision::text_part(config, build, &AxisFrequency::sections([8, 12, 12], false))
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let vision = QwenVision::read(config, ("hidden_size", 1536), [14, 24, 12])?;
    let keys = &vision.keys;
    let activation = match keys.text("hidden_act")? {
        None => Activation::Silu,
        Some(name) => config.activation_named(name)?,
    };
    let has_biases = keys.flag("attention_bias")?.unwrap_or(false);
    let eps = keys.number("rms_norm_eps")?.map_or(EPS, |eps| eps as f32);
    let hidden_size = keys.size_or("out_hidden_size", 4096)?;
    let width = vision.width;
    let layer = |index: usize| {
        let prefix = name(&format!("blocks.{index}"));
        let part = |part: &str| format!("{prefix}.{part}");
        let norm = |name| BlockNorms::before(NormSpec::rms(part(name), width, eps));
        let mut attention = vision.attention(&prefix, norm("norm1"));
        (attention.qkv.bias, attention.out.bias) = (has_biases, false);
        let up = ["mlp.gate_proj", "mlp.up_proj"].map(|name| (part(name), hidden_size));
        let mlp = MlpSpec {
            norms: norm("norm2"),
            form: MlpForm::Gated,
            activation: ActivationSpec::Known(activation),
            up: LinearSpec::stacked(up, width),
            down: LinearSpec::new(part("mlp.down_proj"), width, hidden_size),
        };
        LayerSpec::new(attention, mlp)
    };
    let layers = (0..vision.num_layers).map(layer).collect();
    let connector = merger(&vision, hidden_size, activation)?;
    let norm = |part| Some(NormSpec::rms(name(part), width, eps));
    let tower = vision.tower(config, layers, connector)?;
    Ok(TowerSpec {
        patches: tower.patches.with_bias(true),
        patch_norm: norm("post_conv_layernorm"),
        positions: Some(positions(config, &vision)?),
        final_norm: norm("post_layernorm"),
        ..tower
    })
}

/// A convolution over the patches of a token, and an MLP with a gate.
fn merger(
    vision: &QwenVision<'_>,
    hidden_size: usize,
    activation: Activation,
) -> Result<ConnectorSpec, EngineError> {
    // All files have it, and early ones have that of the text part at the top.
    let inner = vision.keys.size("intermediate_size")?;
    let part = |part: &str| name(&format!("merger.{part}"));
    let merged = vision.width * vision.merge_size * vision.merge_size;
    let convolution = LinearSpec::new(name("downsample"), hidden_size, merged).with_bias(true);
    let norm = NormSpec::layer(part("post_projection_norm"), hidden_size, EPS);
    let up = ["gate_proj", "up_proj"].map(|name| (part(name), inner));
    Ok(ConnectorSpec {
        steps: vec![
            ConnectorStep::Merge,
            ConnectorStep::Linear(convolution.of_squares(vision.merge_size)),
            ConnectorStep::Linear(LinearSpec::new(part("proj"), hidden_size, hidden_size)),
            ConnectorStep::Norm(norm),
            ConnectorStep::Activate(Activation::Gelu),
            ConnectorStep::Linear(LinearSpec::stacked(up, hidden_size)),
            ConnectorStep::Gate(activation),
        ],
        last: LinearSpec::new(part("down_proj"), hidden_size, inner),
    })
}

fn positions(config: &HfConfig, vision: &QwenVision<'_>) -> Result<GridPositions, EngineError> {
    let side = vision.keys.size_or("image_size", 336)? / vision.patch_size;
    if side == 0 {
        return Err(config.error("`vision_config.image_size` has no patch"));
    }
    limits::check_tower_positions(side).map_err(|text| config.error(text))?;
    let table = LinearSpec::new(name("embeddings.position_embedding"), side * side, vision.width);
    Ok(GridPositions { table, side, fit: GridFit::Cubic })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decoder_spec, tower_spec};

    fn specs(text: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["Glm4vForConditionalGeneration"], "image_token_id": 8,
            "vision_config": {{{vision} "hidden_size": 24, "num_heads": 3, "out_hidden_size": 32,
            "intermediate_size": 48}},
            "text_config": {{"hidden_size": 32, "intermediate_size": 64, {text}
            "num_attention_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 64,
            "rope_scaling": {{"rope_type": "default", "mrope_section": [2, 1, 1]}},
            "partial_rotary_factor": 0.5, "vocab_size": 9}}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let decoder = decoder_spec(&config).map_err(|error| error.to_string())?;
        let tower = tower_spec(&config).map_err(|error| error.to_string())?;
        Ok((decoder, tower.expect("a tower")))
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs("", "").unwrap();
        let axes: Vec<_> = decoder.ropes[0].axes.iter().map(|pair| pair.axis).collect();
        assert_eq!((axes, decoder.ropes[0].rotary_dim), (vec![0, 0, 1, 2], 8));
        assert_eq!(decoder.heads().num_kv_heads, 2);
        assert_eq!((tower.patch_size, tower.layers.len()), (14, 24));
        assert_eq!(tower.positions.as_ref().unwrap().side, 24);
        let tensors = tower.tensors();
        let shape = |name: &str| {
            let found = tensors.iter().find(|(found, _)| found == name);
            found.unwrap_or_else(|| panic!("{name}")).1.clone()
        };
        assert_eq!(shape("model.visual.patch_embed.proj.bias"), [24]);
        assert_eq!(shape("model.visual.embeddings.position_embedding.weight"), [576, 24]);
        assert_eq!(shape("model.visual.downsample.weight"), [32, 24, 2, 2]);
        assert_eq!(shape("model.visual.blocks.23.mlp.up_proj.weight"), [32, 24]);
        assert_eq!(shape("model.visual.merger.up_proj.weight"), [48, 32]);
        assert_eq!(tensors.len(), 2 + 1 + 1 + 24 * 7 + 1 + 2 + 1 + 2 + 3);
        let (_, tower) = specs("", r#""attention_bias": true,"#).unwrap();
        assert_eq!(tower.tensors().len(), tensors.len() + 24);
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        for (text, vision, expected) in [
            (r#""head_dim": 8,"#, "", "`head_dim`"),
            (r#""attention_bias": false,"#, "", "`attention_bias`"),
            ("", r#""image_size": 13,"#, "has no patch"),
            ("", r#""image_size": 4000000,"#, "positions of a vision tower"),
        ] {
            let error = specs(text, vision).unwrap_err();
            assert!(error.contains(expected), "{text} {vision}: {error}");
        }
    }
}
