//! GLM-4.1V, GLM-4.6V-Flash: GLM-4-0414 with positions on three axes. GLM-4.5V, GLM-4.6V: GLM-4.5
//! so. Their tower is of Qwen2.5-VL's kind, with learned positions besides and without windows.
//! That of GLM-OCR has none of these positions, and norms of q and k.

use serde_json::json;

use super::qwen_vision::{self, QwenVision, name};
use super::{BuildSpec, experts, glm4, glm4_moe};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    ActivationSpec, AxisFrequency, BlockNorms, ConnectorSpec, ConnectorStep, DecoderSpec, GridFit,
    GridPositions, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec, QkNormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
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

/// Either of these, as the text part says: the class of GLM-4.6V in transformers has both.
pub(super) fn spec_of_either(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // The tower's two types are one.
    match config.text_part().root().text("model_type")? {
        None | Some("glm4v_text") => spec(config),
        Some("glm4v_moe_text") => spec_with_experts(config),
        Some(other) => {
            Err(config.error(format!("a text part of type {} is not supported", quoted(other))))
        }
    }
}

/// The text part of GLM-OCR.
pub(super) fn ocr(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    ocr_tower(config)?;
    let text = config.text_part();
    let keys = text.root();
    // Its class has no key for biases, which it has not.
    text.assume(&[
        ("attention_bias", json!(false)),
        ("head_dim", json!(text.hidden_size()? / keys.size("num_attention_heads")?)),
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
    ]);
    keys.expect("attention_bias", false)?;
    let axes = AxisFrequency::sections([16, 24, 24], false);
    let mut spec = text_part(config, glm4::spec_of_whole_heads, &axes)?;
    let num_further = keys.optional_size("num_nextn_predict_layers")?.unwrap_or(0);
    let further = experts::further_layers(text, num_further)?;
    spec.output.of_further_tokens =
        further.iter().map(|name| name.replace("model.", "model.language_model.")).collect();
    Ok(spec)
}

fn with_tower(config: &HfConfig, build: BuildSpec) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    text_part(config, build, &AxisFrequency::sections([8, 12, 12], false))
}

fn text_part(
    config: &HfConfig,
    build: BuildSpec,
    axes: &[AxisFrequency],
) -> Result<DecoderSpec, EngineError> {
    for keys in [config.root(), config.text_part().root()] {
        keys.ignore(&[
            "image_end_token_id",
            "image_start_token_id",
            "video_end_token_id",
            "video_start_token_id",
        ]);
    }
    qwen_vision::text_part(config, build, axes)
}

/// What towers of both kinds have.
struct GlmVision<'a> {
    vision: QwenVision<'a>,
    activation: Activation,
    eps: f32,
    hidden_size: usize,
    has_biases: Biases,
    normalizes_heads: bool,
}

/// Products of a layer that have biases.
struct Biases {
    of_qkv: bool,
    elsewhere: bool,
}

impl<'a> GlmVision<'a> {
    /// Reads `vision_config`, whose width, heads and `out_hidden_size` have these defaults, as has
    /// the token of an image.
    fn read(
        config: &'a HfConfig,
        [width, num_heads, hidden_size, token]: [usize; 4],
    ) -> Result<Self, EngineError> {
        let mut vision = QwenVision::read(config, ("hidden_size", width), [14, 24, num_heads])?;
        vision.default_token = token;
        let keys = &vision.keys;
        let of_qkv = keys.flag("attention_bias")?.unwrap_or(false);
        Ok(Self {
            activation: config.activation_named_or(keys.text("hidden_act")?, Activation::Silu)?,
            eps: keys.number("rms_norm_eps")?.map_or(EPS, |eps| eps as f32),
            hidden_size: keys.size_or("out_hidden_size", hidden_size)?,
            has_biases: Biases { of_qkv, elsewhere: false },
            normalizes_heads: false,
            vision,
        })
    }

    fn layers(&self, inner: usize) -> Vec<LayerSpec> {
        (0..self.vision.num_layers).map(|index| self.layer(index, inner)).collect()
    }

    fn norm(&self, part: String) -> NormSpec {
        NormSpec::rms(part, self.vision.width, self.eps)
    }

    /// One of this inner width.
    fn layer(&self, index: usize, inner: usize) -> LayerSpec {
        let Self { vision, has_biases, .. } = self;
        let prefix = name(&format!("blocks.{index}"));
        let part = |part: &str| format!("{prefix}.{part}");
        let norm = |name| BlockNorms::before(self.norm(part(name)));
        let mut attention = vision.attention(&prefix, norm("norm1"));
        let of_heads = |name: &str| NormSpec::rms(part(name), attention.heads.head_dim, self.eps);
        attention.qk_norm = self
            .normalizes_heads
            .then(|| QkNormSpec::per_head(of_heads("attn.q_norm"), of_heads("attn.k_norm")));
        (attention.qkv.bias, attention.out.bias) = (has_biases.of_qkv, has_biases.elsewhere);
        let up = ["mlp.gate_proj", "mlp.up_proj"].map(|name| (part(name), inner));
        let down = LinearSpec::new(part("mlp.down_proj"), vision.width, inner);
        let mlp = MlpSpec {
            norms: norm("norm2"),
            form: MlpForm::Gated,
            activation: ActivationSpec::Known(self.activation),
            up: LinearSpec::stacked(up, vision.width).with_bias(has_biases.elsewhere),
            down: down.with_bias(has_biases.elsewhere),
        };
        LayerSpec::new(attention, mlp)
    }

    /// A tower of layers and a merger of these inner widths.
    fn tower(
        &self,
        config: &HfConfig,
        (inner, of_merger): (usize, usize),
    ) -> Result<TowerSpec, EngineError> {
        let tower = self.vision.tower(config, self.layers(inner), self.merger(of_merger))?;
        Ok(TowerSpec {
            patches: tower.patches.with_bias(true),
            final_norm: Some(self.norm(name("post_layernorm"))),
            ..tower
        })
    }

    /// A convolution over the patches of a token, and an MLP with a gate, of this inner width.
    fn merger(&self, inner: usize) -> ConnectorSpec {
        let (hidden_size, merge_size) = (self.hidden_size, self.vision.merge_size);
        let part = |part: &str| name(&format!("merger.{part}"));
        let merged = self.vision.width * merge_size * merge_size;
        let convolution = LinearSpec::new(name("downsample"), hidden_size, merged).with_bias(true);
        let norm = NormSpec::layer(part("post_projection_norm"), hidden_size, EPS);
        let up = ["gate_proj", "up_proj"].map(|name| (part(name), inner));
        ConnectorSpec {
            steps: vec![
                ConnectorStep::Merge,
                ConnectorStep::Linear(convolution.of_squares(merge_size)),
                ConnectorStep::Linear(LinearSpec::new(part("proj"), hidden_size, hidden_size)),
                ConnectorStep::Norm(norm),
                ConnectorStep::Activate(Activation::Gelu),
                ConnectorStep::Linear(LinearSpec::stacked(up, hidden_size)),
                ConnectorStep::Gate(self.activation),
            ],
            last: LinearSpec::new(part("down_proj"), hidden_size, inner),
        }
    }
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let glm = GlmVision::read(config, [1536, 12, 4096, 151_343])?;
    // All files have it, and early ones have that of the text part at the top.
    let inner = glm.vision.keys.size("intermediate_size")?;
    let tower = glm.tower(config, (glm.hidden_size, inner))?;
    Ok(TowerSpec {
        patch_norm: Some(glm.norm(name("post_conv_layernorm"))),
        positions: Some(positions(config, &glm.vision)?),
        ..tower
    })
}

/// The tower of GLM-OCR.
pub(super) fn ocr_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let glm = GlmVision::read(config, [1024, 16, 1536, 59_280])?;
    let keys = &glm.vision.keys;
    // It has no learned positions.
    keys.ignore(&["image_size"]);
    let inner = keys.size_or("intermediate_size", 4096)?;
    // Of all products of a layer.
    let has_bias = keys.flag("attention_bias")?.unwrap_or(true);
    let has_biases = Biases { of_qkv: has_bias, elsewhere: has_bias };
    let glm = GlmVision { has_biases, normalizes_heads: true, ..glm };
    // As wide as three colours of it.
    glm.tower(config, (inner, glm.hidden_size.saturating_mul(3)))
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
    use crate::families::tests_of_towers::{shape_of, specs_of};

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
        specs_of(&text)
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
        let shape = |name: &str| shape_of(&tensors, name);
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
