//! Chats of models that hear, from samples to answers: tokens and answers are those of transformers
//! (testdata/generate_hearing.py), and no byte depends on what runs beside a row.

use std::sync::Arc;

use serde_json::{Value, json};
use vllm_batch::engine::api::prompt::{Prompt, WithMedia};
use vllm_batch::engine::api::request::{NumLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{DType, EngineConfig, SpeculationMethod};
use vllm_batch::engine::base::hf_overrides::HfOverrides;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::serve::input_processor::ProcessError;
use vllm_batch::engine::media::{MediaKind, Medium};
use vllm_batch::engine::text::Chat;

use super::images::{answers_of, path};
use super::sounds::wav;
use super::speculation::{self, BATCHES, Method};

const MODELS: [&str; 12] = [
    "qwen2_audio",
    "qwen2_audio_published",
    "voxtral",
    "voxtral_published",
    "audio_flamingo3",
    "glm_asr",
    "qwen3_asr",
    "qwen3_asr_published",
    "qwen2_5_omni",
    "qwen2_5_omni_published",
    "qwen3_omni",
    "qwen3_omni_published",
];

fn folder(model: &str) -> String {
    format!("testdata/golden_hearing/{model}")
}

/// What `<name>` stands for: a recording by its number, or an image of testdata/media.
fn medium(part: &str) -> Option<Medium> {
    let name = part.strip_prefix('<')?.strip_suffix('>')?;
    let (kind, bytes) = match name.parse() {
        Ok(kind) => (MediaKind::Sound, wav(kind)),
        Err(_) => {
            let bytes = std::fs::read(path("testdata/media").join(name)).unwrap();
            (MediaKind::Image, bytes)
        }
    };
    Some(Medium::new(kind, bytes, Default::default()).unwrap())
}

/// A user's turn: texts and media.
fn chat(parts: &[String]) -> Prompt {
    let media: Vec<_> = parts.iter().filter_map(|part| medium(part)).map(Arc::new).collect();
    let content = parts.iter().map(|part| match medium(part) {
        Some(medium) => json!({"type": medium.kind().name()}),
        None => json!({"type": "text", "text": part}),
    });
    let messages = json!([{"role": "user", "content": content.collect::<Value>()}]);
    match media.is_empty() {
        true => Prompt::Messages(messages.into()),
        false => Prompt::WithMedia(Box::new(WithMedia { chat: Chat::from(messages), media })),
    }
}

fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        max_tokens: Some(max_tokens),
        logprobs: Some(NumLogprobs::Top(0)),
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

/// Those of the script. Recordings that become no token are refused here.
fn cases(model: &str) -> Vec<Value> {
    let golden = std::fs::read_to_string(path(&folder(model)).join("golden.json")).unwrap();
    let mut cases: Vec<Value> = serde_json::from_str(&golden).unwrap();
    let hears_all = model.starts_with("voxtral") || model.starts_with("qwen3_asr");
    cases.retain(|case| hears_all || case["parts"][0] != "<4>");
    cases
}

fn parts(case: &Value) -> Vec<String> {
    serde_json::from_value(case["parts"].clone()).unwrap()
}

#[test]
fn chats_with_recordings_are_tokenized_and_answered_as_by_transformers() {
    for model in MODELS {
        let mut config = speculation::config(&folder(model), (4, 400), None);
        config.model.dtype = Some(DType::Float32);
        let cases = cases(model);
        assert!(cases.len() >= 5, "{model}");
        for case in cases {
            let num_tokens = case["token_ids"].as_array().unwrap().len() as u32;
            let row = (chat(&parts(&case)), params(num_tokens));
            let output = answers_of(Engine::load(&config).unwrap(), &[row]).pop().unwrap();
            let what = format!("{model} {}", case["parts"]);
            assert_eq!(json!(output.prompt_token_ids), case["prompt_token_ids"], "{what}");
            assert_eq!(json!(output.outputs[0].token_ids), case["token_ids"], "{what}");
            let logprobs = output.outputs[0].logprobs.as_ref().unwrap();
            for (found, expected) in logprobs.iter().zip(case["logprobs"].as_array().unwrap()) {
                let difference = f64::from(found.token.logprob) - expected.as_f64().unwrap();
                assert!(difference.abs() < 1e-4, "{what}: {difference}");
            }
        }
    }
}

#[test]
fn every_golden_model_that_hears_is_tested() {
    let folders = std::fs::read_dir(path("testdata/golden_hearing")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut expected = MODELS.map(str::to_owned).to_vec();
    expected.sort();
    let mut found: Vec<_> = names.collect();
    found.sort();
    assert_eq!(found, expected);
}

/// Rows of recordings that are equal, of several lengths, in the midst of text, and of none.
fn rows(model: &str) -> Vec<(Prompt, SamplingParams)> {
    let cases = cases(model);
    let mut rows: Vec<_> =
        (6..).zip(&cases).map(|(num, case)| (chat(&parts(case)), params(num))).collect();
    let sampled = SamplingParams { temperature: 1.0, n: 3, ..params(7) };
    let scored = SamplingParams { prompt_logprobs: Some(NumLogprobs::Top(1)), ..params(4) };
    rows.extend([sampled, scored].map(|params| (chat(&parts(&cases[0])), params)));
    rows
}

#[test]
fn no_byte_of_a_row_with_recordings_depends_on_what_runs_beside_it() {
    for model in MODELS {
        let rows = rows(model);
        let answers = |config: &EngineConfig| {
            let answers = answers_of(Engine::load(config).unwrap(), &rows);
            answers.iter().map(|answer| format!("{answer:?}")).collect::<Vec<_>>()
        };
        let expected = answers(&speculation::config(&folder(model), BATCHES[0], None));
        let ngram = Method::Of(SpeculationMethod::Ngram { min: 1, max: 3 });
        for batch in BATCHES {
            for method in [None, Some(&ngram)] {
                for (num_tokens, caches) in [(7, true), (33, false), (256, true), (256, false)] {
                    let mut config = speculation::config(&folder(model), batch, method);
                    config.scheduler.max_num_batched_tokens = Some(num_tokens);
                    config.cache.enable_prefix_caching = caches;
                    // No room for more than one recording.
                    config.cache.tower_cache_bytes = if caches { None } else { Some(1) };
                    let what = format!("{model} {batch:?} {} {num_tokens}", method.is_some());
                    for (row, (got, expected)) in answers(&config).iter().zip(&expected).enumerate()
                    {
                        assert_eq!(got, expected, "row {row}, {what}");
                    }
                }
            }
        }
    }
}

fn refused(model: &str, change: impl Fn(&mut EngineConfig), parts: &[&str]) -> String {
    let mut config = speculation::config(&folder(model), (4, 400), None);
    change(&mut config);
    let engine = Engine::load(&config).unwrap();
    let parts: Vec<_> = parts.iter().map(|part| (*part).to_owned()).collect();
    match engine.input_processor().process(0, chat(&parts), params(4), RowKey(0)) {
        Err(ProcessError::Row(error)) => format!("{}: {}", error.code, error.message),
        other => panic!("it is refused, not {other:?}"),
    }
}

#[test]
fn recordings_that_a_model_does_not_hear_are_refused_by_name() {
    let as_it_is = |_: &mut EngineConfig| {};
    for (model, parts, expected) in [
        ("qwen2_audio", ["<0>", "<3>"], "media_too_large: recording 2 of 2: it has 2.2"),
        ("audio_flamingo3", ["<0>", "<1>"], "the chat template shows 1 recordings"),
        ("glm_asr", ["<4>", "?"], "it has 0.010 seconds, which the model does not hear"),
    ] {
        let error = refused(model, as_it_is, &parts);
        assert!(error.contains(expected), "{model}: {error}");
    }
    let alone = |config: &mut EngineConfig| config.model.language_model_only = true;
    let error = refused("voxtral", alone, &["<0>", "?"]);
    assert!(error.contains("no_audio_input: the model takes no recordings here"), "{error}");
}

/// Their classes tie the output layer by themselves, whatever the text part says.
#[test]
fn an_output_layer_is_the_table_where_the_class_ties() {
    for model in ["glm_asr", "qwen3_asr"] {
        let row = (chat(&["What is this?".to_owned()]), params(8));
        let answers = |overrides: Value| {
            let mut config = speculation::config(&folder(model), (4, 400), None);
            config.model.hf_overrides = HfOverrides::parse(&overrides.to_string()).unwrap();
            format!("{:?}", answers_of(Engine::load(&config).unwrap(), std::slice::from_ref(&row)))
        };
        let expected = answers(json!({}));
        for text in [json!({"tie_word_embeddings": false}), json!({"tie_word_embeddings": null})] {
            let found = answers(json!({"tie_word_embeddings": null, "text_config": text}));
            assert_eq!(found, expected, "{model} {text}");
        }
    }
}

/// On a GPU the text part runs alone.
#[test]
fn a_gpu_is_asked_for_what_it_has_no_kernels_for() {
    for model in MODELS {
        let mut config = speculation::config(&folder(model), (4, 400), None);
        let refusal = |config: &EngineConfig| {
            let summary = ModelSummary::read(&config.model).unwrap();
            summary.gpu_needs().refusal(DType::BFloat16, config.cache.kv_cache_dtype)
        };
        let refused = refusal(&config).expect("there is no kernel");
        assert!(refused.contains("a tower of sounds"), "{model}: {refused}");
        config.model.language_model_only = true;
        assert!(refusal(&config).is_none_or(|text| text.contains("head")), "{model}");
    }
}

/// The text part of a model that hears has no use for the tower, and answers texts as it does.
#[test]
fn texts_have_the_same_answers_without_the_tower() {
    for model in MODELS {
        let mut config = speculation::config(&folder(model), (4, 400), None);
        let row = (chat(&["What is this?".to_owned()]), params(8));
        let expected = answers_of(Engine::load(&config).unwrap(), std::slice::from_ref(&row));
        config.model.language_model_only = true;
        let got = answers_of(Engine::load(&config).unwrap(), &[row]);
        assert_eq!(format!("{got:?}"), format!("{expected:?}"), "{model}");
    }
}
