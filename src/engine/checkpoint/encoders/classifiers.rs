//! Classes with a classifier, of encoders and of decoders: which states of a text it reads, its
//! layers, what its outputs are called and which activation makes probabilities of them.

use super::decoder_classifiers::of_decoder;
use super::heads::{
    BuildHead, bert_pooled, dense_and_projection, distilbert_pooled, each_token, eurobert_pooled,
    gte_pooled, modernbert_each_token, modernbert_pooled,
};
use super::image_classifiers;
use super::token_classes::{of_tokens, token_classes};
use super::{BuildEncoder, bert, decoders, distilbert, gte, jina, modernbert, mpnet, nomic};
use crate::hf_config::HfConfig;
use crate::spec::HeadSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::pooling::{PoolingType, TokenClasses};

/// A model class that ends with a classifier.
#[derive(Clone, Copy, Debug)]
pub struct ClassifierArchitecture {
    /// Name in `architectures` of config.json.
    pub name: &'static str,
    /// Builder of the spec of everything before the classifier.
    pub body: BuildEncoder,
    head: BuildHead,
}

/// Hidden states of a text that a classifier reads.
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
    /// Each, and the mean of what becomes of them is that of the text.
    MeanOfEach,
    /// That of each token that ends a step of the text.
    Steps,
}

/// Function from a classifier's outputs to probabilities.
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

impl ClassActivation {
    /// Usual name of the activation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Sigmoid => "sigmoid",
            Self::Softmax => "softmax",
            Self::Tanh => "tanh",
        }
    }
}

/// A classifier.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// Hidden states that it reads.
    pub states: HeadStates,
    /// Layers of the head.
    pub head: ClassifierHead,
    /// Names of its outputs.
    pub labels: Vec<String>,
    /// Function of its outputs.
    pub activation: ClassActivation,
    /// A token that ends every text; it is put behind those that end otherwise.
    pub end_token_id: Option<u32>,
}

/// Layers that a classifier computes from a hidden state.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassifierHead {
    /// Layers of its own.
    Layers(HeadSpec),
    /// Logits of tokens of a language model.
    Tokens(TokenClasses),
    /// What a tower of images ends with.
    Tower,
}

/// Most classes; checked before there is a name of each.
const MAX_LABELS: usize = 1 << 20;

const fn class(name: &'static str, body: BuildEncoder, head: BuildHead) -> ClassifierArchitecture {
    ClassifierArchitecture { name, body, head }
}

/// Hugging Face architectures that `classify` takes, by name; those of decoders are in
/// `decoder_classifiers`.
pub const CLASSIFIERS: &[ClassifierArchitecture] = &[
    class("BertForSequenceClassification", bert::bert, bert_pooled),
    class("BertForTokenClassification", bert::bert, each_token),
    class("CamembertForSequenceClassification", bert::roberta, dense_and_projection),
    class("CamembertForTokenClassification", bert::roberta, each_token),
    class("DistilBertForSequenceClassification", distilbert::spec, distilbert_pooled),
    class("DistilBertForTokenClassification", distilbert::spec, each_token),
    class("EuroBertForSequenceClassification", decoders::eurobert, eurobert_pooled),
    class("EuroBertForTokenClassification", decoders::eurobert, each_token),
    class("GteForSequenceClassification", gte::spec, gte_pooled),
    class("GteForTokenClassification", gte::spec, each_token),
    class("JinaBertForSequenceClassification", jina::spec, bert_pooled),
    class("JinaBertForTokenClassification", jina::spec, each_token),
    class("MPNetForSequenceClassification", mpnet::spec, dense_and_projection),
    class("MPNetForTokenClassification", mpnet::spec, each_token),
    class("ModernBertForSequenceClassification", modernbert::spec, modernbert_pooled),
    class("ModernBertForTokenClassification", modernbert::spec, modernbert_each_token),
    class("NewForSequenceClassification", gte::spec, gte_pooled),
    class("NewForTokenClassification", gte::spec, each_token),
    class("NomicBertForSequenceClassification", nomic::spec, bert_pooled),
    class("NomicBertForTokenClassification", nomic::spec, each_token),
    class("RobertaForSequenceClassification", bert::roberta, dense_and_projection),
    class("RobertaForTokenClassification", bert::roberta, each_token),
    class("XLMRobertaForSequenceClassification", bert::roberta, dense_and_projection),
    class("XLMRobertaForTokenClassification", bert::roberta, each_token),
];

/// The classifier of a model; None: its class has none. Read before the spec of the body, since
/// keys that nobody reads refuse the model.
///
/// `tokens`: those that are its classes; None: as the config says.
///
/// # Errors
/// The config lacks something, or asks for what is not supported.
pub fn classifier(
    config: &HfConfig,
    tokens: Option<&TokenClasses>,
) -> Result<Option<Classifier>, EngineError> {
    let of_config = token_classes(config)?;
    if let Some(tokens) = tokens.cloned().or(of_config) {
        return of_tokens(tokens, config).map(Some);
    }
    let names = config.architectures()?;
    if image_classifiers::find(&names).is_some() {
        let labels = labels(config)?;
        let activation = activation(config, labels.len())?;
        // A tower gives one row of an image, which is the only one.
        let (states, head) = (HeadStates::First, ClassifierHead::Tower);
        return Ok(Some(Classifier { states, head, labels, activation, end_token_id: None }));
    }
    let of_encoder = |name: &str| CLASSIFIERS.iter().find(|known| known.name == name);
    let found = |name: &&str| match of_encoder(name) {
        Some(known) => Some((known.head, None)),
        None => of_decoder(name).map(|found| (found.head, found.num_labels)),
    };
    let Some((head, num_labels)) = names.iter().find_map(found) else { return Ok(None) };
    let labels = match num_labels {
        Some(number) => (0..number).map(unnamed).collect(),
        None => labels(config)?,
    };
    let (states, head) = head(config, labels.len())?;
    let activation = activation(config, labels.len())?;
    let head = ClassifierHead::Layers(head);
    // InternLM2's reward models score what this token reads.
    let end_token_id = config.root().optional_size("reward_token_id")?.map(|id| id as u32);
    Ok(Some(Classifier { states, head, labels, activation, end_token_id }))
}

/// The name of a class that has none.
fn unnamed(index: usize) -> String {
    format!("LABEL_{index}")
}

/// Names of the classes, as transformers has them: `id2label`, else as many as `num_labels`, else
/// 2.
pub(super) fn labels(config: &HfConfig) -> Result<Vec<String>, EngineError> {
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
        None => Ok(unnamed(index)),
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
pub(super) fn activation(
    config: &HfConfig,
    num_labels: usize,
) -> Result<ClassActivation, EngineError> {
    let root = config.root();
    let usual = ClassActivation::usual(num_labels);
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
    ClassActivation::of_torch(name, num_labels).map_err(|text| config.error(text))
}

impl ClassActivation {
    /// Activation that is usual for a number of classes.
    fn usual(num_labels: usize) -> Self {
        match num_labels {
            1 => ClassActivation::Sigmoid,
            _ => ClassActivation::Softmax,
        }
    }

    /// By the name of a class of PyTorch's, as sentence-transformers writes it.
    ///
    /// # Errors
    /// It is not supported.
    pub fn of_torch(name: &str, num_labels: usize) -> Result<Self, String> {
        match name.strip_prefix("torch.nn.modules.").and_then(|name| name.rsplit('.').next()) {
            Some("Identity") => Ok(ClassActivation::Identity),
            // As vLLM: the one of both that goes with the number of classes.
            Some("Sigmoid" | "Softmax") => Ok(Self::usual(num_labels)),
            Some("Tanh") => Ok(ClassActivation::Tanh),
            _ => Err(format!("an activation {} is not supported", quoted(name))),
        }
    }
}

impl From<HeadStates> for PoolingType {
    fn from(states: HeadStates) -> Self {
        match states {
            HeadStates::First => PoolingType::Cls,
            HeadStates::Mean => PoolingType::Mean,
            HeadStates::Last => PoolingType::Last,
            HeadStates::Each | HeadStates::MeanOfEach | HeadStates::Steps => PoolingType::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(class: &str, keys: &str) -> Result<Classifier, String> {
        let text = format!(r#"{{"architectures": ["{class}"], "hidden_size": 8{keys}}}"#);
        let config = HfConfig::parse(&text, "config.json").unwrap();
        classifier(&config, None).map(Option::unwrap).map_err(|error| error.to_string())
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
