//! Nemotron-H, Nemotron Nano 2 and Nemotron 3: each layer is one block, of Mamba 2, of attention
//! without a rotation, an MLP without a gate, or experts without gates.

use super::experts::{self, Sizes};
use super::mamba::{self, Blocks};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, ExpertLatentSpec,
    ExpertSpec, ExpertsSpec, GateOrder, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec,
    OutputSpec, QkvHeads, SharedExpertSpec, Stage,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ScanShape};

/// Block of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// Keys that no layer reads where none has experts.
const OF_EXPERTS: [&str; 9] = [
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_routed_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "topk_group",
];

/// Blocks one after the other.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let eps = config.layer_norm_eps(1e-5)?;
    // Published files have both; and nothing is rotated, whatever base they name.
    config.root().ignore(&["partial_rotary_factor", "rms_norm_eps", "rope_theta"]);
    let kinds = blocks(config)?;
    let has_experts = kinds.contains(&Block::Experts);
    let (has_mlps, num_layers) = (kinds.contains(&Block::Mlp), kinds.len());
    let (mamba, heads) = (mamba_blocks(config, eps)?, heads(config)?);
    let mut layers = Vec::with_capacity(kinds.len());
    for (index, kind) in kinds.into_iter().enumerate() {
        let name = |part: &str| format!("backbone.layers.{index}.{part}");
        let norms = BlockNorms::before(NormSpec::rms(name("norm"), hidden, eps));
        let mixer = name("mixer");
        let mut layer = LayerSpec::default();
        match kind {
            Block::Mamba => layer.recurrent = Some(mamba.block(&mixer, norms)),
            Block::Attention => layer.attention = Some(attention(&mixer, (norms, heads), hidden)),
            Block::Mlp => layer.feed_forward = Some(mlp(config, &mixer, norms)?.into()),
            Block::Experts => {
                let experts = experts_of(config, &mixer, num_layers)?;
                layer.feed_forward = Some(ExpertsSpec { norms, ..experts }.into());
            }
        }
        layers.push(layer);
    }
    let mut output = OutputSpec::new(
        NormSpec::rms("backbone.norm_f", hidden, eps),
        config.lm_head("lm_head", false)?,
    );
    if mamba::size(config, "num_nextn_predict_layers", 0)? > 0 {
        output.of_further_tokens.push("mtp.".to_owned());
    }
    config.root().ignore(&["mtp_layers_block_type", "mtp_hybrid_override_pattern"]);
    // When the MLP of all tokens is computed; and transformers has one whatever number is written.
    config.root().ignore(&["moe_shared_expert_overlap", "n_shared_experts"]);
    if !has_experts {
        config.root().ignore(&OF_EXPERTS);
    }
    if !has_mlps {
        config.root().ignore(&["intermediate_size"]);
    }
    if !has_experts && !has_mlps {
        config.root().ignore(&["mlp_bias", "mlp_hidden_act"]);
    }
    Ok(DecoderSpec {
        max_model_len: config.max_position_embeddings()?,
        embedding: EmbeddingSpec::of(LinearSpec::new("backbone.embeddings", vocab, hidden)),
        layers,
        ropes: Vec::new(),
        output,
        stage: Stage::WHOLE,
    })
}

/// Blocks of the layers, from a list of names or from a letter each.
fn blocks(config: &HfConfig) -> Result<Vec<Block>, EngineError> {
    let root = config.root();
    let of_name = |name: &str| match name {
        "linear_attention" | "mamba" | "M" => Ok(Block::Mamba),
        "full_attention" | "attention" | "*" => Ok(Block::Attention),
        "mlp" | "-" => Ok(Block::Mlp),
        "moe" | "E" => Ok(Block::Experts),
        _ => Err(config.error("a layer type that is none of mamba, attention, mlp and moe")),
    };
    let pattern = root.text("hybrid_override_pattern")?;
    let by_letter = pattern
        .map(|text| text.chars().map(|letter| of_name(letter.encode_utf8(&mut [0; 4]))).collect());
    let mut found: Option<Vec<Block>> = by_letter.transpose()?;
    for key in ["layers_block_type", "layer_types"] {
        let Some(names) = root.texts(key)? else { continue };
        let named = names.into_iter().map(of_name).collect::<Result<Vec<_>, _>>()?;
        if found.as_ref().is_some_and(|found| *found != named) {
            return Err(config.error(format!("`{key}` disagrees with another key")));
        }
        found = Some(named);
    }
    let num_layers = root.optional_size("num_hidden_layers")?;
    match found {
        Some(found) if num_layers.is_none_or(|num_layers| num_layers == found.len()) => Ok(found),
        Some(_) => Err(config.error("`num_hidden_layers` disagrees with the list of layers")),
        None => Err(config.error("`hybrid_override_pattern` is missing")),
    }
}

fn mamba_blocks(config: &HfConfig, eps: f32) -> Result<Blocks, EngineError> {
    let root = config.root();
    let size = |key, default| mamba::size(config, key, default);
    let flag = |key, default| Ok::<_, EngineError>(root.flag(key)?.unwrap_or(default));
    let activation =
        config.activation_named_or(root.text("mamba_hidden_act")?, Activation::Silu)?;
    root.expect("mamba_proj_bias", false)?;
    // Of training, of kernels, of how much is computed at once, of residuals, which are in f32
    // here, and of the type of states, which is f32 too. How wide a scan is follows from its heads.
    root.ignore(&[
        "chunk_size",
        "expand",
        "hidden_dropout",
        "mamba_ssm_cache_dtype",
        "num_logits_to_keep",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "time_step_floor",
        "time_step_max",
        "use_mamba_kernels",
    ]);
    // The least that dt begins as in training. transformers 5 bounds dt of prompts by it; the code
    // in published folders and vLLM do not.
    root.ignore(&["time_step_min"]);
    Blocks {
        hidden: config.hidden_size()?,
        scan: ScanShape {
            num_heads: size("mamba_num_heads", 128)?,
            head_dim: size("mamba_head_dim", 64)?,
            num_groups: size("n_groups", 8)?,
            state_size: size("ssm_state_size", 128)?,
        },
        num_taps: size("conv_kernel", 4)?,
        has_conv_bias: flag("use_conv_bias", true)?,
        has_bias: [flag("use_bias", false)?; 2],
        activation,
        dt_bounds: mamba::dt_bounds(config)?,
        norm: Some((eps, GateOrder::BeforeNorm)),
    }
    .checked(config)
}

fn heads(config: &HfConfig) -> Result<QkvHeads, EngineError> {
    let root = config.root();
    root.expect("attention_bias", false)?;
    if let Some(window) = root.value("sliding_window") {
        return Err(config.error(format!("`sliding_window` of {window} is not supported")));
    }
    let of_attention = root.optional_size("attention_head_dim")?;
    let head_dim = root.optional_size("head_dim")?.or(of_attention).unwrap_or(128);
    let (num_heads, num_kv_heads) = (config.num_heads()?, config.num_kv_heads()?);
    let heads = QkvHeads { num_heads, num_kv_heads, head_dim };
    limits::check_heads(heads).map_err(|text| config.error(text))?;
    Ok(heads)
}

fn attention(mixer: &str, (norms, heads): (BlockNorms, QkvHeads), hidden: usize) -> AttentionSpec {
    let name = |part: &str| format!("{mixer}.{part}");
    let (q, kv) = (heads.q_width(), heads.kv_width());
    let qkv = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)].map(|(part, n)| (name(part), n));
    let out = LinearSpec::new(name("o_proj"), hidden, q);
    AttentionSpec::new(norms, heads, LinearSpec::stacked(qkv, hidden), out)
}

fn mlp(config: &HfConfig, mixer: &str, norms: BlockNorms) -> Result<MlpSpec, EngineError> {
    let name = |part: &str| format!("{mixer}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let activation = activation(config)?;
    let bias = config.mlp_bias()?;
    Ok(MlpSpec {
        norms,
        form: MlpForm::Plain,
        activation: ActivationSpec::Known(activation),
        up: LinearSpec::new(name("up_proj"), inner, hidden).with_bias(bias),
        down: LinearSpec::new(name("down_proj"), hidden, inner).with_bias(bias),
    })
}

/// DeepSeek V3's choice of experts, perhaps narrower than the stream, and an MLP of all tokens.
fn experts_of(
    config: &HfConfig,
    mixer: &str,
    num_layers: usize,
) -> Result<ExpertsSpec, EngineError> {
    let name = |part: &str| format!("{mixer}.{part}");
    let (root, hidden, bias) = (config.root(), config.hidden_size()?, config.mlp_bias()?);
    let keys = ["n_routed_experts", "num_local_experts"];
    let sizes = Sizes::read_for(config, num_layers, &keys, "moe_intermediate_size")?;
    let latent = root.optional_size("moe_latent_size")?;
    let latent_spec = |width| ExpertLatentSpec {
        into: LinearSpec::new(name("fc1_latent_proj"), width, hidden).with_bias(bias),
        back: LinearSpec::new(name("fc2_latent_proj"), hidden, width).with_bias(bias),
    };
    let parts = ["up_proj", "down_proj"];
    let of_all = parts.map(|part| name(&format!("shared_experts.{part}")));
    let shared =
        ExpertSpec::plain(of_all, hidden, root.size("moe_shared_expert_intermediate_size")?);
    let routing = experts::by_sigmoid(config, true)?;
    let of_experts = Sizes { hidden: latent.unwrap_or(hidden), ..sizes };
    Ok(ExpertsSpec {
        choice_bias: Some((name("gate.e_score_correction_bias"), vec![sizes.num])),
        form: MlpForm::Plain,
        experts: of_experts.experts_without_gates(&name("experts"), parts),
        latent: latent.map(latent_spec),
        shared: Some(SharedExpertSpec { mlp: shared.with_bias(bias), gate: None }),
        ..ExpertsSpec::new(sizes.router(name("gate")), routing, activation(config)?)
    })
}

/// Of MLPs and of experts.
fn activation(config: &HfConfig) -> Result<Activation, EngineError> {
    config.activation_named_or(config.root().text("mlp_hidden_act")?, Activation::Relu2)
}
