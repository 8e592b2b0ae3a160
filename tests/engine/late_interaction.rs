//! Models that compare texts and pictures token by token: vectors and scores as transformers, or
//! colpali-engine's arithmetic, makes them (testdata/generate_late_interaction.py), and no byte of
//! one depends on what runs beside it.

use std::fs;

use serde::Deserialize;
use serde_json::json;
use vllm_batch::engine::api::compared::{Compared, ScoreContent, ScoreInput, Scoring};
use vllm_batch::engine::api::pooling::{Pooled, PoolingOutput, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::{DType, EngineConfig};
use vllm_batch::engine::base::pooling::{PoolingTask, PoolingType};
use vllm_batch::engine::core::serve::input_processor::ProcessError;
use vllm_batch::engine::core::serve::pooling::{PoolingEngine, PoolingSummary};

use super::image_vectors::{medium, seen};
use super::pooled::{self, Limits, WIDE, answers, requests, testdata};

const MODELS: [&str; 6] = [
    "colidefics3",
    "colmodernvbert",
    "colpali",
    "colqwen2",
    "colqwen2_engine",
    "colqwen2_5_engine",
];

const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<GoldenText>,
    images: Vec<GoldenImage>,
    /// (texts, images)
    scores: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
    token_ids: Vec<u32>,
    vectors: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct GoldenImage {
    image: String,
    token_ids: Vec<u32>,
    vectors: Vec<Vec<f32>>,
}

fn golden(model: &str) -> Golden {
    pooled::golden(&testdata("golden_late").join(model))
}

fn config(model: &str, limits: Limits) -> EngineConfig {
    pooled::config(testdata("golden_late").join(model), limits)
}

fn image(file: &str) -> Prompt {
    seen(&[file.to_owned()], None)
}

/// Texts, then images.
fn prompts(golden: &Golden) -> Vec<Prompt> {
    let texts = golden.texts.iter().map(|of| Prompt::Text(of.text.clone()));
    texts.chain(golden.images.iter().map(|of| image(&of.image))).collect()
}

fn run(config: &EngineConfig, prompts: Vec<Prompt>) -> Vec<PoolingOutput> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let requests = requests(&engine, prompts, &PoolingParams::default());
    answers(&mut engine, requests)
}

/// How far vectors are from the expected ones, of which there are the first values.
fn distance(pooled: &Pooled, expected: &[Vec<f32>]) -> f32 {
    let Pooled::Tokens(rows) = pooled else { panic!("{pooled:?}") };
    assert_eq!(rows.len(), expected.len());
    let pairs = rows.iter().zip(expected).flat_map(|(row, expected)| row.iter().zip(expected));
    pairs.map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max)
}

#[test]
fn vectors_of_tokens_are_those_of_the_reference() {
    for model in MODELS {
        let golden = golden(model);
        let mut engine = PoolingEngine::load(&config(model, WIDE)).unwrap();
        let requests = requests(&engine, prompts(&golden), &PoolingParams::default());
        let of_texts = golden.texts.iter().map(|of| (&of.text, &of.token_ids, &of.vectors));
        let of_images = golden.images.iter().map(|of| (&of.image, &of.token_ids, &of.vectors));
        let expected: Vec<_> = of_texts.chain(of_images).collect();
        for (request, (name, ids, _)) in requests.iter().zip(&expected) {
            assert_eq!(request.texts[0].ids, **ids, "{model}, {name}");
        }
        let outputs = answers(&mut engine, requests);
        for (output, (name, _, vectors)) in outputs.iter().zip(&expected) {
            let far = distance(&output.texts[0], vectors);
            assert!(far < TOLERANCE, "{model}, {name}: off by {far}");
        }
        let images = engine.stats().images;
        let num = golden.images.len() as u64;
        assert_eq!((images.num_images, images.num_encoded), (num, num), "{model}");
    }
}

#[test]
fn scores_are_sums_of_the_nearest_products() {
    for model in MODELS {
        let golden = golden(model);
        let config = config(model, WIDE);
        let summary = PoolingSummary::read(&config.model).unwrap();
        let scoring = summary.scoring().unwrap();
        assert_eq!(summary.task, PoolingTask::TokenEmbed, "{model}");
        assert!(matches!(scoring, Scoring::Vectors(_)), "{model}");
        let params = PoolingParams { scoring, ..PoolingParams::default() };
        let page = |of: &GoldenImage| {
            let parts = vec![json!({"type": "image"})];
            let media = vec![medium(&of.image)];
            ScoreInput::Content(ScoreContent { parts, media, given: String::new() })
        };
        let mut engine = PoolingEngine::load(&config).unwrap();
        let compared = golden.texts.iter().map(|of| {
            let query = vec![ScoreInput::Text(of.text.clone())];
            let pages = golden.images.iter().map(page).collect();
            Prompt::Compared(Box::new(Compared::new(query, pages, true).unwrap()))
        });
        let requests = requests(&engine, compared, &params);
        for (output, expected) in answers(&mut engine, requests).iter().zip(&golden.scores) {
            let scores: Vec<f32> = output.texts.iter().flat_map(|score| score.values()).collect();
            for (got, expected) in scores.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-4, "{model}: {scores:?}, {expected}");
            }
        }
    }
}

#[test]
fn no_byte_of_a_vector_depends_on_what_runs_beside_it() {
    let dtypes = [DType::Float32, DType::BFloat16];
    for (model, dtype) in MODELS.into_iter().flat_map(|model| dtypes.map(|dtype| (model, dtype))) {
        let of = |limits, caches: bool| {
            let mut config = config(model, limits);
            config.model.dtype = Some(dtype);
            // Where all tokens see each other there is no KV cache.
            let has_cache = !["colmodernvbert", "colpali"].contains(&model);
            config.cache.enable_prefix_caching = caches || !has_cache;
            config.cache.tower_cache_bytes = (!caches).then_some(1);
            let golden = golden(model);
            let prompts = [prompts(&golden), prompts(&golden)].concat();
            let outputs = run(&config, prompts);
            outputs.into_iter().map(|output| output.texts).collect::<Vec<_>>()
        };
        let expected = of((1, 4096, 1), true);
        let (first, second) = expected.split_at(expected.len() / 2);
        assert!(first == second, "{model}: the same rows");
        for limits in [WIDE, (3, 7, 3), (2, 33, 2)] {
            for caches in [true, false] {
                assert!(of(limits, caches) == expected, "{model}, {dtype:?}, {limits:?}");
            }
        }
    }
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
    for model in MODELS {
        let config = config(model, WIDE);
        assert_eq!(refused(&config, seen(&files[..1], Some("a cat"))), "unsupported_field");
        assert_eq!(refused(&config, seen(&files, None)), "media_count");
        let mut of_text = config.clone();
        of_text.model.language_model_only = true;
        assert_eq!(refused(&of_text, image("rgb.png")), "no_image_input");
        let golden = golden(model);
        let output = run(&of_text, vec![Prompt::Text(golden.texts[0].text.clone())]);
        assert!(distance(&output[0].texts[0], &golden.texts[0].vectors) < TOLERANCE, "{model}");
    }
}

/// What a user types is text, and another pooling gives one vector.
#[test]
fn control_tokens_of_a_query_are_text() {
    let mut config = config("colqwen2", WIDE);
    let engine = PoolingEngine::load(&config).unwrap();
    let typed = [Prompt::Text("<|image_pad|>".to_owned())];
    let request = requests(&engine, typed, &PoolingParams::default());
    let image_token = engine.input_processor().tokenizer().token_id("<|image_pad|>").unwrap();
    assert!(!request[0].texts[0].ids.contains(&image_token));
    config.model.pooling_type = Some(PoolingType::Mean);
    let output = run(&config, vec![image("rgb.png")]);
    assert!(matches!(&output[0].texts[0], Pooled::Vector(vector) if vector.len() == 12));
}

/// A golden folder whose tensors have other names: of each pair the second for the first.
fn renamed(model: &str, names: &[[&str; 2]]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(testdata("golden_late").join(model)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let behind = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = String::from_utf8(bytes[8..behind].to_vec()).unwrap();
    for [own, other] in names {
        assert!(header.contains(own), "{own}");
        header = header.replace(own, other);
    }
    let len = (header.len() as u64).to_le_bytes();
    fs::write(path, [&len[..], header.as_bytes(), &bytes[behind..]].concat()).unwrap();
    folder
}

/// As transformers 4 saved them, and later.
#[test]
fn tensors_have_the_names_of_published_files_too() {
    for (model, names) in [
        ("colqwen2", &[["vlm.language_model.", "vlm.model."]][..]),
        (
            "colqwen2",
            &[
                ["vlm.language_model.", "vlm.model.language_model."],
                ["vlm.visual.", "vlm.model.visual."],
            ],
        ),
        (
            "colpali",
            &[
                ["vlm.language_model.model.", "vlm.language_model."],
                ["vlm.vision_tower.", "vlm.vision_tower.vision_model."],
            ],
        ),
    ] {
        let (golden, folder) = (golden(model), renamed(model, names));
        let config = pooled::config(folder.path().to_owned(), WIDE);
        for (output, of) in
            run(&config, prompts(&golden)[golden.texts.len()..].to_vec()).iter().zip(&golden.images)
        {
            let far = distance(&output.texts[0], &of.vectors);
            assert!(far < TOLERANCE, "{model}, {names:?}: off by {far}");
        }
    }
}
