//! Likelihoods of choices and of texts against lm-evaluation-harness's `hf` model
//! (`testdata/generate_likelihoods.py`).

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use vllm_batch::engine::api::prompt::{Choices, Prompt};
use vllm_batch::engine::api::request::Scored;
use vllm_batch::engine::api::request::{RowKey, SamplingParams};
use vllm_batch::engine::base::config::{CacheConfig, DType, EngineConfig, ModelConfig, Overflow};
use vllm_batch::engine::core::Engine;

#[derive(Deserialize)]
struct Golden {
    model: String,
    max_model_len: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Choices {
        /// Or `messages`.
        prompt: Option<String>,
        messages: Option<Value>,
        choices: Vec<String>,
        expected: Vec<(f64, bool)>,
    },
    Text {
        text: String,
        num_words: usize,
        expected: f64,
    },
}

impl Row {
    fn prompt(&self) -> Prompt {
        match self {
            Row::Text { text, .. } => Prompt::Rolling(text.clone()),
            Row::Choices { prompt, messages, choices, .. } => {
                let text = prompt.clone().map(Prompt::Text);
                let chat = || Prompt::Messages(messages.clone().expect("a chat").into());
                let context = text.unwrap_or_else(chat);
                Prompt::Choices(Box::new(Choices { context, choices: choices.clone() }))
            }
        }
    }
}

fn engine(golden: &Golden, overflow: Overflow) -> Engine {
    let model = ModelConfig {
        model_dir: Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(&golden.model),
        dtype: Some(DType::Float32),
        max_model_len: Some(golden.max_model_len),
        overflow,
        ..ModelConfig::default()
    };
    let cache =
        CacheConfig { block_size: Some(16), num_blocks: Some(32), ..CacheConfig::default() };
    Engine::load(&EngineConfig { model, cache, ..EngineConfig::default() })
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The answers of all rows, asked together.
fn answers(engine: &mut Engine, rows: &[Row]) -> Vec<Scored> {
    let processor = Arc::clone(&engine.input_processor());
    for (id, row) in (0..).zip(rows) {
        let params = SamplingParams::default();
        let request = processor.process(id, row.prompt(), params, RowKey(id));
        engine.add_request(request.unwrap_or_else(|error| panic!("row {id}: {error}")));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().expect("the CPU does not fail"));
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs.into_iter().map(|output| output.scored.expect("it was asked for")).collect()
}

fn goldens() -> Vec<Golden> {
    serde_json::from_str(include_str!("../../testdata/likelihoods.json")).expect("it is made so")
}

fn assert_close(got: f64, expected: f64, what: &str) {
    assert!((got - expected).abs() < 1e-3, "{what}: {got} is not {expected}");
}

#[test]
fn choices_and_texts_are_as_likely_as_the_harness_says() {
    for golden in goldens() {
        let mut engine = engine(&golden, Overflow::TruncateLeft);
        for (row, scored) in golden.rows.iter().zip(answers(&mut engine, &golden.rows)) {
            match (row, scored) {
                (Row::Choices { choices, expected, .. }, Scored::Choices(got)) => {
                    assert_eq!(got.len(), expected.len());
                    for ((choice, (logprob, is_greedy)), got) in
                        choices.iter().zip(expected).zip(got)
                    {
                        let what = format!("{}: {:?} {choice:?}", golden.model, row.prompt());
                        assert_close(got.logprob, *logprob, &what);
                        assert_eq!(got.is_greedy, *is_greedy, "{what}");
                        assert!(got.num_tokens > 0);
                    }
                }
                (
                    Row::Text { text, num_words: words, expected },
                    Scored::Rolling { total, num_words, num_bytes },
                ) => {
                    assert_close(total.logprob, *expected, &format!("{}: {text}", golden.model));
                    assert_eq!((num_words, num_bytes), (*words, text.len()));
                    assert!(total.num_tokens > 0);
                }
                (_, other) => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_context_that_is_cut_is_asked_for() {
    let golden = goldens().remove(0);
    let engine = engine(&golden, Overflow::Error);
    let ask = |context: &str, choices: &[&str], params: SamplingParams| {
        let choices = choices.iter().map(|&choice| choice.to_owned()).collect();
        let context = Prompt::Text(context.to_owned());
        let prompt = Prompt::Choices(Box::new(Choices { context, choices }));
        let processed = engine.input_processor().process(0, prompt, params, RowKey(0));
        processed.map(|_| ()).map_err(|error| error.to_string())
    };
    let plain = SamplingParams::default;
    let several = SamplingParams { n: 2, ..plain() };
    let cut = SamplingParams { truncate_prompt_tokens: Some(9), ..plain() };
    let long = "the quick brown fox ".repeat(60);
    for (result, what) in [
        (ask("2+2=", &["4"], plain()), ""),
        (ask(&long, &["4"], plain()), "context_length: choice 0 and what it follows have"),
        (ask("2+2=", &["4", &long], plain()), "context_length: choice 1"),
        (ask("2+2=", &[], plain()), "expected 1 to 16384 texts, got 0"),
        (ask("2+2=", &["4"], several), "n does not go with choices"),
        (ask("2+2=", &["4"], cut), "truncate_prompt_tokens does not go with choices"),
    ] {
        match result {
            Ok(()) => assert_eq!(what, ""),
            Err(error) => assert!(!what.is_empty() && error.contains(what), "{error}"),
        }
    }
}
