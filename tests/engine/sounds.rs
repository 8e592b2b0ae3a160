//! Models that write down recordings, from samples to transcripts: tokens are those of transformers
//! (testdata/generate_sounds.py), and no byte depends on what runs beside a row.

use std::sync::Arc;

use serde_json::{Value, json};
use vllm_batch::engine::api::prompt::{Prompt, WithMedia};
use vllm_batch::engine::api::request::{
    NumLogprobs, RowKey, SamplingParams, SpeechParams, SpeechTask,
};
use vllm_batch::engine::base::config::{DType, EngineConfig, SpeculationMethod};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::serve::input_processor::ProcessError;
use vllm_batch::engine::media::{MediaKind, Medium};
use vllm_batch::engine::text::Chat;

use super::images::{answers_of, path};
use super::speculation::{self, BATCHES, Method};

const MODELS: [&str; 2] = ["testdata/golden_sounds/multilingual", "testdata/golden_sounds/english"];

/// A WAV file of the same samples as `samples` of the scripts makes.
pub fn wav(kind: usize) -> Vec<u8> {
    let length = [12_000, 16_000, 5_000, 36_000, 161, 32_000][kind];
    let kind = kind as i64;
    let sample = |at: i64| {
        let sweep = (at * at * (kind + 1) / 977 + at * 13) % 2001 - 1000;
        let beat = if at / (400 + 150 * kind) % 2 == 0 { 9 } else { 2 };
        (sweep * beat) as i16
    };
    let data: Vec<u8> = (0..length).flat_map(|at| sample(at).to_le_bytes()).collect();
    let mut file = Vec::from(b"RIFF");
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend([1u16, 1].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([16_000u32, 32_000].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([2u16, 16].iter().flat_map(|n| n.to_le_bytes()));
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

/// A recording, with a text before its transcript.
fn recording(kind: usize, text: Option<&str>) -> Prompt {
    let text = text.map(|text| json!({"type": "text", "text": text}));
    let content: Value = text.into_iter().chain([json!({"type": "audio"})]).collect();
    let medium = Medium::new(MediaKind::Sound, wav(kind), Default::default()).unwrap();
    Prompt::WithMedia(Box::new(WithMedia {
        chat: Chat::from(json!([{"role": "user", "content": content}])),
        media: vec![Arc::new(medium)],
    }))
}

fn params(max_tokens: u32, speech: SpeechParams) -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        max_tokens: Some(max_tokens),
        logprobs: Some(NumLogprobs::Top(0)),
        speech,
        ..SamplingParams::default()
    }
}

/// What a case of the script asks for.
fn asked(case: &Value) -> (Prompt, SamplingParams) {
    let speech = SpeechParams {
        language: case["language"].as_str().map(str::to_owned),
        task: match case["task"].as_str() {
            Some("translate") => SpeechTask::Translate,
            _ => SpeechTask::Transcribe,
        },
        return_timestamps: case["return_timestamps"] == true,
    };
    let num_tokens = case["token_ids"].as_array().unwrap().len() as u32;
    let kind = case["sound"].as_u64().unwrap() as usize;
    (recording(kind, case["prompt"].as_str()), params(num_tokens, speech))
}

fn cases(model: &str) -> Vec<Value> {
    let golden = std::fs::read_to_string(path(model).join("golden.json")).unwrap();
    serde_json::from_str(&golden).unwrap()
}

#[test]
fn recordings_are_written_down_as_by_transformers() {
    for model in MODELS {
        let mut config = speculation::config(model, (4, 2000), None);
        config.model.dtype = Some(DType::Float32);
        for case in cases(model) {
            // What the answer begins with is its own where the language is not known before.
            let before = case["prompt_token_ids"].as_array().unwrap();
            let has_language = case["language"].is_string() || model.ends_with("english");
            let num_before = if has_language { 0 } else { before.len() - 1 };
            let (prompt, mut params) = asked(&case);
            params.max_tokens = params.max_tokens.map(|most| most + num_before as u32);
            let output =
                answers_of(Engine::load(&config).unwrap(), &[(prompt, params)]).pop().unwrap();
            let answer = &output.outputs[0];
            let in_prompt = output.prompt_token_ids.iter().skip(128).map(|id| json!(id));
            let all = in_prompt.chain(answer.token_ids.iter().map(|id| json!(id)));
            let expected = before.iter().chain(case["token_ids"].as_array().unwrap());
            assert!(all.eq(expected.cloned()), "{model} {case} {:?}", answer.token_ids);
            assert_eq!(answer.text.starts_with("<|"), case["return_timestamps"] == true);
            let logprobs = answer.logprobs.as_ref().unwrap()[num_before..].iter();
            for (got, expected) in logprobs.zip(case["logprobs"].as_array().unwrap()) {
                let distance = f64::from(got.token.logprob) - expected.as_f64().unwrap();
                assert!(distance.abs() < 1e-4, "{model} {case}: {}", got.token.logprob);
            }
        }
    }
}

fn rows(model: &str) -> Vec<(Prompt, SamplingParams)> {
    let mut rows: Vec<_> = cases(model).iter().map(asked).collect();
    let speech = SpeechParams { return_timestamps: true, ..SpeechParams::default() };
    let sampled = SamplingParams { temperature: 1.0, n: 3, ..params(9, speech) };
    rows.push((recording(1, None), sampled));
    let penalized =
        SamplingParams { repetition_penalty: 1.3, ..params(20, SpeechParams::default()) };
    rows.push((recording(2, Some("Words before")), penalized));
    rows
}

#[test]
fn no_byte_of_a_recording_depends_on_what_runs_beside_it() {
    for model in MODELS {
        let ngram = Method::Of(SpeculationMethod::Ngram { min: 1, max: 3 });
        let config = |batch, num_tokens: usize, caches: bool| {
            // Drafts where there are no caches.
            let drafts = (!caches && num_tokens < 256).then_some(&ngram);
            let mut config: EngineConfig = speculation::config(model, batch, drafts);
            config.scheduler.max_num_batched_tokens = Some(num_tokens);
            config.cache.enable_prefix_caching = caches;
            // No room for more than one sound.
            config.cache.tower_cache_bytes = if caches { None } else { Some(1) };
            config
        };
        let rows = rows(model);
        let load = |config: &EngineConfig| Engine::load(config).unwrap();
        let alone = rows.iter().map(|row| {
            let engine = load(&config((1, 2000), 256, false));
            format!("{:?}", answers_of(engine, std::slice::from_ref(row))[0].outputs)
        });
        let alone: Vec<_> = alone.collect();
        for (max_num_seqs, _) in BATCHES {
            // The last has room for little more than one row.
            for num_blocks in [2000, 20] {
                for num_tokens in [7, 33, 700] {
                    for caches in [true, false] {
                        let config = config((max_num_seqs, num_blocks), num_tokens, caches);
                        let got = answers_of(load(&config), &rows);
                        for (row, (got, expected)) in got.iter().zip(&alone).enumerate().skip(1) {
                            // Of other rows the key of random numbers is another one's.
                            if row + 2 != rows.len() {
                                let got = format!("{:?}", got.outputs);
                                assert_eq!(got, *expected, "row {row} {max_num_seqs} {num_tokens}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_recording_to_write_down_is_refused_by_name() {
    let refused = |model: &str, prompt: Prompt, params: SamplingParams| {
        let engine = Engine::load(&speculation::config(model, (4, 2000), None)).unwrap();
        match engine.input_processor().process(0, prompt, params, RowKey(0)) {
            Err(ProcessError::Row(error)) => format!("{}: {}", error.code, error.message),
            other => panic!("it is refused, not {other:?}"),
        }
    };
    let speech = |language: &str| SpeechParams {
        language: Some(language.to_owned()),
        ..SpeechParams::default()
    };
    let [multilingual, english] = MODELS;
    let plain = || params(4, SpeechParams::default());
    for (model, prompt, params, expected) in [
        (english, Prompt::Text("a".to_owned()), plain(), "unsupported_field: the model writes"),
        (english, recording(0, None), params(4, speech("de")), "the model knows English alone"),
        (multilingual, recording(0, None), params(4, speech("klingon")), "\"klingon\" is none"),
        (multilingual, recording(0, None), params(4, speech("french")), "does not know french"),
        (multilingual, recording(0, Some(&"word ".repeat(40))), plain(), "23 are the most"),
        (
            multilingual,
            recording(0, None),
            SamplingParams { truncate_prompt_tokens: Some(3), ..plain() },
            "truncate_prompt_tokens: it does not go with a recording",
        ),
    ] {
        let error = refused(model, prompt, params);
        assert!(error.contains(expected), "{error}");
    }
}
