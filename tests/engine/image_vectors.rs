//! Vectors and classes of rows with images: those of transformers
//! (testdata/generate_image_vectors.py), and no byte of one depends on what runs beside it.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use vllm_batch::engine::api::pooling::{Pooled, PoolingOutput, PoolingParams};
use vllm_batch::engine::api::prompt::{Prompt, WithMedia};
use vllm_batch::engine::base::config::EngineConfig;
use vllm_batch::engine::base::pooling::{PoolingType, TokenClasses};
use vllm_batch::engine::core::serve::input_processor::ProcessError;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;
use vllm_batch::engine::media::{MediaKind, Medium};
use vllm_batch::engine::text::Chat;

use super::pooled::{self, Limits, WIDE, answers, requests, testdata};

/// Chats whose last token's state counts.
const MODELS: [&str; 3] = ["gemma3_multimodal", "qwen3_vl", "smolvlm"];

const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    rows: Vec<GoldenRow>,
}

#[derive(Deserialize)]
struct GoldenRow {
    images: Vec<String>,
    text: Option<String>,
    token_ids: Vec<u32>,
    vector: Vec<f32>,
}

fn golden(model: &str) -> Golden {
    let path = testdata("golden").join(model).join("image_vectors.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn config(model: &str, limits: Limits) -> EngineConfig {
    pooled::config(testdata("golden").join(model), limits)
}

pub fn medium(file: &str) -> Arc<Medium> {
    let bytes = std::fs::read(testdata("media").join(file)).unwrap();
    Arc::new(Medium::new(MediaKind::Image, bytes, Default::default()).unwrap())
}

/// A user's turn of images and the text behind them.
pub fn seen(files: &[String], text: Option<&str>) -> Prompt {
    let images = files.iter().map(|_| json!({"type": "image"}));
    let text = text.map(|text| json!({"type": "text", "text": text}));
    let content: Value = images.chain(text).collect();
    let chat = Chat::from(json!([{"role": "user", "content": content}]));
    let media = files.iter().map(|file| medium(file)).collect();
    Prompt::WithMedia(Box::new(WithMedia { chat, media }))
}

fn of_golden(row: &GoldenRow) -> Prompt {
    seen(&row.images, row.text.as_deref())
}

fn run(config: &EngineConfig, prompts: Vec<Prompt>) -> Vec<PoolingOutput> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let requests = requests(&engine, prompts, &PoolingParams::default());
    answers(&mut engine, requests)
}

/// How far a vector is from the expected one.
pub fn distance(pooled: &Pooled, expected: &[f32]) -> f32 {
    assert_eq!(pooled.values().count(), expected.len());
    pooled.values().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max)
}

#[test]
fn vectors_of_chats_with_images_are_those_of_transformers() {
    for model in MODELS {
        let golden = golden(model);
        let mut engine = PoolingEngine::load(&config(model, WIDE)).unwrap();
        let prompts = golden.rows.iter().map(of_golden);
        let requests = requests(&engine, prompts, &PoolingParams::default());
        for (request, row) in requests.iter().zip(&golden.rows) {
            assert_eq!(request.texts[0].ids, row.token_ids, "{model}");
        }
        for (output, row) in answers(&mut engine, requests).iter().zip(&golden.rows) {
            let far = distance(&output.texts[0], &row.vector);
            assert!(far < TOLERANCE, "{model}, {:?}: off by {far}", row.images);
            assert_eq!(output.num_prompt_tokens, row.token_ids.len(), "{model}");
        }
        let images = engine.stats().images;
        assert_eq!((images.num_images, images.num_encoded), (4, 4), "{model}");
    }
}

#[test]
fn no_byte_of_a_vector_depends_on_what_runs_beside_it() {
    for model in MODELS {
        let prompts = || {
            let golden = golden(model);
            let mut prompts: Vec<_> = golden.rows.iter().map(of_golden).collect();
            let text = |text: &str| Prompt::Text(text.to_owned());
            prompts.extend([text("What is this?"), of_golden(&golden.rows[2])]);
            prompts.extend([seen(&golden.rows[0].images, Some("What is that?")), text("a")]);
            prompts
        };
        let expected = run(&config(model, (1, 4096, 1)), prompts());
        for limits in [WIDE, (3, 7, 2), (2, 33, 3)] {
            for caches in [true, false] {
                let mut config = config(model, limits);
                config.cache.enable_prefix_caching = caches;
                // No room for more than one image.
                config.cache.tower_cache_bytes = if caches { None } else { Some(1) };
                for (row, (got, expected)) in
                    run(&config, prompts()).iter().zip(&expected).enumerate()
                {
                    let what = format!("row {row}, {model}, {limits:?}, {caches}");
                    assert_eq!(got.texts, expected.texts, "{what}");
                }
            }
        }
    }
}

/// In steps of any size, beside other rows, and where an image is encoded again.
#[test]
fn no_byte_of_vectors_of_tokens_depends_on_what_runs_beside_them() {
    for model in MODELS {
        let of = |pooling_type, limits, caches| {
            let mut config = config(model, limits);
            config.model.pooling_type = Some(pooling_type);
            config.cache.enable_prefix_caching = caches;
            config.cache.tower_cache_bytes = (!caches).then_some(1);
            let golden = golden(model);
            let mut prompts: Vec<_> = golden.rows.iter().map(of_golden).collect();
            prompts.extend([Prompt::Text("What is this?".to_owned()), of_golden(&golden.rows[0])]);
            let outputs = run(&config, prompts);
            outputs.into_iter().flat_map(|output| output.texts).collect::<Vec<_>>()
        };
        let last = of(PoolingType::Last, WIDE, true);
        let all = of(PoolingType::All, (1, 4096, 1), true);
        for (row, (all, last)) in all.iter().zip(&last).enumerate() {
            let Pooled::Tokens(all) = all else { panic!("{all:?}") };
            let last: Vec<_> = last.values().collect();
            assert_eq!(all.last(), Some(&last), "{model}, row {row}");
        }
        for limits in [WIDE, (3, 7, 2), (2, 33, 3)] {
            for caches in [true, false] {
                assert!(of(PoolingType::All, limits, caches) == all, "{model}, {limits:?}");
            }
        }
        let mean = of(PoolingType::Mean, (1, 4096, 1), true);
        assert!(of(PoolingType::Mean, (3, 7, 2), false) == mean, "{model}");
    }
}

/// Each token's vector is that of a text which ends with it.
#[test]
fn vectors_of_tokens_are_those_of_texts_that_end_there() {
    for model in ["qwen3_vl", "lfm2", "deepseek_v2", "mamba2"] {
        let of = |pooling_type, texts: Vec<Vec<u32>>| {
            let mut config = config(model, (3, 5, 2));
            config.model.pooling_type = Some(pooling_type);
            run(&config, texts.into_iter().map(Prompt::TokenIds).collect())
        };
        let ids: Vec<u32> = (3..20).collect();
        let all = of(PoolingType::All, vec![ids.clone()]);
        let Pooled::Tokens(all) = &all[0].texts[0] else { panic!("{all:?}") };
        let ends = (1..=ids.len()).map(|end| ids[..end].to_vec()).collect();
        let ends: Vec<Vec<f32>> = of(PoolingType::Last, ends)
            .iter()
            .map(|output| output.texts[0].values().collect())
            .collect();
        assert_eq!(*all, ends, "{model}");
    }
}

#[test]
fn tokens_are_classes_of_rows_with_images() {
    let path = testdata("golden/qwen3_vl/images.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let golden = &golden["prompts"][0];
    let mut config = config("qwen3_vl", WIDE);
    let tokens = ["a".to_owned(), "b".to_owned()];
    config.model.token_classes = Some(TokenClasses::new(&tokens, false).unwrap());
    let engine = PoolingEngine::load(&config).unwrap();
    let ids = tokens.each_ref().map(|token| engine.input_processor().tokenizer().token_id(token));
    let logit = |id: Option<u32>| golden["logits"][id.unwrap() as usize].as_f64().unwrap();
    let expected = 1.0 / (1.0 + (logit(ids[1]) - logit(ids[0])).exp());
    let output = run(&config, vec![seen(&["wide2.png".to_owned()], Some("What is this?"))]);
    let got = output[0].texts[0].values().next().unwrap();
    assert!((f64::from(got) - expected).abs() < 1e-5, "{got}, {expected}");
}

#[test]
fn what_takes_no_images_says_so() {
    let refused = |config: &EngineConfig, params: PoolingParams| {
        let engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
        let prompt = seen(&["rgb.png".to_owned()], Some("What is this?"));
        match engine.input_processor().process_pooling(0, prompt, params) {
            Err(ProcessError::Row(error)) => error.code,
            _ => panic!("it is refused"),
        }
    };
    let of_last = config("qwen3_vl", WIDE);
    let cut = PoolingParams { truncate_prompt_tokens: Some(9), ..PoolingParams::default() };
    assert_eq!(refused(&of_last, cut), "invalid_parameter");
    let mut of_text = of_last.clone();
    of_text.model.language_model_only = true;
    assert_eq!(refused(&of_text, PoolingParams::default()), "no_image_input");
}
