//! What a row or a flag says and what becomes of it: parameters in columns of data, rows without a
//! prompt before those that have one, and flags that no row can use.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::cli::{DEMO, temporary, text};

/// Exit code, standard output and standard error of a run over a file.
fn run(folder: &Path, file: &str, rows: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    fs::write(folder.join(file), rows).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "--model", DEMO, "-i", file, "--max-tokens", "4", "--threads", "1"])
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const WEATHER: &str = "city,temperature,stop,n,text\nA,1.9,5,1,2+3=\nB,-4,small,2,1+1=\n";

#[test]
fn columns_that_set_parameters_are_named_and_can_be_data() {
    let folder = temporary();
    let greedy = ["--temperature", "0"];
    let (code, _, said) = run(folder.path(), "w.csv", WEATHER, &greedy);
    assert_eq!(code, Some(3));
    let note = "w.csv: columns temperature, stop, n set parameters of their rows, over \
                --temperature; --row-params none makes them data";
    assert!(said.contains(note), "{said}");
    let none = [&greedy[..], &["--row-params", "none"]].concat();
    let (code, rows, said) = run(folder.path(), "w.csv", WEATHER, &none);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("set parameters"), "{said}");
    assert!(rows.contains("\nA,1.9,5,1,2+3=,5,stop,") && rows.contains("\nB,-4,small,2,1+1=,2,"));
    let some = [&greedy[..], &["--row-params", "stop"]].concat();
    let (code, rows, said) = run(folder.path(), "w.csv", WEATHER, &some);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("w.csv: column stop sets a parameter of its row; "), "{said}");
    assert!(rows.contains("\nA,1.9,5,1,2+3=,,stop,"), "it stops at its 5: {rows}");
    let (code, _, said) = run(folder.path(), "w.csv", WEATHER, &["--row-params", "temp"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("'temp' is no parameter of rows"), "{said}");
}

#[test]
fn fields_of_rows_that_are_data_come_back_as_they_were() {
    let folder = temporary();
    // A feature that is not there, a chat variable and an adapter are data too.
    let row = r#"{"prompt":"2+3=","n":0,"seed":"corn","echo":true,"best_of":7,"lora":"x"}"#;
    let (code, rows, said) = run(folder.path(), "r.jsonl", row, &["--row-params", "none"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(rows.starts_with(&row[..row.len() - 1]), "{rows}");
    let two = "{\"prompt\":\"a\"}\n{\"prompt\":\"a\",\"max_tokens\":1}\n";
    let (_, _, said) = run(folder.path(), "r.jsonl", two, &[]);
    assert!(
        said.contains("field max_tokens sets a parameter of its row, over --max-tokens"),
        "{said}"
    );
    let template =
        ["--template", "{{temperature}}+1=", "--row-params", "none", "--temperature", "0"];
    let (_, rows, _) = run(folder.path(), "t.csv", "temperature\n4\n", &template);
    assert!(rows.contains("\n4,5,stop,"), "{rows}");
    let request = json!({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "a"}});
    let none = ["--row-params", "none"];
    let (code, _, said) = run(folder.path(), "b.jsonl", &request.to_string(), &none);
    assert_eq!(code, Some(2));
    assert!(said.contains("--row-params: the rows are OpenAI batch requests"), "{said}");
}

#[test]
fn the_first_row_that_has_a_prompt_decides() {
    let folder = temporary();
    let codes = |rows: &str, flags: &[&str]| -> Vec<Option<String>> {
        let (code, rows, said) = run(folder.path(), "n.jsonl", rows, flags);
        assert_eq!(code, Some(3), "{said}");
        let code = |line: &str| {
            let row: Value = serde_json::from_str(line).unwrap();
            row["error"]["code"].as_str().map(str::to_owned)
        };
        rows.lines().map(code).collect()
    };
    let shape = Some("row_shape".to_owned());
    let good = r#"{"prompt":"2+3="}"#;
    for first in [
        r#"{"id":1,"prompt":null}"#,
        r#"{"id":1}"#,
        r#"{"id":1,"prompt":7}"#,
        r#"{"messages":null}"#,
        r#"{"text":null,"question":null}"#,
    ] {
        let rows = format!("{first}\n{first}\n{good}\n");
        assert_eq!(codes(&rows, &[]), [shape.clone(), shape.clone(), None], "{first}");
    }
    let column = ["--prompt-column", "prompt"];
    let rows = format!("{{\"prompt\":null}}\n{good}\n");
    assert_eq!(codes(&rows, &column), [shape.clone(), None]);
    assert_eq!(codes("{\"prompt\":null}\n", &[]), std::slice::from_ref(&shape), "it is alone");
    let many = "{\"prompt\":null}\n".repeat(1500) + good;
    assert_eq!(codes(&many, &[]).iter().filter(|code| code.is_some()).count(), 1500);
    for rows in ["{\"id\":1}\n{\"id\":2}\n", "{\"id\":1}\n"] {
        let (code, _, said) = run(folder.path(), "n.jsonl", rows, &[]);
        assert_eq!(code, Some(2));
        assert!(said.contains("line 1: the row has no prompt; it has the fields id"), "{said}");
    }
}

/// What becomes of a flag of `run` that a table of text does not use, with a value for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// No row can use it: exit code 2.
    Refused(&'static str),
    /// It is named as one that changes nothing.
    Noted(&'static str),
}

use Fate::{Noted, Refused};

/// The flags of `run` that rows of text do not use. All others are used.
const OF_OTHER_ROWS: &[(&str, Fate)] = &[
    ("system-prompt", Refused("a")),
    ("last-assistant", Refused("continue")),
    ("chat-template-kwargs", Refused("{}")),
    ("chat-template", Refused("{{ messages }}")),
    ("allow-special", Refused("")),
    ("allowed-local-media-path", Refused(".")),
    ("language", Refused("en")),
    ("translate", Refused("")),
    ("return-timestamps", Refused("")),
    ("allow-media-urls", Refused("")),
    ("limit-mm-per-prompt", Refused("{\"image\": 1}")),
    ("reasoning-parser", Refused("qwen3")),
    ("tool-call-parser", Refused("hermes")),
    ("thinking-token-budget", Refused("4")),
    ("served-model-name", Noted("a")),
    ("max-loras", Noted("2")),
    ("max-lora-rank", Noted("8")),
    ("revision", Noted("main")),
    ("download-dir", Noted("cache")),
    ("overwrite", Noted("")),
    ("retry-failed", Noted("")),
    ("truncation-side", Noted("right")),
];

/// The others, so that a new flag is looked at.
const OF_ALL_ROWS: &str = "model mmproj tokenizer load-format dtype max-model-len input split subset \
    format encoding delimiter no-header prompt prompt-column template row-params chat no-chat limit \
    allow-empty-prompts \
    sample sample-seed shard on-bad-row overflow \
    lora-modules lora-merge default-mm-loras loglikelihood out out-field output-format errors stats journal \
    work-dir journal-interval take-over unordered ready-fd max-errors temperature top-p top-k \
    min-p max-tokens min-tokens stop stop-token-ids seed n beam-width length-penalty logprobs \
    prompt-logprobs prompt-logprobs-last presence-penalty frequency-penalty repetition-penalty \
    ignore-eos skip-special-tokens no-skip-special-tokens include-stop-str-in-output logit-bias \
    allowed-token-ids bad-words truncate-prompt-tokens generation-config structured-outputs.json \
    structured-outputs.regex structured-outputs.choice structured-outputs.grammar \
    structured-outputs.json-object structured-outputs.structural-tag \
    structured-outputs.whitespace-pattern structured-outputs.disable-any-whitespace \
    structured-outputs.disable-additional-properties structured-outputs.strict hf-overrides \
    audio-column image-column allowed-media-domains on-resume-media pages dpi longest-side \
    page-timeout max-audio-clip-s \
    device data-parallel-size \
    tensor-parallel-size pipeline-parallel-size quantization threads cpu-isa prefill-kernel scheduling-policy max-num-seqs \
    max-num-batched-tokens enforce-eager speculative-config block-size kv-cache-dtype \
    kv-cache-memory-bytes kv-offloading-size language-model-only mm-processor-cache-gb num-gpu-blocks-override gpu-memory-utilization \
    enable-prefix-caching no-enable-prefix-caching enable-lora progress color quiet verbose \
    config help";

#[test]
fn every_flag_is_used_refused_or_noted() {
    let folder = temporary();
    let help = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "--help", "-v"])
        .output()
        .unwrap();
    let of_line = |line: &str| -> Option<String> {
        let line = line.trim_start();
        let line = line.strip_prefix("--").or_else(|| line.get(4..)?.strip_prefix("--"))?;
        let is_of_name = |c: char| c.is_ascii_lowercase() || c == '-' || c == '.';
        let name: String = line.chars().take_while(|c| is_of_name(*c)).collect();
        Some(name.trim_end_matches('.').to_owned())
    };
    let is_flag = |line: &&str| line.trim_start().starts_with('-');
    let flags: BTreeSet<String> =
        text(&help.stdout).lines().filter(is_flag).filter_map(of_line).collect();
    assert!(flags.len() > 80, "{flags:?}");
    let known: BTreeSet<&str> =
        OF_ALL_ROWS.split_whitespace().chain(OF_OTHER_ROWS.iter().map(|(flag, _)| *flag)).collect();
    let unknown: Vec<_> = flags.iter().filter(|flag| !known.contains(flag.as_str())).collect();
    assert!(unknown.is_empty(), "say which rows use them: {unknown:?}");
    for (flag, fate) in OF_OTHER_ROWS {
        let (value, expected) = match fate {
            Refused(value) => (value, 2),
            Noted(value) => (value, 0),
        };
        let typed = format!("--{flag}");
        let words: Vec<&str> =
            [typed.as_str(), value].into_iter().filter(|word| !word.is_empty()).collect();
        let (code, _, said) = run(folder.path(), "t.csv", "text\n2+3=\n", &words);
        assert_eq!(code, Some(expected), "{typed}: {said}");
        assert!(said.contains(&format!("{typed}: ")), "{said}");
        // Of JSON lines a later one may be a chat.
        let (code, _, said) = run(folder.path(), "t.jsonl", "{\"text\":\"2+3=\"}\n", &words);
        if *flag == "thinking-token-budget" {
            assert_eq!(code, Some(2), "no parser knows thinking: {said}");
            continue;
        }
        assert_eq!(code, Some(0), "{typed}: {said}");
        assert!(said.contains(&format!("{typed}: ")), "{said}");
    }
}

#[test]
fn flags_of_chats_are_refused_where_no_request_is_one() {
    let folder = temporary();
    let line = |url: &str, body: Value| {
        json!({"custom_id": url, "url": url, "body": body}).to_string() + "\n"
    };
    let text = line("/v1/completions", json!({"prompt": "2+3=", "max_tokens": 1}));
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let chat = line("/v1/chat/completions", chat);
    let flags = ["--system-prompt", "a"];
    let (code, _, said) = run(folder.path(), "b.jsonl", &text, &flags);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--system-prompt: no request is chat"), "{said}");
    let (code, _, said) = run(folder.path(), "b.jsonl", &(text + &chat), &flags);
    assert_eq!(code, Some(0), "{said}");
    let (code, _, said) = run(folder.path(), "b.jsonl", &chat, &["--last-assistant", "error"]);
    assert_eq!(code, Some(2), "{said}");
}

#[test]
fn faults_of_a_whole_run_are_refused_before_its_rows() {
    let folder = temporary();
    let chat = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    let no_system = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}\
                     {% endif %}a";
    for (file, rows, flags, wanted) in [
        (
            "c.jsonl",
            chat,
            &["--thinking-token-budget", "4"][..],
            "--thinking-token-budget: the run",
        ),
        (
            "c.jsonl",
            chat,
            &["--system-prompt", "x", "--chat-template", no_system],
            "--system-prompt: no system",
        ),
        ("t.csv", "text\na\n", &["--unordered"], "--unordered: the table has no column `id`"),
        (
            "t.csv",
            "text\na\n",
            &["--loglikelihood", "choices"],
            "--loglikelihood choices: there is no column 'choices'",
        ),
        ("c.jsonl", chat, &["--loglikelihood", "text"], "--loglikelihood text: the rows are chat"),
        (
            "t.csv",
            "text\na\n",
            &["--loglikelihood", "text", "--logprobs", "1"],
            "logprobs does not go with",
        ),
    ] {
        let (code, out, said) = run(folder.path(), file, rows, flags);
        assert_eq!(code, Some(2), "{flags:?}: {said}");
        assert!(said.contains(wanted) && out.is_empty(), "{wanted}: {said}");
    }
}
