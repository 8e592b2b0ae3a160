//! AFMoE (Trinity): Llama with norms before and after both blocks and of every q and k head, a gate
//! of what heads give, windows where layers turn, and DeepSeek's experts under names of its own.

use super::experts::{self, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{BlockNorms, DecoderSpec, EmbeddingScale, ExpertsSpec, NormSpec, OutputGate};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let root = config.root();
    // Its default is none of Llama's.
    root.size("head_dim")?;
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps_or(defaults.rms_norm_eps)?);
    let norms = |index: usize, before: &str, after: &str| {
        let norm = |part| Some(NormSpec::rms(format!("model.layers.{index}.{part}"), hidden, eps));
        BlockNorms { before: norm(before), after: norm(after), ..BlockNorms::default() }
    };
    let window = root.size_or("sliding_window", 1024)?;
    let slides = config.sliding_layers(root.size_or("global_attn_every_n_layers", 4)?)?;
    for (index, attention) in spec.attentions_mut() {
        let heads = attention.heads;
        attention.norms = norms(index, "input_layernorm", "post_attention_layernorm");
        attention.qk_norm =
            Some(llama::head_norms(index, ["q_norm", "k_norm"], heads.head_dim, eps));
        attention.reach = Reach::of_window(slides[index].then_some(window));
        attention.rope = slides[index].then_some(0);
        let gate = format!("model.layers.{index}.self_attn.gate_proj");
        attention.gate_by(gate, OutputGate::OF_VALUES);
    }
    for (index, mlp) in spec.mlps_mut() {
        mlp.norms = norms(index, "pre_mlp_layernorm", "post_mlp_layernorm");
    }
    if root.flag("mup_enabled")?.unwrap_or(false) {
        let factor = (hidden as f64).sqrt() as f32;
        spec.embedding.scale = Some(EmbeddingScale { factor, is_rounded: false });
    }
    set_experts(config, &mut spec)?;
    Ok(spec)
}

/// Experts behind the first layers, beside some of all tokens.
fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    // Keys of Arcee's own code, which say what every model of this class computes.
    for key in ["n_group", "num_expert_groups", "num_limited_groups", "topk_group"] {
        root.expect(key, 1)?;
    }
    root.expect("route_norm", true)?;
    root.expect("score_func", "sigmoid")?;
    // Of training, and how products of experts are computed.
    root.ignore(&["load_balance_coeff", "use_grouped_mm"]);
    let scale = root.number("route_scale")?.unwrap_or(1.0) as f32;
    let routing = experts::by_sigmoid_of_all(experts::num_of_token(config)?, experts::SHARE, scale);
    let sizes =
        Sizes::read(config, &["num_experts", "num_local_experts"], "moe_intermediate_size")?;
    let num_dense = root.optional_size("num_dense_layers")?.unwrap_or(1);
    let num_shared = root.optional_size("num_shared_experts")?.unwrap_or(2);
    let activation = config.activation()?;
    experts::set(
        spec,
        |index| index >= num_dense,
        |index| {
            let name = |part: &str| format!("model.layers.{index}.mlp.{part}");
            ExpertsSpec {
                choice_bias: Some((name("expert_bias"), vec![sizes.num])),
                experts: sizes.experts(&name("experts"), PROJECTIONS),
                shared: sizes.shared(&name("shared_experts"), num_shared),
                ..ExpertsSpec::new(sizes.router(name("router.gate")), routing.clone(), activation)
            }
        },
    );
    Ok(())
}
