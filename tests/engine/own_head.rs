//! Weight files with another output layer than the embedding table, under a config that says that
//! both are one. As in transformers, the files decide.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use vllm_batch::engine::api::pooling::{Pooled, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{RowKey, SamplingParams};
use vllm_batch::engine::base::config::EngineConfig;
use vllm_batch::engine::base::pooling::TokenClasses;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::serve::pooling::{PoolingEngine, PoolingSummary};

use super::golden::{Golden, folders};
use super::pooled::{self, WIDE, golden, testdata};

/// Rewrites a folder's weights with tensors that are made of others: (name, of which, reversed).
fn with_tensors(folder: &Path, added: &[(&str, &str, bool)]) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let made: Vec<_> = added
        .iter()
        .map(|(name, of, is_reversed)| {
            let names = file.names();
            let of = names.iter().find(|name| name.ends_with(of)).expect("a tensor");
            let of = file.tensor(of).unwrap();
            let row = of.data().len() / of.shape()[0];
            let rows: Vec<_> = of.data().chunks(row).collect();
            let data = if *is_reversed { rows.into_iter().rev().collect() } else { rows };
            (*name, of.dtype(), of.shape().to_vec(), data.concat())
        })
        .collect();
    let mut tensors: Vec<_> = file.tensors();
    for (name, dtype, shape, data) in &made {
        tensors.push(((*name).to_owned(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    }
    std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

/// A copy of a folder of `testdata`.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(testdata(name)).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn config(folder: &Path) -> EngineConfig {
    let mut config = pooled::config(folder.to_owned(), WIDE);
    config.cache.num_blocks = Some(64);
    config
}

/// Greedy tokens behind a prompt, what was noted, and how many bytes the weights take.
fn greedy(folder: &Path, ids: &[u32], count: u32) -> (Vec<u32>, Vec<String>, u64) {
    let mut engine = Engine::load(&config(folder)).unwrap_or_else(|error| panic!("{error}"));
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: Some(count),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let processor = engine.input_processor();
    let prompt = Prompt::TokenIds(ids.to_vec());
    engine.add_request(processor.process(0, prompt, params, RowKey(0)).unwrap());
    let mut tokens = Vec::new();
    while engine.has_unfinished_requests() {
        tokens.extend(
            engine.step().unwrap().into_iter().map(|done| done.outputs[0].token_ids.clone()),
        );
    }
    let info = engine.info();
    (tokens.concat(), info.notes.clone(), info.weight_bytes)
}

/// Whether a note says that the files decide.
fn is_noted(notes: &[String]) -> bool {
    notes.iter().any(|note| note.contains(".weight is the output layer"))
}

/// Of transformers 5.24: the second prompt of the folder's golden.json under the reversed table.
const OF_TRANSFORMERS: &[(&str, &str, [u32; 8])] = &[
    ("llama3", "embed_tokens.weight", [333, 59, 350, 42, 96, 110, 288, 141]),
    ("gemma3", "embed_tokens.weight", [99, 99, 216, 395, 23, 359, 45, 161]),
    ("gpt2", "wte.weight", [155, 140, 189, 146, 24, 155, 155, 147]),
    ("bloom", "word_embeddings.weight", [254, 104, 102, 47, 180, 196, 268, 36]),
];

#[test]
fn another_output_layer_in_the_files_is_the_output_layer() {
    for (name, table, expected) in OF_TRANSFORMERS {
        let folder = copy(&format!("golden/{name}"));
        let ids = &golden::<Golden>(folder.path()).prompts[1].prompt_token_ids;
        let (tied, notes, bytes) = greedy(folder.path(), ids, 8);
        assert!(!is_noted(&notes), "{notes:?}");
        with_tensors(folder.path(), &[("lm_head.weight", table, true)]);
        let (tokens, notes, with_head) = greedy(folder.path(), ids, 8);
        assert_eq!(tokens, expected, "{name}");
        assert!(tokens != tied && is_noted(&notes), "{name}: {notes:?}");
        let summary = ModelSummary::read(&config(folder.path()).model).unwrap();
        let head = summary.spec.embedding.tokens.num_weights() * 4.0;
        assert_eq!(with_head - bytes, head as u64, "{name}");
    }
}

/// Output layers that have another name than `lm_head`.
const OTHER_HEADS: &[(&str, &str)] =
    &[("biogpt", "output_projection.weight"), ("gpt_neox_japanese", "embed_out.weight")];

#[test]
fn in_every_family_the_files_decide() {
    let mut num_families = 0;
    for path in folders() {
        let name = path.file_name().unwrap().to_string_lossy();
        let summary = ModelSummary::read(&config(&path).model).unwrap();
        let table = summary.spec.embedding.tokens.weights().next().unwrap().0;
        let files = path.join("model.safetensors");
        if summary.spec.output.lm_head.is_some() || !files.exists() {
            continue;
        }
        let bytes = std::fs::read(&files).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let names = file.names();
        // As published files have it: without what stands before the module.
        let (outer, _) = table.strip_suffix(".weight").unwrap().rsplit_once('.').unwrap();
        let ending = &table[outer.len() + 1..];
        let stored = names.iter().find(|name| name.ends_with(ending)).unwrap();
        let (prompt, vocab) = (&golden::<Golden>(&path).prompts[1], summary.spec.vocab_size());
        // The first token is the one whose number is counted from the other end.
        let first = vocab as u32 - 1 - prompt.output_token_ids[0];
        for (is_reversed, expected) in [(true, first), (false, prompt.output_token_ids[0])] {
            let folder = copy(&format!("golden/{name}"));
            let head = OTHER_HEADS.iter().find(|(other, _)| *other == name);
            let head = head.map_or("lm_head.weight", |(_, head)| head);
            with_tensors(folder.path(), &[(head, stored, is_reversed)]);
            let (tokens, notes, _) = greedy(folder.path(), &prompt.prompt_token_ids, 1);
            assert_eq!((tokens[0], is_noted(&notes)), (expected, is_reversed), "{name}");
        }
        num_families += 1;
    }
    assert!(num_families > 30, "{num_families}");
}

#[test]
fn classes_that_are_tokens_are_those_of_the_files() {
    let folder = copy("golden/qwen3");
    let processor = Engine::load(&config(folder.path())).unwrap().input_processor();
    let text = Prompt::Text("a b".to_owned());
    let request = processor.process(0, text, SamplingParams::default(), RowKey(0)).unwrap();
    let ids = request.prompt_token_ids.to_vec();
    let score = |yes: u32, no: u32| {
        let mut config = pooled::config(folder.path().to_owned(), WIDE);
        config.model.token_classes = Some(TokenClasses::of_ids(yes, Some(no)));
        let params = PoolingParams::default();
        let output = pooled::of_texts(&config, [("a b", &ids[..])].into_iter(), &params);
        output[0].texts[0].values().collect::<Vec<_>>()
    };
    let tied = score(7, 9);
    let vocab = ModelSummary::read(&config(folder.path()).model).unwrap().spec.vocab_size() as u32;
    with_tensors(folder.path(), &[("lm_head.weight", "model.embed_tokens.weight", true)]);
    assert_eq!(score(vocab - 1 - 7, vocab - 1 - 9), tied);
    assert_ne!(score(7, 9), tied);
}

#[derive(Deserialize)]
struct GoldenTexts {
    texts: Vec<GoldenText>,
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
}

#[test]
fn words_of_sparse_vectors_are_those_of_the_files() {
    let decoders = [
        ("bert", "cls.predictions.decoder", "cls.predictions", "word_embeddings.weight"),
        ("distilbert", "vocab_projector", "vocab_projector", "word_embeddings.weight"),
        ("mpnet", "lm_head.decoder", "lm_head", "word_embeddings.weight"),
        ("roberta", "lm_head.decoder", "lm_head", "word_embeddings.weight"),
    ];
    for (name, decoder, bias, table) in decoders {
        let folder = copy(&format!("golden_sparse/{name}"));
        let tokenizer = testdata("golden_embeddings/bert/tokenizer.json");
        std::fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
        let golden: GoldenTexts = golden(folder.path());
        let sparse = || {
            let mut config = pooled::config(folder.path().to_owned(), WIDE);
            config.model.sparse = true;
            let mut engine = PoolingEngine::load(&config).unwrap();
            let prompts = golden.texts.iter().map(|text| Prompt::Text(text.text.clone()));
            let requests = pooled::requests(&engine, prompts, &PoolingParams::default());
            let outputs = pooled::answers(&mut engine, requests);
            let summary = PoolingSummary::read(&config.model).unwrap();
            let vocab = summary.spec.vocab_size() as u32;
            let texts = outputs.into_iter().flat_map(|output| output.texts);
            let words = texts.map(|text| match text {
                Pooled::Sparse(words) => words,
                other => panic!("{other:?}"),
            });
            (words.collect::<Vec<_>>(), vocab)
        };
        let (tied, vocab) = sparse();
        let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
        let names: Vec<_> = {
            let file = SafeTensors::deserialize(&bytes).unwrap();
            file.names().into_iter().map(|name| name.to_string()).collect()
        };
        let stored = names.iter().find(|name| name.ends_with(table)).unwrap();
        let (weight, of_decoder) = (format!("{decoder}.weight"), format!("{decoder}.bias"));
        let bias = format!("{bias}.bias");
        let mut added = vec![(weight.as_str(), stored.as_str(), true)];
        if bias != of_decoder {
            added.push((&of_decoder, &bias, true));
        }
        with_tensors(folder.path(), &added);
        if bias == of_decoder {
            // Its bias has one name, and stays as it is.
            assert_ne!(sparse().0, tied, "{name}");
            continue;
        }
        let reversed = sparse().0.into_iter().map(|words| {
            words.into_iter().rev().map(|(word, weight)| (vocab - 1 - word, weight)).collect()
        });
        assert_eq!(reversed.collect::<Vec<Vec<_>>>(), tied, "{name}");
    }
}
