//! `classify` and `reward` through the program: rows in, labels, probabilities and scores out;
//! steps, threads and kills change no byte. The models are tiny ones of
//! `testdata/golden_classifiers`.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::piped::{
    assert_refused, change_no_byte, continues, errors, fed, kill_after, lines, numbers, rows, texts,
};

const TOKENIZER: &str = "testdata/golden_embeddings/bert";

fn command(model: &str, flags: &[&str]) -> Command {
    command_named("classify", model, &[&["--tokenizer", TOKENIZER], flags].concat())
}

fn command_named(name: &str, model: &str, flags: &[&str]) -> Command {
    super::piped::command(name, &format!("testdata/golden_classifiers/{model}"), flags)
}

fn classify(model: &str, input: &str, flags: &[&str]) -> Output {
    fed(command(model, flags), input)
}

fn golden(model: &str, index: usize) -> Value {
    super::piped::golden(&format!("testdata/golden_classifiers/{model}"))["texts"][index].take()
}

fn is_close(got: &Value, expected: &Value) -> bool {
    super::piped::is_close(&numbers(got), &numbers(expected))
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
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
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
fn steps_threads_and_shards_change_no_byte() {
    change_no_byte(&|flags| command("bert", flags), &texts(50));
}

#[test]
fn a_killed_run_continues_to_the_same_bytes() {
    continues(&|flags| command("bert", flags), &texts(50), 20);
}

#[test]
fn a_run_of_other_numbers_does_not_continue() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let flags = ["--journal", journal.to_str().unwrap()];
    kill_after(command("bert", &flags), &texts(2));
    let other = classify("bert", &texts(3), &[&flags[..], &["--no-activation"]].concat());
    assert_eq!(other.status.code(), Some(6), "{}", errors(&other));
}

#[test]
fn what_is_no_classifier_or_no_text_is_refused_by_name() {
    let text = "{\"text\":\"a\"}\n";
    let line = r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"a"}}"#;
    for (input, flags, what) in [
        (text, &["--model", TOKENIZER][..], "no classifier"),
        (text, &["--out", "labels.csv"], "CSV output needs CSV input"),
        (text, &["--output-format", "openai"], "--output-format openai"),
        (text, &["--dimensions", "8"], "--dimensions"),
        (line, &[], "OpenAI batch requests"),
    ] {
        assert_refused(&classify("bert", input, flags), flags, what);
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
        fed(command_named("reward", "xlm_roberta", &flags), &input)
    };
    let output = reward(&["--no-activation"]);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let rows = lines(&output);
    let logit = golden["logits"][0].as_f64().unwrap() as f32;
    assert!((rows[0]["score"].as_f64().unwrap() as f32 - logit).abs() < 1e-5, "{}", rows[0]);
    assert_eq!((&rows[0]["id"], &rows[1]["score"]), (&json!(1), &Value::Null));
    let sigmoid = 1.0 / (1.0 + (-logit).exp());
    let row = &lines(&reward(&[]))[0];
    assert!((row["score"].as_f64().unwrap() as f32 - sigmoid).abs() < 1e-6, "{row}");
    let several = command_named("reward", "bert", &["--tokenizer", TOKENIZER]);
    let several = fed(several, &input);
    let errors = errors(&several);
    assert_eq!(several.status.code(), Some(2), "{errors}");
    assert!(errors.contains("3 classes"), "{errors}");
}

#[test]
fn a_process_reward_model_scores_each_step() {
    let model = "qwen2_steps";
    let golden = golden(model, 3);
    let text = golden["text"].as_str().unwrap();
    let input = [json!({"text": text}), json!({"text": "no steps"})];
    let input = rows(&input);
    let flags = ["--tokenizer", "testdata/golden_classifiers/qwen2_steps"];
    let reward = fed(command_named("reward", model, &flags), &input);
    assert_eq!(reward.status.code(), Some(3), "{}", errors(&reward));
    let answers = lines(&reward);
    let logits = golden["logits"].as_array().unwrap();
    assert!(logits.len() > 1 && text.matches("<extra_0>").count() == logits.len());
    let of_step = |logits: &Value| {
        let logits = numbers(logits);
        json!(1.0 / (1.0 + (logits[0] - logits[1]).exp()))
    };
    let expected: Vec<_> = logits.iter().map(of_step).collect();
    assert!(is_close(&answers[0]["score"], &json!(expected)), "{} is not {expected:?}", answers[0]);
    assert_eq!(answers[1]["error"]["code"], "no_steps");
    let classes = lines(&fed(command_named("classify", model, &flags), &input));
    let of_classes = classes[0]["probs"].as_array().unwrap().iter().map(|probs| probs[1].clone());
    assert_eq!(json!(of_classes.collect::<Vec<_>>()), answers[0]["score"]);
    // A reward model of the same family has one number.
    let flags = ["--tokenizer", TOKENIZER, "--no-activation"];
    let reward = lines(&fed(command_named("reward", "qwen2_reward", &flags), &input));
    assert!(reward[1]["score"].is_f64(), "{}", reward[1]);
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
    let errors = errors(&output);
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
