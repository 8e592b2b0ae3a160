//! Tiny random classifiers of every class against Hugging Face transformers
//! (`testdata/golden_classifiers`), alone and among others.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use vllm_batch::engine::EngineError;
use vllm_batch::engine::config::{
    DType, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig,
};
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::model::CLASSIFIERS;
use vllm_batch::engine::pooling::{
    Pooled, PoolingEngine, PoolingParams, PoolingSummary, PoolingTask, PoolingType,
};

/// Of a value, relative to 1 or to itself.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    tokenizer: String,
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

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn names() -> Vec<String> {
    let listing = std::fs::read_dir(testdata().join("golden_classifiers")).unwrap();
    let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn golden(name: &str) -> Golden {
    let path = testdata().join("golden_classifiers").join(name).join("golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn config(name: &str, golden: &Golden, limits: (usize, usize, usize)) -> EngineConfig {
    let (max_num_seqs, max_num_batched_tokens, num_threads) = limits;
    let model = ModelConfig {
        model_dir: testdata().join("golden_classifiers").join(name),
        tokenizer_dir: Some(testdata().join("golden_embeddings").join(&golden.tokenizer)),
        dtype: Some(DType::Float32),
        pooling_task: Some(PoolingTask::Classify),
        ..ModelConfig::default()
    };
    let scheduler =
        SchedulerConfig { max_num_seqs, max_num_batched_tokens, ..SchedulerConfig::default() };
    let parallel = ParallelConfig { num_threads: Some(num_threads), isa: None };
    EngineConfig { model, scheduler, parallel, ..EngineConfig::default() }
}

/// What all texts become, one request for each.
fn classify(
    config: &EngineConfig,
    texts: &[GoldenText],
    use_activation: Option<bool>,
) -> Vec<Pooled> {
    let mut engine = PoolingEngine::load(config).unwrap();
    let processor = engine.input_processor();
    for (index, text) in texts.iter().enumerate() {
        let params = PoolingParams { use_activation, ..PoolingParams::default() };
        let prompt = Prompt::Text(text.text.clone());
        let request = processor.process_pooling(index as u64, prompt, params).unwrap();
        assert_eq!(request.texts, [&text.token_ids[..]], "{:?}", text.text);
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs.into_iter().map(|output| output.texts.into_iter().next().unwrap()).collect()
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
        let config = config(&name, &golden, (256, 4096, 2));
        let outputs = classify(&config, &golden.texts, Some(false));
        for (output, text) in outputs.iter().zip(&golden.texts) {
            assert_close(output, &text.pooled(), &format!("{name}, {:?}", text.text));
        }
    }
}

#[test]
fn probabilities_are_those_of_the_problem() {
    let softmax = |row: &[f32]| {
        let powers: Vec<f64> = row.iter().map(|value| f64::from(*value).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.iter().map(|power| (power / sum) as f32).collect::<Vec<_>>()
    };
    let sigmoid = |row: &[f32]| {
        let of = |value: &f32| (1.0 / (1.0 + (-f64::from(*value)).exp())) as f32;
        row.iter().map(of).collect::<Vec<_>>()
    };
    let activations: [(&str, &dyn Fn(&[f32]) -> Vec<f32>); 4] = [
        ("bert", &softmax),
        ("bert_tokens", &softmax),
        // Its problem has several labels, its texts.
        ("distilbert", &sigmoid),
        // One label.
        ("xlm_roberta", &sigmoid),
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
            };
            assert_close(output, &expected, &format!("{name}, {:?}", text.text));
        }
    }
}

#[test]
fn classes_depend_on_no_neighbour_budget_or_thread() {
    for name in ["bert", "modernbert", "roberta_tokens"] {
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
    let tested: Vec<String> = names()
        .iter()
        .map(|name| {
            let path = testdata().join("golden_classifiers").join(name).join("config.json");
            let config: Value =
                serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
            config["architectures"][0].as_str().unwrap().to_owned()
        })
        .collect();
    // Built by the same code as one that is tested.
    let alike = [
        "CamembertForSequenceClassification",
        "CamembertForTokenClassification",
        "XLMRobertaForTokenClassification",
    ];
    let docs = include_str!("../../docs/CLASSIFY.md");
    for known in CLASSIFIERS {
        assert!(docs.contains(&format!("`{}`", known.name)), "{} is not in the docs", known.name);
        let is_tested = tested.iter().any(|name| name == known.name);
        assert!(is_tested || alike.contains(&known.name), "{} has no golden folder", known.name);
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
            Err(EngineError::Config(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    let embed = refused("bert", Some(PoolingTask::Embed), None);
    assert!(embed.contains("`classify`"), "{embed}");
    let tokens = refused("bert", Some(PoolingTask::TokenClassify), None);
    assert!(tokens.contains("whole texts"), "{tokens}");
    let pooling = refused("bert", None, Some(PoolingType::Mean));
    assert!(pooling.contains("--pooling-type"), "{pooling}");
    let encoder = refused("../golden_embeddings/bert", Some(PoolingTask::Classify), None);
    assert!(encoder.contains("no classifier"), "{encoder}");
    // Without a task a model is run for what it is made for.
    let mut config = config("bert_tokens", &golden, (1, 1, 1));
    config.model.pooling_task = None;
    let summary = PoolingSummary::read(&config.model).unwrap();
    assert_eq!(summary.task, PoolingTask::TokenClassify);
    assert_eq!(summary.classifier.unwrap().labels[1], "B-PER");
}
