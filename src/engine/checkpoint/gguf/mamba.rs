//! Mamba 2 in GGUF files, alone or beside attention (Granite 4, Nemotron-H).

use super::archs::Class;
use super::config::Config;
use super::names::{NameTable, Parts, Qkv};
use super::tables::{self, CHOICE_BIAS, LLAMA_LAYER, PLAIN};
use crate::families::experts::EXPERTS_APART;

/// What scans of Mamba 1 and 2 have beside attention.
pub(super) const MAMBA_SCAN: Parts = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_d", "mamba.D"),
    ("ssm_out", "mamba.out_proj"),
];

const MAMBA: Parts = &[("ssm_dt.bias", "mamba.dt_bias"), ("ssm_norm", "mamba.norm")];

/// The same of models that have no other blocks.
pub(super) const MIXER_SCAN: Parts = &[
    ("attn_norm", "norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_a", "mixer.A_log"),
    ("ssm_d", "mixer.D"),
    ("ssm_out", "mixer.out_proj"),
];

const MIXER: Parts = &[("ssm_dt.bias", "mixer.dt_bias"), ("ssm_norm", "mixer.norm")];

pub(super) const BACKBONE: NameTable = NameTable {
    outer: &[
        ("token_embd", "backbone.embeddings"),
        ("output_norm", "backbone.norm_f"),
        ("output", "lm_head"),
    ],
    layers: "backbone.layers",
    inner: &[MIXER_SCAN, MIXER],
    ..PLAIN
};

/// A block a layer: of a scan, of attention, an MLP, or experts without gates.
const NEMOTRON: NameTable = NameTable {
    inner: &[
        MIXER_SCAN,
        MIXER,
        &[
            ("attn_q", "mixer.q_proj"),
            ("attn_k", "mixer.k_proj"),
            ("attn_v", "mixer.v_proj"),
            ("attn_output", "mixer.o_proj"),
            ("ffn_up", "mixer.up_proj"),
            ("ffn_down", "mixer.down_proj"),
            ("ffn_gate_inp", "mixer.gate"),
            (CHOICE_BIAS, "mixer.gate.e_score_correction_bias"),
            ("ffn_up_exps", "mixer.experts.*.up_proj"),
            ("ffn_down_exps", "mixer.experts.*.down_proj"),
            ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
            ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
            ("ffn_latent_down", "mixer.fc1_latent_proj"),
            ("ffn_latent_up", "mixer.fc2_latent_proj"),
        ],
    ],
    further: Some("mtp.layers."),
    ..BACKBONE
};

const GRANITE: NameTable = NameTable {
    inner: &[
        MAMBA_SCAN,
        MAMBA,
        &[
            ("ffn_gate", "shared_mlp.gate_proj"),
            ("ffn_up", "shared_mlp.up_proj"),
            ("ffn_down", "shared_mlp.down_proj"),
        ],
        tables::GRANITE_EXPERTS,
        LLAMA_LAYER,
    ],
    ..PLAIN
};

impl Config<'_> {
    /// Sets sizes of the scan, under these names: heads, their width, groups, states and taps.
    /// Gives how many values all heads have.
    fn scan(&mut self, names: [&str; 5]) -> Result<u64, String> {
        let (num_heads, inner) =
            (self.keys.size("ssm.time_step_rank")?, self.keys.size("ssm.inner_size")?);
        let head_dim = inner.checked_div(num_heads).unwrap_or(0);
        if num_heads.checked_mul(head_dim) != Some(inner) {
            return Err(format!("{inner} values of a scan are not those of {num_heads} heads"));
        }
        let others = ["ssm.group_count", "ssm.state_size", "ssm.conv_kernel"];
        for (name, key) in names[2..].iter().zip(others) {
            self.set(name, self.keys.size(key)?);
        }
        self.set(names[0], num_heads);
        self.set(names[1], head_dim);
        Ok(inner)
    }

    /// How many values of a scan there are for one of the residual stream.
    pub(super) fn expansion(&self, inner: u64) -> Result<u64, String> {
        let hidden = self.keys.size("embedding_length")?;
        match inner.checked_div(hidden) {
            Some(times) if times * hidden == inner => Ok(times),
            _ => Err(format!("a scan of {inner} beside a stream of {hidden} is not supported")),
        }
    }

    /// Leaves the context out that a file without one has.
    pub(super) fn no_context(&mut self) -> Result<(), String> {
        if self.keys.size("context_length")? == NO_CONTEXT {
            self.remove("max_position_embeddings");
        }
        Ok(())
    }

    /// The epsilon, whatever kind of norm the converter took it for.
    pub(super) fn norm_eps(&mut self, name: &str) -> Result<(), String> {
        let of_rms = self.keys.float("attention.layer_norm_rms_epsilon")?;
        let of_layer = self.keys.float("attention.layer_norm_epsilon")?;
        self.set_some(name, of_rms.or(of_layer));
        Ok(())
    }
}

const IBM: [&str; 5] =
    ["mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"];

/// The context of files that have none.
const NO_CONTEXT: u64 = 1 << 20;

pub(super) fn mamba2(config: &mut Config<'_>) -> Result<Class, String> {
    config.shape()?;
    config.keys.ignore(&["feed_forward_length", "attention.head_count"]);
    config.no_context()?;
    let inner = config.scan(["num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"])?;
    config.set("expand", config.expansion(inner)?);
    config.norm_eps("layer_norm_epsilon")?;
    config.set("use_conv_bias", config.keys.has_any(".ssm_conv1d.bias"));
    config.set("use_bias", config.keys.has_any(".ssm_in.bias"));
    Ok(("Mamba2ForCausalLM", BACKBONE))
}

pub(super) fn granitehybrid(config: &mut Config<'_>) -> Result<Class, String> {
    config.layers_with_kv("linear_attention")?;
    let has_experts = config.keys.optional_size("expert_count")?.unwrap_or(0) > 0;
    if has_experts {
        config.experts()?;
    }
    config.decoder()?;
    config.granite_factors()?;
    let inner = config.scan(IBM)?;
    config.set("mamba_expand", config.expansion(inner)?);
    config.set("mamba_conv_bias", config.keys.has_any(".ssm_conv1d.bias"));
    config.set("mamba_proj_bias", config.keys.has_any(".ssm_in.bias"));
    // The converter's word for it.
    let rotates = config.keys.flag("rope.scaling.finetuned")?.unwrap_or(false);
    config.set("position_embedding_type", if rotates { "rope" } else { "nope" });
    config.remove("num_experts");
    let num_experts = config.keys.optional_size("expert_count")?.unwrap_or(0);
    config.set("num_local_experts", num_experts);
    let shared = config.keys.optional_size("expert_shared_feed_forward_length")?;
    let shared = shared.map_or_else(|| config.keys.size("feed_forward_length"), Ok)?;
    config.set("shared_intermediate_size", shared);
    config.set(EXPERTS_APART, true);
    // What does not turn may stand anywhere in a head.
    let qkv = if rotates { Qkv::Pairs } else { Qkv::AsTheyWere };
    Ok(("GraniteMoeHybridForCausalLM", NameTable { qkv, ..GRANITE }))
}

/// Kinds of layers are in no key: their tensors tell.
pub(super) fn nemotron_h(config: &mut Config<'_>) -> Result<Class, String> {
    let num_further = config.further_layers()?;
    let has_experts = config.keys.optional_size("expert_count")?.unwrap_or(0) > 0;
    if has_experts {
        config.experts()?;
    }
    config.shape()?;
    config.norm_eps("layer_norm_epsilon")?;
    config.checked_num_layers()?;
    let num_blocks = config.keys.size("block_count")? as usize;
    let kv_heads = config.keys.sizes_by_layer("attention.head_count_kv", num_blocks)?;
    let of_attention = kv_heads.iter().copied().find(|num| *num > 0);
    let pattern = blocks_of_nemotron(config)?;
    if let Some(layer) = pattern.find('-') {
        let inner = config.keys.shape(&format!("blk.{layer}.ffn_up.weight"))?[0];
        config.set("intermediate_size", inner);
    }
    config.set("hybrid_override_pattern", pattern);
    let num_heads = config.num_heads()?;
    config.set("num_attention_heads", num_heads);
    config.set("num_key_value_heads", of_attention.unwrap_or(num_heads));
    config.set("head_dim", config.head_dim()?);
    config.scan([
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
    ])?;
    config.set("use_conv_bias", config.keys.has_any(".ssm_conv1d.bias"));
    config.set("use_bias", config.keys.has_any(".ssm_in.bias"));
    let of_mlps = [".ffn_up.bias", ".ffn_up_shexp.bias", ".ffn_latent_up.bias"];
    config.set("mlp_bias", of_mlps.iter().any(|part| config.keys.has_any(part)));
    // The tensors say how wide MLPs are, and nothing is rotated.
    config.keys.ignore(&[
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.finetuned",
    ]);
    if has_experts {
        config.expect_sigmoids()?;
        config.deepseek_experts()?;
        config.remove("first_k_dense_replace");
        config.sizes(&[
            ("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
            ("moe_latent_size", "moe_latent_size"),
        ])?;
        config.set("num_nextn_predict_layers", num_further);
    }
    Ok(("NemotronHForCausalLM", NEMOTRON))
}

/// A letter for each layer.
fn blocks_of_nemotron(config: &Config<'_>) -> Result<String, String> {
    let letter = |layer: u64| {
        let has = |part: &str| config.keys.has(&format!("blk.{layer}.{part}.weight"));
        let parts = [("ssm_in", 'M'), ("attn_q", '*'), ("ffn_gate_inp", 'E'), ("ffn_up", '-')];
        let found = parts.into_iter().find(|(part, _)| has(part));
        found.map(|(_, letter)| letter).ok_or_else(|| format!("layer {layer} has no block"))
    };
    (0..config.num_layers()?).map(letter).collect()
}
