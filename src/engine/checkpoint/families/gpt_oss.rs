//! gpt-oss: Llama with biases, a sink of each head, windows on every other layer, and experts that
//! stand together in two tensors, gate and up by turns.

use serde_json::{Value, json};

use super::experts::{self, EXPERTS_APART, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::quantization::MXFP4;
use crate::spec::{DecoderSpec, ExpertSpec, ExpertsSpec, LinearSpec, RowOrder};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Reach};

fn default_rope() -> Value {
    json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": false, "original_max_position_embeddings": 4096,
    })
}

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 150_000.0, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let root = config.root();
    // A file that has the base alone is one of transformers 4, whose class then stretches nothing.
    let says_nothing = ["rope_scaling", "rope_theta"].iter().all(|key| root.value(key).is_none());
    if says_nothing {
        config.assume(&[("rope_parameters", default_rope())]);
    }
    let mut spec = llama::spec_with(config, defaults)?;
    // Its default is none of Llama's.
    root.size("head_dim")?;
    // The same under older names.
    root.ignore(&["experts_per_token", "initial_context_length"]);
    let bias = root.flag("attention_bias")?.unwrap_or(true);
    let window = root.size_or_none("sliding_window", 128)?;
    let slides = config.sliding_layers_or(|index| index % 2 == 0)?;
    for (index, attention) in spec.attentions_mut() {
        (attention.qkv.bias, attention.out.bias) = (bias, bias);
        attention.sinks = Some(format!("model.layers.{index}.self_attn.sinks"));
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
    }
    let sizes = Sizes::read(config, &["num_local_experts", "num_experts"], "intermediate_size")?;
    let number = |key, default| root.number(key).map(|number| number.unwrap_or(default) as f32);
    let activation = Activation::ClampedSwiGlu {
        alpha: number("swiglu_alpha", 1.702)?,
        limit: number("swiglu_limit", 7.0)?,
    };
    let routing = experts::by_softmax_of_chosen(experts::num_of_token(config)?);
    // The loader reads it. Codes are (outputs, inputs).
    let method = root.value("quantization_config").and_then(|config| config.get("quant_method"));
    let are_apart = root.flag(EXPERTS_APART)?.unwrap_or(false);
    let is_transposed = method.and_then(Value::as_str) != Some(MXFP4);
    // One for all: it has a value per row.
    let order = RowOrder::halves_by_turns(2 * sizes.inner);
    experts::set(
        &mut spec,
        |_| true,
        |index| {
            let name = format!("model.layers.{index}.mlp");
            let stored = |linear: LinearSpec, of| {
                let linear = linear.as_parameters().sliced(of, sizes.num);
                if is_transposed { linear.transposed() } else { linear }
            };
            let expert = |of: usize| {
                let Sizes { hidden, inner, .. } = sizes;
                let up = LinearSpec::new(format!("{name}.experts.gate_up_proj"), 2 * inner, hidden);
                let down = LinearSpec::new(format!("{name}.experts.down_proj"), hidden, inner);
                ExpertSpec { up: stored(up, of).in_order(order.clone()), down: stored(down, of) }
            };
            let of_file = || match are_apart {
                true => sizes.experts(&format!("{name}.experts"), PROJECTIONS),
                false => (0..sizes.num).map(expert).collect(),
            };
            let router = sizes.router(format!("{name}.router")).with_bias(true);
            ExpertsSpec {
                experts: of_file().into_iter().map(|expert| expert.with_bias(true)).collect(),
                ..ExpertsSpec::new(router, routing.clone(), activation)
            }
        },
    );
    Ok(spec)
}
