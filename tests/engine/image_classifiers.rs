//! Classifiers of images against transformers (testdata/generate_vision.py): a folder has no
//! tokenizer, and no byte of a row depends on what runs beside it.

use serde::Deserialize;
use vllm_batch::engine::api::pooling::{Pooled, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::{DType, EngineConfig};
use vllm_batch::engine::checkpoint::IMAGE_CLASSIFIERS;
use vllm_batch::engine::core::serve::input_processor::ProcessError;
use vllm_batch::engine::core::serve::pooling::{ClassActivation, PoolingEngine, PoolingSummary};

use super::image_vectors::{distance, seen};
use super::pooled::{self, Limits, WIDE, answers, architecture, requests, testdata};

const MODELS: [&str; 2] = ["siglip_classes", "vit_classes"];

/// Files of the goldens have 7 digits.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    images: Vec<GoldenImage>,
}

#[derive(Deserialize)]
struct GoldenImage {
    image: String,
    /// Logits.
    vector: Vec<f32>,
    scores: Vec<f32>,
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

/// What images become, one request for each.
fn classify(config: &EngineConfig, files: &[&str], use_activation: Option<bool>) -> Vec<Pooled> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let params = PoolingParams { use_activation, ..PoolingParams::default() };
    let requests = requests(&engine, files.iter().map(|file| image(file)), &params);
    let outputs = answers(&mut engine, requests).into_iter();
    outputs.flat_map(|output| output.texts).collect()
}

#[test]
fn logits_and_scores_are_those_of_transformers() {
    for model in MODELS {
        let golden = golden(model);
        let files: Vec<_> = golden.images.iter().map(|image| &*image.image).collect();
        let logits = classify(&config(model, WIDE), &files, Some(false));
        let scores = classify(&config(model, WIDE), &files, None);
        assert_eq!((logits.len(), scores.len()), (files.len(), files.len()));
        for ((logits, scores), image) in logits.iter().zip(&scores).zip(&golden.images) {
            let far = distance(logits, &image.vector).max(distance(scores, &image.scores));
            assert!(far < TOLERANCE, "{model}, {}: off by {far}", image.image);
        }
    }
}

#[test]
fn classes_have_the_names_and_the_activation_of_the_config() {
    let of = |model: &str| {
        let classifier = PoolingSummary::read(&config(model, WIDE).model).unwrap().classifier;
        let classifier = classifier.expect("a classifier");
        (classifier.activation, classifier.labels)
    };
    let names = ["indoors", "night", "people"].map(str::to_owned).to_vec();
    assert_eq!(of("siglip_classes"), (ClassActivation::Sigmoid, names));
    let (activation, labels) = of("vit_classes");
    assert_eq!(activation, ClassActivation::Softmax);
    assert_eq!((labels.len(), &*labels[4]), (5, "thing 4, some of it"));
}

#[test]
fn no_byte_depends_on_what_runs_beside_an_image() {
    let dtypes = [DType::Float32, DType::BFloat16];
    for (model, dtype) in MODELS.into_iter().flat_map(|model| dtypes.map(|dtype| (model, dtype))) {
        let golden = golden(model);
        let mut files: Vec<_> = golden.images.iter().map(|image| &*image.image).collect();
        files.push(files[0]);
        let of = |limits, cache_bytes| {
            let mut config = config(model, limits);
            config.model.dtype = Some(dtype);
            config.cache.tower_cache_bytes = cache_bytes;
            classify(&config, &files, None)
        };
        let expected = of((1, 4096, 1), None);
        assert_eq!(expected.first(), expected.last(), "the same image");
        for (limits, cache_bytes) in [(WIDE, None), ((3, 7, 3), Some(1)), ((2, 1, 2), Some(300))] {
            assert_eq!(of(limits, cache_bytes), expected, "{model}, {dtype:?}, {limits:?}");
        }
    }
}

#[test]
fn a_row_is_one_image_and_no_text() {
    let engine = PoolingEngine::load(&config("vit_classes", WIDE)).unwrap();
    let refused = |prompt| {
        let processor = engine.input_processor();
        match processor.process_pooling(0, prompt, PoolingParams::default()) {
            Err(ProcessError::Row(error)) => (error.code, error.message),
            _ => panic!("it is refused"),
        }
    };
    let files = ["rgb.png", "thin.png"].map(str::to_owned);
    let text = || "a cat".to_owned();
    for (prompt, code, what) in [
        (Prompt::Text(text()), "unsupported_field", "classes of images"),
        (Prompt::TokenIds(vec![0]), "unsupported_field", "classes of images"),
        (Prompt::Pair([text(), text()]), "unsupported_field", "classes of images"),
        (seen(&files[..1], Some("a cat")), "unsupported_field", "a text too"),
        (seen(&files, None), "media_count", "2 images"),
    ] {
        let (found, message) = refused(prompt);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(what), "{message}");
    }
    let blank = seen(&files[..1], Some(" "));
    assert_eq!(requests(&engine, [blank], &PoolingParams::default())[0].texts[0].media.len(), 1);
}

#[test]
fn the_tower_is_not_left_out() {
    let mut config = config("siglip_classes", WIDE);
    config.model.language_model_only = true;
    let error = PoolingSummary::read(&config.model).unwrap_err().to_string();
    assert!(error.contains("reads images alone"), "{error}");
}

#[test]
fn every_class_has_a_golden_folder_and_is_in_the_docs() {
    let folder = testdata("golden_vision");
    let tested = MODELS.map(|model| architecture(&folder.join(model)));
    let docs = include_str!("../../docs/CLASSIFY.md");
    for known in IMAGE_CLASSIFIERS {
        assert!(tested.iter().any(|tested| tested == known.name), "{} has no golden", known.name);
        assert!(docs.contains(&format!("`{}`", known.name)), "{} is not in the docs", known.name);
    }
}
