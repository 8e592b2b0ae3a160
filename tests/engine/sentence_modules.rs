//! Folders of sentence-transformers against it (`testdata/golden_modules`): poolings, prompts that
//! do not count.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use vllm_batch::engine::config::{DType, EngineConfig, ModelConfig};
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::pooling::{Pooled, PoolingEngine, PoolingParams, PoolingSummary};

/// Of a value; vectors are about 1 to 10.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<GoldenText>,
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
    vector: Vec<f32>,
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// The model with the modules of a folder.
fn assembled(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&testdata("golden_embeddings/bert"), folder.path());
    copy(&testdata("golden_modules").join(name), folder.path());
    folder
}

fn config(folder: &Path) -> EngineConfig {
    let model = ModelConfig {
        model_dir: folder.to_owned(),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    EngineConfig { model, ..EngineConfig::default() }
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    let listing = std::fs::read_dir(testdata("golden_modules")).unwrap();
    let mut num_folders = 0;
    for name in listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        if !MADE.contains(&name.as_str()) {
            continue;
        }
        num_folders += 1;
        let folder = assembled(&name);
        let config = config(folder.path());
        let summary = PoolingSummary::read(&config.model).unwrap();
        let mut engine = PoolingEngine::load_summarized(&config, &summary).unwrap();
        let text = std::fs::read_to_string(folder.path().join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_str(&text).unwrap();
        let prompt = summary.prompts.by_name.get("instruction").map(|text| text.as_str().into());
        let params = PoolingParams {
            prompt,
            include_prompt: summary.pooling.include_prompt,
            ..PoolingParams::default()
        };
        let prompts = golden.texts.iter().map(|text| Prompt::Text(text.text.clone())).collect();
        let processor = engine.input_processor();
        let request = processor.process_pooling(0, Prompt::Several(prompts), params).unwrap();
        engine.add_request(request);
        let output = engine.step().unwrap().remove(0);
        for (text, got) in golden.texts.iter().zip(&output.texts) {
            let Pooled::Vector(got) = got else { panic!("{got:?}") };
            let distance = |(got, expected): (&f32, &f32)| (got - expected).abs();
            let largest = got.iter().zip(&text.vector).map(distance).fold(0.0, f32::max);
            assert_eq!(got.len(), text.vector.len(), "{name}");
            assert!(largest < TOLERANCE, "{name}, {:?}: off by {largest}", text.text);
        }
    }
    assert_eq!(num_folders, MADE.len());
}

const MADE: &[&str] =
    &["max", "mean_sqrt_len", "weightedmean", "without_prompt", "weighted_without_prompt"];
