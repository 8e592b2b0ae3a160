//! Whole answers: those of `run`, whatever else is served.

use serde_json::{Value, json};

use super::DEMO;
use super::client::Server;
use crate::piped::{command, fed, lines, numbers};

/// What `run` makes of requests, by their urls: the bodies of its lines.
fn by_run(requests: &[(&str, Value)]) -> Vec<Value> {
    let line = |(index, (url, body)): (usize, &(&str, Value))| {
        format!("{}\n", json!({"custom_id": index.to_string(), "url": url, "body": body}))
    };
    let input: String = requests.iter().enumerate().map(line).collect();
    let output = fed(command("run", DEMO, &[]), &input);
    lines(&output).iter().map(|line| line["response"]["body"].clone()).collect()
}

/// An answer without what is of its time and its name.
fn told(mut body: Value) -> Value {
    for name in ["id", "created", "seed"] {
        body.as_object_mut().unwrap().remove(name);
    }
    body
}

#[test]
fn an_answer_is_that_of_run_whatever_else_is_served() {
    let server = Server::start(DEMO, &[]);
    let chat = |text: &str| json!([{"role": "user", "content": text}]);
    let mut requests: Vec<(&str, Value)> = Vec::new();
    for seed in 0..6 {
        requests.push((
            "/v1/completions",
            json!({"model": "demo", "prompt": "The quick", "max_tokens": 9 + seed, "seed": seed,
                   "temperature": 1.0, "n": 2, "logprobs": 2}),
        ));
        requests.push((
            "/v1/chat/completions",
            json!({"messages": chat("hello"), "seed": seed, "temperature": 0.8, "max_tokens": 12,
                   "logprobs": true, "top_logprobs": 1, "stop": ["e"]}),
        ));
        requests.push((
            "/v1/completions",
            json!({"prompt": [5, 6, 7, seed + 8], "echo": true, "logprobs": 1, "max_tokens": 1,
                   "temperature": 0, "seed": 1}),
        ));
    }
    let expected: Vec<Value> = by_run(&requests).into_iter().map(told).collect();
    let answered = std::thread::scope(|scope| {
        let asked: Vec<_> =
            requests.iter().map(|(url, body)| scope.spawn(|| server.post(url, body))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
    });
    for (((_, request), reply), expected) in requests.iter().zip(&answered).zip(expected) {
        let body = reply.json();
        assert_eq!(body["seed"], request["seed"], "{reply:?}");
        assert_eq!(reply.header("x-vllm-batch-seed").unwrap(), request["seed"].to_string());
        assert_eq!(told(body), expected, "{request}");
    }
}

#[test]
fn a_request_without_a_seed_says_the_one_that_it_had() {
    let server = Server::start(DEMO, &[]);
    let mut body = json!({"prompt": "a", "max_tokens": 24, "temperature": 1.5});
    let [first, second] = [(); 2].map(|()| server.post("/v1/completions", &body).json());
    assert_ne!(first["choices"], second["choices"]);
    body["seed"] = first["seed"].clone();
    let again = server.post("/v1/completions", &body).json();
    assert_eq!(again["choices"], first["choices"]);
}

#[test]
fn several_prompts_are_answered_in_one_list() {
    let server = Server::start(DEMO, &[]);
    let body = json!({"prompt": ["a", "b", "a"], "max_tokens": 16, "temperature": 1, "n": 2,
                      "seed": 3, "ignore_eos": true});
    let whole = server.post("/v1/completions", &body).json();
    let choices = whole["choices"].as_array().unwrap();
    let indices: Vec<_> = choices.iter().map(|choice| choice["index"].clone()).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    assert_eq!(whole["usage"]["completion_tokens"], 6 * 16);
    // The second is that of its own prompt, with the next seed.
    let alone = json!({"prompt": "b", "max_tokens": 16, "temperature": 1, "n": 2,
                       "seed": 4, "ignore_eos": true});
    let alone = server.post("/v1/completions", &alone).json();
    let texts = |choices: &[Value]| choices.iter().map(|c| c["text"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(&choices[2..4]), texts(alone["choices"].as_array().unwrap()));
    assert_ne!(texts(&choices[..2]), texts(&choices[4..]));
}

#[test]
fn messages_and_responses_are_answered_in_their_forms() {
    let server = Server::start(DEMO, &[]);
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "demo", "max_tokens": 4, "messages": messages});
    let message = server.post("/v1/messages", &body).json();
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    let counted = json!({"model": "demo", "messages": messages});
    let counted = server.post("/v1/messages/count_tokens", &counted).json();
    assert_eq!(counted["input_tokens"], message["usage"]["input_tokens"]);
    let error = server.post("/v1/messages", &json!({"model": "demo", "max_tokens": 4}));
    assert_eq!((error.status, &error.json()["type"]), (400, &json!("error")));
    let body = json!({"input": "hello", "max_output_tokens": 4});
    let response = server.post("/v1/responses", &body).json();
    assert_eq!(response["object"], "response");
    assert_eq!(response["output"][0]["content"][0]["text"], message["content"][0]["text"]);
}

#[test]
fn texts_become_tokens_and_back() {
    let server = Server::start(DEMO, &[]);
    let tokens = server.post("/tokenize", &json!({"prompt": "hello there"})).json();
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    let text = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).json();
    assert_eq!(text["prompt"], "<|bos|>hello there");
    let plain = json!({"prompt": "hello there", "add_special_tokens": false});
    let plain = server.post("/tokenize", &plain).json();
    assert_eq!(plain["tokens"].as_array().unwrap()[..], tokens["tokens"].as_array().unwrap()[1..]);
    let chat =
        json!({"messages": [{"role": "user", "content": "hello"}], "return_token_strs": true});
    let chat = server.post("/tokenize", &chat).json();
    assert!(
        chat["token_strs"]
            .as_array()
            .unwrap()
            .iter()
            .any(|token| token == "hello" || token.as_str().unwrap().starts_with('h'))
    );
    assert_eq!(server.get("/tokenizer_info").json()["eos_token"], "<|end|>");
    let wrong = server.post("/detokenize", &json!({"tokens": [1 << 20]}));
    assert_eq!(wrong.status, 400, "{wrong:?}");
}

#[test]
fn vectors_are_those_of_embed_as_numbers_and_as_base64() {
    let model = "testdata/golden_embeddings/bert";
    let server = Server::start(model, &[]);
    let output = fed(command("embed", model, &[]), "{\"text\":\"hello\"}\n");
    let expected = lines(&output)[0]["embedding"].clone();
    let body = json!({"input": ["hello", "hello"], "model": "bert"});
    let list = server.post("/v1/embeddings", &body).json();
    assert_eq!(list["data"][1]["embedding"], expected);
    let body = json!({"input": "hello", "encoding_format": "base64"});
    let coded = server.post("/v1/embeddings", &body).json();
    let coded = coded["data"][0]["embedding"].as_str().unwrap().to_owned();
    let bytes = vllm_batch::cli::input::base64::decode(&coded).unwrap();
    let values = bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
    assert_eq!(values.collect::<Vec<_>>(), numbers(&expected));
    let wrong = server.post("/v1/chat/completions", &json!({"messages": []}));
    assert_eq!(wrong.status, 404, "{wrong:?}");
}

#[test]
fn classes_are_those_of_the_command() {
    const MODEL: &str = "testdata/golden_classifiers/bert";
    let flags = ["--tokenizer", "testdata/golden_embeddings/bert"];
    let input = "{\"text\":\"The cat sits outside\"}\n{\"text\":\"A man\"}\n";
    let rows = lines(&fed(command("classify", MODEL, &flags), input));
    let texts = json!(["The cat sits outside", "A man"]);
    // What the model is says it too.
    for task in [&["--task", "classify"][..], &[]] {
        let server = Server::start(MODEL, &[&flags[..], task].concat());
        let body = server.post("/classify", &json!({"model": "bert", "input": texts})).json();
        assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("bert")));
        assert!(body["id"].as_str().unwrap().starts_with("classify-"), "{body}");
        let data = body["data"].as_array().unwrap();
        assert_eq!(data.len(), 2);
        for (index, (found, row)) in data.iter().zip(&rows).enumerate() {
            let expected = json!({
                "index": index, "label": row["label"], "probs": row["probs"], "num_classes": 3,
            });
            assert_eq!(*found, expected);
        }
        let raw = json!({"input": texts, "use_activation": false});
        let raw = server.post("/classify", &raw).json();
        assert_ne!(raw["data"][0]["probs"], data[0]["probs"]);
        assert_eq!(server.post("/classify", &json!({})).status, 400);
        assert_eq!(server.post("/v1/embeddings", &json!({"input": "a"})).status, 404);
    }
    let refused = Server::start(DEMO, &[]).post("/classify", &json!({"input": "a"}));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (404, &json!("unsupported_url"))
    );
}
