//! The architectures of GGUF files: for each, transformers' class, the names of its tensors, and
//! what its metadata says in config.json's words.
//!
//! Source: llama.cpp's `conversion/` (what is written) and `src/models/` (what holds where nothing
//! is written).

use serde_json::Value;

use super::config::Config;
use super::delta_net;
use super::gemma4;
use super::glm;
use super::gpt;
use super::latent;
use super::llama4;
use super::mamba;
use super::names::NameTable;
use super::tables;
use crate::families::experts::EXPERTS_APART;

/// An architecture.
#[derive(Debug)]
pub(super) struct Arch {
    /// Its name in `general.architecture`.
    pub name: &'static str,
    /// What its metadata comes to, `architectures` left out; transformers' class, and the names of
    /// tensors.
    pub translate: fn(&mut Config<'_>) -> Result<Class, String>,
}

/// transformers' class of a file.
pub(super) type Class = (&'static str, NameTable);

pub(super) const fn arch(
    name: &'static str,
    translate: fn(&mut Config<'_>) -> Result<Class, String>,
) -> Arch {
    Arch { name, translate }
}

/// By name.
pub(super) const ARCHS: &[Arch] = &[
    arch("arcee", arcee),
    arch("bloom", gpt::bloom),
    arch("chatglm", glm::chatglm),
    arch("cohere2", cohere2),
    arch("command-r", command_r),
    arch("deepseek2", latent::deepseek2),
    arch("ernie4_5", ernie4_5),
    arch("exaone", exaone),
    arch("exaone4", exaone4),
    arch("falcon", gpt::falcon),
    arch("gemma", gemma),
    arch("gemma2", gemma2),
    arch("gemma3", gemma3),
    arch("gemma4", gemma4::gemma4),
    arch("glm4", glm::glm4),
    arch("glm4moe", glm::glm4moe),
    arch("gpt2", gpt::gpt2),
    arch("gpt-oss", gpt_oss),
    arch("gptneox", gpt::gptneox),
    arch("granite", granite),
    arch("granitehybrid", mamba::granitehybrid),
    arch("granitemoe", granitemoe),
    arch("hunyuan-dense", hunyuan),
    arch("internlm2", internlm2),
    arch("jais2", jais2),
    arch("lfm2", lfm2),
    arch("lfm2moe", lfm2moe),
    arch("llama", llama_or_mixtral),
    arch("llama4", llama4::llama4),
    arch("mamba2", mamba::mamba2),
    arch("minicpm", minicpm),
    arch("minicpm3", minicpm3),
    arch("mistral3", mistral3),
    arch("mpt", gpt::mpt),
    arch("nemotron", nemotron),
    arch("nemotron_h", mamba::nemotron_h),
    arch("nemotron_h_moe", mamba::nemotron_h),
    arch("olmo", olmo),
    arch("olmo2", olmo2),
    arch("olmoe", olmoe),
    arch("orion", orion),
    arch("paddleocr", paddleocr),
    arch("pangu-embedded", pangu_embedded),
    arch("phi2", phi2),
    arch("phi3", phi3),
    arch("qwen2", qwen2),
    arch("qwen2moe", qwen2moe),
    arch("qwen2vl", qwen2vl),
    arch("qwen3", qwen3),
    arch("qwen35", delta_net::qwen35),
    arch("qwen35moe", delta_net::qwen35moe),
    arch("qwen3moe", qwen3moe),
    arch("qwen3next", delta_net::qwen3next),
    arch("qwen3vl", qwen3vl),
    arch("qwen3vlmoe", qwen3vlmoe),
    arch("seed_oss", seed_oss),
    arch("smollm3", smollm3),
    arch("stablelm", stablelm),
    arch("starcoder", gpt::starcoder),
    arch("starcoder2", starcoder2),
];

/// Also Mistral, TinyLlama, SmolLM2, Yi and others, which llama.cpp calls llama too.
fn llama(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("attention_bias", config.keys.has("blk.0.attn_output.bias"));
    config.set("mlp_bias", config.keys.has("blk.0.ffn_down.bias"));
    Ok(("LlamaForCausalLM", tables::LLAMA))
}

/// llama.cpp calls Mixtral llama too.
fn llama_or_mixtral(config: &mut Config<'_>) -> Result<Class, String> {
    if config.keys.optional_size("expert_count")?.unwrap_or(0) == 0 {
        return llama(config);
    }
    config.experts()?;
    llama(config)?;
    Ok(("MixtralForCausalLM", tables::MIXTRAL))
}

/// Its q, k and v are stored apart, in Llama's way.
fn internlm2(config: &mut Config<'_>) -> Result<Class, String> {
    llama(config)
}

fn arcee(config: &mut Config<'_>) -> Result<Class, String> {
    llama(config)?;
    Ok(("ArceeForCausalLM", tables::LLAMA))
}

fn granite(config: &mut Config<'_>) -> Result<Class, String> {
    llama(config)?;
    config.granite_factors()?;
    Ok(("GraniteForCausalLM", tables::LLAMA))
}

impl Config<'_> {
    /// What Granite multiplies by.
    pub(super) fn granite_factors(&mut self) -> Result<(), String> {
        self.floats(&[
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ])?;
        // Bamba has none, and scores as usual.
        let scale = self.keys.float("attention.scale")?.filter(|scale| *scale != 0.0);
        let usual = 1.0 / (self.head_dim()? as f64).sqrt();
        self.set("attention_multiplier", scale.unwrap_or(usual));
        Ok(())
    }
}

/// With an MLP of all tokens where the file says how wide it is.
fn granitemoe(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    granite(config)?;
    config.set(EXPERTS_APART, true);
    let shared = config.keys.optional_size("expert_shared_feed_forward_length")?;
    config.set_some("shared_intermediate_size", shared);
    let class = match shared {
        Some(_) => "GraniteMoeSharedForCausalLM",
        None => "GraniteMoeForCausalLM",
    };
    Ok((class, tables::GRANITE_MOE))
}

/// Granite with other names; scores are scaled as usual.
fn minicpm(config: &mut Config<'_>) -> Result<Class, String> {
    llama(config)?;
    for (key, name) in [
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        let value = config.keys.float(key)?.ok_or_else(|| format!("{key} is missing"))?;
        config.set(name, value);
    }
    config.set("attention_multiplier", 1.0 / (config.head_dim()? as f64).sqrt());
    Ok(("GraniteForCausalLM", tables::LLAMA))
}

/// Multipliers are in no key: they are llama.cpp's.
fn minicpm3(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    let (head_dim, rope) = (config.head_dim()?, config.keys.size("rope.dimension_count")?);
    config.remove("head_dim");
    config.remove("partial_rotary_factor");
    config.set("qk_rope_head_dim", rope);
    config.set("qk_nope_head_dim", head_dim.saturating_sub(rope));
    config.set("q_lora_rank", config.keys.size("attention.q_lora_rank")?);
    config.set("kv_lora_rank", config.keys.size("attention.kv_lora_rank")?);
    let values = config.keys.shape("blk.0.attn_output.weight")?.last().copied().unwrap_or(0);
    config.set("v_head_dim", values as u64 / config.num_heads()?.max(1));
    config.set("scale_emb", 12);
    config.set("scale_depth", 1.4);
    config.set("dim_model_base", 256);
    Ok(("MiniCPM3ForCausalLM", tables::MINICPM_3))
}

/// Mistral; Ministral 3 is the one whose queries grow with their position.
fn mistral3(config: &mut Config<'_>) -> Result<Class, String> {
    llama(config)?;
    let growth = config.keys.float("attention.temperature_scale")?.filter(|beta| *beta != 0.0);
    let factor_of_all = config.keys.float("rope.scaling.yarn_log_multiplier")?;
    // The file has one of two numbers; models have 1 for both.
    if factor_of_all != growth.map(|_| 1.0) {
        return Err("this rope.scaling.yarn_log_multiplier is not supported".to_owned());
    }
    let Some(growth) = growth else { return Ok(("LlamaForCausalLM", tables::LLAMA)) };
    let theta = config.keys.float("rope.freq_base")?;
    let Some(Value::Object(mut rope)) = config.remove("rope_scaling") else {
        return Err("yarn is missing".to_owned());
    };
    rope.extend([
        ("rope_theta".to_owned(), theta.into()),
        ("llama_4_scaling_beta".to_owned(), growth.into()),
        ("mscale".to_owned(), 1.0.into()),
        ("mscale_all_dim".to_owned(), 1.0.into()),
    ]);
    config.set("rope_parameters", rope);
    Ok(("Ministral3ForCausalLM", tables::LLAMA))
}

/// Which layers are rotated is in no key: all but each fourth.
fn smollm3(config: &mut Config<'_>) -> Result<Class, String> {
    llama(config)?;
    config.set("no_rope_layer_interval", 4);
    Ok(("SmolLM3ForCausalLM", tables::LLAMA))
}

fn olmo(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.floats(&[("attention.clamp_kqv", "clip_qkv")])?;
    config.expect_layer_norm_eps(1e-5)?;
    Ok(("OlmoForCausalLM", tables::LLAMA))
}

fn qwen2(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    Ok(("Qwen2ForCausalLM", tables::PLAIN))
}

fn qwen3(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    Ok(("Qwen3ForCausalLM", tables::PLAIN))
}

/// Whether weights are shares of a sum is in no key: they are none.
fn qwen2moe(config: &mut Config<'_>) -> Result<Class, String> {
    qwen_experts(config, false)?;
    let shared = config.keys.size("expert_shared_feed_forward_length")?;
    config.set("shared_expert_intermediate_size", shared);
    Ok(("Qwen2MoeForCausalLM", tables::WITH_EXPERTS))
}

/// Here they are shares.
fn qwen3moe(config: &mut Config<'_>) -> Result<Class, String> {
    qwen_experts(config, true)?;
    Ok(("Qwen3MoeForCausalLM", tables::WITH_EXPERTS))
}

fn qwen_experts(config: &mut Config<'_>, is_share: bool) -> Result<(), String> {
    config.experts()?;
    config.decoder()?;
    config.set("moe_intermediate_size", config.keys.size("expert_feed_forward_length")?);
    config.set("norm_topk_prob", is_share);
    Ok(())
}

fn olmoe(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.decoder()?;
    config.set("norm_topk_prob", false);
    Ok(("OlmoeForCausalLM", tables::WITH_EXPERTS))
}

/// Its yarn is not rounded, which no key says; experts are taken apart.
fn gpt_oss(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.decoder()?;
    config.set("intermediate_size", config.keys.size("expert_feed_forward_length")?);
    config.one_base()?;
    config.windows(None, |layer| layer % 2 == 0)?;
    config.set(EXPERTS_APART, true);
    if let Some(Value::Object(mut rope)) = config.remove("rope_scaling") {
        if rope.get("rope_type") == Some(&"yarn".into()) {
            rope.insert("truncate".to_owned(), false.into());
        }
        config.set("rope_scaling", rope);
    }
    Ok(("GptOssForCausalLM", tables::GPT_OSS))
}

/// In text the axes of positions are equal.
fn qwen2vl(config: &mut Config<'_>) -> Result<Class, String> {
    config.keys.ignore(&["rope.dimension_sections"]);
    qwen2(config)
}

/// What its deeper layers get of images is none of text.
fn qwen3vl(config: &mut Config<'_>) -> Result<Class, String> {
    config.keys.ignore(&["rope.dimension_sections", "n_deepstack_layers"]);
    qwen3(config)
}

/// The same with experts.
fn qwen3vlmoe(config: &mut Config<'_>) -> Result<Class, String> {
    config.keys.ignore(&["rope.dimension_sections", "n_deepstack_layers"]);
    qwen3moe(config)
}

/// Llama under other names.
fn exaone(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    Ok(("ExaoneForCausalLM", tables::EXAONE))
}

/// The epsilon of LayerNorms has the name of the other norms'.
fn orion(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    let eps = config.remove("layer_norm_eps");
    config.set_some("rms_norm_eps", eps);
    Ok(("OrionForCausalLM", tables::PLAIN))
}

/// ERNIE 4.5 whose rotary embedding turns halves, which is Llama. In text the axes of positions are
/// equal.
fn paddleocr(config: &mut Config<'_>) -> Result<Class, String> {
    config.keys.ignore(&["rope.dimension_sections"]);
    llama(config)?;
    Ok(("LlamaForCausalLM", tables::PLAIN))
}

fn pangu_embedded(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("bias", config.keys.has("blk.0.attn_output.bias"));
    Ok(("PanguEmbeddedForCausalLM", tables::PLAIN))
}

fn phi2(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("intermediate_size", config.inner_width()?);
    Ok(("PhiForCausalLM", tables::PHI_2))
}

fn seed_oss(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("attention_bias", config.keys.has("blk.0.attn_q.bias"));
    config.set("attention_out_bias", config.keys.has("blk.0.attn_output.bias"));
    Ok(("SeedOssForCausalLM", tables::SEED_OSS))
}

fn hunyuan(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    Ok(("HunYuanDenseV1ForCausalLM", tables::HUNYUAN))
}

fn ernie4_5(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("use_bias", config.keys.has("blk.0.attn_output.bias"));
    Ok(("Ernie4_5ForCausalLM", tables::PLAIN))
}

fn gemma(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("hidden_activation", "gelu_pytorch_tanh");
    Ok(("GemmaForCausalLM", tables::GEMMA))
}

fn gemma2(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.one_base()?;
    config.windows(Some(4096), |layer| layer % 2 == 0)?;
    // Files that were written before these keys have llama.cpp's defaults.
    let cap = |key, default| Ok::<_, String>(config.keys.float(key)?.unwrap_or(default));
    let caps = [cap("attn_logit_softcapping", 50.0)?, cap("final_logit_softcapping", 30.0)?];
    config.set("attn_logit_softcapping", caps[0]);
    config.set("final_logit_softcapping", caps[1]);
    gemma_scale(config, 46)?;
    Ok(("Gemma2ForCausalLM", tables::GEMMA_2))
}

/// Layers that slide have a base of their own, and are not stretched.
fn gemma3(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.windows(None, |layer| (layer + 1) % 6 != 0)?;
    config.floats(&[("final_logit_softcapping", "final_logit_softcapping")])?;
    let local = config.keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0);
    config.set("rope_local_base_freq", local);
    gemma_scale(config, 62)?;
    Ok(("Gemma3ForCausalLM", tables::GEMMA_2))
}

/// What Gemma 2 and 3 share. Scores of their 27B, known by its layers, are scaled otherwise.
fn gemma_scale(config: &mut Config<'_>, layers_of_27b: u64) -> Result<(), String> {
    let scalar = match config.keys.size("block_count")? == layers_of_27b {
        true => config.keys.size("embedding_length")? / config.num_heads()?.max(1),
        false => config.head_dim()?,
    };
    config.set("query_pre_attn_scalar", scalar);
    config.set("hidden_activation", "gelu_pytorch_tanh");
    Ok(())
}

fn phi3(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    // 0 is none; llama.cpp does not use it.
    let window = config.keys.optional_size("attention.sliding_window")?;
    config.set("sliding_window", window.filter(|window| *window > 0));
    let original = config.keys.optional_size("rope.scaling.original_context_length")?;
    config.set_some("original_max_position_embeddings", original);
    Ok(("Phi3ForCausalLM", tables::PHI_3))
}

/// OLMo 3 is the one with windows.
fn olmo2(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    match config.keys.optional_size("attention.sliding_window")?.is_some() {
        true => {
            config.one_base()?;
            config.windows(None, |layer| (layer + 1) % 4 != 0)?;
            Ok(("Olmo3ForCausalLM", tables::OLMO_2))
        }
        false => Ok(("Olmo2ForCausalLM", tables::OLMO_2)),
    }
}

/// Layers that predict further tokens (EXAONE 4.5) are left out.
fn exaone4(config: &mut Config<'_>) -> Result<Class, String> {
    config.further_layers()?;
    config.decoder()?;
    config.one_base()?;
    config.windows(None, |layer| (layer + 1) % 4 != 0)?;
    Ok(("Exaone4ForCausalLM", NameTable { further: Some(""), ..tables::OLMO_2 }))
}

/// Layers without K and V heads have short convolutions.
fn lfm2(config: &mut Config<'_>) -> Result<Class, String> {
    config.layers_with_kv("conv")?;
    config.decoder()?;
    let eps = config.remove("rms_norm_eps");
    config.set_some("norm_eps", eps);
    config.set("conv_L_cache", config.keys.size("shortconv.l_cache")?);
    config.set("block_auto_adjust_ff_dim", false);
    Ok(("Lfm2ForCausalLM", tables::LFM_2))
}

/// Weights are shares of a sum, which no key says.
fn lfm2moe(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    lfm2(config)?;
    config.remove("block_auto_adjust_ff_dim");
    config.expect_sigmoids()?;
    let num_dense = config.keys.size("leading_dense_block_count")?;
    config.set("num_dense_layers", num_dense);
    config.set("moe_intermediate_size", config.keys.size("expert_feed_forward_length")?);
    let bias = format!("blk.{num_dense}.exp_probs_b.bias");
    config.set("use_expert_bias", config.keys.has(&bias));
    Ok(("Lfm2MoeForCausalLM", tables::LFM_2))
}

fn command_r(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.floats(&[("logit_scale", "logit_scale")])?;
    config.set("use_qk_norm", config.keys.has("blk.0.attn_q_norm.weight"));
    Ok(("CohereForCausalLM", tables::PLAIN))
}

fn cohere2(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.one_base()?;
    config.windows(None, |layer| (layer + 1) % 4 != 0)?;
    config.floats(&[("logit_scale", "logit_scale")])?;
    Ok(("Cohere2ForCausalLM", tables::PLAIN))
}

/// Its MLP has no gate.
fn jais2(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("mlp_bias", config.keys.has("blk.0.ffn_down.bias"));
    config.set("attention_bias", config.keys.has("blk.0.attn_output.bias"));
    Ok(("Jais2ForCausalLM", tables::PLAIN))
}

fn nemotron(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("mlp_bias", config.keys.has("blk.0.ffn_down.bias"));
    config.set("attention_bias", config.keys.has("blk.0.attn_output.bias"));
    Ok(("NemotronForCausalLM", NameTable { adds_one: true, ..tables::PLAIN }))
}

fn stablelm(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    let is_parallel = config.keys.flag("use_parallel_residual")?.unwrap_or(true);
    // 12B: llama.cpp stacks what transformers has apart.
    if config.keys.has("blk.0.attn_q_norm.weight") {
        return Err("StableLM with norms of q and k is not supported".to_owned());
    }
    // Files of all sizes say that it is parallel; the norm of the second block tells.
    config.set("use_parallel_residual", is_parallel && !config.keys.has("blk.0.ffn_norm.weight"));
    config.set("use_qkv_bias", config.keys.has("blk.0.attn_q.bias"));
    Ok(("StableLmForCausalLM", tables::PLAIN))
}

fn starcoder2(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    config.set("use_bias", config.keys.has("blk.0.ffn_down.bias"));
    Ok(("Starcoder2ForCausalLM", tables::STARCODER_2))
}
