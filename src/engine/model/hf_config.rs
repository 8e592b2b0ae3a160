//! Lenient reader of config.json and generation_config.json: the only file that knows Hugging
//! Face's keys.
//!
//! Both spellings of the field are read where transformers changed them: `rope_theta` with
//! `rope_scaling` and `rope_parameters`, `torch_dtype` and `dtype`, `rope_scaling.type` and
//! `rope_type`.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use super::spec::{RopeScaling, RopeSpec};
use crate::engine::EngineError;
use crate::engine::config::DType;
use crate::engine::files::{self, MAX_CONFIG_BYTES, quoted};
use crate::engine::ops::Activation;

/// config.json, read key by key.
#[derive(Clone, Debug)]
pub struct HfConfig {
    keys: Map<String, Value>,
    /// File name for messages.
    path: String,
}

/// Kinds of attention layers in `layer_types` and nested `rope_parameters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// `full_attention`
    Full,
    /// `sliding_attention`
    Sliding,
}

impl LayerType {
    fn name(self) -> &'static str {
        match self {
            LayerType::Full => "full_attention",
            LayerType::Sliding => "sliding_attention",
        }
    }
}

impl HfConfig {
    /// Reads `config.json` of a model folder.
    ///
    /// # Errors
    /// The file is missing or no JSON object.
    pub fn from_dir(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join("config.json");
        let text = files::read_text(&path, MAX_CONFIG_BYTES).map_err(|error| {
            let help = "a model folder needs config.json, tokenizer.json and *.safetensors";
            match files::unreadable(&path, &error) {
                EngineError::Model(text) => EngineError::Model(format!("{text}; {help}")),
                refused => refused,
            }
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses the text of a config.json; `path` is for messages.
    ///
    /// # Errors
    /// The text is no JSON object.
    pub fn parse(text: &str, path: &str) -> Result<Self, EngineError> {
        match serde_json::from_str(text) {
            Ok(Value::Object(keys)) => Ok(Self { keys, path: path.to_owned() }),
            Ok(_) => Err(EngineError::Model(format!("{path}: expected a JSON object"))),
            Err(error) => Err(EngineError::Model(format!("{path}: {error}"))),
        }
    }

    pub(super) fn error(&self, text: impl std::fmt::Display) -> EngineError {
        EngineError::Model(format!("{}: {text}", self.path))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// A non-negative integer, None if absent or null.
    fn optional_size(&self, key: &str) -> Result<Option<usize>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if number <= u64::from(u32::MAX) => Ok(Some(number as usize)),
            _ => Err(self.error(format!("`{key}` should be a count, found {}", shown(value)))),
        }
    }

    fn size(&self, key: &str) -> Result<usize, EngineError> {
        match self.optional_size(key)? {
            Some(0) => Err(self.error(format!("`{key}` is 0"))),
            Some(size) => Ok(size),
            None => Err(self.error(format!("`{key}` is missing"))),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| {
            self.error(format!("`{key}` should be a number, found {}", shown(value)))
        })
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| {
            self.error(format!("`{key}` should be true or false, found {}", shown(value)))
        })
    }

    /// Names of the model class, as in `architectures`.
    ///
    /// # Errors
    /// The file names none.
    pub fn architectures(&self) -> Result<Vec<&str>, EngineError> {
        let list = self.value("architectures").and_then(Value::as_array);
        let names: Vec<_> = list.into_iter().flatten().filter_map(Value::as_str).collect();
        if names.is_empty() {
            return Err(self.error("`architectures` is missing: which model class is this?"));
        }
        Ok(names)
    }

    /// The checkpoint's dtype, float32 if it does not say.
    ///
    /// # Errors
    /// The dtype is none that the engine has.
    pub fn dtype(&self) -> Result<DType, EngineError> {
        let name = self.value("dtype").or_else(|| self.value("torch_dtype"));
        match name.and_then(Value::as_str) {
            None | Some("float32") => Ok(DType::Float32),
            Some("bfloat16") => Ok(DType::BFloat16),
            Some("float16" | "half") => Ok(DType::Float16),
            Some(other) => Err(self.error(format!(
                "dtype {} is not supported; give --dtype float32, bfloat16 or float16",
                quoted(other)
            ))),
        }
    }

    /// Refuses a number of layers that would fill memory before anything else is looked at.
    pub(super) fn refuse_more_layers_than(&self, max: usize) -> Result<(), EngineError> {
        match self.optional_size("num_hidden_layers")?.unwrap_or(0) {
            number if number > max => Err(self.error(format!(
                "a number of layers of {number} is not supported: expected 1 to {max}"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses checkpoints whose weights are quantized: their tensors mean something else.
    ///
    /// # Errors
    /// There is a `quantization_config`.
    pub fn refuse_quantized(&self) -> Result<(), EngineError> {
        let Some(config) = self.value("quantization_config") else { return Ok(()) };
        let method = config.get("quant_method").and_then(Value::as_str).unwrap_or("unknown method");
        Err(self.error(format!(
            "quantized weights ({}) are not supported; use the original",
            quoted(method)
        )))
    }

    /// `vocab_size`
    ///
    /// # Errors
    /// Missing or no count; so for all getters below.
    pub fn vocab_size(&self) -> Result<usize, EngineError> {
        self.size("vocab_size")
    }

    /// `hidden_size`
    pub fn hidden_size(&self) -> Result<usize, EngineError> {
        self.size("hidden_size")
    }

    /// `intermediate_size`, or OPT's `ffn_dim`.
    pub fn intermediate_size(&self) -> Result<usize, EngineError> {
        match self.optional_size("ffn_dim")? {
            Some(size) => Ok(size),
            None => self.size("intermediate_size"),
        }
    }

    /// `num_hidden_layers`
    pub fn num_layers(&self) -> Result<usize, EngineError> {
        self.size("num_hidden_layers")
    }

    /// `num_attention_heads`
    pub fn num_heads(&self) -> Result<usize, EngineError> {
        self.size("num_attention_heads")
    }

    /// `num_key_value_heads`, else all heads; a divisor of `num_heads`.
    pub fn num_kv_heads(&self) -> Result<usize, EngineError> {
        let num_heads = self.num_heads()?;
        let num_kv_heads = self.optional_size("num_key_value_heads")?.unwrap_or(num_heads);
        if num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            return Err(self.error(format!(
                "{num_heads} attention heads cannot share {num_kv_heads} key-value heads"
            )));
        }
        Ok(num_kv_heads)
    }

    /// `head_dim`, else hidden_size / num_heads; even.
    pub fn head_dim(&self) -> Result<usize, EngineError> {
        let head_dim = match self.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None => self.hidden_size()? / self.num_heads()?,
        };
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(self.error(format!("a head_dim of {head_dim} is not supported")));
        }
        Ok(head_dim)
    }

    /// `max_position_embeddings`
    pub fn max_position_embeddings(&self) -> Result<usize, EngineError> {
        self.size("max_position_embeddings")
    }

    /// `rms_norm_eps`
    pub fn rms_norm_eps(&self) -> Result<f32, EngineError> {
        Ok(self.number("rms_norm_eps")?.unwrap_or(1e-6) as f32)
    }

    /// `tie_word_embeddings`, with the family's default.
    pub fn tie_word_embeddings(&self, default: bool) -> Result<bool, EngineError> {
        Ok(self.flag("tie_word_embeddings")?.unwrap_or(default))
    }

    /// `attention_bias`
    pub fn attention_bias(&self) -> Result<bool, EngineError> {
        Ok(self.flag("attention_bias")?.unwrap_or(false))
    }

    /// `mlp_bias`
    pub fn mlp_bias(&self) -> Result<bool, EngineError> {
        Ok(self.flag("mlp_bias")?.unwrap_or(false))
    }

    /// OPT's `enable_bias`
    pub fn enable_bias(&self) -> Result<bool, EngineError> {
        Ok(self.flag("enable_bias")?.unwrap_or(true))
    }

    /// OPT's `do_layer_norm_before`
    pub fn do_layer_norm_before(&self) -> Result<bool, EngineError> {
        Ok(self.flag("do_layer_norm_before")?.unwrap_or(true))
    }

    /// OPT's `_remove_final_layer_norm`
    pub fn remove_final_layer_norm(&self) -> Result<bool, EngineError> {
        Ok(self.flag("_remove_final_layer_norm")?.unwrap_or(false))
    }

    /// OPT's `word_embed_proj_dim`
    pub fn word_embed_proj_dim(&self) -> Result<Option<usize>, EngineError> {
        self.optional_size("word_embed_proj_dim")
    }

    /// `hidden_act`, `hidden_activation` or `activation_function`.
    pub fn activation(&self) -> Result<Activation, EngineError> {
        let keys = ["hidden_activation", "hidden_act", "activation_function"];
        let name = keys.iter().find_map(|key| self.value(key)).and_then(Value::as_str);
        match name {
            None | Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
            Some("gelu") => Ok(Activation::Gelu),
            Some("relu") => Ok(Activation::Relu),
            Some(other) => {
                Err(self.error(format!("activation {} is not supported", quoted(other))))
            }
        }
    }

    /// `sliding_window`
    pub fn sliding_window(&self) -> Result<Option<usize>, EngineError> {
        self.optional_size("sliding_window")
    }

    /// Qwen's `use_sliding_window`
    pub fn use_sliding_window(&self) -> Result<bool, EngineError> {
        Ok(self.flag("use_sliding_window")?.unwrap_or(false))
    }

    /// Qwen's `max_window_layers`: the first layer that slides.
    pub fn max_window_layers(&self) -> Result<usize, EngineError> {
        Ok(self.optional_size("max_window_layers")?.unwrap_or(28))
    }

    /// Gemma 3's `sliding_window_pattern`: every so many layers is a full one.
    pub fn sliding_window_pattern(&self) -> Result<usize, EngineError> {
        Ok(self.optional_size("sliding_window_pattern")?.unwrap_or(6).max(1))
    }

    /// `layer_types`, one per layer, when the file lists them.
    pub fn layer_types(&self) -> Result<Option<Vec<LayerType>>, EngineError> {
        let Some(value) = self.value("layer_types") else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.error("`layer_types` should be a list"))?;
        let types = list.iter().map(|name| match name.as_str() {
            Some("full_attention") => Ok(LayerType::Full),
            Some("sliding_attention") => Ok(LayerType::Sliding),
            _ => Err(self.error(format!("layer type {} is not supported", shown(name)))),
        });
        let types: Vec<_> = types.collect::<Result<_, _>>()?;
        if types.len() != self.num_layers()? {
            return Err(self.error("`layer_types` and `num_hidden_layers` disagree"));
        }
        Ok(Some(types))
    }

    /// Gemma's `query_pre_attn_scalar`
    pub fn query_pre_attn_scalar(&self) -> Result<Option<f64>, EngineError> {
        self.number("query_pre_attn_scalar")
    }

    /// Gemma 2's `attn_logit_softcapping`
    pub fn attn_logit_softcapping(&self) -> Result<Option<f32>, EngineError> {
        Ok(self.number("attn_logit_softcapping")?.map(|cap| cap as f32))
    }

    /// Gemma 2's `final_logit_softcapping`
    pub fn final_logit_softcapping(&self) -> Result<Option<f32>, EngineError> {
        Ok(self.number("final_logit_softcapping")?.map(|cap| cap as f32))
    }

    /// The rotary embedding of a kind of layers.
    pub fn rope(&self, layer_type: LayerType) -> Result<RopeSpec, EngineError> {
        if let Some(parameters) = self.value("rope_parameters") {
            let parameters = parameters.get(layer_type.name()).unwrap_or(parameters);
            let theta = parameters.get("rope_theta").and_then(Value::as_f64);
            let theta = theta.unwrap_or(self.number("rope_theta")?.unwrap_or(10_000.0));
            return Ok(RopeSpec { theta, scaling: self.rope_scaling(parameters)? });
        }
        if layer_type == LayerType::Sliding
            && let Some(theta) = self.number("rope_local_base_freq")?
        {
            return Ok(RopeSpec { theta, scaling: RopeScaling::None });
        }
        let theta = self.number("rope_theta")?.unwrap_or(10_000.0);
        let scaling = match self.value("rope_scaling") {
            Some(parameters) => self.rope_scaling(parameters)?,
            None => RopeScaling::None,
        };
        Ok(RopeSpec { theta, scaling })
    }

    fn rope_scaling(&self, parameters: &Value) -> Result<RopeScaling, EngineError> {
        let name = parameters.get("rope_type").or_else(|| parameters.get("type"));
        let number = |key: &str| {
            let value = parameters.get(key).and_then(Value::as_f64).filter(|value| *value > 0.0);
            value.ok_or_else(|| self.error(format!("rope scaling needs a positive `{key}`")))
        };
        if let Some(partial) = parameters.get("partial_rotary_factor").and_then(Value::as_f64)
            && partial != 1.0
        {
            return Err(self.error("a partial rotary embedding is not supported"));
        }
        match name.and_then(Value::as_str).unwrap_or("default") {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: number("original_max_position_embeddings")?,
            }),
            other => Err(self.error(format!(
                "rope scaling {} is not supported; default, linear and llama3 are",
                quoted(other)
            ))),
        }
    }

    /// EOS ids of config.json, used where generation_config.json has none.
    ///
    /// # Errors
    /// The value is not a token id or a list of them.
    pub fn eos_token_ids(&self) -> Result<Vec<u32>, EngineError> {
        self.value("eos_token_id")
            .map_or(Ok(Vec::new()), token_ids)
            .map_err(|text| self.error(text))
    }
}

/// What generation_config.json says about sampling. `do_sample` is ignored, as in vLLM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// `temperature`
    pub temperature: Option<f32>,
    /// `top_k`
    pub top_k: Option<u32>,
    /// `top_p`
    pub top_p: Option<f32>,
    /// `min_p`
    pub min_p: Option<f32>,
    /// `repetition_penalty`
    pub repetition_penalty: Option<f32>,
    /// `presence_penalty`
    pub presence_penalty: Option<f32>,
    /// `frequency_penalty`
    pub frequency_penalty: Option<f32>,
    /// `max_new_tokens`
    pub max_new_tokens: Option<u32>,
    /// `eos_token_id`: one or several.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationConfig {
    /// Reads generation_config.json of a folder; a missing file is an empty one.
    ///
    /// # Errors
    /// The file is no JSON object, or has a value of another type.
    pub fn from_dir(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join("generation_config.json");
        let bad = |text: String| EngineError::Model(format!("{}: {text}", path.display()));
        let text = match files::read_text(&path, MAX_CONFIG_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(files::unreadable(&path, &error)),
        };
        let keys: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        Self::from_keys(&keys).map_err(bad)
    }

    fn from_keys(keys: &Map<String, Value>) -> Result<Self, String> {
        let value = |key: &str| keys.get(key).filter(|value| !value.is_null());
        let wrong = |key: &str, what: &str, value| {
            format!("`{key}` should be {what}, found {}", shown(value))
        };
        let number = |key: &str| {
            let Some(value) = value(key) else { return Ok(None) };
            let number = value.as_f64().map(|number| number as f32).filter(|n| n.is_finite());
            number.map(Some).ok_or_else(|| wrong(key, "a number", value))
        };
        let count = |key: &str| {
            // -1 is "off" in some files.
            let Some(value) = value(key).filter(|value| **value != -1) else { return Ok(None) };
            let count = value.as_u64().and_then(|value| u32::try_from(value).ok());
            count.map(Some).ok_or_else(|| wrong(key, "a count", value))
        };
        Ok(Self {
            temperature: number("temperature")?,
            top_k: count("top_k")?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            presence_penalty: number("presence_penalty")?,
            frequency_penalty: number("frequency_penalty")?,
            max_new_tokens: count("max_new_tokens")?,
            eos_token_ids: value("eos_token_id").map_or(Ok(Vec::new()), token_ids)?,
        })
    }
}

/// Most ids that end a text. Published models have fewer than twenty; each row has a copy.
const MAX_EOS_TOKEN_IDS: usize = 1024;

/// One id or a list of them, each once.
fn token_ids(value: &Value) -> Result<Vec<u32>, String> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("`eos_token_id` should be token ids, found {}", shown(value)))
    };
    match value.as_array() {
        Some(list) => {
            let mut known = HashSet::new();
            let mut ids: Vec<u32> = list.iter().map(id).collect::<Result<_, _>>()?;
            ids.retain(|id| known.insert(*id));
            match ids.len() > MAX_EOS_TOKEN_IDS {
                true => Err(format!(
                    "`eos_token_id` should be at most {MAX_EOS_TOKEN_IDS} token ids, found {}",
                    ids.len()
                )),
                false => Ok(ids),
            }
        }
        None => id(value).map(|id| vec![id]),
    }
}

/// A value in a message.
fn shown(value: &Value) -> String {
    quoted(&value.to_string())
}
