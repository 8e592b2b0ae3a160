//! Classes with a classifier, of encoders and of decoders: which states of a text it reads, its
//! layers, what its outputs are called and which activation makes probabilities of them.

use super::{BuildEncoder, bert, distilbert, modernbert, mpnet};
use crate::engine::EngineError;
use crate::engine::files::quoted;
use crate::engine::model::families::{self, Architecture};
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{HeadActivation, HeadLayer, HeadSpec, LinearSpec};
use crate::engine::ops::Activation;

/// A model class that ends with a classifier.
#[derive(Clone, Copy, Debug)]
pub struct ClassifierArchitecture {
    /// Its name in `architectures` of config.json.
    pub name: &'static str,
    /// What builds the spec of all before the classifier.
    pub body: BuildEncoder,
    head: BuildHead,
}

/// From a config and the number of classes to a classifier.
type BuildHead = fn(&HfConfig, usize) -> Result<(HeadStates, HeadSpec), EngineError>;

/// Which states of a text a classifier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadStates {
    /// That of the first token.
    First,
    /// The mean of all.
    Mean,
    /// That of the last token.
    Last,
    /// Each: every token has classes of its own.
    Each,
}

/// What makes probabilities of a classifier's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassActivation {
    /// Nothing: they are what they are.
    Identity,
    /// Each lies between 0 and 1, whatever the others are.
    Sigmoid,
    /// Together they are 1.
    Softmax,
    /// Each lies between -1 and 1.
    Tanh,
}

/// A classifier.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// What it reads.
    pub states: HeadStates,
    /// What it computes.
    pub head: HeadSpec,
    /// Names of its outputs.
    pub labels: Vec<String>,
    /// What becomes of its outputs.
    pub activation: ClassActivation,
}

/// Most classes; checked before there is a name of each.
const MAX_LABELS: usize = 1 << 20;

const fn class(name: &'static str, body: BuildEncoder, head: BuildHead) -> ClassifierArchitecture {
    ClassifierArchitecture { name, body, head }
}

/// Endings of the names of decoders with a classifier.
const OF_DECODERS: &[(&str, BuildHead)] = &[
    ("ForSequenceClassification", score_of_the_last_token),
    ("ForTokenClassification", score_of_each_token),
];

/// The family and the classifier of a decoder's class: `Qwen3ForSequenceClassification` is the body
/// of `Qwen3ForCausalLM` with one.
fn of_decoder(name: &str) -> Option<(&'static Architecture, BuildHead)> {
    OF_DECODERS.iter().find_map(|(ending, head)| {
        let body = name.strip_suffix(ending)?;
        Some((families::find_body(&format!("{body}Model"))?, *head))
    })
}

/// The family of a decoder's class with a classifier.
pub(super) fn decoder(name: &str) -> Option<&'static Architecture> {
    of_decoder(name).map(|(family, _)| family)
}

/// Hugging Face architectures that `classify` takes, by name; decoders go by `OF_DECODERS`.
pub const CLASSIFIERS: &[ClassifierArchitecture] = &[
    class("BertForSequenceClassification", bert::bert, bert_pooled),
    class("BertForTokenClassification", bert::bert, each_token),
    class("CamembertForSequenceClassification", bert::roberta, dense_and_projection),
    class("CamembertForTokenClassification", bert::roberta, each_token),
    class("DistilBertForSequenceClassification", distilbert::spec, distilbert_pooled),
    class("DistilBertForTokenClassification", distilbert::spec, each_token),
    class("MPNetForSequenceClassification", mpnet::spec, dense_and_projection),
    class("MPNetForTokenClassification", mpnet::spec, each_token),
    class("ModernBertForSequenceClassification", modernbert::spec, modernbert_pooled),
    class("ModernBertForTokenClassification", modernbert::spec, modernbert_each_token),
    class("RobertaForSequenceClassification", bert::roberta, dense_and_projection),
    class("RobertaForTokenClassification", bert::roberta, each_token),
    class("XLMRobertaForSequenceClassification", bert::roberta, dense_and_projection),
    class("XLMRobertaForTokenClassification", bert::roberta, each_token),
];

/// The classifier of a model; None: its class has none. Read before the spec of the body, since
/// keys that nobody reads refuse the model.
///
/// # Errors
/// The config lacks something, or asks for what is not supported.
pub fn classifier(config: &HfConfig) -> Result<Option<Classifier>, EngineError> {
    let names = config.architectures()?;
    let of_encoder = |name: &str| CLASSIFIERS.iter().find(|known| known.name == name);
    let head = |name: &&str| match of_encoder(name) {
        Some(known) => Some(known.head),
        None => of_decoder(name).map(|(_, head)| head),
    };
    let Some(head) = names.iter().find_map(head) else { return Ok(None) };
    let labels = labels(config)?;
    let (states, head) = head(config, labels.len())?;
    let activation = activation(config, labels.len())?;
    Ok(Some(Classifier { states, head, labels, activation }))
}

/// Names of the classes, as transformers has them: `id2label`, else as many as `num_labels`, else
/// 2.
fn labels(config: &HfConfig) -> Result<Vec<String>, EngineError> {
    let root = config.root();
    let listed = root.section("id2label")?;
    let num_labels = match &listed {
        Some(labels) => labels.names().count(),
        None => root.optional_size("num_labels")?.unwrap_or(2),
    };
    if !(1..=MAX_LABELS).contains(&num_labels) {
        let text = format!("{num_labels} classes are not supported: expected 1 to {MAX_LABELS}");
        return Err(config.error(text));
    }
    let label = |index: usize| match &listed {
        None => Ok(format!("LABEL_{index}")),
        Some(labels) => {
            let label = labels.text(&index.to_string())?;
            let missing = || labels.error(format!("`id2label` has no class {index}"));
            label.map(str::to_owned).ok_or_else(missing)
        }
    };
    (0..num_labels).map(label).collect()
}

/// vLLM's order: the problem that the model was trained for, else what sentence-transformers says
/// of a cross-encoder, else what goes with the number of classes.
fn activation(config: &HfConfig, num_labels: usize) -> Result<ClassActivation, EngineError> {
    let root = config.root();
    let usual = match num_labels {
        1 => ClassActivation::Sigmoid,
        _ => ClassActivation::Softmax,
    };
    match root.text("problem_type")? {
        None => {}
        Some("regression") => return Ok(ClassActivation::Identity),
        Some("single_label_classification") => return Ok(usual),
        Some("multi_label_classification") => return Ok(ClassActivation::Sigmoid),
        Some(other) => {
            let text = format!("`problem_type` of {} is not supported", quoted(other));
            return Err(config.error(text));
        }
    }
    let of_cross_encoder = root.value("sentence_transformers");
    let of_cross_encoder = of_cross_encoder.and_then(|keys| keys.get("activation_fn")?.as_str());
    let older = root.text("sbert_ce_default_activation_function")?;
    let Some(name) = of_cross_encoder.or(older) else { return Ok(usual) };
    match name.strip_prefix("torch.nn.modules.").and_then(|name| name.rsplit('.').next()) {
        Some("Identity") => Ok(ClassActivation::Identity),
        // As vLLM: the one of both that goes with the number of classes.
        Some("Sigmoid" | "Softmax") => Ok(usual),
        Some("Tanh") => Ok(ClassActivation::Tanh),
        _ => Err(config.error(format!("an activation {} is not supported", quoted(name)))),
    }
}

/// A linear layer with a bias.
fn linear(name: &str, n: usize, k: usize) -> HeadLayer {
    HeadLayer::new(LinearSpec::new(name, n, k).with_bias(true))
}

/// BERT's pooler, then the classifier.
fn bert_pooled(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let hidden = config.hidden_size()?;
    let pooler = linear("bert.pooler.dense", hidden, hidden).activated(HeadActivation::Tanh);
    let layers = vec![pooler, linear("classifier", num_labels, hidden)];
    Ok((HeadStates::First, HeadSpec { layers }))
}

/// RoBERTa's and MPNet's `ClassificationHead`.
fn dense_and_projection(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    let hidden = config.hidden_size()?;
    let dense = linear("classifier.dense", hidden, hidden).activated(HeadActivation::Tanh);
    let layers = vec![dense, linear("classifier.out_proj", num_labels, hidden)];
    Ok((HeadStates::First, HeadSpec { layers }))
}

fn distilbert_pooled(
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
fn each_token(config: &HfConfig, num_labels: usize) -> Result<(HeadStates, HeadSpec), EngineError> {
    let width = match config.root().optional_size("dim")? {
        Some(dim) => dim,
        None => config.hidden_size()?,
    };
    let layers = vec![linear("classifier", num_labels, width)];
    Ok((HeadStates::Each, HeadSpec { layers }))
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

fn modernbert_pooled(
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

fn modernbert_each_token(
    config: &HfConfig,
    num_labels: usize,
) -> Result<(HeadStates, HeadSpec), EngineError> {
    Ok((HeadStates::Each, modernbert_head(config, num_labels)?))
}

/// `ModernBertPredictionHead`, then the classifier.
fn modernbert_head(config: &HfConfig, num_labels: usize) -> Result<HeadSpec, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let activation = match root.text("classifier_activation")? {
        None => Activation::Gelu,
        Some(name) => config.activation_named(name)?,
    };
    let bias = root.flag("classifier_bias")?.unwrap_or(false);
    let dense = HeadLayer {
        linear: LinearSpec::new("head.dense", hidden, hidden).with_bias(bias),
        activation: Some(HeadActivation::Known(activation)),
        norm: Some(modernbert::norm(config, "head.norm")?),
    };
    Ok(HeadSpec { layers: vec![dense, linear("classifier", num_labels, hidden)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(class: &str, keys: &str) -> Result<Classifier, String> {
        let text = format!(r#"{{"architectures": ["{class}"], "hidden_size": 8{keys}}}"#);
        let config = HfConfig::parse(&text, "config.json").unwrap();
        classifier(&config).map(Option::unwrap).map_err(|error| error.to_string())
    }

    #[test]
    fn labels_have_names_or_numbers() {
        let labels = |keys| of("BertForTokenClassification", keys).map(|found| found.labels);
        assert_eq!(labels("").unwrap(), ["LABEL_0", "LABEL_1"]);
        assert_eq!(labels(r#", "num_labels": 1"#).unwrap(), ["LABEL_0"]);
        let named = r#", "id2label": {"1": "good", "0": "bad"}, "num_labels": 7"#;
        assert_eq!(labels(named).unwrap(), ["bad", "good"]);
        for (keys, what) in [
            (r#", "id2label": {"1": "a", "2": "b"}"#, "no class 0"),
            (r#", "id2label": {}"#, "0 classes"),
            (r#", "num_labels": 4000000000"#, "4000000000 classes"),
        ] {
            let error = labels(keys).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn the_activation_is_the_problems_else_the_cross_encoders_else_the_usual() {
        let activation = |keys: &str| {
            of("XLMRobertaForSequenceClassification", keys).map(|found| found.activation)
        };
        let one = r#", "num_labels": 1"#;
        assert_eq!(activation(""), Ok(ClassActivation::Softmax));
        assert_eq!(activation(one), Ok(ClassActivation::Sigmoid));
        let identity = r#", "sbert_ce_default_activation_function":
            "torch.nn.modules.linear.Identity""#;
        assert_eq!(activation(identity), Ok(ClassActivation::Identity));
        let newer = r#", "sentence_transformers": {"activation_fn":
            "torch.nn.modules.activation.Sigmoid", "version": "5"}"#;
        assert_eq!(activation(&format!("{one}{identity}{newer}")), Ok(ClassActivation::Sigmoid));
        for (problem, expected) in [
            ("regression", ClassActivation::Identity),
            ("single_label_classification", ClassActivation::Softmax),
            ("multi_label_classification", ClassActivation::Sigmoid),
        ] {
            let keys = format!(r#", "problem_type": "{problem}"{newer}"#);
            assert_eq!(activation(&keys), Ok(expected), "{problem}");
        }
        for (keys, what) in [
            (r#", "problem_type": "other""#, "`other`"),
            (r#", "sbert_ce_default_activation_function": "os.system""#, "`os.system`"),
        ] {
            assert!(activation(keys).unwrap_err().contains(what), "{keys}");
        }
    }
}
