//! Decoders with a classifier, and reward models of classes of their own.

use super::classifiers::HeadStates;
use super::heads::{BuildHead, linear};
use crate::families::{self, Architecture};
use crate::hf_config::HfConfig;
use crate::spec::{HeadActivation, HeadLayer, HeadSpec, LinearSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Keys about classes, which a class with a number of its own does not read.
const LABELS: &[&str] = &["id2label", "label2id", "num_labels"];

/// Endings of the names of decoders with a classifier.
const OF_DECODERS: &[(&str, BuildHead)] = &[
    ("ForSequenceClassification", score_of_the_last_token),
    ("ForTokenClassification", score_of_each_token),
];

/// Reward models of a class of their own.
#[derive(Clone, Copy, Debug)]
pub struct RewardArchitecture {
    /// Name in `architectures` of config.json.
    pub name: &'static str,
    /// The decoder that it is.
    body: &'static str,
    /// Classes: a number that the class has, whatever the config says.
    num_labels: usize,
    head: BuildHead,
}

/// Their classes, by name.
pub const REWARD_MODELS: &[RewardArchitecture] = &[
    RewardArchitecture {
        name: "InternLM2ForRewardModel",
        body: "InternLM2ForCausalLM",
        num_labels: 1,
        head: value_of_the_last_token,
    },
    RewardArchitecture {
        name: "Qwen2ForProcessRewardModel",
        body: "Qwen2ForCausalLM",
        num_labels: 2,
        head: two_layers_of_steps,
    },
    RewardArchitecture {
        name: "Qwen2ForRewardModel",
        body: "Qwen2ForCausalLM",
        num_labels: 1,
        head: two_layers_of_the_last_token,
    },
];

/// A classifier of a decoder's class.
pub(super) struct OfDecoder {
    family: &'static Architecture,
    /// Number of classes; `None`: that of the config.
    pub num_labels: Option<usize>,
    /// Builder of its head.
    pub head: BuildHead,
}

/// The family and the classifier of a decoder's class: `Qwen3ForSequenceClassification` is the body
/// of `Qwen3ForCausalLM` with one.
pub(super) fn of_decoder(name: &str) -> Option<OfDecoder> {
    if let Some(known) = REWARD_MODELS.iter().find(|known| known.name == name) {
        let family = families::find_body(known.body)?;
        return Some(OfDecoder { family, num_labels: Some(known.num_labels), head: known.head });
    }
    OF_DECODERS.iter().find_map(|(ending, head)| {
        let body = name.strip_suffix(ending)?;
        let family = families::find_body(&format!("{body}Model"))?;
        Some(OfDecoder { family, num_labels: None, head: *head })
    })
}

/// The family of a decoder's class with a classifier.
pub(super) fn family(name: &str) -> Option<&'static Architecture> {
    of_decoder(name).map(|found| found.family)
}

/// transformers' `GenericForSequenceClassification`.
fn score_of_the_last_token(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let score = HeadLayer::new(LinearSpec::new("score", num_labels, config.hidden_size()?));
    Ok((HeadStates::Last, HeadSpec { layers: vec![score] }))
}

/// transformers' `GenericForTokenClassification`.
fn score_of_each_token(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let score = linear("score", num_labels, config.hidden_size()?);
    Ok((HeadStates::Each, HeadSpec { layers: vec![score] }))
}

/// `InternLM2ForRewardModel` of internlm2-reward: its own code, and vLLM's internlm2.py.
fn value_of_the_last_token(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    config.root().ignore(LABELS);
    let value = HeadLayer::new(LinearSpec::new("v_head", num_labels, config.hidden_size()?));
    Ok((HeadStates::Last, HeadSpec { layers: vec![value] }))
}

/// `Qwen2ForRewardModel` of Qwen2.5-Math-RM: its own code, and vLLM's qwen2_rm.py.
fn two_layers_of_the_last_token(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    Ok((HeadStates::Last, two_layers(config, num_labels)?))
}

/// `Qwen2ForProcessRewardModel` of Qwen2.5-Math-PRM: its own code, and vLLM's qwen2_rm.py.
fn two_layers_of_steps(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    Ok((HeadStates::Steps, two_layers(config, num_labels)?))
}

fn two_layers(config: &HfConfig, num_labels: usize) -> Result<HeadSpec, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    root.ignore(LABELS);
    let relu = HeadActivation::Known(Activation::Relu);
    let first = linear("score.0", hidden, hidden).activated(relu);
    Ok(HeadSpec { layers: vec![first, linear("score.2", num_labels, hidden)] })
}
