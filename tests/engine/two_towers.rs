//! Models whose vectors are of a text or of an image, as transformers makes them
//! (testdata/generate_vision.py), and no byte of one depends on what runs beside it.

use std::fs;

use serde::Deserialize;
use vllm_batch::engine::api::pooling::{PoolingOutput, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::{DType, EngineConfig};
use vllm_batch::engine::core::serve::input_processor::ProcessError;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;

use super::image_vectors::{distance, seen};
use super::pooled::{self, Limits, WIDE, answers, requests, testdata};

const MODELS: [&str; 5] = ["clip", "clip_published", "siglip", "siglip2", "siglip2_naflex"];

const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<GoldenText>,
    images: Vec<GoldenImage>,
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
    token_ids: Vec<u32>,
    vector: Vec<f32>,
}

#[derive(Deserialize)]
struct GoldenImage {
    image: String,
    vector: Vec<f32>,
}

fn golden(model: &str) -> Golden {
    pooled::golden(&testdata("golden_vision").join(model))
}

fn config(model: &str, limits: Limits) -> EngineConfig {
    pooled::config(testdata("golden_vision").join(model), limits)
}

fn image(file: &str) -> Prompt {
    seen(&[file.to_owned()], None)
}

/// Texts and images by turns, and one of the images once more.
fn prompts(golden: &Golden) -> Vec<Prompt> {
    let mut prompts = Vec::new();
    for (index, of_image) in golden.images.iter().enumerate() {
        prompts.push(image(&of_image.image));
        prompts.extend(golden.texts.get(index).map(|text| Prompt::Text(text.text.clone())));
    }
    prompts.push(image(&golden.images[0].image));
    prompts
}

fn run(config: &EngineConfig, prompts: Vec<Prompt>) -> Vec<PoolingOutput> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let requests = requests(&engine, prompts, &PoolingParams::default());
    answers(&mut engine, requests)
}

#[test]
fn vectors_of_texts_and_of_images_are_those_of_transformers() {
    for model in MODELS {
        let golden = golden(model);
        let mut engine = PoolingEngine::load(&config(model, WIDE)).unwrap();
        let texts = golden.texts.iter().map(|text| Prompt::Text(text.text.clone()));
        let images = golden.images.iter().map(|of_image| image(&of_image.image));
        let requests = requests(&engine, texts.chain(images), &PoolingParams::default());
        for (request, text) in requests.iter().zip(&golden.texts) {
            assert_eq!(request.texts[0].ids, text.token_ids, "{model}");
        }
        let of_texts = golden.texts.iter().map(|text| (&text.text, &text.vector));
        let of_images = golden.images.iter().map(|of_image| (&of_image.image, &of_image.vector));
        let outputs = answers(&mut engine, requests);
        for (output, (name, expected)) in outputs.iter().zip(of_texts.chain(of_images)) {
            let far = distance(&output.texts[0], expected);
            assert!(far < TOLERANCE, "{model}, {name}: off by {far}");
        }
        let images = engine.stats().images;
        let num = golden.images.len() as u64;
        assert_eq!((images.num_images, images.num_encoded), (num, num), "{model}");
    }
}

#[test]
fn no_byte_of_a_vector_depends_on_what_runs_beside_it() {
    let models = ["clip", "siglip", "siglip2_naflex"];
    let dtypes = [DType::Float32, DType::BFloat16];
    for (model, dtype) in models.into_iter().flat_map(|model| dtypes.map(|dtype| (model, dtype))) {
        let of = |limits, cache_bytes| {
            let mut config = config(model, limits);
            config.model.dtype = Some(dtype);
            config.cache.tower_cache_bytes = cache_bytes;
            let outputs = run(&config, prompts(&golden(model)));
            outputs.into_iter().map(|output| output.texts).collect::<Vec<_>>()
        };
        let expected = of((1, 4096, 1), None);
        assert_eq!(expected.first(), expected.last(), "the same image");
        for (limits, cache_bytes) in [(WIDE, None), ((3, 7, 3), Some(1)), ((2, 1, 2), Some(300))] {
            assert_eq!(of(limits, cache_bytes), expected, "{model}, {dtype:?}, {limits:?}");
        }
    }
}

/// What stands behind the end of a text is no part of it, as transformers pools.
#[test]
fn a_text_ends_at_its_end() {
    let golden = golden("clip");
    let ids = &golden.texts[0].token_ids;
    let longer = [&ids[..], &golden.texts[1].token_ids].concat();
    let outputs = run(&config("clip", WIDE), [ids.clone(), longer].map(Prompt::TokenIds).to_vec());
    assert_eq!(outputs[0].texts, outputs[1].texts);
    assert_eq!(outputs[1].num_prompt_tokens, ids.len());
}

/// Tokens that a short text is filled up with are the tokenizer's own, and count.
#[test]
fn short_texts_are_filled_up() {
    let mut config = config("siglip2", WIDE);
    let golden = golden("siglip2");
    config.model.max_model_len = Some(golden.texts[0].token_ids.len());
    let output = run(&config, vec![Prompt::Text(golden.texts[0].text.clone())]);
    assert_eq!(output[0].num_prompt_tokens, 64);
    assert!(distance(&output[0].texts[0], &golden.texts[0].vector) < TOLERANCE);
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(&config.model.model_dir).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    fs::write(folder.path().join("tokenizer_config.json"), r#"{"pad_token": null}"#).unwrap();
    folder.path().clone_into(&mut config.model.model_dir);
    let error = PoolingEngine::load(&config).err().expect("it is refused").to_string();
    assert!(error.contains("no `pad_token`") && error.contains("help: copy"), "{error}");
}

#[test]
fn a_row_is_a_text_or_one_image() {
    let refused = |config: &EngineConfig, prompt| {
        let engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
        match engine.input_processor().process_pooling(0, prompt, PoolingParams::default()) {
            Err(ProcessError::Row(error)) => error.code,
            _ => panic!("it is refused"),
        }
    };
    let files = ["rgb.png", "thin.png"].map(str::to_owned);
    let clip = config("clip", WIDE);
    assert_eq!(refused(&clip, seen(&files[..1], Some("a cat"))), "unsupported_field");
    assert_eq!(refused(&clip, seen(&files, None)), "media_count");
    assert_eq!(refused(&clip, Prompt::Text("cat ".repeat(90))), "context_length");
    let blank = requests(
        &PoolingEngine::load(&clip).unwrap(),
        [seen(&files[..1], Some(" "))],
        &PoolingParams::default(),
    );
    assert_eq!(blank[0].texts[0].media.len(), 1);
    let mut of_text = clip.clone();
    of_text.model.language_model_only = true;
    assert_eq!(refused(&of_text, image("rgb.png")), "no_image_input");
    let golden = golden("clip");
    let output = run(&of_text, vec![Prompt::Text(golden.texts[0].text.clone())]);
    assert!(distance(&output[0].texts[0], &golden.texts[0].vector) < TOLERANCE);
}
