//! OLMo Hybrid: OLMo 3's attention, perhaps without a rotation, and gated delta nets before which
//! norms are, with a tensor for each of their parts.

use serde_json::json;

use super::llama::{self, Defaults};
use super::{olmo2, qwen3_next};
use crate::hf_config::{HfConfig, LayerType, Section};
use crate::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, DeltaGate, DeltaNetSpec, LayerSpec, LinearSpec,
    NormSpec, RecurrentSpec, TapsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Decay, DeltaHeads};

/// The epsilon of norms of what heads give, whatever `rms_norm_eps` is.
const HEADS_EPS: f32 = 1e-5;

/// Llama's frame around layers of both kinds.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let (root, defaults) = (config.root(), Defaults::LLAMA);
    let (hidden, heads) = (config.hidden_size()?, config.heads()?);
    let width = (3 * hidden / 4 / heads.num_heads).max(1);
    config.assume(&[
        ("linear_conv_kernel_dim", json!(4)),
        ("linear_num_key_heads", json!(heads.num_heads)),
        ("linear_num_value_heads", json!(heads.num_heads)),
    ]);
    // Of training: how decays begin.
    root.ignore(&[
        "linear_a_log_max",
        "linear_a_log_min",
        "linear_dt_init_floor",
        "linear_dt_max",
        "linear_dt_min",
    ]);
    root.expect("hidden_act", "silu")?;
    let k_dim = root.size_or("linear_key_head_dim", width)?;
    let delta_heads = qwen3_next::delta_heads(config, [Some(k_dim), Some(2 * k_dim)])?;
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let inner = config.intermediate_size()?;
    let attends = config.full_layers_or(|index| index % 4 == 3)?;
    let (ropes, max_model_len) = match rotates(config)? {
        true => {
            let rope = config.rope_of(LayerType::Full, defaults.rope_theta)?;
            let len = rope.scaling.context_len(config.max_position_embeddings()?);
            (vec![rope], len)
        }
        false => (Vec::new(), config.max_position_embeddings()?),
    };
    let rope = (!ropes.is_empty()).then_some(0);
    llama::around_with(config, defaults, (ropes, max_model_len), |index| {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |part: &str| NormSpec::rms(name(part), hidden, eps);
        let mut mlp = llama::mlp(config, defaults, (index, inner))?;
        if attends[index] {
            mlp.norms = BlockNorms::after(norm("post_feedforward_layernorm"));
            let attention = llama::attention(config, defaults, (index, heads))?;
            let attention = AttentionSpec {
                norms: BlockNorms::after(norm("post_attention_layernorm")),
                qk_norm: Some(olmo2::norms_of_all_heads(index, heads, eps)),
                rope,
                ..attention
            };
            return Ok(LayerSpec::new(attention, mlp));
        }
        mlp.norms = BlockNorms::before(norm("feedforward_layer_norm"));
        let norms = BlockNorms::before(norm("attention_layer_norm"));
        let net = delta_net(config, (delta_heads, norms), index)?;
        Ok(LayerSpec {
            recurrent: Some(RecurrentSpec::DeltaNet(Box::new(net))),
            feed_forward: Some(mlp.into()),
            ..LayerSpec::default()
        })
    })
}

/// Whether q and k turn: not where the base is null.
fn rotates(config: &HfConfig) -> Result<bool, EngineError> {
    let root = config.root();
    let is_null = |section: &Section<'_>| {
        section.names().any(|name| name == "rope_theta") && section.value("rope_theta").is_none()
    };
    match root.section("rope_parameters")? {
        None if is_null(&root) => {
            root.ignore(&["rope_scaling"]);
            Ok(false)
        }
        Some(section) if is_null(&section) => {
            section.ignore(&["rope_type"]);
            root.ignore(&["rope_scaling", "rope_theta"]);
            Ok(false)
        }
        _ => Ok(true),
    }
}

fn delta_net(
    config: &HfConfig,
    (heads, norms): (DeltaHeads, BlockNorms),
    index: usize,
) -> Result<DeltaNetSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.linear_attn.{part}");
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let (k, v, gates) = (heads.k_width(), heads.v_width(), heads.num_v_heads);
    let inputs = [
        ("q_proj", k),
        ("k_proj", k),
        ("v_proj", v),
        ("g_proj", v),
        ("b_proj", gates),
        ("a_proj", gates),
    ];
    let taps = [("q_conv1d", k), ("k_conv1d", k), ("v_conv1d", v)];
    let is_doubled = root.flag("linear_allow_neg_eigval")?.unwrap_or(true);
    Ok(DeltaNetSpec {
        norms,
        heads,
        inputs: LinearSpec::stacked(inputs.map(|(part, rows)| (name(part), rows)), hidden),
        low_rank: None,
        taps: TapsSpec {
            parts: taps.map(|(part, width)| (name(part), width)).into(),
            num_taps: root.size("linear_conv_kernel_dim")?,
            bias: false,
        },
        decay: Decay::OfHeads,
        a_log: (name("A_log"), vec![gates]),
        dt_bias: name("dt_bias"),
        beta_factor: if is_doubled { 2.0 } else { 1.0 },
        norm: NormSpec::rms(name("o_norm"), heads.v_dim, HEADS_EPS),
        output_gate: DeltaGate::Silu,
        out: LinearSpec::new(name("o_proj"), hidden, v),
    })
}
