//! Which command runs which kind of model, from which source: every cell of the table in
//! docs/MODELS.md is tried, on a folder, a GGUF file, a GGUF file among other files, and the cache
//! of the hub.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::piped::{errors, fed};

/// The row that a command is tried with.
const TEXT: &str = r#"{"text":"hello world"}"#;
const PAIR: &str = r#"{"text_1":"hello world","text_2":"a cat"}"#;
const QUERY: &str = r#"{"query":"hello world","documents":["a cat","a dog"]}"#;
const CHAT_LINE: &str = r#"{"custom_id":"a","method":"POST","url":"/v1/completions",
    "body":{"model":"m","prompt":"hello","max_tokens":2}}"#;
const EMBEDDINGS_LINE: &str = r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings",
    "body":{"model":"m","input":"hello"}}"#;
const SCORE_LINE: &str = r#"{"custom_id":"a","method":"POST","url":"/v1/score",
    "body":{"model":"m","text_1":"hello","text_2":"a cat"}}"#;
const RERANK_LINE: &str = r#"{"custom_id":"a","method":"POST","url":"/v1/rerank",
    "body":{"model":"m","query":"hello","documents":["a cat","a dog"]}}"#;

/// Flags that make a command short.
const SHORT: [&str; 2] = ["--max-tokens", "2"];
/// The tokens of a language model that scores.
const OF_TOKENS: [&str; 2] = ["--classifier-from-token", "a,b"];
const NO_MEASURE: [&str; 2] = ["--sample-seconds", "0"];

/// A line of the table: the command as it is written there, its flags, and its input.
struct Line {
    name: &'static str,
    flags: Vec<&'static str>,
    input: &'static str,
}

fn line(name: &'static str, flags: &[&[&'static str]], input: &'static str) -> Line {
    Line { name, flags: flags.concat(), input }
}

fn table_lines() -> Vec<Line> {
    let bench = ["--num-prompts", "1", "--input-len", "4", "--output-len", "2"];
    vec![
        line("`run`", &[&SHORT], TEXT),
        line("`run` on lines of `/v1/completions`", &[], CHAT_LINE),
        line("`run` on lines of `/v1/embeddings`", &[], EMBEDDINGS_LINE),
        line("`run` on lines of `/v1/score`", &[], SCORE_LINE),
        line("`run` on lines of `/v1/rerank`", &[], RERANK_LINE),
        line("`eval`", &[&SHORT, &["--expected-column", "text", "--prompt-column", "text"]], TEXT),
        line("`bench`", &[&bench], ""),
        line("`embed`", &[], TEXT),
        line("`classify`", &[], TEXT),
        line("`classify --classifier-from-token`", &[&OF_TOKENS], TEXT),
        line("`reward`", &[], TEXT),
        line("`score`", &[], PAIR),
        line("`score --classifier-from-token`", &[&OF_TOKENS], PAIR),
        line("`rerank`", &[], QUERY),
        line("`plan`", &[&NO_MEASURE], TEXT),
        line("`plan --task embed`", &[&NO_MEASURE, &["--task", "embed"]], TEXT),
        line("`plan --task classify`", &[&NO_MEASURE, &["--task", "classify"]], TEXT),
        line("`plan --task reward`", &[&NO_MEASURE, &["--task", "reward"]], TEXT),
        line("`plan --task score`", &[&NO_MEASURE, &["--task", "score"]], PAIR),
        line("`plan --task rerank`", &[&NO_MEASURE, &["--task", "rerank"]], QUERY),
    ]
}

/// Kinds of models, as the table has them, each with a folder of that kind and of its tokenizer.
const KINDS: [(&str, &str, &str); 6] = [
    ("language model", "testdata/golden/llama3", "testdata/golden/llama3"),
    ("encoder", "testdata/golden_embeddings/bert", BERT),
    ("classifier of texts", "testdata/golden_classifiers/bert", BERT),
    ("classifier of tokens", "testdata/golden_classifiers/bert_tokens", BERT),
    ("classifier with one label", "testdata/golden_scores/bert", "testdata/golden_scores/bert"),
    (
        "reward model",
        "testdata/golden_classifiers/qwen2_reward",
        "testdata/golden_embeddings/qwen3",
    ),
];
const BERT: &str = "testdata/golden_embeddings/bert";

fn command(line: &Line, model: &str, cache: &Path) -> (Command, tempfile::TempDir) {
    let name = line.name.trim_start_matches('`').split([' ', '`']).next().unwrap();
    let mut command = super::piped::command(name, model, &line.flags);
    command.args(["--device", "cpu"]);
    command.env("HF_HUB_CACHE", cache).env("HF_HUB_OFFLINE", "1");
    let folder = tempfile::tempdir().unwrap();
    if name == "eval" {
        command.arg("--out").arg(folder.path().join("rows.jsonl"));
    }
    (command, folder)
}

fn output(line: &Line, model: &str, cache: &Path) -> Output {
    let (command, _folder) = command(line, model, cache);
    fed(command, &input(line))
}

fn input(line: &Line) -> String {
    line.input.replace('\n', "") + "\n"
}

/// A cell: `yes`, or the code and the exit code of the refusal.
fn cell(line: &Line, output: &Output) -> String {
    let said = errors(output);
    let code = said.split_once("error[").and_then(|(_, rest)| Some(rest.split_once(']')?.0));
    match (output.status.code(), code) {
        (Some(0), _) => "yes".to_owned(),
        (Some(exit @ (2 | 7)), Some(code)) => format!("`{code}`, {exit}"),
        (exit, _) => panic!("{}: {exit:?}\n{said}", line.name),
    }
}

/// The table, as docs/MODELS.md has it.
fn table(cache: &Path) -> String {
    let kinds = || KINDS.iter().map(|(kind, ..)| *kind);
    let mut table = format!("| command | {} |\n", kinds().collect::<Vec<_>>().join(" | "));
    table += &format!("|---|{}\n", kinds().map(|_| "---|").collect::<String>());
    for line in table_lines() {
        let cells = KINDS.map(|(_, model, tokenizer)| {
            let (mut command, _folder) = command(&line, model, cache);
            command.args(["--tokenizer", tokenizer]);
            cell(&line, &fed(command, &input(&line)))
        });
        table += &format!("| {} | {} |\n", line.name, cells.join(" | "));
    }
    table
}

#[test]
fn every_command_runs_or_refuses_every_kind_of_model_as_the_documents_say() {
    let empty = tempfile::tempdir().unwrap();
    let table = table(empty.path());
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/MODELS.md");
    let models = fs::read_to_string(models).unwrap();
    assert!(models.contains(&table), "docs/MODELS.md should have this table:\n{table}");
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// A repository in a cache of the hub, with links to files.
fn cached(cache: &Path, repo: &str, files: &[(&str, PathBuf)]) {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let folder = cache.join(format!("models--{}", repo.replace('/', "--")));
    let snapshot = folder.join("snapshots").join(commit);
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(folder.join("refs/main"), commit).unwrap();
    for (name, path) in files {
        fs::copy(path, snapshot.join(name)).unwrap();
    }
    // What the repository has not.
    let absent = folder.join(".no_exist").join(commit);
    fs::create_dir_all(&absent).unwrap();
    for name in ["modules.json", "config_sentence_transformers.json"] {
        fs::write(absent.join(name), "").unwrap();
    }
}

/// Files that say otherwise than a GGUF file: none of them is read beside one.
const BESIDE: [(&str, &str); 10] = [
    ("generation_config.json", r#"{"temperature": 2.0, "max_new_tokens": 1, "eos_token_id": 5}"#),
    ("tokenizer_config.json", r#"{"model_max_length": 3, "add_bos_token": false}"#),
    ("tokenizer.json", "{}"),
    ("special_tokens_map.json", r#"{"bos_token": "a"}"#),
    ("chat_template.jinja", "{{ raise_exception('read') }}"),
    ("modules.json", r#"[{"idx": 0, "path": "", "type": "a.Unknown"}]"#),
    (
        "config_sentence_transformers.json",
        r#"{"prompts": {"a": "b "}, "default_prompt_name": "a"}"#,
    ),
    ("sentence_bert_config.json", r#"{"max_seq_length": 2}"#),
    ("sparse_linear.pt", "no layer"),
    ("quantize_config.json", r#"{"bits": 4}"#),
];

#[test]
fn a_language_model_is_the_same_to_every_command_wherever_its_gguf_file_is() {
    let (cache, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (file, folder) = (testdata("gguf/llama.gguf"), testdata("golden/llama3"));
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    cached(cache.path(), "org/folder", &files.map(|name| (name, folder.join(name))));
    cached(cache.path(), "org/file", &[("m-Q8_0.gguf", file.clone())]);
    let alone = tempfile::tempdir().unwrap();
    symlink(&file, alone.path().join("m.gguf")).unwrap();
    let among = tempfile::tempdir().unwrap();
    symlink(&file, among.path().join("m.gguf")).unwrap();
    fs::create_dir(among.path().join("1_Pooling")).unwrap();
    fs::write(among.path().join("1_Pooling/config.json"), "{}").unwrap();
    for (name, text) in BESIDE {
        fs::write(among.path().join(name), text).unwrap();
    }
    let among_path = |name: &str| among.path().join(name).to_str().unwrap().to_owned();
    let sources = [
        among_path("m.gguf"),
        among_path(""),
        alone.path().to_str().unwrap().to_owned(),
        "org/file:m-Q8_0.gguf".to_owned(),
        "org/file/m-Q8_0.gguf".to_owned(),
        "org/file:Q8_0".to_owned(),
    ];
    for line in table_lines() {
        let wanted = output(&line, folder.to_str().unwrap(), empty.path());
        let of_cache = output(&line, "org/folder", cache.path());
        assert_eq!(cell(&line, &of_cache), cell(&line, &wanted), "{}", line.name);
        let plain = output(&line, file.to_str().unwrap(), empty.path());
        assert_eq!(cell(&line, &plain), cell(&line, &wanted), "{}", line.name);
        // Times and paths are in the output of these.
        let has_times =
            ["`bench`", "`plan", "`eval`"].iter().any(|name| line.name.starts_with(name));
        for source in &sources {
            let found = output(&line, source, cache.path());
            assert_eq!(cell(&line, &found), cell(&line, &plain), "{} {source}", line.name);
            let shown = |output: &Output| {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                // Batch answers show the model's name.
                text.lines().map(without_model).collect::<Vec<_>>()
            };
            assert!(has_times || shown(&found) == shown(&plain), "{} {source}", line.name);
        }
    }
}

/// A line of JSON without the name and the fingerprint of the model.
fn without_model(line: &str) -> serde_json::Value {
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
    let body = value.pointer_mut("/response/body").and_then(serde_json::Value::as_object_mut);
    if let Some(body) = body {
        for name in ["model", "id", "system_fingerprint"] {
            body.remove(name);
        }
    }
    value
}

#[test]
fn a_model_of_another_kind_is_refused_with_the_command_that_runs_it() {
    let empty = tempfile::tempdir().unwrap();
    for (name, flags, model, said) in [
        ("run", &[][..], "golden_embeddings/bert", "makes vectors: use `embed`"),
        (
            "eval",
            &["--expected-column", "text", "--prompt-column", "text"],
            "golden_embeddings/bert",
            "use `embed`",
        ),
        ("bench", &[], "golden_embeddings/bert", "makes vectors: use `embed`"),
        ("plan", &[], "golden_embeddings/bert", "makes vectors: use `embed`"),
        ("run", &[], "golden_classifiers/bert", "use `classify`"),
        ("run", &[], "golden_classifiers/qwen2_reward", "use `reward`"),
        ("embed", &[], "golden_classifiers/bert", "`classify` runs them"),
        ("classify", &[], "golden_embeddings/bert", "`embed` makes vectors"),
        ("reward", &[], "gguf/llama.gguf", "`embed` makes vectors"),
        ("score", &[], "golden_classifiers/bert", "`classify` runs it"),
    ] {
        let input = if name == "score" { PAIR } else { TEXT };
        let line = Line { name, flags: flags.to_vec(), input };
        let output = output(&line, testdata(model).to_str().unwrap(), empty.path());
        assert!(errors(&output).contains(said), "{name} {model}: {}", errors(&output));
    }
}
