//! Lines of `/v1/embeddings`, `/v1/score` and `/v1/rerank` through `run`: the first line decides
//! what is done, and the bytes are those of `embed` and `score`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::piped::{errors, fed};

/// It makes vectors.
const ENCODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");
/// It makes them too, and completes.
const DECODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/qwen3");
/// It reads both texts at once.
const CROSS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_scores/bert");

fn line(id: usize, url: &str, body: Value) -> String {
    let line = json!({"custom_id": id.to_string(), "method": "POST", "url": url, "body": body});
    line.to_string() + "\n"
}

fn embeddings() -> String {
    let one = |index: usize| {
        let input = match index % 3 {
            0 => json!("the cat sits outside"),
            1 => json!([format!("row {index}"), "a man is playing guitar"]),
            _ => json!([[5, 6, 7 + index]]),
        };
        line(index, "/v1/embeddings", json!({"model": "m", "input": input}))
    };
    (0..20).map(one).collect()
}

fn scores() -> String {
    let pair = json!({"text_1": "the cat", "text_2": ["a cat sits", "a man"]});
    let ranking = json!({"query": "the cat", "documents": ["a man", "a cat sits"], "top_n": 1});
    line(1, "/v1/score", pair) + &line(2, "/v2/rerank", ranking)
}

fn completion(id: usize) -> String {
    line(id, "/v1/completions", json!({"prompt": "a", "max_tokens": 2}))
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
    command.args(words).env("SOURCE_DATE_EPOCH", "1711652795");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn over(folder: &Path, words: &[&str], input: &str) -> Output {
    fs::write(folder.join("in.jsonl"), input).unwrap();
    command(words).args(["-i", "in.jsonl"]).current_dir(folder).output().unwrap()
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", errors(output));
}

#[test]
fn run_answers_lines_of_texts_as_the_other_commands_do() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model, input) in [
        ("embed", ENCODER, embeddings()),
        ("embed", DECODER, embeddings()),
        ("score", ENCODER, scores()),
        ("rerank", CROSS, scores()),
    ] {
        let expected = over(folder.path(), &[name, "--model", model], &input);
        assert_exit(&expected, 0);
        let run = ["run", "--model", model];
        let output = over(folder.path(), &run, &input);
        assert_exit(&output, 0);
        assert!(output.stdout == expected.stdout, "{name}: {}", errors(&output));
        let piped = fed(command(&run), &input);
        assert!(piped.stdout == expected.stdout, "{name}: {}", errors(&piped));
    }
}

/// A model that completes is loaded while a stream is silent, and again for what the first row
/// asks.
#[test]
fn a_stream_that_begins_late_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for (model, input) in [(DECODER, embeddings()), (ENCODER, scores()), (DECODER, completion(1))] {
        let run = ["run", "--model", model];
        let expected = over(folder.path(), &run, &input);
        assert_exit(&expected, 0);
        let mut late = command(&run).spawn().unwrap();
        // Whether a whole run takes longer than the program waits or not: the bytes are the same.
        over(folder.path(), &run, &input);
        late.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let late = late.wait_with_output().unwrap();
        assert!(late.stdout == expected.stdout, "{model}: {}", errors(&late));
    }
}

#[test]
fn an_input_for_two_things_is_refused_and_a_line_of_a_stream_is_an_error_row() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["run", "--model", DECODER, "-o", "out.jsonl"];
    for (input, place, wanted) in [
        (completion(1) + &embeddings(), 2, "asks for vectors, and those before it for completions"),
        (
            embeddings() + &completion(21),
            21,
            "asks for completions, and those before it for vectors",
        ),
        (scores() + &embeddings(), 3, "asks for vectors, and those before it for scores"),
    ] {
        let output = over(folder.path(), &run, &input);
        assert_exit(&output, 2);
        let expected =
            format!("error[other_task]: in.jsonl:{place}: the request {wanted}\nhelp: put");
        assert!(errors(&output).contains(&expected), "{}", errors(&output));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is written");
    }
    let output = fed(command(&["run", "--model", ENCODER]), &(embeddings() + &completion(21)));
    assert_exit(&output, 3);
    let last = String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["response"]["body"]["error"]["code"], "other_task", "{last}");
    assert_eq!(last["custom_id"], "21");
}

#[test]
fn what_a_model_or_a_flag_cannot_do_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (model, flags, input, wanted) in [
        (CROSS, &[][..], embeddings(), "the model is a classifier; `classify` runs it"),
        (ENCODER, &["--max-tokens", "4"], embeddings(), "--max-tokens: rows get vectors"),
        (ENCODER, &["--block-size", "16"], scores(), "--block-size: rows get scores"),
        (
            ENCODER,
            &["--structured-outputs.json-object"],
            scores(),
            "--structured-outputs.json-object",
        ),
        (ENCODER, &["--reasoning-parser", "qwen3"], scores(), "--reasoning-parser"),
        (ENCODER, &[], completion(1), "BertModel"),
    ] {
        let words = [&["run", "--model", model, "-o", "out.jsonl"], flags].concat();
        let output = over(folder.path(), &words, &input);
        assert!(matches!(output.status.code(), Some(2 | 7)), "{}", errors(&output));
        assert!(errors(&output).contains(wanted), "{wanted}: {}", errors(&output));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is written");
    }
    let cut = ["run", "--model", ENCODER, "--truncate-prompt-tokens", "3", "--seed", "7"];
    let output = over(folder.path(), &cut, &embeddings());
    assert_exit(&output, 0);
    let first = String::from_utf8(output.stdout).unwrap().lines().next().unwrap().to_owned();
    assert!(first.contains("\"prompt_tokens\":3"), "{first}");
}

#[test]
fn a_run_of_texts_continues_and_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["run", "--model", ENCODER, "-o", "out.jsonl"];
    assert_exit(&over(folder.path(), &run, &embeddings()), 0);
    let again = over(folder.path(), &run, &embeddings());
    assert_exit(&again, 0);
    assert!(errors(&again).contains("Nothing to do: out.jsonl is complete"), "{}", errors(&again));
    // It is the run of `embed` too.
    let embed =
        over(folder.path(), &["embed", "--model", ENCODER, "-o", "out.jsonl"], &embeddings());
    assert!(errors(&embed).contains("Nothing to do"), "{}", errors(&embed));
}
