//! Heads of encoders with a classifier, by class.

use super::classifiers::HeadStates;
use crate::families::modernbert_decoder;
use crate::hf_config::HfConfig;
use crate::spec::{HeadActivation, HeadLayer, HeadSpec, LinearSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::Activation;

/// From a config and the number of classes to what a classifier reads, and its layers.
pub(super) type BuildHead = fn(&HfConfig, usize) -> Result<(HeadStates, HeadSpec), EngineError>;

/// A linear layer with a bias.
pub(super) fn linear(name: &str, n: usize, k: usize) -> HeadLayer {
    HeadLayer::new(LinearSpec::new(name, n, k).with_bias(true))
}

/// BERT's pooler, then the classifier.
pub(super) fn bert_pooled(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    pooled("bert.pooler.dense", config, num_labels)
}

pub(super) fn gte_pooled(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    pooled("new.pooler.dense", config, num_labels)
}

/// A pooler of the first token, then the classifier.
fn pooled(
    pooler: &str,
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let hidden = config.hidden_size()?;
    let pooler = linear(pooler, hidden, hidden).activated(HeadActivation::TANH);
    let layers = vec![pooler, linear("classifier", num_labels, hidden)];
    Ok((HeadStates::First, HeadSpec { layers }))
}

/// EuroBERT's classifier: of a pooled state, or ("late") of each, its outputs pooled.
pub(super) fn eurobert_pooled(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let older = root.text("clf_pooling")?;
    let states = match root.text("classifier_pooling")?.or(older) {
        None | Some("late") => HeadStates::MeanOfEach,
        Some("mean") => HeadStates::Mean,
        Some("bos") => HeadStates::First,
        Some(other) => {
            let text = format!("`classifier_pooling` of {} is not supported", quoted(other));
            return Err(config.error(text));
        }
    };
    let gelu = HeadActivation::Known(Activation::Gelu);
    let dense = linear("dense", hidden, hidden).activated(gelu);
    let layers = vec![dense, linear("classifier", num_labels, hidden)];
    Ok((states, HeadSpec { layers }))
}

/// RoBERTa's and MPNet's `ClassificationHead`.
pub(super) fn dense_and_projection(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let hidden = config.hidden_size()?;
    let dense = linear("classifier.dense", hidden, hidden).activated(HeadActivation::TANH);
    let layers = vec![dense, linear("classifier.out_proj", num_labels, hidden)];
    Ok((HeadStates::First, HeadSpec { layers }))
}

pub(super) fn distilbert_pooled(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let dim = config.root().size("dim")?;
    let relu = HeadActivation::Known(Activation::Relu);
    let first = linear("pre_classifier", dim, dim).activated(relu);
    let layers = vec![first, linear("classifier", num_labels, dim)];
    Ok((HeadStates::First, HeadSpec { layers }))
}

/// A classifier of every token.
pub(super) fn each_token(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let width = match config.root().optional_size("dim")? {
        Some(dim) => dim,
        None => config.hidden_size()?,
    };
    let layers = vec![linear("classifier", num_labels, width)];
    Ok((HeadStates::Each, HeadSpec { layers }))
}

pub(super) fn modernbert_pooled(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let states = match config.root().text("classifier_pooling")? {
        None | Some("cls") => HeadStates::First,
        Some("mean") => HeadStates::Mean,
        Some(other) => {
            let text = format!("`classifier_pooling` of {} is not supported", quoted(other));
            return Err(config.error(text));
        }
    };
    Ok((states, modernbert_head(config, num_labels)?))
}

pub(super) fn modernbert_each_token(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    Ok((HeadStates::Each, modernbert_head(config, num_labels)?))
}

/// `ModernBertPredictionHead`, then the classifier.
fn modernbert_head(config: &HfConfig, num_labels: usize) -> Result<HeadSpec, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let activation =
        config.activation_named_or(root.text("classifier_activation")?, Activation::Gelu)?;
    let bias = root.flag("classifier_bias")?.unwrap_or(false);
    let dense = HeadLayer {
        linear: LinearSpec::new("head.dense", hidden, hidden).with_bias(bias),
        activation: Some(HeadActivation::Known(activation)),
        norm: Some(modernbert_decoder::norm(config, "head.norm")?),
    };
    Ok(HeadSpec { layers: vec![dense, linear("classifier", num_labels, hidden)] })
}
