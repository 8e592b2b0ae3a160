//! Mamba 1 in GGUF files, alone (Mamba, Falcon Mamba) or beside attention (Jamba).

use super::archs::{Arch, Class, arch};
use super::config::Config;
use super::mamba::{BACKBONE, MAMBA_SCAN, MIXER_SCAN};
use super::names::NameTable;
use super::tables::{FEED_FORWARD, LLAMA_LAYER, PLAIN};

/// By name.
pub(super) const ARCHS: &[Arch] = &[arch("jamba", jamba), arch("mamba", mamba)];

const MAMBA: NameTable = NameTable {
    inner: &[MIXER_SCAN, &[("ssm_x", "mixer.x_proj"), ("ssm_dt", "mixer.dt_proj")]],
    ..BACKBONE
};

const JAMBA: NameTable = NameTable {
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.final_layernorm"),
        ("output", "lm_head"),
    ],
    inner: &[
        MAMBA_SCAN,
        FEED_FORWARD,
        &[
            ("ssm_x", "mamba.x_proj"),
            ("ssm_dt", "mamba.dt_proj"),
            ("ssm_dt_norm", "mamba.dt_layernorm"),
            ("ssm_b_norm", "mamba.b_layernorm"),
            ("ssm_c_norm", "mamba.c_layernorm"),
            ("ffn_norm", "pre_ff_layernorm"),
        ],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

/// The epsilon of Falcon's norms of what chooses is not written: llama.cpp takes that of the
/// others.
fn mamba(config: &mut Config<'_>) -> Result<Class, String> {
    config.shape()?;
    config.no_context()?;
    config.keys.ignore(&["feed_forward_length", "attention.head_count"]);
    config.sizes(&[
        ("ssm.inner_size", "intermediate_size"),
        ("ssm.state_size", "state_size"),
        ("ssm.conv_kernel", "conv_kernel"),
        ("ssm.time_step_rank", "time_step_rank"),
    ])?;
    config.norm_eps("layer_norm_epsilon")?;
    config.set("use_conv_bias", config.keys.has_any(".ssm_conv1d.bias"));
    config.set("use_bias", config.keys.has_any(".ssm_in.bias"));
    if !config.keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false) {
        return Ok(("MambaForCausalLM", MAMBA));
    }
    config.norm_eps("mixer_rms_eps")?;
    Ok(("FalconMambaForCausalLM", MAMBA))
}

/// Which layers have experts is in no key: they have a router.
fn jamba(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.shape()?;
    config.layers_with_kv("mamba")?;
    config.remove("layer_types");
    config.heads()?;
    config.remove("head_dim");
    config.norm_eps("rms_norm_eps")?;
    config.sizes(&[
        ("feed_forward_length", "intermediate_size"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.time_step_rank", "mamba_dt_rank"),
    ])?;
    let inner = config.keys.size("ssm.inner_size")?;
    config.set("mamba_expand", config.expansion(inner)?);
    config.set("mamba_conv_bias", config.keys.has_any(".ssm_conv1d.bias"));
    config.set("mamba_proj_bias", config.keys.has_any(".ssm_in.bias"));
    for (kind, part) in [("attn", "attn_q"), ("expert", "ffn_gate_inp")] {
        let (period, offset) = every(config, part)?;
        config.set(&format!("{kind}_layer_period"), period);
        config.set(&format!("{kind}_layer_offset"), offset);
    }
    Ok(("JambaForCausalLM", JAMBA))
}

/// A layer in so many has a part, from which one on. Where only one has it, or none, the period is
/// longer than the model.
fn every(config: &Config<'_>, part: &str) -> Result<(u64, u64), String> {
    let num_layers = config.checked_num_layers()?;
    let has = |layer: &u64| config.keys.has(&format!("blk.{layer}.{part}.weight"));
    let found: Vec<u64> = (0..num_layers).filter(has).collect();
    let (offset, period) = match found[..] {
        [] => (num_layers, num_layers + 1),
        [only] => (only, num_layers + 1),
        [first, second, ..] => (first, second - first),
    };
    let expected: Vec<u64> = (0..num_layers).filter(|layer| layer % period == offset).collect();
    match offset < period && found == expected {
        true => Ok((period, offset)),
        false => Err(format!("{part} in layers {found:?} is not supported: they are not periodic")),
    }
}
