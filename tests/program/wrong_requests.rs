//! Errors of requests: each names the field that is wrong as its endpoint calls it.

use serde_json::{Value, json};

use crate::requests::{CROSS, DEMO, ENCODER, run};

/// A body with something wrong, what its error says, and the field that it names.
type Wrong = (&'static str, &'static str, Option<&'static str>);

const NO_SCHEMA: &str = r#"{"type":"json_schema","schema":{"type":"nonsense"}}"#;

const WRONG_RESPONSES: &[Wrong] = &[
    (r#""input":"a","max_output_tokens":0"#, "max_output_tokens must", Some("max_output_tokens")),
    (r#""input":"a","max_output_tokens":"x""#, "max_output_tokens: exp", Some("max_output_tokens")),
    (r#""input":"a","top_logprobs":99999"#, "sample top_logprobs of 99999", Some("top_logprobs")),
    (r#""input":"a","text":{"format":NO_SCHEMA}"#, "text.format: ", Some("text.format")),
    (r#""input":"a","text":{"format":{"type":"x"}}"#, "text.format: ", Some("text.format")),
    (r#""input":"a","text":{"verbosity":5}"#, "text.verbosity: expected", Some("text.verbosity")),
    (r#""input":"a","reasoning":{"effort":5}"#, "reasoning.effort: exp", Some("reasoning.effort")),
    (r#""input":"a","tools":[{"type":"function"}]"#, "tools: tool 0 has no `name`", Some("tools")),
    (
        r#""input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function"}"#,
        "tool_choice: of type \"function\" without a `name`",
        Some("tool_choice"),
    ),
    (
        r#""input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":"must""#,
        r#"{"type": "function", "name": "..."}"#,
        Some("tool_choice"),
    ),
    (
        r#""input":[{"role":"user","content":5}],"instructions":"b""#,
        "body.input: item 0 has",
        Some("input"),
    ),
    (r#""input":[{"role":"user"}]"#, "body.input: item 0 has no `content`", Some("input")),
    (
        r#""input":[{"type":"function_call","call_id":"a","name":"f","arguments":"{"}]"#,
        "body.input: item 0 of type 'function_call' has `arguments` that are no JSON",
        Some("input"),
    ),
    (
        r#""input":[{"type":"function_call_output","call_id":"a","output":5}]"#,
        "body.input: item 0 has `output` that is neither",
        Some("input"),
    ),
    (r#""input":"LONG""#, "prompt has", Some("input")),
];

const WRONG_CHATS: &[Wrong] = &[
    (r#""max_tokens":0"#, "max_tokens must be", Some("max_tokens")),
    (r#""max_completion_tokens":0"#, "max_completion_tokens must", Some("max_completion_tokens")),
    (r#""logprobs":true,"top_logprobs":-2"#, "top_logprobs must", Some("top_logprobs")),
    (r#""logprobs":true,"top_logprobs":99999"#, "sample top_logprobs of", Some("top_logprobs")),
    (r#""response_format":NO_SCHEMA"#, "response_format: ", Some("response_format")),
    (r#""structured_outputs":{"regex":"("}"#, "structured_outputs: ", None),
    (r#""reasoning_effort":5"#, "reasoning_effort: expected", Some("reasoning_effort")),
    (
        r#""tools":[{"type":"function","function":{"name":"f","parameters":{"type":"x"}}}],"tool_choice":"required""#,
        "tools: ",
        Some("tools"),
    ),
];

const WRONG_COMPLETIONS: &[Wrong] = &[
    (r#""prompt":"a","max_tokens":0"#, "max_tokens must be", Some("max_tokens")),
    (r#""prompt":7"#, "body.prompt: expected", Some("prompt")),
    (r#""prompt":"a","response_format":NO_SCHEMA"#, "response_format: ", Some("response_format")),
    (r#""prompt":"LONG""#, "prompt has", Some("prompt")),
];

const WRONG_MESSAGES: &[Wrong] = &[
    (r#""max_tokens":0"#, "max_tokens must be", None),
    (r#""stop_sequences":[""]"#, "stop_sequences cannot contain", None),
    (r#""output_config":{"format":NO_SCHEMA}"#, "output_config.format: ", None),
    (r#""output_format":NO_SCHEMA"#, "output_format: ", None),
    (
        r#""thinking":{"type":"enabled","budget_tokens":5}"#,
        "thinking.budget_tokens: the run does not know",
        None,
    ),
];

const WRONG_EMBEDDINGS: &[Wrong] = &[
    (r#""input":7"#, "body.input: expected", Some("input")),
    (r#""input":"a","dimensions":5"#, "dimensions: the model", Some("dimensions")),
    (r#""input":"LONG""#, "the text has", Some("input")),
];

const WRONG_RANKINGS: &[Wrong] = &[
    (r#""query":7,"documents":["a"]"#, "query: expected", Some("query")),
    (r#""query":"a","documents":[]"#, "documents: at least", Some("documents")),
    (r#""query":"a","documents":["a"],"top_n":-1"#, "top_n must be", Some("top_n")),
];

#[test]
fn errors_name_fields_as_the_request_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let chat = r#""messages":[{"role":"user","content":"a"}],"#;
    // Names that other endpoints have.
    let foreign = ["max_tokens", "message 0", "message 1", "response_format", "reasoning_effort"];
    for (url, model, base, table) in [
        ("/v1/responses", DEMO, "", WRONG_RESPONSES),
        ("/v1/chat/completions", DEMO, chat, WRONG_CHATS),
        ("/v1/completions", DEMO, "", WRONG_COMPLETIONS),
        ("messages", DEMO, chat, WRONG_MESSAGES),
        ("/v1/embeddings", ENCODER, "", WRONG_EMBEDDINGS),
        ("/v1/rerank", CROSS, "", WRONG_RANKINGS),
    ] {
        let row = |(index, (wrong, ..)): (usize, &Wrong)| {
            let wrong = wrong.replace("NO_SCHEMA", NO_SCHEMA).replace("LONG", &"a b ".repeat(9999));
            let body: Value = serde_json::from_str(&format!("{{{base}{wrong}}}")).unwrap();
            match url {
                "messages" => json!({"custom_id": index.to_string(), "params": body}),
                url => json!({"custom_id": index.to_string(), "url": url, "body": body}),
            }
        };
        let rows: Vec<Value> = table.iter().enumerate().map(row).collect();
        let output = run(folder.path(), model, &rows, &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        assert_eq!(lines.len(), rows.len(), "{said}");
        for (line, (wrong, wanted, param)) in lines.iter().zip(table) {
            let error = match url {
                "messages" => &line["result"]["error"]["error"],
                _ => &line["response"]["body"]["error"],
            };
            let message =
                error["message"].as_str().unwrap_or_else(|| panic!("{url} {wrong}: {line}"));
            assert!(message.contains(wanted), "{url} {wrong}: {message}");
            assert_eq!(error["param"].as_str(), *param, "{url} {wrong}: {error}");
            let is_foreign = |name: &&str| url == "/v1/responses" && message.contains(*name);
            assert_eq!(foreign.iter().find(|name| is_foreign(name)), None, "{wrong}: {message}");
        }
    }
}
