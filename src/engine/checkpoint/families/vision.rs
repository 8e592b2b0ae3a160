//! What towers of SigLIP's and CLIP's shape have in common: keys of `vision_config`, and layers
//! with norms before both blocks, biases everywhere, and an MLP without a gate.

use serde_json::Value;

use super::{
    BuildSpec, cohere, cohere2, gemma, gemma2, gemma3, glm4, gpt_oss, granite, internlm2, llama,
    ministral3, mistral, mistral4, mixtral, olmo2, olmo3, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe,
    smollm3, stablelm, starcoder2,
};
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, LayerSpec, LinearSpec, MlpForm,
    MlpSpec, NormSpec, QkvHeads, TokenId,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::Activation;

/// Prefixes of the tensors of a tower and its projector in most families, for those who run the
/// model for text alone.
pub(super) const IMAGE_TENSORS: &[&str] = &[
    "model.multi_modal_projector.",
    "model.vision_tower.",
    "multi_modal_projector.",
    "vision_tower.",
];

/// `vision_config`, which all files of a family have.
pub(crate) fn section(config: &HfConfig) -> Result<Section<'_>, EngineError> {
    let keys = config.root().section("vision_config")?;
    keys.ok_or_else(|| config.error("`vision_config` is missing"))
}

/// Defaults of keys that a `vision_config` lacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisionDefaults {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    pub image_size: usize,
    pub patch_size: usize,
    pub layer_norm_eps: f32,
    pub activation: Activation,
}

/// Sizes of a tower that are within limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisionKeys {
    pub width: usize,
    pub inner: usize,
    pub num_layers: usize,
    pub heads: QkvHeads,
    pub patch_size: usize,
    pub eps: f32,
    pub activation: Activation,
    image_size: usize,
}

/// Sizes of a layer with norms before both blocks, biases everywhere, and an MLP without a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainLayer {
    pub(crate) width: usize,
    pub(crate) inner: usize,
    pub(crate) heads: QkvHeads,
    pub(crate) eps: f32,
    pub(crate) activation: Activation,
}

/// Names of the parts of such a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNames {
    /// Before attention and before the MLP.
    pub(crate) norms: [&'static str; 2],
    /// One for each, or one for all.
    pub(crate) qkv: &'static [&'static str],
    pub(crate) out: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

/// Those of CLIP and SigLIP.
const CLIP_NAMES: LayerNames = LayerNames {
    norms: ["layer_norm1", "layer_norm2"],
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.out_proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
};

impl VisionKeys {
    /// Reads `vision_config`, or has the defaults of its class.
    ///
    /// `merge_size`: patches of the side of a token.
    pub(crate) fn read(
        config: &HfConfig,
        defaults: VisionDefaults,
        merge_size: usize,
    ) -> Result<Self, EngineError> {
        let keys = config.root().section("vision_config")?;
        Self::of(config, keys.as_ref(), defaults, merge_size)
    }

    /// The same of these keys, which may be all of a file.
    pub(crate) fn of(
        config: &HfConfig,
        keys: Option<&Section<'_>>,
        defaults: VisionDefaults,
        merge_size: usize,
    ) -> Result<Self, EngineError> {
        let size = |key: &str, default: usize| match keys {
            Some(keys) => keys.size_or(key, default),
            None => Ok(default),
        };
        let pixels = |key: &str, default: usize| match keys {
            Some(keys) => side_of_square(config, keys, key, default),
            None => Ok(default),
        };
        let width = size("hidden_size", defaults.hidden_size)?;
        let num_heads = size("num_attention_heads", defaults.num_heads)?;
        let eps = keys.map_or(Ok(None), |keys| keys.number("layer_norm_eps"))?;
        let vision = Self {
            width,
            num_layers: size("num_hidden_layers", defaults.num_layers)?,
            patch_size: pixels("patch_size", defaults.patch_size)?,
            eps: eps.map_or(defaults.layer_norm_eps, |eps| eps as f32),
            inner: size("intermediate_size", defaults.intermediate_size)?,
            image_size: pixels("image_size", defaults.image_size)?,
            heads: QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: width / num_heads },
            activation: config.activation_named_or(
                keys.map_or(Ok(None), |keys| keys.text("hidden_act"))?,
                defaults.activation,
            )?,
        };
        keys.map_or(Ok(()), |keys| keys.expect("num_channels", 3))?;
        limits::check_tower_grid(vision.patch_size, vision.image_size, merge_size)
            .and_then(|()| limits::check_tower_layers(vision.num_layers))
            .map_err(|text| config.error(text))?;
        match width.is_multiple_of(num_heads) {
            true => Ok(vision),
            false => {
                Err(config
                    .error(format!("a tower of width {width} has no {num_heads} equal heads")))
            }
        }
    }

    /// Patches of the side of an image that it was made for.
    pub(crate) fn side(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// The first layers, whose tensors have this name and a number.
    pub(super) fn layers(&self, name: &str, num_layers: usize) -> Vec<LayerSpec> {
        self.plain_layer().layers(name, num_layers)
    }

    /// Each of its layers.
    pub(crate) fn plain_layer(&self) -> PlainLayer {
        let Self { width, inner, heads, eps, activation, .. } = *self;
        PlainLayer { width, inner, heads, eps, activation }
    }
}

impl PlainLayer {
    /// So many, whose tensors have this name and a number.
    pub(crate) fn layers(&self, name: &str, num_layers: usize) -> Vec<LayerSpec> {
        self.named_layers(name, num_layers, &CLIP_NAMES)
    }

    /// The same where parts of a layer have other names.
    pub(crate) fn named_layers(
        &self,
        name: &str,
        num_layers: usize,
        parts: &LayerNames,
    ) -> Vec<LayerSpec> {
        (0..num_layers).map(|index| self.layer(&format!("{name}.{index}"), parts)).collect()
    }

    fn layer(&self, prefix: &str, parts: &LayerNames) -> LayerSpec {
        let Self { width, inner, heads, eps, activation } = *self;
        let name = |part: &str| format!("{prefix}.{part}");
        let linear = |part, n, k| LinearSpec::new(name(part), n, k).with_bias(true);
        let norm = |part| BlockNorms::before(NormSpec::layer(name(part), width, eps));
        let LayerNames { norms, qkv, out, up, down } = *parts;
        let qkv = qkv.iter().map(|part| (name(part), 3 * heads.q_width() / qkv.len()));
        let qkv = LinearSpec::stacked(qkv, width).with_bias(true);
        let out = linear(out, width, heads.q_width());
        let mlp = MlpSpec {
            norms: norm(norms[1]),
            form: MlpForm::Plain,
            activation: ActivationSpec::Known(activation),
            up: linear(up, inner, width),
            down: linear(down, width, inner),
        };
        LayerSpec::new(AttentionSpec::new(norm(norms[0]), heads, qkv, out), mlp)
    }
}

/// Refuses a `vision_config` without its sizes: all files have them, and the text part has some of
/// the same names.
pub(super) fn require_sizes(keys: &Section<'_>) -> Result<(), EngineError> {
    let sizes = ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"];
    sizes.into_iter().try_for_each(|key| keys.size(key).map(|_| ()))
}

/// The side of a square: one number, or two that are equal.
pub(super) fn side_of_square(
    config: &HfConfig,
    keys: &Section<'_>,
    key: &str,
    default: usize,
) -> Result<usize, EngineError> {
    let Some(Value::Array(sides)) = keys.value(key) else { return keys.size_or(key, default) };
    let side = match &sides[..] {
        [height, width] if height == width => height.as_u64().filter(|side| *side > 0),
        _ => None,
    };
    side.and_then(|side| usize::try_from(side).ok()).ok_or_else(|| {
        let name = keys.name_of(key);
        config.error(format!("`{name}` should be a side, or two that are equal"))
    })
}

/// A family of text parts.
struct TextFamily {
    model_type: &'static str,
    /// Its class, alone.
    class: &'static str,
    build: BuildSpec,
    /// Its factor of embeddings is that of all of them, as of images.
    scales_all: bool,
}

const fn text(model_type: &'static str, class: &'static str, build: BuildSpec) -> TextFamily {
    TextFamily { model_type, class, build, scales_all: false }
}

/// Families of text parts, whose own tensors begin with `model.`.
const TEXTS: &[TextFamily] = &[
    text("cohere", "CohereForCausalLM", cohere::spec),
    text("cohere2", "Cohere2ForCausalLM", cohere2::spec),
    text("gemma", "GemmaForCausalLM", gemma::spec),
    text("gemma2", "Gemma2ForCausalLM", gemma2::spec),
    text("gemma3_text", "Gemma3ForCausalLM", gemma3::spec),
    text("glm4", "Glm4ForCausalLM", glm4::spec),
    text("gpt_oss", "GptOssForCausalLM", gpt_oss::spec),
    TextFamily { scales_all: true, ..text("granite", "GraniteForCausalLM", granite::spec) },
    text("internlm2", "InternLM2ForCausalLM", internlm2::spec),
    text("llama", "LlamaForCausalLM", llama::spec),
    text("ministral3", "Ministral3ForCausalLM", ministral3::spec),
    text("mistral", "MistralForCausalLM", mistral::spec),
    text("mistral4", "Mistral4ForCausalLM", mistral4::spec),
    text("mixtral", "MixtralForCausalLM", mixtral::spec),
    text("olmo2", "Olmo2ForCausalLM", olmo2::spec),
    text("olmo3", "Olmo3ForCausalLM", olmo3::spec),
    text("phi3", "Phi3ForCausalLM", phi3::spec),
    text("qwen2", "Qwen2ForCausalLM", qwen2::spec),
    text("qwen2_moe", "Qwen2MoeForCausalLM", qwen2_moe::spec),
    text("qwen3", "Qwen3ForCausalLM", qwen3::spec),
    text("qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe::spec),
    text("smollm3", "SmolLM3ForCausalLM", smollm3::spec),
    text("stablelm", "StableLmForCausalLM", stablelm::spec),
    text("starcoder2", "Starcoder2ForCausalLM", starcoder2::spec),
];

/// The `model_type` that a text part of this class says.
pub(crate) fn text_type(class: &str) -> Option<&'static str> {
    TEXTS.iter().find(|known| known.class == class).map(|known| known.model_type)
}

/// The family that `model_type` names, or this one.
fn text_family(config: &HfConfig, default: &str) -> Result<&'static TextFamily, EngineError> {
    let name = config.text_part().root().text("model_type")?.unwrap_or(default);
    TEXTS.iter().find(|known| known.model_type == name).ok_or_else(|| {
        let known: Vec<_> = TEXTS.iter().map(|known| known.model_type).collect();
        config.error(format!(
            "a text part of type {} is not supported; {} are",
            quoted(name),
            known.join(", ")
        ))
    })
}

/// The text part as its `model_type` says, or as this one's.
pub(super) fn text_part(
    config: &HfConfig,
    default: &str,
    of_media: &'static [&'static str],
) -> Result<DecoderSpec, EngineError> {
    let mut spec = (text_family(config, default)?.build)(config.text_part())?;
    spec.embedding.of_media = of_media;
    Ok(spec)
}

/// What embeddings of images are multiplied by, where those of tokens are.
pub(crate) fn image_scale(config: &HfConfig) -> Result<Option<f32>, EngineError> {
    let name = config.text_part().root().text("model_type")?;
    let family = TEXTS.iter().find(|known| Some(known.model_type) == name && known.scales_all);
    let Some(family) = family else { return Ok(None) };
    let spec = (family.build)(config.text_part())?;
    Ok(spec.embedding.scale.map(|scale| scale.factor))
}

/// Base of the frequencies of rows and columns, under either of its names.
pub(super) fn axial_theta(keys: &Section<'_>, default: f64) -> Result<f64, EngineError> {
    let mut theta = keys.number("rope_theta")?;
    if let Some(parameters) = keys.section("rope_parameters")? {
        if parameters.text("rope_type")? != Some("default") {
            parameters.expect("rope_type", "axial")?;
        }
        theta = parameters.number("rope_theta")?.or(theta);
    }
    Ok(theta.unwrap_or(default))
}

/// The token that stands for one of an image's.
pub(super) fn image_token_id(
    config: &HfConfig,
    key: &str,
    default: usize,
) -> Result<TokenId, EngineError> {
    token_id(config, key, default).map(TokenId::Known)
}

/// A token of the vocabulary.
pub(super) fn token_id(config: &HfConfig, key: &str, default: usize) -> Result<u32, EngineError> {
    let id = config.root().optional_size(key)?.unwrap_or(default);
    let vocab_size = config.text_part().vocab_size()?;
    match id < vocab_size {
        true => Ok(id as u32),
        false => {
            Err(config
                .error(format!("`{key}` of {id} is not in a vocabulary of {vocab_size} tokens")))
        }
    }
}
