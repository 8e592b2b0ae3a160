//! `embed` through the program: rows and batch lines in, vectors out; steps, threads, shards and
//! kills change no byte. The model is a tiny BERT of `testdata/golden_embeddings`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

const MODEL: &str = "testdata/golden_embeddings/bert";

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
    command.args(["embed", "--model", MODEL, "--threads", "2"]).args(flags);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("SOURCE_DATE_EPOCH", "1711652795");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn fed(mut child: Child, input: &str) -> Output {
    let mut stdin = child.stdin.take().unwrap();
    let text = input.to_owned();
    // A program that refuses its flags reads nothing.
    let writing = std::thread::spawn(move || drop(stdin.write_all(text.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    output
}

fn embed(input: &str, flags: &[&str]) -> Output {
    fed(command(flags).spawn().unwrap(), input)
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL).join("golden.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

fn is_close(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

/// Rows of texts of many lengths.
fn rows(num_rows: usize) -> String {
    let row = |index: usize| {
        let text = "the cat sits outside and a man is playing guitar ".repeat(index % 3);
        json!({"id": index, "text": format!("{text}row {index}")}).to_string() + "\n"
    };
    (0..num_rows).map(row).collect()
}

#[test]
fn rows_get_vectors_in_their_order() {
    let golden = golden();
    let of = |index: usize, name: &str| numbers(&golden["texts"][index][name]);
    let text = |index: usize| golden["texts"][index]["text"].clone();
    let input = format!(
        "{}\n{}\n{}\n",
        json!({"id": 7, "text": text(2), "dimensions": "10 x 20"}),
        json!({"id": 8, "text": [1]}),
        json!({"id": 9, "text": text(3)}),
    );
    let output = embed(&input, &["--pooling-type", "MEAN", "--no-normalize"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = lines(&output);
    assert!(is_close(&numbers(&rows[0]["embedding"]), &of(2, "mean")));
    assert_eq!((&rows[0]["id"], &rows[0]["dimensions"]), (&json!(7), &json!("10 x 20")));
    let num_tokens = golden["texts"][2]["token_ids"].as_array().unwrap().len();
    assert_eq!(rows[0]["usage"], json!({"prompt_tokens": num_tokens, "total_tokens": num_tokens}));
    assert_eq!((&rows[1]["embedding"], &rows[1]["finish_reason"]), (&Value::Null, &json!("error")));
    assert!(is_close(&numbers(&rows[2]["embedding"]), &of(3, "mean")));
    // The first token's state, normalized, where the files say nothing.
    let output = embed(&input, &["--out-field", "vector"]);
    let vector = numbers(&lines(&output)[0]["vector"]);
    assert!(is_close(&vector, &normalized(&of(2, "cls"))));
}

#[test]
fn batch_lines_are_answered_in_openais_form() {
    let line = |id: &str, body: Value| {
        let row = json!({"custom_id": id, "method": "POST", "url": "/v1/embeddings", "body": body});
        row.to_string() + "\n"
    };
    let golden = golden();
    let (text, ids) = (&golden["texts"][2]["text"], &golden["texts"][2]["token_ids"]);
    let input = line("two", json!({"input": [text, ids]}))
        + &line("bytes", json!({"input": text, "encoding_format": "base64"}))
        + &line("size", json!({"input": text, "dimensions": 8}))
        + &line("cut", json!({"input": golden["texts"][5]["text"], "truncate_prompt_tokens": 9}))
        + &line("long", json!({"input": "cat ".repeat(400)}));
    let output = embed(&input, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = lines(&output);
    let body = |index: usize| &lines[index]["response"]["body"];
    let data = &body(0)["data"];
    assert_eq!((&data[0]["index"], &data[1]["index"]), (&json!(0), &json!(1)));
    assert_eq!(data[0]["embedding"], data[1]["embedding"]);
    assert_eq!((&body(0)["object"], &body(0)["model"]), (&json!("list"), &json!("bert")));
    // 32 values of 4 bytes.
    let bytes = body(1)["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(bytes.len(), 4 * 128usize.div_ceil(3));
    assert_eq!(body(2)["error"]["param"], "dimensions");
    assert_eq!(body(3)["usage"]["prompt_tokens"], 9);
    assert_eq!(lines[4]["response"]["status_code"], 400);
    assert!(body(4)["error"]["message"].as_str().unwrap().contains("the limit is 160"));
}

#[test]
fn steps_threads_and_shards_change_no_byte() {
    let input = rows(60);
    let expected = embed(&input, &[]).stdout;
    for flags in [
        ["--max-num-seqs", "1", "--threads", "1"],
        ["--max-num-batched-tokens", "1", "--threads", "3"],
    ] {
        let flags: Vec<_> = ["--max-num-seqs", "7"].iter().chain(&flags).copied().collect();
        assert!(embed(&input, &flags).stdout == expected, "{flags:?}");
    }
    let shards = ["0/2", "1/2"].map(|shard| embed(&input, &["--shard", shard]).stdout);
    let shards = shards.each_ref().map(|bytes| bytes.split_inclusive(|byte| *byte == b'\n'));
    let [even, odd] = shards;
    let joined: Vec<u8> = even.zip(odd).flat_map(|(a, b)| [a, b].concat()).collect();
    assert!(joined == expected);
}

#[test]
fn a_killed_run_continues_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let flags = ["--journal", journal.to_str().unwrap()];
    let input = rows(50);
    let mut child = command(&flags).spawn().unwrap();
    // The input stays open: the run waits for more when it is killed.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(rows(20).as_bytes()).unwrap();
    let mut written = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..20 {
        written.next().unwrap().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let continued = embed(&input, &flags);
    let errors = String::from_utf8_lossy(&continued.stderr).into_owned();
    assert!(errors.contains("Continuing a run with 20 finished rows"), "{errors}");
    assert!(continued.stdout == embed(&input, &[]).stdout);
}

#[test]
fn what_a_model_cannot_do_is_refused_by_name() {
    for (flags, what) in [
        (&["--dimensions", "8"][..], "matryoshka_dimensions"),
        (&["--prompt-name", "query"], "no such prompt"),
        (&["--device", "cuda"], "--device cuda"),
        (&["--out", "vectors.csv"], "not as CSV"),
        (&["--output-format", "full"], "--output-format full"),
        (&["--truncate-prompt-tokens", "0"], "at least 1"),
        (&["--model", "testdata/golden/llama3"], "makes no vectors"),
        (&["--model", "org/name:a.gguf"], "GGUF files of models that make vectors"),
    ] {
        let output = embed("{\"text\":\"a\"}\n", flags);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(2 | 7)), "{flags:?}: {errors}");
        assert!(errors.contains(what), "{flags:?}: {errors}");
    }
}
