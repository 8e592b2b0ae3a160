//! DBRX: LayerNorms without biases, q, k and v that may be bounded, experts whose matrices stand in
//! three tensors, one after the other.

use super::experts::{self, Sizes};
use super::gpt::{Gpt, Names};
use crate::hf_config::{HfConfig, LayerType};
use crate::limits;
use crate::spec::{DecoderSpec, ExpertSpec, ExpertsSpec, LinearSpec, QkvHeads};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Routing};

/// Base of the rotary embedding where the file does not say.
const ROPE_THETA: f64 = 10_000.0;

/// The spec of a DBRX config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("tie_word_embeddings", false)?;
    let (mut num_kv_heads, mut clip, mut theta) = (1, None, None);
    if let Some(section) = root.section("attn_config")? {
        num_kv_heads = section.size_or("kv_n_heads", num_kv_heads)?;
        clip = section.number("clip_qkv")?;
        theta = section.number("rope_theta")?;
    }
    root.expect("num_key_value_heads", num_kv_heads)?;
    let num_heads = config.num_heads()?;
    config.check_kv_heads(num_heads, num_kv_heads)?;
    let heads = QkvHeads { num_heads, num_kv_heads, head_dim: config.head_dim()? };
    let rope = config.rope_of(LayerType::Full, theta.unwrap_or(ROPE_THETA))?;
    // transformers 5 reads the one alone, the model was trained with the other.
    if theta.is_some_and(|theta| theta != rope.theta) {
        return Err(config.error("`attn_config.rope_theta` and `rope_parameters` disagree"));
    }
    let (sizes, routing, activation) = read_experts(config)?;
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.wte",
            layers: "transformer.blocks",
            norms: ["norm_attn_norm.norm_1", "norm_attn_norm.norm_2"],
            qkv: &["norm_attn_norm.attn.Wqkv"],
            out: "norm_attn_norm.attn.out_proj",
            // Of MLPs, which become experts.
            up: "ffn",
            down: "ffn",
            final_norm: "transformer.norm_f",
        },
        heads: config.checked(heads)?,
        inner: sizes.inner,
        activation,
        biases: [false, false],
        max_model_len: rope.scaling.context_len(config.max_position_embeddings()?),
    };
    let mut spec = gpt.spec(config)?;
    spec.ropes = vec![rope];
    spec.output.lm_head = config.lm_head("lm_head", false)?;
    spec.residual_norms_mut().for_each(|norm| norm.bias = false);
    for (_, attention) in spec.attentions_mut() {
        attention.rope = Some(0);
        attention.clip_qkv = clip.map(|clip| clip as f32);
    }
    experts::set(&mut spec, |_| true, |index| block(index, sizes, (&routing, activation)));
    Ok(spec)
}

/// Reads `ffn_config`.
fn read_experts(config: &HfConfig) -> Result<(Sizes, Routing, Activation), EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let mut sizes = Sizes { num: 4, hidden, inner: 3584 };
    let (mut num_chosen, mut is_share, mut activation) = (1, true, Activation::Silu);
    if let Some(section) = root.section("ffn_config")? {
        // The width is the model's; the others are of training.
        section.ignore(&["hidden_size", "moe_jitter_eps", "moe_loss_weight"]);
        // A benchmark of experts that are all as busy.
        section.expect("uniform_expert_assignment", false)?;
        sizes.num = section.size_or("moe_num_experts", sizes.num)?;
        sizes.inner = section.size_or("ffn_hidden_size", sizes.inner)?;
        num_chosen = section.size_or("moe_top_k", num_chosen)?;
        let key = "moe_normalize_expert_weights";
        // The power of a norm: 1 is that of the sum.
        is_share = match section.number(key)? {
            Some(1.0) => true,
            None => !section.names().any(|name| name == key),
            Some(_) => {
                return Err(config.error(format!("a `ffn_config.{key}` of other than 1 or null")));
            }
        };
        let function = section.section("ffn_act_fn")?;
        let name = function.map_or(Ok(None), |function| function.text("name"))?;
        activation = config.activation_named_or(name, activation)?;
    }
    limits::check_num_experts(sizes.num, config.num_layers()?)
        .map_err(|text| config.error(text))?;
    Ok((sizes, experts::by_softmax(num_chosen, is_share), activation))
}

/// The experts of a layer: w1 is the gate, v1 is up, w2 is down, stored (inputs, outputs).
fn block(index: usize, sizes: Sizes, (routing, activation): (&Routing, Activation)) -> ExpertsSpec {
    let name = |part: &str| format!("transformer.blocks.{index}.ffn.{part}");
    let Sizes { num, hidden, inner } = sizes;
    let [gate, up, down] = ["w1", "v1", "w2"].map(|part| name(&format!("experts.mlp.{part}")));
    let expert = |index| {
        let up = LinearSpec::stacked([(gate.clone(), inner), (up.clone(), inner)], hidden);
        let down = LinearSpec::new(&down, hidden, inner).transposed();
        let [up, down] = [up, down].map(|linear| linear.sliced_flat(index, num));
        ExpertSpec { up, down }.as_parameters()
    };
    ExpertsSpec {
        experts: (0..num).map(expert).collect(),
        ..ExpertsSpec::new(sizes.router(name("router.layer")), routing.clone(), activation)
    }
}
