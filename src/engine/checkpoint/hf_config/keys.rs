//! Keys that many families share, under all names that they have. A key of one family is read in
//! that family's file.

use super::{HfConfig, shown};
use crate::limits;
use crate::spec::{LinearSpec, QkvHeads};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::Activation;

/// Kinds of attention layers in `layer_types` and nested `rope_parameters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// `full_attention`
    Full,
    /// `sliding_attention`
    Sliding,
}

impl LayerType {
    pub(super) fn name(self) -> &'static str {
        match self {
            LayerType::Full => "full_attention",
            LayerType::Sliding => "sliding_attention",
        }
    }
}

impl HfConfig {
    /// Refuses a number of layers that would fill memory before anything else is looked at.
    pub(crate) fn refuse_more_layers_than(&self, max: usize) -> Result<(), EngineError> {
        let configs = [Some(self), self.text.as_deref()].into_iter().flatten();
        for (config, key) in configs.flat_map(|config| NUM_LAYERS.iter().map(move |k| (config, k)))
        {
            let number = config.keys.get(*key).and_then(serde_json::Value::as_u64).unwrap_or(0);
            if number > max as u64 {
                return Err(self.error(format!(
                    "a number of layers of {number} is not supported: expected 1 to {max}"
                )));
            }
        }
        Ok(())
    }

    /// `vocab_size`
    ///
    /// # Errors
    /// Missing or no count; so for all getters below.
    pub fn vocab_size(&self) -> Result<usize, EngineError> {
        self.root().size("vocab_size")
    }

    /// `hidden_size`
    pub fn hidden_size(&self) -> Result<usize, EngineError> {
        self.root().size_of(&["hidden_size", "n_embd", "n_embed", "d_model"])
    }

    /// `intermediate_size`
    pub fn intermediate_size(&self) -> Result<usize, EngineError> {
        self.root().size_of(&["intermediate_size", "ffn_dim"])
    }

    /// `num_hidden_layers`
    pub fn num_layers(&self) -> Result<usize, EngineError> {
        self.root().size_of(NUM_LAYERS)
    }

    /// `num_attention_heads`
    pub fn num_heads(&self) -> Result<usize, EngineError> {
        self.root().size_of(&["num_attention_heads", "n_head", "n_heads", "attention_heads"])
    }

    /// `num_key_value_heads`, else all heads; a divisor of `num_heads`.
    pub fn num_kv_heads(&self) -> Result<usize, EngineError> {
        let num_heads = self.num_heads()?;
        let num_kv_heads = self.root().optional_size("num_key_value_heads")?.unwrap_or(num_heads);
        self.check_kv_heads(num_heads, num_kv_heads)?;
        Ok(num_kv_heads)
    }

    /// Refuses K and V heads that the query heads cannot share evenly.
    pub fn check_kv_heads(&self, num_heads: usize, num_kv_heads: usize) -> Result<(), EngineError> {
        match num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            true => Err(self.error(format!(
                "{num_heads} attention heads cannot share {num_kv_heads} key-value heads"
            ))),
            false => Ok(()),
        }
    }

    /// `head_dim`, else hidden_size / num_heads; even.
    pub fn head_dim(&self) -> Result<usize, EngineError> {
        let head_dim = match self.root().optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None => self.hidden_size()? / self.num_heads()?,
        };
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(self.error(format!("a head_dim of {head_dim} is not supported")));
        }
        Ok(head_dim)
    }

    /// `num_heads`, `num_kv_heads` and `head_dim`.
    pub fn heads(&self) -> Result<QkvHeads, EngineError> {
        let (num_heads, num_kv_heads) = (self.num_heads()?, self.num_kv_heads()?);
        self.checked(QkvHeads { num_heads, num_kv_heads, head_dim: self.head_dim()? })
    }

    /// As many K and V heads as query heads, of hidden_size / num_heads.
    pub fn equal_heads(&self) -> Result<QkvHeads, EngineError> {
        let num_heads = self.num_heads()?;
        self.checked(QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: self.head_dim()? })
    }

    /// Refuses heads that no model has.
    pub fn checked(&self, heads: QkvHeads) -> Result<QkvHeads, EngineError> {
        limits::check_heads(heads).map_err(|text| self.error(text))?;
        Ok(heads)
    }

    /// `max_position_embeddings`
    pub fn max_position_embeddings(&self) -> Result<usize, EngineError> {
        self.root().size_of(&["max_position_embeddings", "n_positions", "max_seq_len"])
    }

    /// `rms_norm_eps`
    pub fn rms_norm_eps(&self) -> Result<f32, EngineError> {
        self.rms_norm_eps_or(1e-6)
    }

    /// `rms_norm_eps`, with the family's default.
    pub fn rms_norm_eps_or(&self, default: f32) -> Result<f32, EngineError> {
        Ok(self.root().number("rms_norm_eps")?.map_or(default, |eps| eps as f32))
    }

    /// `layer_norm_epsilon` and its other names, with the family's default.
    pub fn layer_norm_eps(&self, default: f32) -> Result<f32, EngineError> {
        let keys = ["layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"];
        Ok(self.root().number_of(&keys)?.map_or(default, |eps| eps as f32))
    }

    /// The output layer (vocab_size, hidden_size) of this name; None: the embedding table, by
    /// `tie_word_embeddings` with the family's default.
    pub fn lm_head(&self, name: &str, tied: bool) -> Result<Option<LinearSpec>, EngineError> {
        match self.is_tied(tied)? {
            true => Ok(None),
            false => Ok(Some(LinearSpec::new(name, self.vocab_size()?, self.hidden_size()?))),
        }
    }

    /// `tie_word_embeddings` with the family's default: false where the files have another matrix.
    pub fn is_tied(&self, default: bool) -> Result<bool, EngineError> {
        let says = self.root().flag("tie_word_embeddings")?.unwrap_or(default);
        Ok((says || self.is_tied_above.get()) && !self.has_own_head)
    }

    /// `attention_bias`
    pub fn attention_bias(&self) -> Result<bool, EngineError> {
        Ok(self.root().flag("attention_bias")?.unwrap_or(false))
    }

    /// `mlp_bias`
    pub fn mlp_bias(&self) -> Result<bool, EngineError> {
        Ok(self.root().flag("mlp_bias")?.unwrap_or(false))
    }

    /// `hidden_act` and its other names, else SiLU.
    pub fn activation(&self) -> Result<Activation, EngineError> {
        self.activation_or(Activation::Silu)
    }

    /// `hidden_act` and its other names, with the family's default.
    pub fn activation_or(&self, default: Activation) -> Result<Activation, EngineError> {
        let keys = ["hidden_activation", "hidden_act", "activation_function", "activation"];
        let root = self.root();
        let mut given = keys.into_iter().filter_map(|key| Some((key, root.value(key)?)));
        let Some((_, value)) = given.next() else { return Ok(default) };
        // Old files have several of them: the others change nothing.
        given.for_each(|(key, _)| root.ignore(&[key]));
        match value.as_str() {
            Some(name) => self.activation_named(name),
            None => Err(self.error(format!("activation {} is not supported", shown(value)))),
        }
    }

    /// The activation of a name that a family has under a key of its own, else its default.
    pub fn activation_named_or(
        &self,
        name: Option<&str>,
        default: Activation,
    ) -> Result<Activation, EngineError> {
        name.map_or(Ok(default), |name| self.activation_named(name))
    }

    /// The activation of a name.
    pub fn activation_named(&self, name: &str) -> Result<Activation, EngineError> {
        match name {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
            "gelu" => Ok(Activation::Gelu),
            "quick_gelu" => Ok(Activation::QuickGelu),
            "relu" => Ok(Activation::Relu),
            "relu2" => Ok(Activation::Relu2),
            other => Err(self.error(format!("activation {} is not supported", quoted(other)))),
        }
    }

    /// `sliding_window`
    pub fn sliding_window(&self) -> Result<Option<usize>, EngineError> {
        self.root().optional_size("sliding_window")
    }

    /// `layer_types`, one per layer, when the file lists them.
    pub fn layer_types(&self) -> Result<Option<Vec<LayerType>>, EngineError> {
        let Some(list) = self.root().list("layer_types")? else { return Ok(None) };
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

    /// Which layers attend, by the names of their types: the first of either kind is what a family
    /// calls it.
    ///
    /// # Errors
    /// A type of neither kind.
    pub fn layers_that_attend(
        &self,
        types: &[&str],
        attention: &[&str],
        others: &[&str],
    ) -> Result<Vec<bool>, EngineError> {
        let attends = |name: &&str| match attention.contains(name) {
            true => Ok(true),
            false if others.contains(name) => Ok(false),
            false => Err(self
                .error(format!("a layer type that is neither {} nor {}", attention[0], others[0]))),
        };
        types.iter().map(attends).collect()
    }

    /// Which layers are of one kind, by the list of types under a key, if there is one; names as of
    /// `layers_that_attend`.
    ///
    /// # Errors
    /// A type of neither kind, or not one type per layer.
    pub fn layers_by_type(
        &self,
        key: &str,
        of_kind: &[&str],
        others: &[&str],
    ) -> Result<Option<Vec<bool>>, EngineError> {
        let Some(types) = self.root().texts(key)? else { return Ok(None) };
        let layers = self.layers_that_attend(&types, of_kind, others)?;
        match layers.len() == self.num_layers()? {
            true => Ok(Some(layers)),
            false => Err(self.error(format!("`{key}` has not one type per layer"))),
        }
    }

    /// Which layers have full attention and no recurrence: by `layer_types`, else as the family has
    /// it.
    ///
    /// # Errors
    /// Those of `layers_by_type`.
    pub fn full_layers_or(
        &self,
        is_full: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, EngineError> {
        let (full, linear) = (["full_attention"], ["linear_attention"]);
        match self.layers_by_type("layer_types", &full, &linear)? {
            Some(layers) => Ok(layers),
            None => Ok((0..self.num_layers()?).map(is_full).collect()),
        }
    }

    /// Which layers slide: by `layer_types` where the file lists them, else as the family has it.
    pub fn sliding_layers_or(
        &self,
        slides: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, EngineError> {
        match self.layer_types()? {
            Some(types) => Ok(types.iter().map(|kind| *kind == LayerType::Sliding).collect()),
            None => Ok((0..self.num_layers()?).map(slides).collect()),
        }
    }

    /// The same where each last one of `pattern` layers is full.
    pub fn sliding_layers(&self, pattern: usize) -> Result<Vec<bool>, EngineError> {
        if pattern == 0 && self.layer_types()?.is_none() {
            return Err(self.error("a pattern of 0 layers is not supported"));
        }
        self.sliding_layers_or(|index| !(index + 1).is_multiple_of(pattern))
    }
}

const NUM_LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "n_layers", "num_layers"];

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> HfConfig {
        HfConfig::parse(text, "config.json").unwrap()
    }

    #[test]
    fn more_heads_than_any_model_has_are_refused_before_there_are_values_of_each() {
        let text = r#"{"num_attention_heads": 4294967295, "head_dim": 128}"#;
        for heads in [config(text).heads(), config(text).equal_heads()] {
            let error = heads.unwrap_err().to_string();
            assert!(error.contains("attention heads of 4294967295"), "{error}");
        }
    }

    #[test]
    fn an_absent_size_is_the_default_and_null_is_none() {
        let window = |text| config(text).root().size_or_none("sliding_window", 8).unwrap();
        assert_eq!(window("{}"), Some(8));
        assert_eq!(window(r#"{"sliding_window": null}"#), None);
        assert_eq!(window(r#"{"sliding_window": 4}"#), Some(4));
    }

    #[test]
    fn layers_slide_by_the_list_or_by_the_pattern() {
        let slides = |text, pattern| config(text).sliding_layers(pattern);
        let listed = r#"{"num_hidden_layers": 2, "layer_types":
            ["full_attention", "sliding_attention"]}"#;
        assert_eq!(slides(listed, 4).unwrap(), [false, true]);
        let plain = r#"{"num_hidden_layers": 3}"#;
        assert_eq!(slides(plain, 2).unwrap(), [true, false, true]);
        assert!(slides(plain, 0).unwrap_err().to_string().contains("pattern of 0"));
    }

    #[test]
    fn layers_attend_by_the_names_of_their_types() {
        let attends = |types: &[&str]| {
            let (attention, others) = (["attention", "full_attention"], ["mamba", "conv"]);
            config("{}").layers_that_attend(types, &attention, &others)
        };
        let types = ["conv", "attention", "full_attention", "mamba"];
        assert_eq!(attends(&types).unwrap(), [false, true, true, false]);
        let error = attends(&["attention", "mlp"]).unwrap_err().to_string();
        assert!(error.contains("a layer type that is neither attention nor mamba"), "{error}");
    }

    #[test]
    fn two_names_of_an_epsilon_agree() {
        let eps = |text| config(text).layer_norm_eps(1e-3);
        assert_eq!(eps("{}").unwrap(), 1e-3);
        assert_eq!(eps(r#"{"norm_epsilon": 1e-5, "layer_norm_epsilon": 1e-5}"#).unwrap(), 1e-5);
        let error = eps(r#"{"norm_epsilon": 1e-5, "layer_norm_epsilon": 1e-6}"#).unwrap_err();
        assert!(error.to_string().contains("disagree"), "{error}");
    }
}
