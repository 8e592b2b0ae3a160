//! The search of docs/RETRIEVAL.md: its commands, with tiny models of testdata.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const PAGE: &str = include_str!("../../docs/RETRIEVAL.md");

/// The blocks of the page in a language; without one: rows.
fn blocks(language: &str) -> Vec<&'static str> {
    let fenced = PAGE.split("```").skip(1).step_by(2);
    let mut found = Vec::new();
    for block in fenced {
        let (kind, text) = block.split_once('\n').unwrap();
        if kind == language {
            found.push(text);
        }
    }
    found
}

/// Runs the commands of a block in a folder.
fn run(block: &str, folder: &Path) {
    for line in block.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[0], "vllm-batch", "{line}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
        let output = command.args(&words[1..]).current_dir(folder).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}: {errors}");
    }
}

fn read(folder: &Path, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows of a matrix of NumPy's, each 32 wide.
fn vectors(folder: &Path, name: &str) -> Vec<Vec<f32>> {
    let bytes = fs::read(folder.join(name)).unwrap();
    let (header, values) = bytes.split_at(128);
    assert!(std::str::from_utf8(&header[10..]).unwrap().contains(", 32)"));
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    values.chunks_exact(4 * 32).map(|row| row.chunks_exact(4).map(number).collect()).collect()
}

/// What the page's Python does: the nearest documents of every query, as rows of `rerank`.
fn candidates(folder: &Path) -> String {
    let (corpus, documents) = (read(folder, "corpus.jsonl"), vectors(folder, "corpus.npy"));
    let row = |(query, vector): (&Value, &Vec<f32>)| {
        let score = |place: &usize| -> f32 {
            documents[*place].iter().zip(vector).map(|(a, b)| a * b).sum()
        };
        let mut nearest: Vec<usize> = (0..corpus.len()).collect();
        nearest.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let of = |name: &str| {
            nearest.iter().map(|place| corpus[*place][name].clone()).collect::<Vec<_>>()
        };
        let (ids, documents) = (of("id"), of("text"));
        let row = json!({"id": query["id"], "query": query["text"], "ids": ids,
                         "documents": documents});
        row.to_string() + "\n"
    };
    let (queries, vectors) = (read(folder, "queries.jsonl"), vectors(folder, "queries.npy"));
    queries.iter().zip(&vectors).map(row).collect()
}

#[test]
fn the_commands_of_the_page_embed_find_and_rank() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    for (name, model) in
        [("bi-encoder", "golden_embeddings/bert"), ("cross-encoder", "golden_scores/bert")]
    {
        std::os::unix::fs::symlink(testdata.join(model), folder.join(name)).unwrap();
    }
    let [corpus, queries] = blocks("")[..] else { panic!("the page has two blocks of rows") };
    fs::write(folder.join("corpus.jsonl"), corpus).unwrap();
    fs::write(folder.join("queries.jsonl"), queries).unwrap();
    let [embed, rerank, shown, nearest] = blocks("sh")[..] else {
        panic!("the page has four blocks of commands")
    };
    assert!(shown.starts_with("jq "));
    run(embed, folder);
    fs::write(folder.join("candidates.jsonl"), candidates(folder)).unwrap();
    run(rerank, folder);
    run(nearest, folder);
    let candidates = read(folder, "candidates.jsonl");
    for (row, candidate) in read(folder, "ranked.jsonl").iter().zip(&candidates) {
        assert_eq!(row["ids"], candidate["ids"]);
        let results = row["results"].as_array().unwrap();
        let mut places: Vec<u64> = results.iter().map(|r| r["index"].as_u64().unwrap()).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
        let scores = results.iter().map(|result| result["relevance_score"].as_f64().unwrap());
        assert!(scores.is_sorted_by(|a, b| a >= b));
    }
    // The bi-encoder finds the same order again.
    for row in read(folder, "nearest.jsonl") {
        let places = row["results"].as_array().unwrap().iter().map(|result| &result["index"]);
        assert_eq!(places.collect::<Vec<_>>(), [0, 1, 2]);
    }
}
