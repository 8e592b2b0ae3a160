//! Every field of every endpoint through the program: it is done, refused by name, or named as one
//! that changes nothing. The tables are those of docs/REQUESTS.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

pub const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
pub const ENCODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");
const HEARS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_sounds/multilingual");
pub const CROSS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_scores/bert");

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    Refused,
    Noted,
}

use Fate::{Done, Noted, Refused};

/// A field with a value that asks for something, as JSON.
type Field = (&'static str, &'static str, Fate);

const TOOL: &str = r#"[{"type":"function","function":{"name":"f","parameters":{}}}]"#;
const SCHEMA: &str = r#"{"type":"json_object","schema":{"type":"object"}}"#;

/// Of chat and completions alike: OpenAI's, then vLLM's.
const SAMPLING: &[Field] = &[
    ("model", r#""m""#, Done),
    ("frequency_penalty", "0.5", Done),
    ("presence_penalty", "0.5", Done),
    ("logit_bias", r#"{"5":-1}"#, Done),
    ("max_tokens", "3", Done),
    ("n", "2", Done),
    ("seed", "7", Done),
    ("stop", r#"["x"]"#, Done),
    ("temperature", "0.5", Done),
    ("top_p", "0.5", Done),
    ("stream", "true", Refused),
    ("stream_options", r#"{"include_usage":true}"#, Noted),
    ("user", r#""u""#, Noted),
    ("best_of", "3", Refused),
    ("suffix", r#""s""#, Refused),
    ("top_k", "3", Done),
    ("min_p", "0.1", Done),
    ("repetition_penalty", "1.1", Done),
    ("use_beam_search", "true", Done),
    ("stop_token_ids", "[5]", Done),
    ("bad_words", r#"["x"]"#, Done),
    ("allowed_token_ids", "[5,6]", Done),
    ("ignore_eos", "true", Done),
    ("min_tokens", "1", Done),
    ("include_stop_str_in_output", "true", Done),
    ("skip_special_tokens", "false", Done),
    ("spaces_between_special_tokens", "false", Refused),
    ("truncate_prompt_tokens", "4", Done),
    ("prompt_logprobs", "1", Done),
    ("structured_outputs", r#"{"regex":"[0-9]"}"#, Done),
    ("response_format", SCHEMA, Done),
    ("guided_json", "{}", Refused),
    ("guided_regex", r#""a""#, Refused),
    ("guided_choice", r#"["a"]"#, Refused),
    ("guided_grammar", r#""a""#, Refused),
    ("logits_processors", r#"["a"]"#, Refused),
    ("vllm_xargs", r#"{"a":1}"#, Refused),
    ("return_token_ids", "true", Refused),
    ("return_tokens_as_token_ids", "true", Refused),
    ("mm_processor_kwargs", r#"{"a":1}"#, Refused),
    ("priority", "1", Refused),
    ("request_id", r#""a""#, Noted),
    ("cache_salt", r#""a""#, Noted),
    ("kv_transfer_params", r#"{"a":1}"#, Noted),
    ("no_such_field", "1", Noted),
];

const CHAT: &[Field] = &[
    ("echo", "true", Refused),
    ("audio", r#"{"voice":"a","format":"wav"}"#, Refused),
    ("function_call", r#"{"name":"f"}"#, Refused),
    ("functions", r#"[{"name":"f"}]"#, Refused),
    ("logprobs", "true", Done),
    ("max_completion_tokens", "3", Done),
    ("metadata", r#"{"a":"b"}"#, Noted),
    ("modalities", r#"["text","audio"]"#, Refused),
    ("prediction", r#"{"type":"content","content":"a"}"#, Noted),
    ("prompt_cache_key", r#""a""#, Noted),
    ("prompt_cache_retention", r#""24h""#, Noted),
    ("reasoning_effort", r#""low""#, Done),
    ("safety_identifier", r#""a""#, Noted),
    ("service_tier", r#""flex""#, Noted),
    ("store", "true", Noted),
    ("tools", TOOL, Done),
    ("verbosity", r#""low""#, Done),
    ("web_search_options", "{}", Refused),
    ("add_generation_prompt", "true", Done),
    ("continue_final_message", "false", Done),
    ("add_special_tokens", "true", Refused),
    ("documents", r#"[{"text":"a"}]"#, Done),
    ("chat_template", r#""a""#, Refused),
    ("chat_template_kwargs", r#"{"a":1}"#, Done),
    ("include_reasoning", "false", Done),
];

const COMPLETIONS: &[Field] = &[
    ("echo", "true", Done),
    ("logprobs", "2", Done),
    ("add_special_tokens", "false", Refused),
    ("prompt_embeds", r#""a""#, Refused),
    ("tools", TOOL, Refused),
    ("tool_choice", r#""required""#, Refused),
    ("chat_template_kwargs", r#"{"a":1}"#, Noted),
];

const RESPONSES: &[Field] = &[
    ("model", r#""m""#, Done),
    ("instructions", r#""be brief""#, Done),
    ("max_output_tokens", "3", Done),
    ("temperature", "0.5", Done),
    ("top_p", "0.5", Done),
    ("top_logprobs", "2", Done),
    ("include", r#"["message.output_text.logprobs"]"#, Done),
    ("metadata", r#"{"a":"b"}"#, Done),
    ("text", r#"{"format":{"type":"json_object"}}"#, Done),
    ("tools", r#"[{"type":"function","name":"f","parameters":{}}]"#, Done),
    ("tool_choice", r#""auto""#, Done),
    ("reasoning", r#"{"effort":"low"}"#, Done),
    ("background", "true", Refused),
    ("context_management", r#"[{"type":"compaction"}]"#, Refused),
    ("conversation", r#""a""#, Refused),
    ("max_tokens", "3", Refused),
    ("max_tool_calls", "3", Noted),
    ("n", "2", Refused),
    ("priority", "1", Refused),
    ("previous_response_id", r#""a""#, Refused),
    ("prompt", r#"{"id":"a"}"#, Refused),
    ("prompt_cache_key", r#""a""#, Noted),
    ("response_format", SCHEMA, Refused),
    ("safety_identifier", r#""a""#, Noted),
    ("service_tier", r#""flex""#, Noted),
    ("store", "true", Noted),
    ("stream", "true", Refused),
    ("stream_options", r#"{"include_obfuscation":true}"#, Noted),
    ("truncation", r#""auto""#, Refused),
    ("user", r#""u""#, Noted),
];

const ANTHROPIC: &[Field] = &[
    ("model", r#""m""#, Done),
    ("max_tokens", "3", Done),
    ("system", r#""be brief""#, Done),
    ("stop_sequences", r#"["x"]"#, Done),
    ("temperature", "0.5", Done),
    ("top_k", "3", Done),
    ("top_p", "0.5", Done),
    ("tools", r#"[{"name":"f","input_schema":{}}]"#, Done),
    ("thinking", r#"{"type":"disabled"}"#, Done),
    ("output_config", r#"{"effort":"low"}"#, Done),
    ("cache_control", r#"{"type":"ephemeral"}"#, Noted),
    ("container", r#""a""#, Refused),
    ("context_management", r#"{"edits":[{"type":"a"}]}"#, Refused),
    ("inference_geo", r#""us""#, Noted),
    ("mcp_servers", r#"[{"name":"a"}]"#, Refused),
    ("metadata", r#"{"user_id":"a"}"#, Noted),
    ("service_tier", r#""priority""#, Noted),
    ("stream", "true", Refused),
    ("n", "2", Refused),
];

const EMBEDDINGS: &[Field] = &[
    ("model", r#""m""#, Done),
    ("encoding_format", r#""base64""#, Done),
    ("truncate_prompt_tokens", "4", Done),
    ("add_special_tokens", "false", Done),
    ("use_activation", "false", Done),
    ("user", r#""u""#, Noted),
    ("input_type", r#""query""#, Noted),
    ("priority", "1", Refused),
    ("messages", r#"[{"role":"user","content":"a"}]"#, Refused),
    ("chat_template", r#""a""#, Refused),
    ("chat_template_kwargs", r#"{"a":1}"#, Refused),
    ("embed_dtype", r#""fp8""#, Refused),
    ("endianness", r#""big""#, Refused),
    ("normalize", "false", Refused),
    ("mm_processor_kwargs", r#"{"a":1}"#, Refused),
];

const RECORDINGS: &[Field] = &[
    ("model", r#""m""#, Done),
    ("language", r#""en""#, Done),
    ("prompt", r#""a""#, Done),
    ("response_format", r#""verbose_json""#, Done),
    ("temperature", "0.5", Done),
    ("seed", "1", Done),
    ("top_p", "0.5", Done),
    ("max_tokens", "3", Done),
    ("repetition_penalty", "1.5", Done),
    ("user", r#""u""#, Noted),
    ("chunking_strategy", r#"{"type":"server_vad"}"#, Refused),
    ("file", r#""a.wav""#, Refused),
    ("hotwords", r#""a""#, Refused),
    ("include", r#"["logprobs"]"#, Refused),
    ("known_speaker_names", r#"["a"]"#, Refused),
    ("known_speaker_references", r#"["a"]"#, Refused),
    ("logprobs", "1", Refused),
    ("n", "2", Refused),
    ("priority", "1", Refused),
    ("prompt_logprobs", "1", Refused),
    ("stream", "true", Refused),
    ("timestamp_granularities", r#"["word"]"#, Refused),
    ("to_language", r#""de""#, Refused),
    ("use_beam_search", "true", Refused),
    ("vad_filter", "true", Refused),
    ("guided_json", "{}", Refused),
    ("lora_request", r#"{"a":1}"#, Refused),
];

const RERANK: &[Field] = &[
    ("model", r#""m""#, Done),
    ("top_n", "1", Done),
    ("truncate_prompt_tokens", "16", Done),
    ("use_activation", "false", Done),
    ("max_tokens_per_doc", "4", Done),
    ("return_documents", "false", Noted),
    ("rank_fields", r#"["a"]"#, Noted),
    ("user", r#""u""#, Noted),
    ("priority", "1", Refused),
    ("instruction", r#""a""#, Refused),
    ("activation", "true", Refused),
    ("chat_template", r#""a""#, Refused),
];

pub fn run(folder: &Path, model: &str, rows: &[Value], flags: &[&str]) -> Output {
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    fs::write(folder.join("in.jsonl"), lines.join("\n")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "--model", model, "-i", "in.jsonl", "--threads", "1"])
        .args(flags)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Runs a request for each field; checks that each has the fate of its table.
#[track_caller]
fn check(url: &str, model: &str, base: &Value, tables: &[&[Field]]) {
    let folder = tempfile::tempdir().unwrap();
    let fields: Vec<&Field> = tables.iter().copied().flatten().collect();
    let names: BTreeSet<&str> = fields.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names.len(), fields.len(), "each field once");
    let row = |(index, (name, value, _)): (usize, &&Field)| {
        let mut body = base.clone();
        body[name] = serde_json::from_str(value).unwrap();
        match url {
            "messages" => json!({"custom_id": index.to_string(), "params": body}),
            url => json!({"custom_id": index.to_string(), "url": url, "body": body}),
        }
    };
    let rows: Vec<Value> = fields.iter().enumerate().map(row).collect();
    let output = run(folder.path(), model, &rows, &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), rows.len(), "{said}");
    for (line, (name, _, fate)) in lines.iter().zip(fields) {
        let error = match url {
            "messages" => &line["result"]["error"]["error"],
            _ => &line["response"]["body"]["error"],
        };
        let is_noted = said.contains(&format!("`{name}` of the request changes nothing"));
        let found = match (error["message"].as_str(), is_noted) {
            (Some(message), false) => {
                assert!(message.contains(name) && message.contains("not supported"), "{message}");
                Refused
            }
            (None, true) => Noted,
            (None, false) => Done,
            (Some(message), true) => panic!("{name}: {message}"),
        };
        assert_eq!(found, *fate, "{url} {name}: {line}\n{said}");
    }
}

/// The section of the documentation that lists a table, by its heading.
const SECTIONS: &[(&str, &[&[Field]])] = &[
    ("/v1/chat/completions", &[SAMPLING, CHAT]),
    ("/v1/completions", &[SAMPLING, COMPLETIONS]),
    ("/v1/responses", &[RESPONSES]),
    ("Anthropic's messages", &[ANTHROPIC]),
    ("/v1/audio/transcriptions", &[RECORDINGS]),
    ("/v1/embeddings", &[EMBEDDINGS]),
    ("/v1/score and /v1/rerank", &[RERANK]),
];

#[test]
fn the_documentation_lists_every_field_with_its_fate() {
    let page = include_str!("../../docs/REQUESTS.md");
    for (heading, tables) in SECTIONS {
        let section = page.split(&format!("\n## {heading}\n")).nth(1).expect(heading);
        let section = section.split("\n## ").next().unwrap();
        for (name, _, fate) in tables.iter().copied().flatten() {
            let row = match fate {
                Done => "| done |",
                Refused => "| refused |",
                Noted => "| noted |",
            };
            let is_there = |line: &str| line.contains(row) && line.contains(&format!("`{name}`"));
            let is_unknown = *name == "no_such_field";
            assert!(is_unknown || section.lines().any(is_there), "{heading}: {name} {fate:?}");
        }
    }
}

fn asked() -> Value {
    json!({"messages": [{"role": "user", "content": "2+3="}], "max_tokens": 2, "temperature": 1})
}

#[test]
fn every_field_of_a_chat_request_is_done_refused_or_noted() {
    check("/v1/chat/completions", DEMO, &asked(), &[SAMPLING, CHAT]);
}

#[test]
fn every_field_of_a_completions_request_is_done_refused_or_noted() {
    let base = json!({"prompt": "2+3=", "max_tokens": 2, "temperature": 1});
    check("/v1/completions", DEMO, &base, &[SAMPLING, COMPLETIONS]);
}

#[test]
fn every_field_of_a_responses_request_is_done_refused_or_noted() {
    check("/v1/responses", DEMO, &json!({"input": "2+3=", "max_output_tokens": 2}), &[RESPONSES]);
}

#[test]
fn every_field_of_anthropics_request_is_done_refused_or_noted() {
    check("messages", DEMO, &asked(), &[ANTHROPIC]);
}

#[test]
fn every_field_of_requests_for_vectors_and_scores_is_done_refused_or_noted() {
    check("/v1/embeddings", ENCODER, &json!({"input": "the cat"}), &[EMBEDDINGS]);
    let ranking = json!({"query": "the cat", "documents": ["a man", "a cat sits"]});
    check("/v1/rerank", CROSS, &ranking, &[RERANK]);
}

#[test]
fn every_field_of_a_request_for_a_transcript_is_done_refused_or_noted() {
    let file = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/sound/low.mp3")).unwrap();
    let file = vllm_batch::cli::input::base64::encode(&file);
    let base = json!({"file_url": format!("data:audio/mpeg;base64,{file}"), "max_tokens": 4});
    for url in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        check(url, HEARS, &base, &[RECORDINGS]);
    }
}

#[test]
fn fields_inside_of_fields_are_named_too() {
    let folder = tempfile::tempdir().unwrap();
    let chat = |fields: Value| {
        let mut body = asked();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"custom_id": "a", "url": "/v1/chat/completions", "body": body})
    };
    let schema = json!({"name": "n", "description": "d", "schema": {"type": "object"}});
    let tool = json!({"name": "f", "strict": true, "parameters": {"type": "object"}});
    for (fields, wanted) in [
        (
            json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
            "`response_format.json_schema.description` of the request changes nothing",
        ),
        (
            json!({"tools": [{"type": "function", "function": tool}]}),
            "`tools[].strict` of the request changes nothing",
        ),
        (json!({"verbosity": "low"}), "does not read `verbosity`, so it changes nothing"),
        (json!({"reasoning_effort": "low"}), "does not read `reasoning_effort`"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
            "does not show `tools`",
        ),
        (json!({"documents": [{"text": "a"}]}), "does not show `documents`"),
    ] {
        let output = run(folder.path(), DEMO, &[chat(fields.clone())], &["--max-tokens", "2"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(wanted), "{fields}: {said}");
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
    // A field of the line, and one that is over a flag.
    let mut row = chat(json!({"temperature": 0}));
    row["metadata"] = json!({"a": 1});
    let output = run(folder.path(), DEMO, &[row], &["--temperature", "1"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`metadata` of the request changes nothing"), "{said}");
    assert!(said.contains("`temperature` of the request is over --temperature"), "{said}");
}

#[test]
fn a_schema_of_an_object_is_kept_to() {
    let folder = tempfile::tempdir().unwrap();
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}},
        "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_object", "schema": schema});
    let row = json!({"messages": [{"role": "user", "content": "hi"}], "response_format": format});
    let mut body = row.clone();
    body["max_tokens"] = json!(200);
    let request = json!({"custom_id": "a", "url": "/v1/chat/completions", "body": body});
    let flags = ["--temperature", "0", "--max-tokens", "200", "--frequency-penalty", "2"];
    let answers = |row: &Value| -> Value {
        let output = run(folder.path(), DEMO, std::slice::from_ref(row), &flags);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for text in [
        answers(&row)["response"].take(),
        answers(&request)["response"]["body"]["choices"][0]["message"]["content"].take(),
    ] {
        let object: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        assert!(object["a"].is_boolean() && object.as_object().unwrap().len() == 1, "{object}");
    }
}

#[test]
fn a_response_has_openais_form() {
    let folder = tempfile::tempdir().unwrap();
    let line = |body: Value| json!({"custom_id": "a", "url": "/v1/responses", "body": body});
    let rows = [
        line(json!({"input": "What is 45 + 45?", "max_output_tokens": 20, "temperature": 0,
            "metadata": {"k": "v"}})),
        json!({"custom_id": "b", "url": "/v1/responses", "body": {"input": "What is 45 + 45?",
            "max_output_tokens": 1, "temperature": 0,
            "include": ["message.output_text.logprobs"]}}),
        json!({"custom_id": "c", "url": "/v1/responses",
            "body": {"input": "a", "previous_response_id": "r"}}),
    ];
    let output = run(folder.path(), DEMO, &rows, &["-q"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let body = &lines[0]["response"]["body"];
    assert_eq!(
        (&body["object"], &body["status"]),
        (&json!("response"), &json!("completed")),
        "{said}"
    );
    let message = &body["output"][0];
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    let part = json!({"type": "output_text", "text": "90", "annotations": [], "logprobs": []});
    assert_eq!(message["content"], json!([part]));
    assert_eq!(body["metadata"], json!({"k": "v"}));
    assert_eq!((&body["max_output_tokens"], &body["tool_choice"]), (&json!(20), &json!("auto")));
    // As the same chat of the other endpoint: 14 and 3 tokens.
    let usage = &body["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(14), &json!(3)));
    let cut = &lines[1]["response"]["body"];
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let logprobs = cut["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 1);
    let error = &lines[2]["response"]["body"]["error"];
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("unsupported_field"), &json!("previous_response_id"))
    );
}

#[test]
fn a_file_of_unknown_endpoints_is_refused_and_a_row_of_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let image = json!({"custom_id": "a", "url": "/v1/images", "body": {"prompt": "a"}});
    let text = json!({"custom_id": "b", "url": "/v1/completions",
        "body": {"prompt": "2+3=", "max_tokens": 1}});
    let refused = run(folder.path(), "no_such_model", &[image.clone(), image.clone()], &[]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for wanted in ["/v1/images", "/v1/chat/completions", "/v1/responses", "/v2/rerank"] {
        assert!(said.contains(wanted), "{said}");
    }
    let mixed = run(folder.path(), DEMO, &[image, text], &[]);
    assert_eq!(mixed.status.code(), Some(3));
    let lines = String::from_utf8(mixed.stdout).unwrap();
    let codes: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["response"]["status_code"].take())
        .collect();
    assert_eq!(codes, [404, 200]);
}

#[test]
fn old_fine_tuning_rows_bring_tools() {
    let folder = tempfile::tempdir().unwrap();
    let row = json!({
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null,
                "function_call": {"name": "flag", "arguments": "{\"on\": true}"}},
            {"role": "function", "name": "flag", "content": "7"},
        ],
        "functions": [{"name": "flag", "parameters": {"type": "object",
            "properties": {"on": {"type": "boolean"}}, "required": ["on"],
            "additionalProperties": false}}],
        "function_call": {"name": "flag"},
    });
    let template = "{% for m in messages %}{{ m.role }} {% if m.tool_calls %}\
                    {{ m.tool_calls[0].function.arguments.on }}{% endif %}{{ m.content }}\
                    {% endfor %}{{ tools[0].function.name }}";
    let flags = ["--chat-template", template, "--max-tokens", "200", "--frequency-penalty", "2"];
    let output = run(folder.path(), DEMO, &[row], &flags);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["tool_calls"][0]["function"]["name"], "flag", "{answer}");
    let old = json!({"custom_id": "a", "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "a"}], "functions": [{"name": "f"}]}});
    let output = run(folder.path(), DEMO, &[old], &[]);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    let message = line["response"]["body"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("functions: not supported"), "{message}");
}
