//! `Config`: a config.json in the making, from the metadata of a GGUF file.

use serde_json::{Map, Value};

use super::keys::Keys;
use super::names::{Layout, Moved};
use crate::encoders::GGUF_POOLING;
use crate::limits::MAX_LAYERS;

/// K and V heads, of all layers or of each.
const KV_HEADS: &str = "attention.head_count_kv";

/// What a config.json would say.
pub(super) struct Config<'a> {
    pub keys: Keys<'a>,
    map: Map<String, Value>,
    has_experts: bool,
    /// Some layers have no K and V.
    has_other_layers: bool,
    /// Layers that predict further tokens are counted with the others: how many; None: there may
    /// be none.
    num_further: Option<u64>,
    layout: Layout,
}

impl<'a> Config<'a> {
    pub(super) fn new(keys: Keys<'a>) -> Self {
        Self {
            keys,
            map: Map::new(),
            has_experts: false,
            has_other_layers: false,
            num_further: None,
            layout: Layout::default(),
        }
    }

    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.map.insert(key.to_owned(), value.into());
    }

    /// The same where there is a value.
    pub(super) fn set_some(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key)
    }

    /// Copies numbers, under other names, where the file has them.
    pub(super) fn floats(&mut self, names: &[(&str, &str)]) -> Result<(), String> {
        for (key, name) in names {
            let value = self.keys.float(key)?;
            self.set_some(name, value);
        }
        Ok(())
    }

    /// Copies counts, under other names, where the file has them.
    pub(super) fn sizes(&mut self, names: &[(&str, &str)]) -> Result<(), String> {
        for (key, name) in names {
            let value = self.keys.optional_size(key)?;
            self.set_some(name, value);
        }
        Ok(())
    }

    /// Says how the tensor of a part of layers is stored.
    pub(super) fn is_moved(&mut self, part: &'static str, how: Moved) {
        self.layout.moved.insert(part, how);
    }

    /// The config and how tensors are stored, if all keys of the architecture were asked for.
    pub(super) fn finish(self) -> Result<(Map<String, Value>, Layout), String> {
        self.keys.refuse_unread()?;
        Ok((self.map, self.layout))
    }

    /// What Llama and all models of its shape have.
    pub(super) fn decoder(&mut self) -> Result<(), String> {
        self.shape()?;
        self.heads()?;
        let inner = match self.has_experts {
            true => self.keys.optional_size("feed_forward_length")?,
            false => Some(self.keys.size("feed_forward_length")?),
        };
        self.set_some("intermediate_size", inner);
        self.floats(&[
            ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
            ("attention.layer_norm_epsilon", "layer_norm_eps"),
        ])?;
        self.rope()
    }

    /// The inner width by the tensor: llama.cpp writes four times the residual stream for some.
    pub(super) fn inner_width(&self) -> Result<u64, String> {
        self.keys.ignore(&["feed_forward_length"]);
        Ok(self.keys.shape("blk.0.ffn_up.weight")?[0] as u64)
    }

    /// Layers, widths, the vocabulary and the context.
    pub(super) fn shape(&mut self) -> Result<(), String> {
        if !self.has_experts {
            self.refuse_experts()?;
        }
        if self.keys.flag("attention.causal")? == Some(false) {
            return Err("a model that is no causal one is not supported".to_owned());
        }
        // Rows count; others are how the file was made.
        self.keys.ignore(&["vocab_size", "tensor_data_layout"]);
        self.set("num_hidden_layers", self.num_layers()?);
        self.set("hidden_size", self.keys.size("embedding_length")?);
        self.set("vocab_size", self.keys.shape("token_embd.weight")?[0]);
        self.set("max_position_embeddings", self.keys.size("context_length")?);
        self.set("tie_word_embeddings", !self.keys.has("output.weight"));
        self.set_some(GGUF_POOLING, self.keys.optional_size("pooling_type")?);
        Ok(())
    }

    /// Experts, and how many of them a token goes to.
    pub(super) fn experts(&mut self) -> Result<(), String> {
        self.has_experts = true;
        self.set("num_experts", self.keys.size("expert_count")?);
        self.set("num_experts_per_tok", self.keys.size("expert_used_count")?);
        Ok(())
    }

    /// Layers that predict further tokens, the last ones; how many.
    pub(super) fn further_layers(&mut self) -> Result<u64, String> {
        let num = self.keys.optional_size("nextn_predict_layers")?.unwrap_or(0);
        self.num_further = Some(num);
        self.layout.num_layers = usize::try_from(self.num_layers()?).ok();
        Ok(num)
    }

    /// Layers of the model itself.
    pub(super) fn num_layers(&self) -> Result<u64, String> {
        let (num_blocks, num_further) =
            (self.keys.size("block_count")?, self.num_further.unwrap_or(0));
        let num_layers = num_blocks.checked_sub(num_further).filter(|num| *num > 0);
        num_layers.ok_or_else(|| format!("{num_further} of {num_blocks} layers predict further"))
    }

    /// Refuses experts that are chosen by anything but sigmoids.
    pub(super) fn expect_sigmoids(&self) -> Result<(), String> {
        const SIGMOID: u64 = 2;
        match self.keys.optional_size("expert_gating_func")? {
            None | Some(SIGMOID) => Ok(()),
            Some(other) => Err(format!("an expert_gating_func of {other} is not supported")),
        }
    }

    /// `layer_types`: layers without K and V heads are of this type.
    pub(super) fn layers_with_kv(&mut self, other: &str) -> Result<(), String> {
        self.has_other_layers = true;
        let num_layers = self.checked_num_layers()?;
        let has_kv = self.keys.pattern(KV_HEADS, num_layers)?;
        let has_kv = has_kv.unwrap_or_else(|| vec![true; num_layers as usize]);
        let name = |has_kv| if has_kv { "full_attention" } else { other };
        let types: Vec<Value> = has_kv.into_iter().map(|has_kv| name(has_kv).into()).collect();
        self.set("layer_types", types);
        Ok(())
    }

    fn refuse_experts(&self) -> Result<(), String> {
        let num_experts = self.keys.optional_size("expert_count")?.unwrap_or(0);
        let num_further = self.keys.optional_size("nextn_predict_layers")?.unwrap_or(0);
        match (num_experts, num_further.saturating_sub(self.num_further.unwrap_or(0))) {
            (0, 0) => {
                self.keys.ignore(&["expert_used_count"]);
                Ok(())
            }
            (0, _) => Err("layers that predict further tokens are not supported".to_owned()),
            _ => Err("a mixture of experts is not supported".to_owned()),
        }
    }

    /// Refuses another epsilon where config.json has no key for it.
    pub(super) fn expect_layer_norm_eps(&mut self, expected: f64) -> Result<(), String> {
        self.remove("layer_norm_eps");
        match self.keys.float("attention.layer_norm_epsilon")? {
            Some(other) if other != expected => {
                Err(format!("a layer_norm_epsilon of {other} is not supported"))
            }
            _ => Ok(()),
        }
    }

    /// Heads and their width.
    pub(super) fn heads(&mut self) -> Result<(), String> {
        let num_heads = self.num_heads()?;
        self.set("num_attention_heads", num_heads);
        let num_kv_heads = self.num_kv_heads()?;
        self.set("num_key_value_heads", num_kv_heads);
        let head_dim = self.head_dim()?;
        self.set("head_dim", head_dim);
        Ok(())
    }

    pub(super) fn num_heads(&self) -> Result<u64, String> {
        self.keys.size("attention.head_count")
    }

    /// K and V heads: as many as query heads where the file does not say.
    pub(super) fn num_kv_heads(&self) -> Result<u64, String> {
        let given = match self.has_other_layers {
            true => self.keys.size_where_any(KV_HEADS)?,
            false => self.keys.optional_size(KV_HEADS)?,
        };
        Ok(given.unwrap_or(self.num_heads()?))
    }

    pub(super) fn head_dim(&self) -> Result<u64, String> {
        let hidden = self.keys.size("embedding_length")?;
        let (k, v) = (
            self.keys.optional_size("attention.key_length")?,
            self.keys.optional_size("attention.value_length")?,
        );
        match (k, v, hidden.checked_div(self.num_heads()?)) {
            (Some(k), Some(v), _) if k != v => {
                Err(format!("heads of K of {k} and of V of {v} are not supported"))
            }
            (Some(head_dim), ..) | (None, None, Some(head_dim)) if head_dim > 0 => Ok(head_dim),
            _ => Err("it has no width of heads".to_owned()),
        }
    }

    /// Refuses a base of its own for layers that slide.
    pub(super) fn one_base(&self) -> Result<(), String> {
        let base = self.keys.float("rope.freq_base")?;
        match self.keys.float("rope.freq_base_swa")? {
            of_sliding if of_sliding.is_some() && of_sliding != base => {
                Err("a rope.freq_base_swa of its own is not supported".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// `sliding_window` and `layer_types`. A window of 0 is none.
    pub(super) fn windows(
        &mut self,
        default: Option<u64>,
        slides: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, String> {
        let num_layers = self.checked_num_layers()?;
        let window = self.keys.optional_size("attention.sliding_window")?.or(default);
        let listed = self.keys.pattern("attention.sliding_window_pattern", num_layers)?;
        let window = window.filter(|window| *window > 0);
        self.set("sliding_window", window);
        let Some(window) = window else { return Ok(None) };
        let slides = listed.unwrap_or_else(|| (0..num_layers).map(slides).collect());
        let name = |slides| if slides { "sliding_attention" } else { "full_attention" };
        let types: Vec<Value> = slides.into_iter().map(|slides| name(slides).into()).collect();
        self.set("layer_types", types);
        Ok(Some(window))
    }

    /// The same, before there is a value for each layer.
    pub(super) fn checked_num_layers(&self) -> Result<u64, String> {
        let num_layers = self.num_layers()?;
        match num_layers > MAX_LAYERS as u64 {
            true => Err(format!("{num_layers} layers are not supported")),
            false => Ok(num_layers),
        }
    }
}
