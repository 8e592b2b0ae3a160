//! Tiny random classifiers of every class against Hugging Face transformers
//! (`testdata/golden_classifiers`), alone and among others.

use serde::Deserialize;
use serde_json::Value;
use vllm_batch::engine::api::pooling::{Pooled, PoolingParams};
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::{EngineConfig, ModelConfig};
use vllm_batch::engine::base::pooling::{PoolingTask, PoolingType, TokenClasses};
use vllm_batch::engine::checkpoint::{CLASSIFIERS, REWARD_MODELS};
use vllm_batch::engine::core::serve::pooling::{ClassActivation, PoolingEngine, PoolingSummary};

use super::pooled::{self, Limits, WIDE, architecture, of_texts, testdata};

/// From a row of logits to probabilities.
type Activation = fn(&[f32]) -> Vec<f32>;

/// Of a value, relative to 1 or to itself.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    tokenizer: String,
    /// Tokens that are the classes of a language model.
    tokens: Option<Vec<String>>,
    texts: Vec<GoldenText>,
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
    token_ids: Vec<u32>,
    logits: Value,
}

impl GoldenText {
    fn pooled(&self) -> Pooled {
        match self.logits[0].is_array() {
            true => Pooled::Tokens(serde_json::from_value(self.logits.clone()).unwrap()),
            false => Pooled::Vector(serde_json::from_value(self.logits.clone()).unwrap()),
        }
    }
}

fn names() -> Vec<String> {
    pooled::names("golden_classifiers")
}

fn golden(name: &str) -> Golden {
    pooled::golden(&testdata("golden_classifiers").join(name))
}

fn token_classes(tokens: &[String], for_score: bool) -> TokenClasses {
    TokenClasses::new(tokens, for_score).unwrap()
}

fn config(name: &str, golden: &Golden, limits: Limits) -> EngineConfig {
    let mut config = pooled::config(testdata("golden_classifiers").join(name), limits);
    let tokens = golden.tokens.as_ref();
    config.model.tokenizer_dir = Some(testdata("golden_embeddings").join(&golden.tokenizer));
    config.model.pooling_task = Some(PoolingTask::Classify);
    config.model.token_classes = tokens.map(|tokens| token_classes(tokens, false));
    config
}

/// What all texts become, one request for each.
fn classify(
    config: &EngineConfig,
    texts: &[GoldenText],
    use_activation: Option<bool>,
) -> Vec<Pooled> {
    let params = PoolingParams { use_activation, ..PoolingParams::default() };
    let texts = texts.iter().map(|text| (text.text.as_str(), &text.token_ids[..]));
    let outputs = of_texts(config, texts, &params).into_iter();
    outputs.map(|output| output.texts.into_iter().next().unwrap()).collect()
}

fn assert_close(got: &Pooled, expected: &Pooled, name: &str) {
    let (got, expected): (Vec<_>, Vec<_>) = (got.values().collect(), expected.values().collect());
    assert_eq!(got.len(), expected.len(), "{name}");
    for (got, expected) in got.iter().zip(&expected) {
        let limit = TOLERANCE * expected.abs().max(1.0);
        assert!((got - expected).abs() < limit, "{name}: {got} is not {expected}");
    }
}

#[test]
fn every_class_agrees_with_transformers() {
    for name in names() {
        let golden = golden(&name);
        let config = config(&name, &golden, WIDE);
        let outputs = classify(&config, &golden.texts, Some(false));
        for (output, text) in outputs.iter().zip(&golden.texts) {
            assert_close(output, &text.pooled(), &format!("{name}, {:?}", text.text));
        }
    }
}

#[test]
fn probabilities_are_those_of_the_problem() {
    let softmax: Activation = |row| {
        let powers: Vec<f64> = row.iter().map(|value| f64::from(*value).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.iter().map(|power| (power / sum) as f32).collect::<Vec<_>>()
    };
    let sigmoid: Activation = |row| {
        let of = |value: &f32| (1.0 / (1.0 + (-f64::from(*value)).exp())) as f32;
        row.iter().map(of).collect::<Vec<_>>()
    };
    let activations: [(&str, Activation); 6] = [
        ("bert", softmax),
        ("bert_tokens", softmax),
        // Pooled outputs become probabilities, not probabilities pooled ones.
        ("eurobert", softmax),
        ("qwen2_steps", softmax),
        // Its problem: a text has several labels.
        ("distilbert", sigmoid),
        // One label.
        ("xlm_roberta", sigmoid),
    ];
    for (name, activation) in activations {
        let golden = golden(name);
        let config = config(name, &golden, (256, 4096, 1));
        let outputs = classify(&config, &golden.texts, None);
        for (output, text) in outputs.iter().zip(&golden.texts) {
            let expected = match text.pooled() {
                Pooled::Vector(row) => Pooled::Vector(activation(&row)),
                Pooled::Tokens(rows) => {
                    Pooled::Tokens(rows.iter().map(|row| activation(row)).collect())
                }
                Pooled::Sparse(_) => panic!("a classifier has no words"),
            };
            assert_close(output, &expected, &format!("{name}, {:?}", text.text));
        }
    }
}

#[test]
fn a_language_model_gives_one_number_of_two_tokens_or_of_one() {
    for name in ["gemma2_words", "gemma_words", "qwen2_words", "qwen3_words"] {
        let golden = golden(name);
        let tokens = golden.tokens.clone().unwrap();
        let of = |tokens: &[String], use_activation| {
            let mut config = config(name, &golden, WIDE);
            config.model.token_classes = Some(token_classes(tokens, true));
            classify(&config, &golden.texts, use_activation)
        };
        let (raw, probabilities) = (of(&tokens, Some(false)), of(&tokens, None));
        let (no, yes) = (of(&tokens[..1], Some(false)), of(&tokens[1..], Some(false)));
        for (index, text) in golden.texts.iter().enumerate() {
            let Pooled::Vector(logits) = text.pooled() else { panic!("{name}") };
            let one = |value: f32| Pooled::Vector(vec![value]);
            let of_text = format!("{name}, {:?}", text.text);
            assert_close(&raw[index], &one(logits[1] - logits[0]), &of_text);
            assert_close(&no[index], &one(logits[0]), &of_text);
            assert_close(&yes[index], &one(logits[1]), &of_text);
            // The second one's softmax over both.
            let [no, yes] = [logits[0], logits[1]].map(|logit| f64::from(logit).exp());
            assert_close(&probabilities[index], &one((yes / (no + yes)) as f32), &of_text);
        }
    }
}

#[test]
fn tokens_of_a_config_are_classes_too() {
    let golden = golden("qwen3_words");
    let config = config("qwen3_words", &golden, (256, 4096, 1));
    let expected = classify(&config, &golden.texts, None);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(config.model.model_dir.join(file), folder.path().join(file)).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut keys: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    // As people edit it for vLLM.
    keys["architectures"] = serde_json::json!(["Qwen3ForSequenceClassification"]);
    keys["classifier_from_token"] = serde_json::json!(golden.tokens);
    keys["method"] = "no_post_processing".into();
    std::fs::write(path, keys.to_string()).unwrap();
    let model =
        ModelConfig { model_dir: folder.path().to_owned(), token_classes: None, ..config.model };
    let config = EngineConfig { model, ..config };
    assert_eq!(classify(&config, &golden.texts, None), expected);
}

#[test]
fn classes_depend_on_no_neighbour_budget_or_thread() {
    for name in [
        "bert",
        "eurobert",
        "eurobert_mean",
        "gemma2_words",
        "modernbert",
        "qwen2_steps",
        "qwen3",
        "qwen3_words",
        "roberta_tokens",
    ] {
        let golden = golden(name);
        let of = |limits| classify(&config(name, &golden, limits), &golden.texts, None);
        let all = of((256, 4096, 1));
        for limits in [(1, 4096, 3), (2, 1, 2), (256, 4096, 4)] {
            assert_eq!(all, of(limits), "{name}, {limits:?}");
        }
    }
}

#[test]
fn every_classifier_has_a_golden_folder() {
    let folder = testdata("golden_classifiers");
    let tested: Vec<String> = names().iter().map(|name| architecture(&folder.join(name))).collect();
    // Built by the same code as one that is tested.
    let alike = [
        "CamembertForSequenceClassification",
        "CamembertForTokenClassification",
        "XLMRobertaForTokenClassification",
    ];
    let docs = include_str!("../../docs/CLASSIFY.md");
    let of_rewards = REWARD_MODELS.iter().map(|known| known.name);
    for name in CLASSIFIERS.iter().map(|known| known.name).chain(of_rewards) {
        assert!(docs.contains(&format!("`{name}`")), "{name} is not in the docs");
        let is_tested = tested.iter().any(|tested| tested == name);
        assert!(is_tested || alike.contains(&name), "{name} has no golden folder");
    }
}

#[test]
fn what_a_model_is_not_made_for_is_refused_by_name() {
    let golden = golden("bert");
    let refused = |name: &str, task, pooling_type| {
        let mut config = config(name, &golden, (1, 1, 1));
        config.model.pooling_task = task;
        config.model.pooling_type = pooling_type;
        match PoolingSummary::read(&config.model) {
            Err(error @ (EngineError::Config(_) | EngineError::Setting { .. })) => {
                error.to_string()
            }
            other => panic!("{other:?}"),
        }
    };
    let embed = refused("bert", Some(PoolingTask::Embed), None);
    assert!(embed.contains("`classify`"), "{embed}");
    let tokens = refused("bert", Some(PoolingTask::TokenClassify), None);
    assert!(tokens.contains("whole texts"), "{tokens}");
    let pooling = refused("bert", None, Some(PoolingType::Mean));
    assert!(pooling.contains("pooling_type"), "{pooling}");
    let encoder = refused("../golden_embeddings/bert", Some(PoolingTask::Classify), None);
    assert!(encoder.contains("no classifier"), "{encoder}");
    let decoder = refused("qwen3", Some(PoolingTask::Embed), None);
    assert!(decoder.contains("`classify`"), "{decoder}");
    let tokens = |name: &str, tokens: &[&str]| {
        let mut config = config(name, &golden, (1, 1, 1));
        let tokens: Vec<_> = tokens.iter().map(|token| (*token).to_owned()).collect();
        config.model.token_classes = Some(token_classes(&tokens, true));
        match PoolingEngine::load(&config) {
            Err(error @ (EngineError::Config(_) | EngineError::Setting { .. })) => {
                error.to_string()
            }
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("{name} was loaded"),
        }
    };
    let encoder = tokens("bert", &["no", "nice"]);
    assert!(encoder.contains("no language model"), "{encoder}");
    for unknown in ["鹿", "no nice"] {
        let unknown = tokens("qwen3_words", &["no", unknown]);
        assert!(unknown.contains("there is none"), "{unknown}");
    }
    // Without a task a model is run for what it is made for.
    let mut config = config("bert_tokens", &golden, (1, 1, 1));
    config.model.pooling_task = None;
    let summary = PoolingSummary::read(&config.model).unwrap();
    assert_eq!(summary.task, PoolingTask::TokenClassify);
    assert_eq!(summary.classifier.unwrap().labels[1], "B-PER");
}

/// config.json files as models are published, their sizes left small: what they say beside the
/// model, and what their classifier is.
#[test]
fn published_configs_are_read() {
    let bert = r#""hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 2, "max_position_embeddings": 512, "vocab_size": 100,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "type_vocab_size": 2,
        "position_embedding_type": "absolute", "pad_token_id": 0, "use_cache": true"#;
    let distilbert = r#""activation": "gelu", "attention_dropout": 0.1, "dim": 64,
        "dropout": 0.1, "hidden_dim": 128, "initializer_range": 0.02, "n_heads": 4, "n_layers": 2,
        "max_position_embeddings": 512, "model_type": "distilbert", "output_past": true,
        "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "vocab_size": 100,
        "sinusoidal_pos_embds": false, "tie_weights_": true"#;
    let cases = [
        // cross-encoder/ms-marco-MiniLM-L6-v2
        (
            "BertForSequenceClassification",
            format!(
                r#"{bert}, "gradient_checkpointing": false, "id2label": {{"0": "LABEL_0"}},
                "label2id": {{"LABEL_0": 0}}, "sentence_transformers": {{"version": "4.0.1",
                "activation_fn": "torch.nn.modules.linear.Identity"}}"#
            ),
            (ClassActivation::Identity, "LABEL_0"),
        ),
        // nlptown/bert-base-multilingual-uncased-sentiment
        (
            "BertForSequenceClassification",
            format!(
                r#"{bert}, "_num_labels": 2, "directionality": "bidi", "finetuning_task":
                "sentiment-analysis", "id2label": {{"0": "1 star", "1": "2 stars"}}, "label2id":
                {{"1 star": 0, "2 stars": 1}}, "output_past": true, "pooler_fc_size": 768,
                "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
                "pooler_size_per_head": 128, "pooler_type": "first_token_transform""#
            ),
            (ClassActivation::Softmax, "1 star"),
        ),
        // distilbert-base-uncased-finetuned-sst-2-english
        (
            "DistilBertForSequenceClassification",
            format!(
                r#"{distilbert}, "finetuning_task": "sst-2", "id2label": {{"0": "NEGATIVE",
                "1": "POSITIVE"}}, "label2id": {{"NEGATIVE": 0, "POSITIVE": 1}}"#
            ),
            (ClassActivation::Softmax, "NEGATIVE"),
        ),
        // unitary/toxic-bert
        (
            "BertForSequenceClassification",
            format!(
                r#"{bert}, "id2label": {{"0": "toxic", "1": "insult"}}, "problem_type":
                "multi_label_classification""#
            ),
            (ClassActivation::Sigmoid, "toxic"),
        ),
    ];
    for (class, keys, (activation, label)) in cases {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(r#"{{"architectures": ["{class}"], {keys}}}"#);
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let model_dir = folder.path().to_owned();
        let model = ModelConfig { model_dir, ..ModelConfig::default() };
        let summary = PoolingSummary::read(&model).unwrap();
        let classifier = summary.classifier.unwrap();
        assert_eq!((classifier.activation, &*classifier.labels[0]), (activation, label), "{keys}");
        assert_eq!(summary.task, PoolingTask::Classify);
    }
}
