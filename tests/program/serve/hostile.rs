//! Bodies that ask for more than there is: numbers, lists, depths.

use serde_json::{Value, json};

use super::DEMO;
use super::client::Server;

#[test]
fn numbers_without_measure_are_refused_by_name() {
    let server = Server::start(DEMO, &[]);
    let huge = 10_u64.pow(18);
    for (path, more, param) in [
        ("chat/completions", json!({"n": huge}), "n"),
        ("chat/completions", json!({"n": 100_000}), "n"),
        ("chat/completions", json!({"n": 0}), "n"),
        ("chat/completions", json!({"n": -1}), "n"),
        ("chat/completions", json!({"max_tokens": huge}), "max_tokens"),
        ("chat/completions", json!({"min_tokens": huge}), "min_tokens"),
        ("chat/completions", json!({"top_k": huge}), "top_k"),
        ("chat/completions", json!({"temperature": 1e300}), "temperature"),
        ("chat/completions", json!({"top_p": -1}), "top_p"),
        ("chat/completions", json!({"seed": 1e30}), "seed"),
        ("chat/completions", json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        ("chat/completions", json!({"logprobs": true, "top_logprobs": -1}), "top_logprobs"),
        ("completions", json!({"n": huge}), "n"),
        ("completions", json!({"stop": {"a": 1}}), "stop"),
    ] {
        let mut body = json!({"prompt": "a", "max_tokens": 2,
                              "messages": [{"role": "user", "content": "a"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post(&format!("/v1/{path}"), &body);
        assert_eq!(reply.status, 400, "{more}: {reply:?}");
        assert_eq!(reply.json()["error"]["param"], param, "{more}: {reply:?}");
    }
    let many = json!({"prompt": vec!["a"; 1025], "max_tokens": 1});
    let reply = server.post("/v1/completions", &many);
    assert_eq!(reply.json()["error"]["code"], "several_prompts", "{reply:?}");
    let long = json!({"prompt": "a".repeat(3 << 20), "max_tokens": 1});
    let reply = server.post("/v1/completions", &long);
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{reply:?}");
    assert!(reply.body.len() < 1000, "{reply:?}");
    let ids: serde_json::Map<_, _> = (0..50_000).map(|id| (id.to_string(), json!(1))).collect();
    let reply = server.post("/v1/completions", &json!({"prompt": "a", "logit_bias": ids}));
    let error = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(reply.status == 400 && error.ends_with(" ...") && error.len() < 2100, "{error}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn logprobs_of_all_tokens_are_given_where_the_server_says_so() {
    let asked = [json!({"logprobs": -1}), json!({"prompt_logprobs": -1}), json!({"logprobs": 21})];
    let body = |more: &Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let server = Server::start(DEMO, &[]);
    for more in &asked {
        let reply = server.post("/v1/completions", &body(more));
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.ends_with("which is greater than max allowed: 20"), "{message}");
    }
    for more in [json!({"logprobs": 20}), json!({"prompt_logprobs": 20})] {
        assert_eq!(server.post("/v1/completions", &body(&more)).status, 200);
    }
    let server = Server::start(DEMO, &["--max-logprobs", "-1"]);
    for more in &asked {
        assert_eq!(server.post("/v1/completions", &body(more)).status, 200);
    }
}

#[test]
fn what_is_nested_without_end_is_refused() {
    let server = Server::start(DEMO, &[]);
    let paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/tokenize",
        "/detokenize",
    ];
    let fields = ["metadata", "messages", "tools", "response_format", "prompt", "stop", "tokens"];
    for path in paths {
        for field in fields {
            for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
                let (open, close) = (open.repeat(60_000), close.repeat(60_000));
                let body = format!("{{\"{field}\":{open}1{close}}}");
                let reply = server.ask(&format!("POST {path}"), &[], &body);
                assert_eq!(reply.status, 400, "{path} {field}: {reply:?}");
                assert!(reply.body.len() < 1000, "{path} {field}: {reply:?}");
            }
        }
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn paths_that_are_no_text_are_refused_in_the_form_of_the_api() {
    let server = Server::start(DEMO, &[]);
    for (path, status, code) in [
        ("/v1/models/%ff", 400, "invalid_url"),
        ("/v1/models/..%2f..%2fetc%2fpasswd", 404, "model_not_found"),
        ("/v1/models/%00", 404, "model_not_found"),
        ("/v1/../../etc/passwd", 404, "not_found"),
        ("/v1/models/", 404, "not_found"),
    ] {
        let reply = server.get(path);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (status, &json!(code)),
            "{path}"
        );
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
}

#[test]
fn a_schema_that_calls_itself_is_an_answer_or_refused() {
    let server = Server::start(DEMO, &[]);
    let nested = |depth: usize| {
        let schema = json!({"type": "integer"});
        (0..depth).fold(
            schema,
            |inner, _| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]}),
        )
    };
    for schema in [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"type": "array", "items": {"$ref": "#"}}),
        json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"type": "string", "pattern": "(a*)*(b*)*{1000}{1000}{1000}"}),
        json!({"type": "string", "pattern": "a{1000000000}"}),
        json!({"enum": vec!["x".repeat(1000); 1000]}),
        nested(30),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3,
                          "response_format": format});
        let reply = server.post("/v1/chat/completions", &body);
        assert!(matches!(reply.status, 200 | 400), "{}: {reply:?}", format["json_schema"]);
    }
    assert_eq!(server.get("/health").status, 200);
}
