//! Falcon-H1: attention and Mamba 2's recurrence side by side in every layer, before an MLP; and
//! factors of nearly everything, which the makers' training has set.

use super::llama::{self, Defaults};
use super::mamba;
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, BlockScales, DecoderSpec, EmbeddingScale, GateOrder,
    LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec, OutputSpec, RecurrentSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Multipliers of the blocks.
#[derive(Debug)]
struct Factors {
    /// Multipliers of attention's input, of its keys, and of its output.
    attention: [f32; 3],
    /// Multipliers of the recurrence's input; of z, x, B, C and dt in it; of its output.
    recurrence: (f32, [f32; 5], f32),
    /// The MLP's gate, and what the MLP adds.
    mlp: [f32; 2],
}

/// Llama's spec with a recurrence in every layer, and the factors.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let (root, defaults) = (config.root(), Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA });
    let number = |key| root.number(key).map(|number| number.unwrap_or(1.0) as f32);
    let factors = factors(config)?;
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let blocks = blocks(config, eps)?;
    let (hidden, heads) = (config.hidden_size()?, config.heads()?);
    // Attention has its factors in its scores and in what it adds, which biases would not let.
    root.expect("attention_bias", false)?;
    let mut spec = llama::around(config, defaults, |index| {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let [of_input, of_keys, _] = factors.attention;
        let attention = llama::attention(config, defaults, (index, heads))?;
        let scale = attention.scale * of_input * of_input * of_keys;
        let attention = AttentionSpec { scale, ..attention };
        let mut recurrent = blocks.block(&name("mamba"), attention.norms.clone());
        if let RecurrentSpec::Mamba(mamba) = &mut recurrent {
            let (of_input, of_parts, _) = factors.recurrence;
            mamba.factors = Some(of_parts.map(|factor| of_input * factor));
        }
        let mlp = mlp(config, (index, hidden, eps), factors.mlp[0])?;
        Ok(LayerSpec {
            attention: Some(attention),
            recurrent: Some(recurrent),
            feed_forward: Some(mlp.into()),
            scales: factors.scales(),
            ..LayerSpec::default()
        })
    })?;
    let factor = number("embedding_multiplier")?;
    spec.embedding.scale = Some(EmbeddingScale { factor, is_rounded: false });
    spec.output = OutputSpec {
        scale: Some(number("lm_head_multiplier")?),
        ..OutputSpec::new(NormSpec::rms("model.final_layernorm", hidden, eps), spec.output.lm_head)
    };
    Ok(spec)
}

impl Factors {
    /// Multipliers of the blocks' outputs.
    fn scales(&self) -> BlockScales {
        let [of_input, _, of_output] = self.attention;
        BlockScales {
            // That of the input is one of the values.
            attention: Some(of_input * of_output),
            recurrent: Some(self.recurrence.2),
            feed_forward: Some(self.mlp[1]),
        }
    }
}

fn factors(config: &HfConfig) -> Result<Factors, EngineError> {
    let root = config.root();
    let number = |key| root.number(key).map(|number| number.unwrap_or(1.0) as f32);
    let wrong = |key: &str, num: usize| config.error(format!("`{key}` should be {num} numbers"));
    let numbers = |key: &str, num: usize| {
        let found = root.numbers(key)?.unwrap_or_else(|| vec![1.0; num]);
        let found: Vec<_> = found.into_iter().map(|number| number as f32).collect();
        Ok::<_, EngineError>(found)
    };
    let (mlp, recurrence) = ("mlp_multipliers", "ssm_multipliers");
    Ok(Factors {
        attention: [
            number("attention_in_multiplier")?,
            number("key_multiplier")?,
            number("attention_out_multiplier")?,
        ],
        recurrence: (
            number("ssm_in_multiplier")?,
            numbers(recurrence, 5)?.try_into().map_err(|_| wrong(recurrence, 5))?,
            number("ssm_out_multiplier")?,
        ),
        mlp: numbers(mlp, 2)?.try_into().map_err(|_| wrong(mlp, 2))?,
    })
}

fn blocks(config: &HfConfig, eps: f32) -> Result<mamba::Blocks, EngineError> {
    let root = config.root();
    root.expect("mamba_use_mlp", true)?;
    // What sizes were made of, and what of a prompt's logits transformers computes.
    root.ignore(&["mlp_expansion_factor", "num_logits_to_keep"]);
    let order = match root.flag("mamba_norm_before_gate")?.unwrap_or(true) {
        true => GateOrder::AfterNorm,
        false => GateOrder::BeforeNorm,
    };
    let is_normed = root.flag("mamba_rms_norm")?.unwrap_or(false);
    let blocks = mamba::keys(config, root.optional_size("mamba_d_ssm")?, eps)?;
    let [of_inputs, _] = blocks.has_bias;
    let of_out = root.flag("projectors_bias")?.unwrap_or(false);
    Ok(mamba::Blocks {
        has_bias: [of_inputs, of_out],
        norm: is_normed.then_some((eps, order)),
        ..blocks
    })
}

fn mlp(
    config: &HfConfig,
    (index, hidden, eps): (usize, usize, f32),
    of_gate: f32,
) -> Result<MlpSpec, EngineError> {
    config.root().expect("hidden_act", "silu")?;
    let mlp = llama::mlp(config, Defaults::LLAMA, (index, config.intermediate_size()?))?;
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let inner = mlp.down.k;
    let up = ["feed_forward.gate_proj", "feed_forward.up_proj"].map(|part| (name(part), inner));
    let bias = config.mlp_bias()?;
    let norm = NormSpec::rms(name("pre_ff_layernorm"), hidden, eps);
    Ok(MlpSpec {
        norms: BlockNorms::before(norm),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(Activation::ScaledSilu(of_gate)),
        up: LinearSpec::stacked(up, hidden).with_bias(bias),
        down: LinearSpec::new(name("feed_forward.down_proj"), hidden, inner).with_bias(bias),
    })
}
