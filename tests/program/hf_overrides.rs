//! `--hf-overrides`: keys laid over config.json, in every command that loads a model.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");

/// Exit code, standard output and standard error of a command.
fn run(folder: &Path, command: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(command)
        .args(["--progress", "none", "--threads", "1"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A folder with a copy of a model, whose config.json has these keys more, and with rows.
fn setting(model: &str, more: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("m");
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(Path::new(TESTDATA).join(model)).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let text = fs::read_to_string(to.join("config.json")).unwrap();
    let mut keys: Value = serde_json::from_str(&text).unwrap();
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fs::write(to.join("config.json"), keys.to_string()).unwrap();
    fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"abc\"}\n{\"prompt\":\"b\"}\n")
        .unwrap();
    folder
}

const RUN: &[&str] =
    &["run", "-m", "m", "-i", "in.jsonl", "--temperature", "0", "--max-tokens", "6"];

#[test]
fn the_help_of_a_refusal_is_the_way_out() {
    let plain = setting("demo", &json!({}));
    let (code, expected, _) = run(plain.path(), RUN);
    assert_eq!(code, Some(0));
    let odd = setting("demo", &json!({"of_tomorrow": 1}));
    let (code, _, said) = run(odd.path(), RUN);
    let flag = r#"--hf-overrides '{"of_tomorrow":null}'"#;
    assert!(code == Some(7) && said.contains(flag), "{said}");
    let taken = [RUN, &["--hf-overrides", r#"{"of_tomorrow":null}"#]].concat();
    assert_eq!(run(odd.path(), &taken).1, expected);
    // Another key that nobody knows is refused as one of the file is.
    let other = [RUN, &["--hf-overrides", r#"{"of_tomorrow":null,"of_today":2}"#]].concat();
    let (code, _, said) = run(odd.path(), &other);
    assert!(code == Some(7) && said.contains("`of_today` is not known"), "{said}");
    assert!(said.contains("config.json with --hf-overrides"), "{said}");
}

#[test]
fn values_reach_the_model_and_the_fingerprint() {
    let folder = setting("demo", &json!({}));
    let path = folder.path();
    let out = |more: &[&str]| run(path, &[RUN, &["-o", "out.jsonl"], more].concat());
    let base = ["--hf-overrides", r#"{"rope_theta": 99.0, "rms_norm_eps": 1e-4}"#];
    assert_eq!(out(&base).0, Some(0));
    let stretched = fs::read_to_string(path.join("out.jsonl")).unwrap();
    // The same object, its keys in another order.
    let same = ["--hf-overrides", r#"{"rms_norm_eps": 1e-4, "rope_theta": 99.0}"#];
    let (code, _, said) = out(&same);
    assert!(code == Some(0) && said.contains("Nothing to do"), "{said}");
    for other in [&[][..], &["--hf-overrides", r#"{"rope_theta": 98.0}"#]] {
        let (code, _, said) = out(other);
        assert!(code == Some(6) && said.contains("hf_overrides"), "{other:?}: {said}");
    }
    assert_ne!(run(path, RUN).1, stretched);
    let short = r#"{"max_position_embeddings": 64}"#;
    let (code, _, said) = out(&["--hf-overrides", short, "--max-model-len", "65", "--overwrite"]);
    assert!(code == Some(2) && said.contains("expected 2 to 64"), "{said}");
}

#[test]
fn what_is_no_object_of_keys_is_refused() {
    let folder = setting("demo", &json!({}));
    for (given, expected) in [
        ("{", "--hf-overrides: EOF"),
        ("[1]", "--hf-overrides: expected a JSON object"),
        (r#"{"architectures": "LlamaForCausalLM"}"#, "`architectures` should be a list of strings"),
        (r#"{"text_config": 3}"#, "`text_config` should be an object or null"),
        (r#"{"model_type": "qwen2"}"#, "`model_type` alone chooses no class"),
    ] {
        let (code, rows, said) = run(folder.path(), &[RUN, &["--hf-overrides", given]].concat());
        assert_eq!((code, rows.as_str()), (Some(2), ""), "{given}: {said}");
        assert!(said.contains(expected), "{given}: {said}");
    }
}

#[test]
fn a_class_is_chosen_by_name() {
    let folder = setting("demo", &json!({"architectures": ["OfTomorrow"]}));
    let (code, _, said) = run(folder.path(), RUN);
    assert!(code == Some(7) && said.contains("--hf-overrides"), "{said}");
    let class = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}"#;
    let (code, rows, said) = run(folder.path(), &[RUN, &["--hf-overrides", class]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(rows, run(setting("demo", &json!({})).path(), RUN).1);
}

#[test]
fn every_command_that_loads_a_model_takes_it() {
    let take = ["--hf-overrides", r#"{"of_tomorrow":null}"#];
    let odd = json!({"of_tomorrow": 1});
    let pairs = "{\"query\":\"a\",\"documents\":[\"b\",\"c\"]}\n";
    for (model, command) in [
        ("demo", &["plan", "-m", "m", "-i", "in.jsonl"][..]),
        (
            "demo",
            &["bench", "-m", "m", "--num-prompts", "2", "--input-len", "8", "--output-len", "2"],
        ),
        (
            "demo",
            &[
                "eval",
                "-m",
                "m",
                "-i",
                "eval.jsonl",
                "--scorer",
                "exact",
                "-o",
                "e.jsonl",
                "--max-tokens",
                "2",
            ],
        ),
        ("golden_embeddings/bert", &["embed", "-m", "m", "-i", "in.jsonl"]),
        ("golden_embeddings/bert", &["score", "-m", "m", "-i", "texts.jsonl"]),
        ("golden_embeddings/bert", &["rerank", "-m", "m", "-i", "pairs.jsonl"]),
        ("golden_classifiers/bert", &["classify", "-m", "m", "-i", "in.jsonl"]),
    ] {
        let folder = setting(model, &odd);
        fs::write(folder.path().join("pairs.jsonl"), pairs).unwrap();
        let texts = "{\"text_1\":\"a\",\"text_2\":\"b\"}\n";
        fs::write(folder.path().join("texts.jsonl"), texts).unwrap();
        if !folder.path().join("m/tokenizer.json").exists() {
            let tokenizer = format!("{TESTDATA}/golden_embeddings/bert/tokenizer.json");
            fs::copy(tokenizer, folder.path().join("m/tokenizer.json")).unwrap();
        }
        fs::write(folder.path().join("eval.jsonl"), "{\"prompt\":\"a\",\"expected\":\"b\"}\n")
            .unwrap();
        let (code, _, said) = run(folder.path(), command);
        assert!(code == Some(7) && said.contains("of_tomorrow"), "{command:?}: {said}");
        let (code, _, said) = run(folder.path(), &[command, &take].concat());
        assert!(!said.contains("of_tomorrow"), "{command:?}: {said}");
        assert!(code == Some(0) || code == Some(3), "{command:?}: {code:?} {said}");
    }
}

/// What a GGUF file says is a config.json to the flag.
#[test]
fn keys_are_laid_over_those_of_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = format!("{TESTDATA}/gguf/llama.gguf");
    fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"a cat and a dog\"}\n").unwrap();
    let of = |overrides: &str| {
        let mut flags = vec!["run", "-m", &model, "-i", "in.jsonl", "--max-tokens", "4"];
        flags.extend(["--temperature", "0", "--logprobs", "1"]);
        if !overrides.is_empty() {
            flags.extend(["--hf-overrides", overrides]);
        }
        run(folder.path(), &flags)
    };
    let (code, plain, said) = of("");
    assert_eq!(code, Some(0), "{said}");
    let (code, turned, said) = of(r#"{"rope_theta": 7}"#);
    assert_eq!(code, Some(0), "{said}");
    assert_ne!(turned, plain);
    let (code, short, _) = of(r#"{"max_position_embeddings": 4}"#);
    assert!(code == Some(3) && short.contains("context_length"), "{short}");
    let (code, _, said) = of(r#"{"of_tomorrow": 1}"#);
    assert!(code == Some(7) && said.contains("`of_tomorrow` is not known"), "{said}");
    assert!(said.contains("with --hf-overrides"), "{said}");
}
