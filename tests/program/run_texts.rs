//! Lines of `/v1/embeddings`, `/v1/score` and `/v1/rerank` through `run`, `check` and `plan`: the
//! first line decides what is done, and the bytes are those of `embed` and `score`.

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
        (CROSS, &[][..], embeddings(), "is not supported for classifiers; `classify` runs them"),
        (ENCODER, &["--max-tokens", "4"], embeddings(), "--max-tokens: rows get vectors"),
        (ENCODER, &["--enforce-eager"], scores(), "--enforce-eager: rows get scores"),
        (ENCODER, &["--block-size", "16"], scores(), "--block-size: it is not supported"),
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

/// What `check` says of rows, and its exit code.
fn check(folder: &Path, flags: &[&str], input: &str) -> (Option<i32>, String) {
    fs::write(folder.join("in.jsonl"), input).unwrap();
    let mut command = command(&["check", "-q"]);
    let output = command.args(flags).arg("in.jsonl").current_dir(folder).output().unwrap();
    (output.status.code(), errors(&output))
}

#[test]
fn check_judges_rows_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let check = |flags: &[&str], input: &str| check(folder.path(), flags, input);
    assert_eq!(check(&[], &embeddings()).0, Some(0));
    let bad = line(20, "/v1/embeddings", json!({"input": 7}))
        + &line(21, "/v1/embeddings", json!({"input": "a", "dimensions": 0}))
        + &completion(22);
    let (code, said) = check(&[], &(embeddings() + &bad));
    assert_eq!(code, Some(2));
    let counts = "23 rows, 3 bad (invalid_prompt 1, invalid_parameter 1, other_task 1)";
    assert!(said.contains(counts), "{said}");
    let pair = "{\"text_1\":\"a\",\"text_2\":\"b\"}\n";
    let (code, said) = check(&["--task", "score"], &(pair.to_owned() + "{\"text_1\":\"a\"}\n"));
    assert!(
        code == Some(2) && said.contains("in.jsonl:2: expected `text_1` and `text_2`"),
        "{said}"
    );
    assert_eq!(check(&["--task", "classify"], pair).0, Some(0));
    assert_eq!(
        check(&["--task", "embed"], "{\"text\":\"a\",\"temperature\":\"mine\"}\n").0,
        Some(0)
    );
    let ranking = "{\"query\":\"a\",\"documents\":[\"b\"],\"top_n\":-1}\n";
    let (code, said) = check(&["--task", "rerank"], ranking);
    assert!(code == Some(2) && said.contains("top_n"), "{said}");
    let (code, said) = check(&["--task", "score", "--template", "{{a}}"], pair);
    assert!(code == Some(2) && said.contains("--template: the texts of a row"), "{said}");
}

/// The plan of rows, as text and as JSON.
fn plan(folder: &Path, model: &str, flags: &[&str], input: &str) -> (Option<i32>, String, Value) {
    let words = ["plan", "-q", "--model", model, "--output-json", "plan.json"];
    let output = over(folder, &[&words, flags].concat(), input);
    let json = fs::read(folder.join("plan.json")).unwrap_or_else(|_| panic!("{}", errors(&output)));
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text, serde_json::from_slice(&json).unwrap())
}

#[test]
fn plan_says_what_a_run_of_texts_would_be() {
    let folder = tempfile::tempdir().unwrap();
    let texts: String =
        (0..40).map(|i| json!({"text": format!("row {i}")}).to_string() + "\n").collect();
    let long = json!({"text": "cat ".repeat(400)}).to_string() + "\n";
    let plan = |model, flags: &[&str], input: &str| plan(folder.path(), model, flags, input);
    let flags = ["--task", "embed", "--explain", "2", "--normalize"];
    let (code, text, json) = plan(ENCODER, &flags, &(texts.clone() + &long));
    assert_eq!(code, Some(3), "{text}");
    for wanted in [
        "Rows: 41 in in.jsonl; 40 to run, 1 that would be error rows\n  context_length  1\n",
        "Prompt tokens: ",
        "\nWeights: ",
        "\nTime: about ",
        "\n  by 40 rows, ",
        "\nRow 2 as the model sees it, ",
        "[CLS] row 1",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    assert!(!text.contains("KV cache") && !text.contains("Output tokens"), "{text}");
    assert_eq!((&json["rows"]["ok"], &json["kv_cache_bytes"]), (&json!(40), &json!(0)));
    assert!(json["estimate"]["seconds"].as_f64().unwrap() > 0.0);
    assert!(json["weight_bytes"].as_u64().unwrap() > 10_000);
    // Lines of a batch API say it themselves, and rows may have several texts.
    let (code, text, json) = plan(ENCODER, &[], &embeddings());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Prompt tokens of 27 texts: "), "{text}");
    assert_eq!(json["sample"]["rows"], 20);
    let pairs = "{\"text_1\":\"the cat\",\"text_2\":[\"a cat\",\"a man\"]}\n".repeat(8);
    for (model, num_texts) in [(ENCODER, 24), (CROSS, 16)] {
        let (code, text, _) = plan(model, &["--task", "score"], &pairs);
        assert!(code == Some(0) && text.contains(&format!("of {num_texts} texts")), "{text}");
    }
    // One that has a KV cache.
    let flags = ["--task", "embed", "--num-gpu-blocks-override", "20"];
    let (code, text, json) = plan(DECODER, &flags, &texts);
    assert_eq!(code, Some(0), "{text}");
    let wanted = "\nKV cache: 20 blocks of 32 tokens, 640 tokens in ";
    assert!(
        text.contains(wanted) && text.contains("\n  a text takes 1 blocks at most; "),
        "{text}"
    );
    assert!(!text.contains("Output tokens"), "{text}");
    assert_eq!((&json["num_blocks"], &json["max_row_blocks"]), (&json!(20), &json!(1)));
    // Flags of another command than the one that is planned.
    let words = ["plan", "--model", ENCODER, "--dimensions", "4"];
    let output = over(folder.path(), &words, &texts);
    assert!(
        errors(&output).contains("--dimensions: `run` has no such flag"),
        "{}",
        errors(&output)
    );
    let mixed =
        over(folder.path(), &["plan", "--model", ENCODER], &(embeddings() + &completion(9)));
    assert!(errors(&mixed).contains("error[other_task]: in.jsonl:21"), "{}", errors(&mixed));
}
