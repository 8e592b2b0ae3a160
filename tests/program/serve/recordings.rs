//! Recordings: forms and lines of OpenAI's audio endpoints.

use std::io::Write;

use serde_json::{Value, json};

use super::client::{Reply, Server, read_reply};
use crate::piped::{command, fed, lines};

const HEARS: &str = "testdata/golden_sounds/multilingual";

fn recording() -> Vec<u8> {
    std::fs::read("testdata/sound/mono_pcm_16.wav").unwrap()
}

/// What `run` makes of requests.
fn by_run(requests: &[(&str, Value)]) -> Vec<Value> {
    let line = |(index, (url, body)): (usize, &(&str, Value))| {
        format!("{}\n", json!({"custom_id": index.to_string(), "url": url, "body": body}))
    };
    let input: String = requests.iter().enumerate().map(line).collect();
    let output = fed(command("run", HEARS, &[]), &input);
    lines(&output).iter().map(|line| line["response"].clone()).collect()
}

/// Sends a form with the recording.
fn form(server: &Server, path: &str, fields: &[(&str, &str)]) -> Reply {
    let mut body = Vec::new();
    for (name, value) in fields {
        let head = format!("Content-Disposition: form-data; name=\"{name}\"");
        body.extend(format!("--b\r\n{head}\r\n\r\n{value}\r\n").bytes());
    }
    let head = "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"";
    body.extend(format!("--b\r\n{head}\r\nContent-Type: audio/wav\r\n\r\n").bytes());
    body.extend(recording());
    body.extend(b"\r\n--b--\r\n");
    let mut stream = server.connect();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    read_reply(stream)
}

#[test]
fn a_form_is_answered_as_the_line_of_run() {
    let uri = vllm_batch::cli::input::base64::encode(&recording());
    let body = |more: Value| {
        let mut body = json!({"file_url": format!("data:audio/wav;base64,{uri}"),
                              "temperature": 0, "max_tokens": 9});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let [transcriptions, translations] = ["/v1/audio/transcriptions", "/v1/audio/translations"];
    let verbose = json!({"response_format": "verbose_json", "language": "de"});
    let expected = by_run(&[
        (transcriptions, body(json!({}))),
        (transcriptions, body(verbose)),
        (translations, body(json!({"prompt": "a"}))),
        (transcriptions, body(json!({"language": "Klingon"}))),
        (transcriptions, body(json!({"response_format": "srt"}))),
    ]);
    assert!(expected[0]["body"]["text"].is_string(), "{}", expected[0]);
    assert_eq!(expected[0]["body"]["usage"], json!({"type": "duration", "seconds": 1}));
    let told = &expected[1]["body"];
    assert_eq!((&told["task"], &told["language"]), (&json!("transcribe"), &json!("german")));
    assert!(told["duration"].is_number() && told["segments"].is_array(), "{told}");
    let statuses: Vec<_> = expected.iter().map(|one| one["status_code"].as_u64()).collect();
    assert_eq!(statuses, [Some(200), Some(200), Some(200), Some(400), Some(400)]);

    let server = Server::start(HEARS, &[]);
    let plain = [("temperature", "0"), ("max_tokens", "9")];
    let asked = [
        (transcriptions, &[][..]),
        (transcriptions, &[("response_format", "verbose_json"), ("language", "de")]),
        (translations, &[("prompt", "a")]),
        (transcriptions, &[("language", "Klingon")]),
        (transcriptions, &[("response_format", "srt")]),
    ];
    for ((path, more), expected) in asked.iter().zip(&expected) {
        let reply = form(&server, path, &[&plain[..], more].concat());
        assert_eq!((reply.status, reply.json()), (status(expected), expected["body"].clone()));
    }
    let text =
        form(&server, transcriptions, &[&plain[..], &[("response_format", "text")]].concat());
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(Some(text.body.trim_end()), expected[0]["body"]["text"].as_str());
    let reply = server.post(transcriptions, &body(json!({})));
    assert_eq!(reply.json(), expected[0]["body"]);
    // What a flag says of recordings holds where the request and its url do not.
    let told = Server::start(HEARS, &["--language", "de", "--translate"]);
    let reply =
        form(&told, transcriptions, &[&plain[..], &[("response_format", "verbose_json")]].concat());
    assert_eq!(reply.json(), expected[1]["body"]);
    let wrong = form(&server, transcriptions, &[("model", "none")]);
    assert_eq!(
        (wrong.status, wrong.json()["error"]["code"].as_str()),
        (404, Some("model_not_found"))
    );
}

fn status(response: &Value) -> u16 {
    response["status_code"].as_u64().unwrap() as u16
}
