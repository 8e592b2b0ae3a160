//! Heads of masked language models: from a token's state to a number for each word of the
//! vocabulary. SPLADE makes sparse vectors of them.

use crate::hf_config::HfConfig;
use crate::spec::{BesideTable, EncoderSpec, LinearSpec, NamedShape, NormSpec};
use crate::weights::Checkpoint;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// A head of a masked language model: words(norm(activation(dense(x)))) + bias.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskedLmSpec {
    /// (hidden_size, hidden_size)
    pub dense: LinearSpec,
    /// Activation of the outputs.
    pub activation: Activation,
    /// Norm of those.
    pub norm: NormSpec,
    /// (words, hidden_size), without the bias.
    pub words: LinearSpec,
    /// Bias of the words.
    pub bias: NamedShape,
}

/// Names of a class's tensors.
struct Names {
    class: &'static str,
    dense: &'static str,
    norm: &'static str,
    bias: &'static str,
    /// Where the words have a table of their own.
    decoder: &'static str,
    /// The activation is that of the layers; else GELU.
    is_of_layers: bool,
}

const CLASSES: &[Names] = &[
    Names {
        class: "BertForMaskedLM",
        dense: "cls.predictions.transform.dense",
        norm: "cls.predictions.transform.LayerNorm",
        bias: "cls.predictions.bias",
        decoder: "cls.predictions.decoder",
        is_of_layers: true,
    },
    Names {
        class: "DistilBertForMaskedLM",
        dense: "vocab_transform",
        norm: "vocab_layer_norm",
        bias: "vocab_projector.bias",
        decoder: "vocab_projector",
        is_of_layers: true,
    },
    Names { class: "RobertaForMaskedLM", ..LM_HEAD },
    Names { class: "XLMRobertaForMaskedLM", ..LM_HEAD },
    Names { class: "CamembertForMaskedLM", ..LM_HEAD },
    Names { class: "MPNetForMaskedLM", ..LM_HEAD },
];

const LM_HEAD: Names = Names {
    class: "",
    dense: "lm_head.dense",
    norm: "lm_head.layer_norm",
    bias: "lm_head.bias",
    decoder: "lm_head.decoder",
    is_of_layers: false,
};

/// The head of a config's class, over a body; None: it has none. Where the config says that its
/// words are the table of tokens, the files decide, as in transformers: by words and a bias of its
/// decoder.
///
/// `open`: the files, if they can be opened.
///
/// # Errors
/// The config lacks something.
pub fn masked_lm(
    config: &HfConfig,
    body: &EncoderSpec,
    open: impl FnOnce() -> Option<Checkpoint>,
) -> Result<Option<MaskedLmSpec>, EngineError> {
    let Some(mut head) = of_config(config, body)? else { return Ok(None) };
    if head.words != body.tokens {
        return Ok(Some(head));
    }
    let own = of_config(&config.with_own_head(), body)?;
    let (Some(own), Some(files)) = (own, open()) else { return Ok(Some(head)) };
    if files.beside_table(&own.words, &body.tokens) == BesideTable::Head {
        head.words = own.words;
    }
    if files.has(&own.bias.0) {
        head.bias = own.bias;
    }
    Ok(Some(head))
}

fn of_config(config: &HfConfig, body: &EncoderSpec) -> Result<Option<MaskedLmSpec>, EngineError> {
    let classes = config.architectures()?;
    let is_it = |names: &&Names| classes.contains(&names.class);
    let Some(names) = CLASSES.iter().find(is_it) else { return Ok(None) };
    let (hidden, words) = (body.hidden_size(), body.vocab_size());
    let activation = match names.is_of_layers {
        true => config.activation_or(Activation::Gelu)?,
        false => Activation::Gelu,
    };
    let (table, bias) = match config.is_tied(true)? {
        true => (body.tokens.clone(), names.bias.to_owned()),
        false => {
            let own = LinearSpec::new(names.decoder, words, hidden);
            (own, format!("{}.bias", names.decoder))
        }
    };
    Ok(Some(MaskedLmSpec {
        dense: LinearSpec::new(names.dense, hidden, hidden).with_bias(true),
        activation,
        norm: NormSpec::layer(names.norm, hidden, config.layer_norm_eps(1e-12)?),
        words: table,
        bias: (bias, vec![words]),
    }))
}

impl MaskedLmSpec {
    /// All tensors.
    pub fn tensors(&self) -> impl Iterator<Item = NamedShape> + '_ {
        let bias = std::iter::once(self.bias.clone());
        let of_linears = [&self.dense, &self.words].into_iter().flat_map(LinearSpec::tensors);
        of_linears.chain(self.norm.tensors()).chain(bias)
    }
}
