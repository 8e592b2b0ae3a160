//! OpenAI's and Anthropic's batch files through the program: what goes in, and the bytes that come
//! out. Answers are the demo model's, greedy; ids are a function of each row's text.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const DEMO: &str = "testdata/demo";
/// Of the run, in `created`.
const EPOCH: &str = "1711652795";

struct Run {
    code: Option<i32>,
    lines: Vec<String>,
    errors: String,
}

fn run(folder: &Path, rows: &[&str], flags: &[&str]) -> Run {
    let input = folder.join("in.jsonl");
    fs::write(&input, rows.join("\n")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-q", "--model", DEMO, "--input"])
        .arg(&input)
        .args(flags)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run {
        code: output.status.code(),
        lines: text(output.stdout).lines().map(without_fingerprint).collect(),
        errors: text(output.stderr),
    }
}

/// The fingerprint says which kernels ran, so it is another on another machine.
fn without_fingerprint(line: &str) -> String {
    let Some((before, rest)) = line.split_once("\"system_fingerprint\":\"fp_") else {
        return line.to_owned();
    };
    let (digits, after) = rest.split_once('"').unwrap();
    assert!(digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{line}");
    format!("{before}\"system_fingerprint\":null{after}")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

const CHAT: &str = r#"{"custom_id":"chat","method":"POST","url":"/v1/chat/completions","body":{"model":"gpt-4o-mini","messages":[{"role":"user","content":"What is 45 + 45?"}],"max_tokens":20}}"#;
const TEXT: &str = r#"{"custom_id":"text","method":"POST","url":"/v1/completions","body":{"model":"gpt-4o-mini","prompt":"2+3=","max_tokens":20}}"#;
const URL: &str = r#"{"custom_id":"url","method":"POST","url":"/v1/images","body":{"input":"a"}}"#;
const SEVERAL: &str =
    r#"{"custom_id":7,"method":"POST","url":"/v1/completions","body":{"prompt":["a","b"]}}"#;
const STREAM: &str = r#"{"custom_id":"stream","method":"POST","url":"/v1/completions","body":{"prompt":"a","stream":true}}"#;
const RANGE: &str =
    r#"{"custom_id":"range","url":"/v1/completions","body":{"prompt":"a","top_p":2}}"#;
const CUT: &str = r#"{"custom_id":"cut","method":"POST","url":"/v1/completions","body":{"prompt"#;

fn head(digits: &str, id: &str, status: u16) -> String {
    format!(
        "{{\"id\":\"batch_req_{digits}\",\"custom_id\":\"{id}\",\"response\":{{\"status_code\":\
         {status},\"request_id\":\"req_{digits}\",\"body\":"
    )
}

/// Rows that are answered, and their lines.
fn answered() -> [(&'static str, String); 2] {
    let chat = concat!(
        r#"{"id":"chatcmpl-5512a7d774bd54c8","object":"chat.completion","created":1711652795,"#,
        r#""model":"demo","choices":[{"index":0,"message":{"role":"assistant","#,
        r#""content":"90","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"#,
        r#""prompt_tokens":14,"completion_tokens":3,"total_tokens":17},"#,
        r#""system_fingerprint":null}},"error":null}"#,
    );
    let text = concat!(
        r#"{"id":"cmpl-e4ba0a16b6f96f9b","object":"text_completion","created":1711652795,"#,
        r#""model":"demo","choices":[{"index":0,"text":"5","logprobs":null,"#,
        r#""finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"#,
        r#""total_tokens":7},"system_fingerprint":null}},"error":null}"#,
    );
    [
        (CHAT, head("5512a7d774bd54c8", "chat", 200) + chat),
        (TEXT, head("e4ba0a16b6f96f9b", "text", 200) + text),
    ]
}

/// Rows that are refused, and their lines.
fn refused() -> [(&'static str, String); 5] {
    let error = |digits: &str, id: &str, message: &str, param: Value, code: &str| {
        let status = if code == "unsupported_url" { 404 } else { 400 };
        let (message, param) = (json!(message), param.to_string());
        let error = format!(
            "{{\"error\":{{\"message\":{message},\"type\":\"invalid_request_error\",\"param\":\
             {param},\"code\":\"{code}\"}}}}}},\"error\":null}}"
        );
        head(digits, id, status) + &error
    };
    let urls = "Invalid URL (POST /v1/images): /v1/chat/completions, /v1/completions, \
                /v1/responses and, by a model that hears, /v1/audio/transcriptions and \
                /v1/audio/translations are served; /v1/embeddings, /v1/score and /v1/rerank in \
                files of their own";
    let prompts = "body.prompt: a list of 2 prompts, where a row has one: make a row of each";
    let stream = "stream: not supported: a row is answered whole";
    let range = "top_p must be in (0, 1], got 2.0.";
    let cut = "the line ends inside a string";
    [
        (URL, error("33c51b8d0fc77ee0", "url", urls, json!("url"), "unsupported_url")),
        (SEVERAL, error("e084f504d3e46fea", "7", prompts, json!("prompt"), "several_prompts")),
        (STREAM, error("8085500eedf6e584", "stream", stream, json!("stream"), "unsupported_field")),
        (RANGE, error("58b9a90709287659", "range", range, json!("top_p"), "invalid_parameter")),
        (CUT, error("8249f9fc70c8b30c", "cut", cut, Value::Null, "bad_json")),
    ]
}

#[test]
fn every_row_has_its_line_to_the_byte_in_any_order_and_again() {
    let folder = folder();
    let mixed: Vec<_> = answered().into_iter().chain(refused()).collect();
    let check = |order: &[usize]| {
        let rows: Vec<&str> = order.iter().map(|&row| mixed[row].0).collect();
        let expected: Vec<&str> = order.iter().map(|&row| mixed[row].1.as_str()).collect();
        let run = run(folder.path(), &rows, &[]);
        assert_eq!(run.lines, expected, "{}", run.errors);
        assert_eq!(run.code, Some(3));
    };
    check(&[0, 1, 2, 3, 4, 5, 6]);
    check(&[0, 1, 2, 3, 4, 5, 6]);
    // The line that is cut comes before any that says what the file is.
    check(&[6, 2, 4, 1, 5, 0, 3]);
}

#[test]
fn sampled_rows_do_not_depend_on_their_place_either() {
    let folder = folder();
    let row = |id: usize| {
        format!(
            r#"{{"custom_id":"r{id}","url":"/v1/completions","body":{{"prompt":"1 2 3","temperature":1.5,"n":2,"max_tokens":6}}}}"#
        )
    };
    let rows: Vec<String> = (0..6).map(row).collect();
    let forward: Vec<&str> = rows.iter().map(String::as_str).collect();
    let backward: Vec<&str> = forward.iter().rev().copied().collect();
    let mut again = run(folder.path(), &backward, &["--max-num-seqs", "2"]).lines;
    again.reverse();
    let first = run(folder.path(), &forward, &[]).lines;
    assert_eq!(first, again);
    let texts = |line: &String| -> Vec<String> {
        let line: Value = serde_json::from_str(line).unwrap();
        let choices = line["response"]["body"]["choices"].as_array().unwrap().clone();
        choices.iter().map(|choice| choice["text"].to_string()).collect()
    };
    let mut all: Vec<String> = first.iter().flat_map(texts).collect();
    assert_eq!(all.len(), 12);
    all.sort();
    all.dedup();
    assert!(all.len() > 1, "rows of different names are sampled apart: {all:?}");
}

#[test]
fn lengths_follow_the_endpoint_unless_somebody_says_one() {
    let folder = folder();
    let chat = CHAT.replace(r#","max_tokens":20"#, r#","ignore_eos":true"#);
    let text = TEXT.replace(r#","max_tokens":20"#, r#","ignore_eos":true"#);
    let rows = [chat.as_str(), text.as_str()];
    let usage = |flags: &[&str]| -> Vec<(i64, i64, Value)> {
        let run = run(folder.path(), &rows, flags);
        assert_eq!(run.code, Some(0), "{}", run.errors);
        let line = |line: &String| {
            let line: Value = serde_json::from_str(line).unwrap();
            let body = &line["response"]["body"];
            let tokens = |name: &str| body["usage"][name].as_i64().unwrap();
            let reason = body["choices"][0]["finish_reason"].clone();
            (tokens("completion_tokens"), tokens("total_tokens"), reason)
        };
        run.lines.iter().map(line).collect()
    };
    let unsaid = usage(&["--max-model-len", "100"]);
    assert_eq!((unsaid[0].1, &unsaid[0].2), (100, &json!("length")), "the rest of the context");
    assert_eq!((unsaid[1].0, &unsaid[1].2), (16, &json!("length")));
    let said = usage(&["--max-tokens", "7"]);
    assert_eq!((said[0].0, said[1].0), (7, 7));
}

/// The lines' model and `system_fingerprint`.
fn system(flags: &[&str], epoch: &str) -> (String, String) {
    let folder = folder();
    fs::write(folder.path().join("in.jsonl"), CHAT).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-q", "--model", DEMO, "--input"])
        .arg(folder.path().join("in.jsonl"))
        .args(flags)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("SOURCE_DATE_EPOCH", epoch)
        .output()
        .unwrap();
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    let body = &line["response"]["body"];
    let text = |name: &str| body[name].as_str().unwrap().to_owned();
    (text("model"), text("system_fingerprint"))
}

#[test]
fn the_system_is_the_same_in_every_run_of_one_model_and_dtype() {
    let (model, fingerprint) = system(&[], EPOCH);
    assert_eq!(model, "demo");
    let other_run = ["--temperature", "1", "--seed", "9", "--max-num-seqs", "1"];
    assert_eq!(system(&other_run, "1700000000"), (model, fingerprint.clone()));
    let named = system(&["--served-model-name", "org/demo"], EPOCH);
    assert_eq!(named, ("org/demo".to_owned(), fingerprint.clone()));
    assert_ne!(system(&["--dtype", "float32"], EPOCH).1, fingerprint);
}

#[test]
fn logprobs_have_the_shape_of_their_endpoint() {
    let folder = folder();
    let chat = CHAT.replace(r#""max_tokens":20"#, r#""logprobs":true,"top_logprobs":2"#);
    let text = TEXT.replace(r#""max_tokens":20"#, r#""logprobs":2"#);
    let run = run(folder.path(), &[&chat, &text], &[]);
    assert_eq!(run.code, Some(0), "{}", run.errors);
    let choice = |line: &str| -> Value {
        let line: Value = serde_json::from_str(line).unwrap();
        line["response"]["body"]["choices"][0].clone()
    };
    let (chat, text) = (choice(&run.lines[0]), choice(&run.lines[1]));
    let content = chat["logprobs"]["content"].as_array().unwrap();
    let joined: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert!(joined.contains(chat["message"]["content"].as_str().unwrap()), "{joined}");
    for token in content {
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(bytes, token["token"].as_str().unwrap().as_bytes());
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        // Greedy: the likeliest token is the one that is there.
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
    }
    let logprobs = &text["logprobs"];
    let lengths: Vec<usize> = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
        .iter()
        .map(|name| logprobs[name].as_array().unwrap().len())
        .collect();
    assert!(lengths[0] > 0 && lengths.iter().all(|length| *length == lengths[0]), "{logprobs}");
    assert_eq!(logprobs["text_offset"][0], 0);
}

const MESSAGE: &str = r#"{"custom_id":"a","params":{"model":"claude","max_tokens":20,"messages":[{"role":"user","content":[{"type":"text","text":"What is 45 + 45?"}]}]}}"#;
const IMAGE: &str = r#"{"custom_id":"b","params":{"model":"claude","max_tokens":20,"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}}"#;

#[test]
fn anthropics_requests_get_anthropics_results() {
    let folder = folder();
    let run = run(folder.path(), &[MESSAGE, IMAGE, "{"], &[]);
    let expected = [
        concat!(
            r#"{"custom_id":"a","result":{"type":"succeeded","message":{"#,
            r#""id":"msg_68a620d85b4992d8","type":"message","role":"assistant","#,
            r#""content":[{"type":"text","text":"90"}],"model":"demo","#,
            r#""stop_reason":"end_turn","stop_sequence":null,"#,
            r#""usage":{"input_tokens":14,"output_tokens":3}}}}"#,
        ),
        concat!(
            r#"{"custom_id":"b","result":{"type":"errored","error":{"type":"error","error":{"#,
            r#""type":"invalid_request_error","message":"params.messages: message 0 has an image "#,
            r#"whose `source` has no `type`"},"request_id":"req_f40af3bdf70652f2"}}}"#,
        ),
        concat!(
            r#"{"custom_id":null,"result":{"type":"errored","error":{"type":"error","error":{"#,
            r#""type":"invalid_request_error","message":"the line ends inside an object"},"#,
            r#""request_id":"req_583099411433af64"}}}"#,
        ),
    ];
    assert_eq!(run.lines, expected, "{}", run.errors);
    assert_eq!(run.code, Some(3));
}

#[test]
fn the_output_format_is_a_choice() {
    let folder = folder();
    let ours = r#"{"id":"x","prompt":"2+3=","n":1}"#;
    let object = |line: &str, flags: &[&str]| -> Value {
        let run = run(folder.path(), &[line], flags);
        assert_eq!((run.code, run.lines.len()), (Some(0), 1), "{}", run.errors);
        serde_json::from_str(&run.lines[0]).unwrap()
    };
    let openai = object(ours, &["--output-format", "openai"]);
    assert_eq!(openai["custom_id"], "x");
    assert_eq!(openai["response"]["body"]["object"], "text_completion");
    let openai = object(MESSAGE, &["--output-format", "openai"]);
    assert_eq!(openai["response"]["body"]["choices"][0]["message"]["content"], "90");
    let unnamed = object("{\"prompt\":\"2+3=\"}", &["--output-format", "openai", "--chat"]);
    assert_eq!(unnamed["custom_id"], "row-0");
    assert_eq!(unnamed["response"]["body"]["object"], "chat.completion");
    let simple = object(CHAT, &["--output-format", "simple", "--logprobs", "1"]);
    let names: Vec<&String> = simple.as_object().unwrap().keys().collect();
    let expected = ["custom_id", "method", "url", "body", "response", "finish_reason", "usage"];
    assert_eq!(names, expected);
    let full = object(CHAT, &["--output-format", "full"]);
    assert_eq!((&full["response"], full["outputs"].as_array().unwrap().len()), (&json!("90"), 1));
}

#[test]
fn batch_requests_say_themselves_whether_they_are_chat() {
    let folder = folder();
    let refused = run(folder.path(), &[CHAT], &["--chat"]);
    assert_eq!((refused.code, refused.lines.len()), (Some(2), 0));
    let message = "--chat: the rows are OpenAI batch requests, which say what they are";
    assert!(refused.errors.contains(message), "{}", refused.errors);
    let out = folder.path().join("out.csv");
    let flags = ["--output-format", "openai", "--out", out.to_str().unwrap()];
    let refused = run(folder.path(), &[r#"{"prompt":"a"}"#], &flags);
    assert_eq!((refused.code, out.exists()), (Some(2), false));
    assert!(refused.errors.contains("the lines are JSON, not CSV"), "{}", refused.errors);
}

#[test]
fn equal_ids_are_refused_with_both_lines() {
    let folder = folder();
    let out = folder.path().join("out.jsonl");
    let output = run(folder.path(), &[CHAT, TEXT, CHAT], &["--out", out.to_str().unwrap()]);
    assert_eq!(output.code, Some(2), "{}", output.errors);
    let message = "in.jsonl:3: custom_id \"chat\" is that of line 1 too";
    assert!(output.errors.contains("error[duplicate_id]: "), "{}", output.errors);
    assert!(output.errors.contains(message), "{}", output.errors);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the input alone");
    // A stream cannot be looked at before: the later row fails, the others are answered.
    let mut child = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-q", "--model", DEMO])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let rows = [CHAT, TEXT, CHAT].join("\n");
    child.stdin.take().unwrap().write_all(rows.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let status: Vec<_> = lines.iter().map(|line| &line["response"]["status_code"]).collect();
    assert_eq!(status, [200, 200, 400]);
    assert_eq!(lines[2]["response"]["body"]["error"]["code"], "duplicate_id");
}
