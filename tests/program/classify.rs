//! `classify` and `reward` through the program: rows in, labels, probabilities and scores out;
//! steps, threads and kills change no byte. The models are tiny ones of
//! `testdata/golden_classifiers`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const TOKENIZER: &str = "testdata/golden_embeddings/bert";

fn command(model: &str, flags: &[&str]) -> Command {
    command_named("classify", model, &[&["--tokenizer", TOKENIZER], flags].concat())
}

fn command_named(name: &str, model: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
    let model = format!("testdata/golden_classifiers/{model}");
    command.args([name, "--model", &model, "--threads", "2"]);
    command.args(flags).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn classify(model: &str, input: &str, flags: &[&str]) -> Output {
    answered(command(model, flags), input)
}

fn answered(mut command: Command, input: &str) -> Output {
    let mut child = command.spawn().unwrap();
    let (mut stdin, text) = (child.stdin.take().unwrap(), input.to_owned());
    // A program that refuses its flags reads nothing.
    let writing = std::thread::spawn(move || drop(stdin.write_all(text.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    output
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn golden(model: &str, index: usize) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden_classifiers");
    let text = fs::read_to_string(folder.join(model).join("golden.json")).unwrap();
    let mut golden: Value = serde_json::from_str(&text).unwrap();
    golden["texts"][index].take()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

fn is_close(got: &Value, expected: &Value) -> bool {
    let (got, expected) = (numbers(got), numbers(expected));
    got.len() == expected.len() && got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

fn rows(num_rows: usize) -> String {
    let row = |index: usize| {
        let text = "the cat sits outside and a man is playing guitar ".repeat(index % 3);
        json!({"id": index, "text": format!("{text}row {index}")}).to_string() + "\n"
    };
    (0..num_rows).map(row).collect()
}

#[test]
fn rows_get_labels_and_probabilities() {
    let (one, other) = (golden("bert", 2), golden("bert", 3));
    let input = format!(
        "{}\n{}\n{}\n",
        json!({"id": 7, "text": one["text"], "probs": "mine", "dimensions": "10 x 20"}),
        json!({"id": 8, "text": [1]}),
        json!({"id": 9, "text": other["text"], "use_activation": false}),
    );
    let output = classify("bert", &input, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = lines(&output);
    let labels = ["sad", "glad", "neither"];
    let largest = |logits: &Value| {
        let logits = numbers(logits);
        let best = (0..3).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        json!(labels[best])
    };
    assert_eq!(rows[0]["label"], largest(&one["logits"]));
    let powers: Vec<f32> = numbers(&one["logits"]).iter().map(|logit| logit.exp()).collect();
    let sum: f32 = powers.iter().sum();
    let expected: Vec<f32> = powers.iter().map(|power| power / sum).collect();
    assert!(is_close(&rows[0]["probs"], &json!(expected)), "{}", rows[0]);
    assert_eq!(
        (&rows[0]["input_probs"], &rows[0]["dimensions"]),
        (&json!("mine"), &json!("10 x 20"))
    );
    let num_tokens = one["token_ids"].as_array().unwrap().len();
    assert_eq!(rows[0]["usage"], json!({"prompt_tokens": num_tokens, "total_tokens": num_tokens}));
    assert_eq!((&rows[1]["label"], &rows[1]["finish_reason"]), (&Value::Null, &json!("error")));
    assert!(is_close(&rows[2]["probs"], &other["logits"]), "{}", rows[2]);
    let raw = classify("bert", &input, &["--no-activation", "--out-field", "mood"]);
    let raw = lines(&raw);
    assert!(is_close(&raw[0]["probs"], &one["logits"]), "{}", raw[0]);
    assert_eq!(raw[0]["mood"], largest(&one["logits"]));
}

#[test]
fn tokens_get_labels_of_their_own() {
    let golden = golden("bert_tokens", 2);
    let input = json!({"text": golden["text"]}).to_string() + "\n";
    let output = classify("bert_tokens", &input, &["--no-activation"]);
    let row = &lines(&output)[0];
    let num_tokens = golden["token_ids"].as_array().unwrap().len();
    let (labels, probs) = (row["label"].as_array().unwrap(), row["probs"].as_array().unwrap());
    assert_eq!((labels.len(), probs.len()), (num_tokens, num_tokens));
    let names = ["O", "B-PER", "I-PER", "B-LOC"];
    for ((label, probs), logits) in
        labels.iter().zip(probs).zip(golden["logits"].as_array().unwrap())
    {
        assert!(is_close(probs, logits), "{row}");
        let logits = numbers(logits);
        let best = (0..4).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        assert_eq!(label, names[best]);
    }
}

#[test]
fn steps_and_threads_change_no_byte_and_a_killed_run_continues() {
    let input = rows(50);
    let expected = classify("bert", &input, &[]).stdout;
    for flags in [
        ["--max-num-seqs", "1", "--threads", "1"],
        ["--max-num-batched-tokens", "1", "--threads", "3"],
    ] {
        assert!(classify("bert", &input, &flags).stdout == expected, "{flags:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let flags = ["--journal", journal.to_str().unwrap()];
    let mut child = command("bert", &flags).spawn().unwrap();
    // The input stays open: the run waits for more when it is killed.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(rows(20).as_bytes()).unwrap();
    let mut written = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..20 {
        written.next().unwrap().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Other numbers would follow those that are there.
    let other = classify("bert", &input, &[&flags[..], &["--no-activation"]].concat());
    assert_eq!(other.status.code(), Some(6), "{}", String::from_utf8_lossy(&other.stderr));
    let continued = classify("bert", &input, &flags);
    let errors = String::from_utf8_lossy(&continued.stderr).into_owned();
    assert!(errors.contains("Continuing a run with 20 finished rows"), "{errors}");
    assert!(continued.stdout == expected);
}

#[test]
fn what_is_no_classifier_or_no_text_is_refused_by_name() {
    let text = "{\"text\":\"a\"}\n";
    let line = r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"a"}}"#;
    for (input, flags, what) in [
        (text, &["--model", TOKENIZER][..], "no classifier"),
        (text, &["--device", "cuda"], "--device cuda"),
        (text, &["--out", "labels.csv"], "CSV output needs CSV input"),
        (text, &["--output-format", "openai"], "--output-format openai"),
        (text, &["--dimensions", "8"], "--dimensions"),
        (line, &[], "OpenAI batch requests"),
    ] {
        let output = classify("bert", input, flags);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(2 | 7)), "{flags:?}: {errors}");
        assert!(errors.contains(what), "{flags:?}: {errors}");
    }
}

#[test]
fn a_reward_is_the_number_of_the_only_class() {
    let golden = golden("xlm_roberta", 2);
    let rows = [json!({"id": 1, "text": golden["text"]}), json!({"id": 2, "text": [1]})];
    let input = rows.map(|row| row.to_string() + "\n").concat();
    let tokenizer = "testdata/golden_embeddings/xlm_roberta";
    let reward = |flags: &[&str]| {
        let flags = [&["--tokenizer", tokenizer], flags].concat();
        answered(command_named("reward", "xlm_roberta", &flags), &input)
    };
    let output = reward(&["--no-activation"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = lines(&output);
    let logit = golden["logits"][0].as_f64().unwrap() as f32;
    assert!((rows[0]["score"].as_f64().unwrap() as f32 - logit).abs() < 1e-5, "{}", rows[0]);
    assert_eq!((&rows[0]["id"], &rows[1]["score"]), (&json!(1), &Value::Null));
    let sigmoid = 1.0 / (1.0 + (-logit).exp());
    let row = &lines(&reward(&[]))[0];
    assert!((row["score"].as_f64().unwrap() as f32 - sigmoid).abs() < 1e-6, "{row}");
    let several = command_named("reward", "bert", &["--tokenizer", TOKENIZER]);
    let several = answered(several, &input);
    let errors = String::from_utf8_lossy(&several.stderr).into_owned();
    assert_eq!(several.status.code(), Some(2), "{errors}");
    assert!(errors.contains("3 classes"), "{errors}");
}

#[test]
fn tables_get_columns() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in.csv"), folder.path().join("out.csv"));
    let golden = golden("bert", 2);
    let text = golden["text"].as_str().unwrap();
    let long = "cat ".repeat(400);
    fs::write(&input, format!("id,text,probs\n7,{text},mine\n8,{long},\n")).unwrap();
    let flags = ["-i", input.to_str().unwrap(), "-o", out.to_str().unwrap()];
    let output = classify("bert", "", &flags);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    let table = fs::read_to_string(&out).unwrap();
    let mut rows = table.lines();
    assert_eq!(rows.next(), Some("id,text,input_probs,label,probs,prompt_tokens,error"));
    let json = classify("bert", &(json!({"text": text}).to_string() + "\n"), &[]);
    let row = &lines(&json)[0];
    let (label, tokens) = (row["label"].as_str().unwrap(), &row["usage"]["prompt_tokens"]);
    let json = String::from_utf8(json.stdout).unwrap();
    let (_, probs) = json.split_once("\"probs\":").unwrap();
    let (probs, _) = probs.split_once(",\"usage\"").unwrap();
    assert_eq!(rows.next().unwrap(), format!("7,{text},mine,{label},\"{probs}\",{tokens},"));
    let failed = rows.next().unwrap();
    assert!(failed.starts_with("8,cat") && failed.contains(",,,,\"context_length: "), "{failed}");
}
