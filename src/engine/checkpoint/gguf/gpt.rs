//! GPT-2's descendants in GGUF files. llama.cpp stores all of q, then k, then v, where
//! transformers has them in groups of heads; and GPT-2's matrices (outputs, inputs), as
//! GPTBigCode has them.

use serde_json::json;

use super::archs::Class;
use super::config::Config;
use super::tables;

impl Config<'_> {
    /// Heads alone, as many K and V heads as query heads.
    fn equal_heads(&mut self) -> Result<(), String> {
        let (num_heads, num_kv_heads) = (self.num_heads()?, self.num_kv_heads()?);
        if num_heads != num_kv_heads {
            return Err(format!("{num_kv_heads} K and V heads are not supported"));
        }
        self.set("num_attention_heads", num_heads);
        Ok(())
    }

    /// What all of them have; four times the residual stream is the inner width of some.
    fn gpt(&mut self, is_inner_four_times: bool) -> Result<u64, String> {
        self.shape()?;
        self.floats(&[("attention.layer_norm_epsilon", "layer_norm_epsilon")])?;
        let inner = self.inner_width()?;
        let hidden = self.keys.size("embedding_length")?;
        match is_inner_four_times && hidden.checked_mul(4) != Some(inner) {
            true => Err(format!("an inner width of {inner} is not supported")),
            false => Ok(inner),
        }
    }
}

pub(super) fn gpt2(config: &mut Config<'_>) -> Result<Class, String> {
    let inner = config.gpt(false)?;
    config.equal_heads()?;
    config.set("n_inner", inner);
    config.set("multi_query", false);
    config.set("activation_function", "gelu_new");
    Ok(("GPTBigCodeForCausalLM", tables::GPT_2))
}

pub(super) fn starcoder(config: &mut Config<'_>) -> Result<Class, String> {
    let inner = config.gpt(false)?;
    config.set("num_attention_heads", config.num_heads()?);
    if config.num_kv_heads()? != 1 {
        return Err("more than one K and V head is not supported".to_owned());
    }
    config.set("n_inner", inner);
    config.set("multi_query", true);
    config.set("activation_function", "gelu_pytorch_tanh");
    Ok(("GPTBigCodeForCausalLM", tables::GPT_2))
}

pub(super) fn bloom(config: &mut Config<'_>) -> Result<Class, String> {
    config.gpt(true)?;
    config.equal_heads()?;
    let context_len = config.keys.size("context_length")?;
    config.set("seq_length", context_len);
    config.remove("max_position_embeddings");
    Ok(("BloomForCausalLM", tables::BLOOM))
}

/// What is not in the file: whether a model has ALiBi (Falcon RW has, and two norms of other
/// names, so that it is refused).
pub(super) fn falcon(config: &mut Config<'_>) -> Result<Class, String> {
    let inner = config.gpt(false)?;
    config.rope()?;
    config.set("ffn_hidden_size", inner);
    let num_kv_heads = config.num_kv_heads()?;
    let has_two_norms = config.keys.has("blk.0.attn_norm_2.weight");
    let is_new = has_two_norms || num_kv_heads > 1;
    config.set("num_attention_heads", config.num_heads()?);
    config.set("new_decoder_architecture", is_new);
    config.set("multi_query", true);
    if is_new {
        config.set("num_kv_heads", num_kv_heads);
    }
    config.set("num_ln_in_parallel_attn", if has_two_norms { 2 } else { 1 });
    config.set("bias", config.keys.has("blk.0.attn_qkv.bias"));
    let table = if has_two_norms { tables::FALCON_40B } else { tables::FALCON };
    Ok(("FalconForCausalLM", table))
}

pub(super) fn gptneox(config: &mut Config<'_>) -> Result<Class, String> {
    let inner = config.gpt(false)?;
    config.equal_heads()?;
    config.rope()?;
    config.set("intermediate_size", inner);
    let is_parallel = config.keys.flag("use_parallel_residual")?.unwrap_or(true);
    config.set("use_parallel_residual", is_parallel);
    config.set("hidden_act", "gelu");
    Ok(("GPTNeoXForCausalLM", tables::GPT_NEOX))
}

pub(super) fn mpt(config: &mut Config<'_>) -> Result<Class, String> {
    config.gpt(true)?;
    config.equal_heads()?;
    // Without it positions would be learned.
    let max_bias = config.keys.float("attention.max_alibi_bias")?.filter(|bias| *bias != 0.0);
    let Some(max_bias) = max_bias else {
        return Err("MPT without ALiBi is not supported".to_owned());
    };
    let clip = config.keys.float("attention.clamp_kqv")?;
    config.set("attn_config", json!({"alibi": true, "alibi_bias_max": max_bias, "clip_qkv": clip}));
    Ok(("MptForCausalLM", tables::MPT))
}
