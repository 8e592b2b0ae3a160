//! Folders of sentence-transformers against it (`testdata/golden_modules`): poolings, prompts that
//! do not count, Dense modules; sparse vectors of masked language models
//! (`testdata/golden_sparse`); and the layers of bge-m3 against FlagEmbedding's formulas
//! (`testdata/golden_m3`).

use std::path::Path;

use serde::Deserialize;
use vllm_batch::engine::api::compared::Compared;
use vllm_batch::engine::api::pooling::{Pooled, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::EngineConfig;
use vllm_batch::engine::base::pooling::PoolingTask;
use vllm_batch::engine::core::serve::pooling::{PoolingEngine, PoolingSummary};

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

/// What each prompt becomes, one request for each.
fn of_prompts(
    config: &EngineConfig,
    prompts: impl IntoIterator<Item = Prompt>,
    params: &PoolingParams,
) -> Vec<Pooled> {
    let mut engine = PoolingEngine::load(config).unwrap();
    let requests = requests(&engine, prompts, params);
    answers(&mut engine, requests).into_iter().flat_map(|output| output.texts).collect()
}

/// The sparse vectors of texts, one request for each.
fn sparse<'a>(
    config: &EngineConfig,
    texts: impl IntoIterator<Item = &'a String>,
) -> Vec<Vec<(u32, f32)>> {
    let prompts = texts.into_iter().map(|text| Prompt::Text(text.clone()));
    let words = |pooled| match pooled {
        Pooled::Sparse(words) => words,
        other => panic!("{other:?}"),
    };
    of_prompts(config, prompts, &PoolingParams::default()).into_iter().map(words).collect()
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
        let texts = || golden.texts.iter().map(|text| &text.text);
        let once = sparse(&config, texts());
        for (got, text) in once.iter().zip(&golden.texts) {
            assert_close(got, &text.indices, &text.relu, &name);
        }
        // A text alone has the same bytes.
        config.scheduler.max_num_seqs = Some(1);
        assert_eq!(sparse(&config, texts()), once, "{name}");
        // The files say so, and that the logarithm is taken twice.
        config.model.sparse = false;
        let list = r#"[{"path": "", "type": "x.MLMTransformer"},
            {"path": "1_SpladePooling", "type": "x.SpladePooling"}]"#;
        std::fs::write(folder.path().join("modules.json"), list).unwrap();
        std::fs::create_dir(folder.path().join("1_SpladePooling")).unwrap();
        let pooling = folder.path().join("1_SpladePooling/config.json");
        std::fs::write(pooling, r#"{"activation_function": "log1p_relu"}"#).unwrap();
        for (got, text) in sparse(&config, texts()).iter().zip(&golden.texts) {
            assert_close(got, &text.indices, &text.log1p_relu, &name);
        }
    }
}

#[derive(Deserialize)]
struct GoldenM3 {
    texts: Vec<M3Text>,
    pairs: Vec<M3Pair>,
}

#[derive(Deserialize)]
struct M3Text {
    text: String,
    indices: Vec<u32>,
    weights: Vec<f32>,
    vectors: Vec<Vec<f32>>,
}

/// Places of two texts, and their scores.
#[derive(Deserialize)]
struct M3Pair {
    texts: [usize; 2],
    lexical: f32,
    late_interaction: f32,
}

/// The tiny XLM-RoBERTa with both layers of bge-m3.
fn m3() -> (tempfile::TempDir, GoldenM3) {
    let folder = tempfile::tempdir().unwrap();
    copy(&testdata("golden_embeddings/xlm_roberta"), folder.path());
    copy(&testdata("golden_m3"), folder.path());
    let golden = golden(folder.path());
    (folder, golden)
}

#[test]
fn lexical_weights_and_vectors_of_tokens_are_those_of_flag_embedding() {
    let (folder, golden) = m3();
    let prompts = || golden.texts.iter().map(|text| Prompt::Text(text.text.clone()));
    let mut lexical = config(folder.path());
    lexical.model.sparse = true;
    let weights = sparse(&lexical, golden.texts.iter().map(|text| &text.text));
    for (got, text) in weights.iter().zip(&golden.texts) {
        assert_close(got, &text.indices, &text.weights, &text.text);
    }
    assert!(weights.iter().any(|words| words.len() > 3), "the golden says something");
    let mut colbert = config(folder.path());
    colbert.model.pooling_task = Some(PoolingTask::TokenEmbed);
    let vectors = of_prompts(&colbert, prompts(), &PoolingParams::default());
    for (got, text) in vectors.iter().zip(&golden.texts) {
        let Pooled::Tokens(rows) = got else { panic!("{got:?}") };
        assert_eq!(rows.len(), text.vectors.len(), "{}: all but the first token", text.text);
        for (got, expected) in rows.iter().flatten().zip(text.vectors.iter().flatten()) {
            assert!((got - expected).abs() < TOLERANCE, "{}: {got} {expected}", text.text);
        }
    }
    // A text alone, or one token of it, has the same bytes.
    colbert.scheduler.max_num_seqs = Some(1);
    assert_eq!(of_prompts(&colbert, prompts(), &PoolingParams::default()), vectors);
    let one = PoolingParams { truncate_prompt_tokens: Some(1), ..PoolingParams::default() };
    let first = Prompt::TokenIds(vec![0]);
    assert_eq!(of_prompts(&colbert, [first], &one), [Pooled::Tokens(Vec::new())]);
    lexical.scheduler.max_num_seqs = Some(1);
    let alone = sparse(&lexical, golden.texts.iter().map(|text| &text.text));
    assert_eq!(alone, weights);
    // Without either flag the vectors are those of the model alone.
    let dense = of_prompts(&config(folder.path()), prompts(), &PoolingParams::default());
    std::fs::remove_file(folder.path().join("sparse_linear.pt")).unwrap();
    std::fs::remove_file(folder.path().join("colbert_linear.pt")).unwrap();
    assert_eq!(of_prompts(&config(folder.path()), prompts(), &PoolingParams::default()), dense);
    assert!(matches!(PoolingSummary::read(&lexical.model), Err(EngineError::Model(text))
        if text.contains("sparse_linear.pt")));
}

#[test]
fn texts_are_compared_by_lexical_weights_or_late_interaction() {
    let (folder, golden) = m3();
    for is_lexical in [true, false] {
        let mut config = config(folder.path());
        config.model.sparse = is_lexical;
        config.model.pooling_task = (!is_lexical).then_some(PoolingTask::TokenEmbed);
        let summary = PoolingSummary::read(&config.model).unwrap();
        let scoring = summary.scoring().unwrap();
        let params = PoolingParams { scoring, ..PoolingParams::default() };
        let compared = |pair: &M3Pair| {
            let [query, document] = pair.texts.map(|place| vec![golden.texts[place].text.clone()]);
            Prompt::Compared(Box::new(Compared::new(query, document, false).unwrap()))
        };
        let scores = of_prompts(&config, golden.pairs.iter().map(compared), &params);
        for (got, pair) in scores.iter().zip(&golden.pairs) {
            let expected = if is_lexical { pair.lexical } else { pair.late_interaction };
            let Pooled::Vector(got) = got else { panic!("{got:?}") };
            assert!((got[0] - expected).abs() < TOLERANCE, "{:?}: {got:?} {expected}", pair.texts);
        }
    }
}

#[test]
fn layers_that_do_not_fit_are_refused_by_name() {
    let (folder, _) = m3();
    let mut config = config(folder.path());
    config.model.pooling_task = Some(PoolingTask::TokenEmbed);
    let error = |config: &EngineConfig| match PoolingEngine::load(config) {
        Err(EngineError::Model(text)) => text,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is loaded"),
    };
    let at = |name: &str| folder.path().join(name);
    std::fs::copy(at("sparse_linear.pt"), at("colbert_linear.pt")).unwrap();
    let text = error(&config);
    assert!(text.contains("colbert_linear.pt") && text.contains("[1, 32]"), "{text}");
    std::fs::write(at("colbert_linear.pt"), "no archive").unwrap();
    assert!(error(&config).contains("colbert_linear.pt"), "{}", error(&config));
    // What a pickle would run is not run.
    std::fs::copy(testdata("pickle/command.bin"), at("colbert_linear.pt")).unwrap();
    assert!(error(&config).contains("colbert_linear.pt"), "{}", error(&config));
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
        Err(error) => error.to_string(),
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
    // A state of each token is no vector of a text.
    let of_tokens = text.replace("sentence_embedding", "token_embeddings");
    std::fs::write(&path, of_tokens).unwrap();
    assert!(error(&config).contains("token_embeddings"), "{}", error(&config));
    // Its weights are held against its config.
    std::fs::write(&path, text.replace("16", "17")).unwrap();
    let Err(EngineError::Model(text)) = PoolingEngine::load(&config) else { panic!() };
    assert!(text.contains("3_Dense") && text.contains("linear.weight"), "{text}");
}
