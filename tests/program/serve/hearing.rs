//! Chats with recordings, in models that hear: a row, a line of a batch and a request of a server
//! have one answer.

use serde_json::{Value, json};

use super::client::Server;
use crate::piped::{command, errors, fed, lines};

const HEARS: &str = "testdata/golden_hearing/qwen2_5_omni";
const GREEDY: [&str; 4] = ["--temperature", "0", "--max-tokens", "8"];

fn encoded(file: &str) -> String {
    vllm_batch::cli::input::base64::encode(&std::fs::read(file).unwrap())
}

/// A recording, an image and a question about them.
fn messages() -> Value {
    let sound = encoded("testdata/sound/mono_pcm_16.wav");
    let image = format!("data:image/png;base64,{}", encoded("testdata/media/wide2.png"));
    json!([{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "text", "text": "Which of them?"}
    ]}])
}

#[test]
fn a_chat_that_is_heard_has_one_answer_however_it_is_asked() {
    let body = json!({"messages": messages(), "temperature": 0, "max_tokens": 8, "seed": 3});
    let line = json!({"custom_id": "a", "url": "/v1/chat/completions", "body": body});
    let line = lines(&fed(command("run", HEARS, &[]), &format!("{line}\n")));
    let message = |response: &Value| response["choices"][0]["message"]["content"].clone();
    let expected = message(&line[0]["response"]["body"]);
    assert!(expected.is_string(), "{}", line[0]);
    let row = json!({"messages": messages()});
    let row = lines(&fed(command("run", HEARS, &GREEDY), &format!("{row}\n")));
    assert_eq!(row[0]["response"], expected);
    let server = Server::start(HEARS, &[]);
    let reply = server.post("/v1/chat/completions", &body).json();
    assert_eq!(message(&reply), expected, "{reply}");
    assert_eq!(reply["usage"], line[0]["response"]["body"]["usage"]);
}

#[test]
fn rows_of_recordings_are_planned_answered_and_refused() {
    let rows = [
        json!({"id": 1, "prompt": "What?", "audio": "testdata/sound/mono_pcm_16.wav"}),
        json!({"id": 2, "audio": "testdata/sound/mono_pcm_16.wav"}),
        json!({"id": 3, "prompt": "Text <|AUDIO|> alone", "audio": []}),
        json!({"id": 4, "prompt": "What?", "audio": "testdata/sound/none.wav"}),
    ];
    let input: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let flags = ["--allowed-local-media-path", "testdata/sound"];
    let output = fed(command("run", HEARS, &[&GREEDY[..], &flags].concat()), &input);
    let answers = lines(&output);
    let codes: Vec<_> = answers.iter().map(|row| row["error"]["code"].as_str()).collect();
    assert_eq!(codes, [None, None, None, Some("media_not_found")], "{}", errors(&output));
    assert!(errors(&output).contains("Media: 2, "), "{}", errors(&output));
    let num_tokens = |row: &Value| row["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(num_tokens(&answers[0]) > num_tokens(&answers[1]), "it has a text, too");

    let plan = fed(command("plan", HEARS, &flags), &input);
    let said = String::from_utf8(plan.stdout).unwrap();
    assert!(said.contains("Tokens of 2 recordings: "), "{said}");
    let alone = ["--language-model-only"];
    let output = fed(command("run", HEARS, &[&GREEDY[..], &flags, &alone].concat()), &input);
    let answers = lines(&output);
    let codes: Vec<_> = answers.iter().map(|row| row["error"]["code"].as_str()).collect();
    let refused = Some("no_audio_input");
    assert_eq!(codes, [refused, refused, None, Some("media_not_found")]);
}
