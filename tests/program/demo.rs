//! The demo model as a user meets it: it answers, and bad rows stay where they are.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn run(input: &Path, flags: &[&str]) -> (Option<i32>, Vec<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-qq", "--model", "testdata/demo", "--input"])
        .arg(input)
        .args(flags)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let rows = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    (output.status.code(), rows)
}

fn json(row: &str) -> Value {
    serde_json::from_str(row).unwrap()
}

#[test]
fn more_than_nine_of_ten_evaluation_rows_are_answered_right() {
    let (code, rows) = run(Path::new("testdata/eval.jsonl"), &[]);
    assert_eq!((code, rows.len()), (Some(0), 200));
    let is_right = |row: &&String| {
        let row = json(row);
        row["response"].as_str().unwrap().trim() == row["answer"].as_str().unwrap()
    };
    let num_right = rows.iter().filter(is_right).count();
    println!("{num_right} of 200 right");
    assert!(num_right > 180, "{num_right} of 200 right");
}

#[test]
fn the_model_that_sees_reads_its_pictures() {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-qq", "--model", "testdata/demo-vision", "--input"])
        .arg("testdata/demo-vision/pictures.jsonl")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let rows = String::from_utf8(output.stdout).unwrap();
    assert_eq!(rows.lines().count(), 12, "{}", String::from_utf8_lossy(&output.stderr));
    for row in rows.lines().map(json) {
        assert_eq!(row["response"].as_str().unwrap().trim(), row["answer"].as_str().unwrap());
    }
}

#[test]
fn every_kind_of_bad_row_is_an_error_row_in_its_place_and_good_rows_keep_their_bytes() {
    let good: Vec<String> = (0..8)
        .map(|i| format!(r#"{{"id":"g{i}","prompt":"{i}+{i}=","temperature":1.0}}"#))
        .collect();
    let too_long = format!(r#"{{"id":"long","prompt":"{}"}}"#, "red bird ".repeat(600));
    let bad = [
        (r#"{"id":"json","prompt":"a" "b"}"#, "bad_json"),
        (too_long.as_str(), "context_length"),
        (r#"{"id":"type","prompt":"a","temperature":"hot"}"#, "invalid_parameter"),
        (r#"{"id":"range","prompt":"a","top_p":1.5}"#, "invalid_parameter"),
        (r#"{"id":"shape","question":5}"#, "row_shape"),
        (r#"{"id":"null","prompt":null}"#, "row_shape"),
        (r#"{"id":"limit","prompt":"a","max_tokens":0}"#, "invalid_parameter"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (clean, mixed) = (folder.path().join("clean.jsonl"), folder.path().join("mixed.jsonl"));
    std::fs::write(&clean, good.join("\n")).unwrap();
    let mut lines = Vec::new();
    for (index, row) in good.iter().enumerate() {
        lines.push(row.as_str());
        lines.extend(bad.get(index).map(|(row, _)| *row));
    }
    std::fs::write(&mixed, lines.join("\n")).unwrap();

    let (code, expected) = run(&clean, &[]);
    assert_eq!((code, expected.len()), (Some(0), good.len()));
    let (code, rows) = run(&mixed, &[]);
    assert_eq!((code, rows.len()), (Some(3), good.len() + bad.len()));
    let mut rows = rows.iter();
    for (index, expected) in expected.iter().enumerate() {
        assert_eq!(rows.next(), Some(expected));
        let Some((line, code)) = bad.get(index) else { continue };
        let row = json(rows.next().unwrap());
        assert_eq!(
            (&row["response"], row["finish_reason"].as_str()),
            (&Value::Null, Some("error"))
        );
        let message = row["error"]["message"].as_str().unwrap();
        assert_eq!(row["error"]["code"], *code, "{line}: {message}");
        assert!(!message.is_empty());
    }
}

/// Commands that take a model, each as far as it needs to load one.
const PLAN: [&str; 3] = ["plan", "-i", "in.jsonl"];
const BENCH: [&str; 7] = ["bench", "--num-prompts", "1", "--input-len", "4", "--output-len", "2"];
const RUN: [&str; 7] = ["run", "-i", "in.jsonl", "-o", "out.jsonl", "--device", "cpu"];

/// Exit code and standard error of a command in a folder, which gets its input first.
fn command(folder: &Path, arguments: &[&str], model: &Path) -> (Option<i32>, String) {
    let row = "{\"prompt\":\"Hello\",\"max_tokens\":3}\n";
    std::fs::write(folder.join("in.jsonl"), row).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(arguments)
        .arg("--model")
        .arg(model)
        .current_dir(folder)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Each command reads it, and an output that another file made is not continued.
#[test]
fn a_gguf_file_is_a_model_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/gguf");
    for arguments in [&PLAN[..], &BENCH, &RUN, &RUN] {
        let (code, said) = command(folder.path(), arguments, &models.join("llama.gguf"));
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
    }
    let row = std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap();
    assert_eq!(json(row.trim())["usage"]["completion_tokens"], 3);
    let (code, said) = command(folder.path(), &RUN, &models.join("qwen3.gguf"));
    assert_eq!(code, Some(6), "{said}");
}

#[test]
fn every_command_reads_how_a_folder_is_quantized() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden/gptq");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["generation_config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(golden.join(file), model.join(file)).unwrap();
    }
    let read = |file| json(&std::fs::read_to_string(golden.join(file)).unwrap());
    let (config, quantized) = (read("config.json"), read("quantize_config.json"));
    let set = |key: &str, value: Value| {
        let mut config = config.clone();
        config["quantization_config"] = quantized.clone();
        config["quantization_config"]["quant_method"] = "gptq".into();
        config["quantization_config"][key] = value;
        std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    };
    let assert_each = |wanted: i32, text: &str| {
        for arguments in [&PLAN[..], &BENCH, &RUN] {
            let (code, said) = command(folder.path(), arguments, &model);
            assert!(code == Some(wanted) && said.contains(text), "{arguments:?}: {code:?} {said}");
        }
    };
    set("bits", quantized["bits"].clone());
    assert_each(0, "14 of 14 quantized matrices");
    set("wonder", true.into());
    assert_each(7, "quantization_config.wonder");
    set("bits", 5.into());
    assert_each(7, "`5 bit` of gptq is not supported");
}
