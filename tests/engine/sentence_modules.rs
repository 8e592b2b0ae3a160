//! Folders of sentence-transformers against it (`testdata/golden_modules`): poolings, prompts that
//! do not count, Dense modules; and sparse vectors of masked language models
//! (`testdata/golden_sparse`).

use std::path::Path;

use serde::Deserialize;
use vllm_batch::engine::EngineError;
use vllm_batch::engine::config::EngineConfig;
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::pooling::{Pooled, PoolingEngine, PoolingParams, PoolingSummary};

use super::pooled::{self, WIDE, answers, golden, names, requests, testdata};

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
    pooled::config(folder.to_owned(), WIDE)
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    let names = names("golden_modules");
    assert_eq!(names.len(), 7);
    for name in names {
        let folder = assembled(&name);
        let config = config(folder.path());
        let summary = PoolingSummary::read(&config.model).unwrap();
        let mut engine = PoolingEngine::load_summarized(&config, &summary).unwrap();
        let golden: Golden = golden(folder.path());
        let prompt = summary.prompts.by_name.get("instruction").map(|text| text.as_str().into());
        let params = PoolingParams {
            prompt,
            include_prompt: summary.pooling.include_prompt,
            ..PoolingParams::default()
        };
        let prompts = golden.texts.iter().map(|text| Prompt::Text(text.text.clone())).collect();
        let requests = requests(&engine, [Prompt::Several(prompts)], &params);
        let output = answers(&mut engine, requests).remove(0);
        for (text, got) in golden.texts.iter().zip(&output.texts) {
            let Pooled::Vector(got) = got else { panic!("{got:?}") };
            let distance = |(got, expected): (&f32, &f32)| (got - expected).abs();
            let largest = got.iter().zip(&text.vector).map(distance).fold(0.0, f32::max);
            assert_eq!(got.len(), text.vector.len(), "{name}");
            assert!(largest < TOLERANCE, "{name}, {:?}: off by {largest}", text.text);
        }
    }
}

#[derive(Deserialize)]
struct GoldenSparse {
    texts: Vec<SparseText>,
}

/// Of the words with a weight: once through the logarithm, and twice.
#[derive(Deserialize)]
struct SparseText {
    text: String,
    indices: Vec<u32>,
    relu: Vec<f32>,
    log1p_relu: Vec<f32>,
}

/// Two lists of words with weights agree; one that weighs almost nothing may be missing.
fn assert_close(got: &[(u32, f32)], indices: &[u32], weights: &[f32], what: &str) {
    assert!(got.is_sorted_by(|one, other| one.0 < other.0), "{what}");
    let of = |word: u32| got.iter().find(|(index, _)| *index == word).map_or(0.0, |found| found.1);
    for (word, weight) in indices.iter().zip(weights) {
        assert!((of(*word) - weight).abs() < TOLERANCE, "{what}, {word}: {} {weight}", of(*word));
    }
    let others = got.iter().filter(|(word, _)| !indices.contains(word));
    assert!(others.clone().all(|(_, weight)| *weight < TOLERANCE), "{what}");
}

/// The sparse vectors of texts, one request for each.
fn sparse(config: &EngineConfig, texts: &[SparseText]) -> Vec<Vec<(u32, f32)>> {
    let mut engine = PoolingEngine::load(config).unwrap();
    let prompts = texts.iter().map(|text| Prompt::Text(text.text.clone()));
    let requests = requests(&engine, prompts, &PoolingParams::default());
    let words = |pooled: &[Pooled]| match pooled {
        [Pooled::Sparse(words)] => words.clone(),
        other => panic!("{other:?}"),
    };
    answers(&mut engine, requests).iter().map(|output| words(&output.texts)).collect()
}

#[test]
fn sparse_vectors_are_those_of_sentence_transformers() {
    for name in names("golden_sparse") {
        let folder = tempfile::tempdir().unwrap();
        copy(&testdata("golden_sparse").join(&name), folder.path());
        let tokenizer = testdata("golden_embeddings/bert/tokenizer.json");
        std::fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
        let golden: GoldenSparse = golden(folder.path());
        let mut config = config(folder.path());
        config.model.sparse = true;
        let once = sparse(&config, &golden.texts);
        for (got, text) in once.iter().zip(&golden.texts) {
            assert_close(got, &text.indices, &text.relu, &name);
        }
        // A text alone has the same bytes.
        config.scheduler.max_num_seqs = 1;
        assert_eq!(sparse(&config, &golden.texts), once, "{name}");
        // The files say so, and that the logarithm is taken twice.
        config.model.sparse = false;
        let list = r#"[{"path": "", "type": "x.MLMTransformer"},
            {"path": "1_SpladePooling", "type": "x.SpladePooling"}]"#;
        std::fs::write(folder.path().join("modules.json"), list).unwrap();
        std::fs::create_dir(folder.path().join("1_SpladePooling")).unwrap();
        let pooling = folder.path().join("1_SpladePooling/config.json");
        std::fs::write(pooling, r#"{"activation_function": "log1p_relu"}"#).unwrap();
        for (got, text) in sparse(&config, &golden.texts).iter().zip(&golden.texts) {
            assert_close(got, &text.indices, &text.log1p_relu, &name);
        }
    }
}

#[test]
fn the_longest_text_is_what_the_files_say() {
    let folder = assembled("max");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let mut config = config(folder.path());
    let longest =
        |config: &EngineConfig| PoolingSummary::read(&config.model).unwrap().max_model_len;
    write("tokenizer_config.json", r#"{"model_max_length": 48}"#);
    write("sentence_bert_config.json", r#"{"max_seq_length": 64}"#);
    assert_eq!(longest(&config), 64);
    // As sentence-transformers has it where its own file says none.
    for text in [r#"{"max_seq_length": null}"#, "{}"] {
        write("sentence_bert_config.json", text);
        assert_eq!(longest(&config), 48, "{text}");
    }
    config.model.max_model_len = Some(100);
    assert_eq!(longest(&config), 100);
}

#[test]
fn modules_that_memory_cannot_hold_are_refused_before_they_are_read() {
    let folder = assembled("dense");
    for name in ["2_Dense", "3_Dense"] {
        let path = folder.path().join(name).join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["out_features"] = (1 << 20).into();
        if name == "3_Dense" {
            config["in_features"] = (1 << 20).into();
        }
        std::fs::write(&path, config.to_string()).unwrap();
    }
    let Err(EngineError::Config(text)) = PoolingEngine::load(&config(folder.path())) else {
        panic!("4 TiB of weights")
    };
    assert!(text.contains("the weights take 4194"), "{text}");
}

#[test]
fn what_modules_cannot_be_is_refused_by_name() {
    let folder = assembled("dense");
    let error = |config: &EngineConfig| match PoolingSummary::read(&config.model) {
        Err(EngineError::Model(text) | EngineError::Config(text)) => text,
        other => panic!("{other:?}"),
    };
    let mut config = config(folder.path());
    config.model.sparse = true;
    assert!(error(&config).contains("masked language model"), "{}", error(&config));
    config.model.sparse = false;
    let path = folder.path().join("3_Dense/config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("24", "25")).unwrap();
    let expected = "a Dense module of 25 inputs: vectors have 24 values before it";
    assert!(error(&config).contains(expected), "{}", error(&config));
    // Its weights are held against its config.
    std::fs::write(&path, text.replace("16", "17")).unwrap();
    let Err(EngineError::Model(text)) = PoolingEngine::load(&config) else { panic!() };
    assert!(text.contains("3_Dense") && text.contains("linear.weight"), "{text}");
}
