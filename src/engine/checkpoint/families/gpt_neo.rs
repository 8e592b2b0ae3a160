//! GPT-Neo: GPT-2 with windows in every other layer, scores without a factor, and matrices stored
//! as usual.

use serde_json::Value;

use super::gpt::{Gpt, Names};
use super::gpt2;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Reach};

/// The spec of a GPT-Neo config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    config.assume(&[(
        "num_attention_heads",
        root.value("num_heads").cloned().unwrap_or(Value::Null),
    )]);
    let hidden = config.hidden_size()?;
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.wte",
            layers: "transformer.h",
            norms: ["ln_1", "ln_2"],
            qkv: &["attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"],
            out: "attn.attention.out_proj",
            up: "mlp.c_fc",
            down: "mlp.c_proj",
            final_norm: "transformer.ln_f",
        },
        heads: config.equal_heads()?,
        inner: root.optional_size("intermediate_size")?.unwrap_or(4 * hidden),
        activation: config.activation_or(Activation::GeluTanh)?,
        biases: [false, true],
        max_model_len: config.max_position_embeddings()?,
    };
    let mut spec = gpt.spec(config)?;
    gpt2::add_positions(&mut spec, "transformer.wpe");
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    let window = root.optional_size("window_size")?.unwrap_or(256);
    let slides = local_layers(config)?;
    for (index, attention) in spec.attentions_mut() {
        attention.out.bias = true;
        attention.scale = 1.0;
        attention.reach = Reach::of_window(slides[index].then_some(window));
    }
    Ok(spec)
}

/// Which layers have windows: by `attention_types`, kinds that are repeated, and by
/// `attention_layers`, a kind of each layer.
fn local_layers(config: &HfConfig) -> Result<Vec<bool>, EngineError> {
    let (root, num_layers) = (config.root(), config.num_layers()?);
    let wrong = || config.error("`attention_types` should be kinds of all layers, and how often");
    let is_local = |kind: &str| match kind {
        "local" => Ok(true),
        "global" => Ok(false),
        _ => Err(config.error("a kind of layers that is neither global nor local")),
    };
    let repeated = match root.list("attention_types")? {
        // The class has 24 layers by turns.
        None => (0..num_layers).map(|index| index % 2 == 1).collect(),
        Some(list) => {
            let mut layers = Vec::new();
            for item in list {
                let item = item.as_array().map(Vec::as_slice);
                let Some([Value::Array(kinds), times]) = item else { return Err(wrong()) };
                let kinds = kinds.iter().map(|kind| is_local(kind.as_str().unwrap_or_default()));
                let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
                let times = times.as_u64().filter(|times| *times <= num_layers as u64);
                layers.extend(kinds.repeat(times.ok_or_else(wrong)? as usize));
            }
            layers
        }
    };
    let listed = root.texts("attention_layers")?;
    let listed = listed.map(|kinds| kinds.into_iter().map(is_local).collect::<Result<Vec<_>, _>>());
    match listed.transpose()? {
        Some(listed) if listed != repeated => {
            Err(config.error("`attention_layers` and `attention_types` disagree"))
        }
        _ if repeated.len() != num_layers => Err(wrong()),
        _ => Ok(repeated),
    }
}
