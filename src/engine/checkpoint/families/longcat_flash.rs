//! LongCat Flash: layers of two latent attentions and two MLPs, with experts beside the first MLP
//! that are added behind the second; some experts give what they read.

use serde_json::json;

use super::experts::{self, PROJECTIONS, Sizes};
use super::latent::{LatentBlocks, Turning};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, ExpertSpec, ExpertsSpec,
    FeedForwardSpec, Kept, LateExperts, LayerSpec, MlpForm, MlpSpec, NormSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ExpertWeight, Routing, Score, TopK};

const DEFAULTS: Defaults = Defaults { rope_theta: 1e7, rms_norm_eps: 1e-5, ..Defaults::LLAMA };

/// The spec of a LongCat Flash config: two layers for each of its own, and one that adds what the
/// last experts gave.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    config.assume(&[("zero_expert_num", json!(256)), ("moe_topk", json!(12))]);
    root.expect("attention_method", "MLA")?;
    root.expect("zero_expert_type", "identity")?;
    root.expect("router_bias", false)?;
    root.expect("norm_topk_prob", false)?;
    root.expect("mla_scale_q_lora", true)?;
    root.expect("mla_scale_kv_lora", true)?;
    // Of no head.
    root.ignore(&["head_dim"]);
    let halves =
        [Half::read(config, ["self_attn.0", "0"])?, Half::read(config, ["self_attn.1", "1"])?];
    let experts = Experts::read(config)?;
    let mut spec = llama::around(config, DEFAULTS, |index| halves[0].layer(config, index))?;
    let adds = Kept { slot: 0, factor: 1.0 };
    let mut layers = Vec::with_capacity(2 * spec.layers.len() + 1);
    for (index, mut first) in std::mem::take(&mut spec.layers).into_iter().enumerate() {
        first.adds = (index > 0).then_some(adds);
        first.late = Some(LateExperts { block: experts.block(index), slot: 0 });
        layers.extend([first, halves[1].layer(config, index)?]);
    }
    layers.push(LayerSpec { adds: Some(adds), ..LayerSpec::default() });
    spec.layers = layers;
    spec.output.of_further_tokens.push("model.mtp.".to_owned());
    Ok(spec)
}

/// An attention and an MLP, of which a layer has two.
struct Half {
    blocks: LatentBlocks,
    number: &'static str,
    inner: usize,
    /// Latents of q, and of K and V, are multiplied by these.
    factors: [f32; 2],
}

impl Half {
    fn read(config: &HfConfig, [block, number]: [&'static str; 2]) -> Result<Self, EngineError> {
        let root = config.root();
        let hidden = config.hidden_size()? as f64;
        let factor = |key| -> Result<f32, EngineError> {
            Ok((hidden / root.size(key)? as f64).sqrt() as f32)
        };
        Ok(Self {
            blocks: LatentBlocks::of(config, Turning::Pairs)?.named([block, "o_proj"]),
            number,
            inner: root.size_of(&["ffn_hidden_size", "intermediate_size"])?,
            factors: [factor("q_lora_rank")?, factor("kv_lora_rank")?],
        })
    }

    fn layer(&self, config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
        let (hidden, eps) = (config.hidden_size()?, config.rms_norm_eps_or(DEFAULTS.rms_norm_eps)?);
        let name = |part: &str| format!("model.layers.{index}.{part}.{}", self.number);
        let norms = |part| BlockNorms::before(NormSpec::rms(name(part), hidden, eps));
        let block = self.blocks.block(config, DEFAULTS, index)?;
        let mut attention = AttentionSpec { norms: norms("input_layernorm"), ..block };
        if let Some(latent) = &mut attention.latent {
            let of_q = latent.q.iter_mut().map(|q| &mut q.norm);
            let norms = of_q.chain([&mut latent.norm]);
            norms.zip(self.factors).for_each(|(norm, factor)| norm.weight_factor = factor);
        }
        let ExpertSpec { up, down } = experts::shared(&name("mlps"), hidden, self.inner);
        let mlp = MlpSpec {
            norms: norms("post_attention_layernorm"),
            form: MlpForm::Gated,
            activation: ActivationSpec::Known(config.activation_or(DEFAULTS.activation)?),
            up,
            down,
        };
        Ok(LayerSpec::new(attention, mlp))
    }
}

/// What the experts of all layers have in common.
struct Experts {
    sizes: Sizes,
    num_identities: usize,
    routing: Routing,
    activation: Activation,
}

impl Experts {
    fn read(config: &HfConfig) -> Result<Self, EngineError> {
        let root = config.root();
        let inner = "expert_ffn_hidden_size";
        let routing = TopK {
            num: root.size_of(&["moe_topk", "num_experts_per_tok"])?,
            score: Score::Softmax,
            groups: None,
            weight: ExpertWeight::Score,
            scale: root.number("routed_scaling_factor")?.unwrap_or(6.0) as f32,
        };
        Ok(Self {
            sizes: Sizes::read(config, &["n_routed_experts", "num_local_experts"], inner)?,
            num_identities: root.optional_size("zero_expert_num")?.unwrap_or(0),
            routing: Routing::TopK(routing),
            activation: config.activation_or(DEFAULTS.activation)?,
        })
    }

    /// The block beside a layer's first MLP.
    fn block(&self, index: usize) -> FeedForwardSpec {
        let Self { sizes, num_identities, .. } = *self;
        let name = format!("model.layers.{index}.mlp");
        let of_all = Sizes { num: sizes.num + num_identities, ..sizes };
        let router = of_all.router(format!("{name}.router.classifier"));
        let bias = (format!("{name}.router.e_score_correction_bias"), vec![of_all.num]);
        let experts = ExpertsSpec {
            choice_bias: Some(bias),
            experts: sizes.experts(&format!("{name}.experts"), PROJECTIONS),
            num_identities,
            ..ExpertsSpec::new(router, self.routing.clone(), self.activation)
        };
        experts.into()
    }
}
