//! Rows with recordings: every spelling of a part, and recordings beside a prompt.

use serde_json::json;

use super::beside_media::*;
use super::*;
use crate::input::base64;
use vllm_batch_media::{MediaId, MediaKind};

fn id(name: &str) -> MediaId {
    MediaId::new(MediaKind::Sound, &wav(name))
}

fn audio() -> Value {
    json!({"type": "audio"})
}

fn turn(content: Value) -> Value {
    json!([{"role": "user", "content": content}])
}

#[test]
fn every_spelling_of_a_part_is_a_recording() {
    let data = base64::encode(&wav("a"));
    let uri = format!("data:audio/wav;base64,{data}");
    let spellings = [
        json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}),
        json!({"type": "input_audio", "input_audio": {"data": uri}}),
        json!({"input_audio": {"data": data, "format": "mp3"}}),
        json!({"type": "audio_url", "audio_url": {"url": uri}}),
        json!({"type": "audio_url", "audio_url": "a.wav", "uuid": "u"}),
        json!({"audio_url": {"url": "a.wav"}}),
        json!({"type": "audio", "audio": "a.wav"}),
        json!({"type": "audio", "audio": data, "text": null}),
        json!({"type": "audio", "audio": {"bytes": data, "path": "elsewhere.wav"}}),
        json!({"type": "audio", "audio_url": "a.wav"}),
        json!({"type": "audio", "url": "file://a.wav"}),
        json!({"type": "audio", "path": "a.wav"}),
        json!({"type": "audio", "base64": data}),
        json!({"type": "audio", "base64": uri}),
    ];
    for part in spellings {
        let parts = json!([text_part("What?"), part]);
        let expected = turn(json!([text_part("What?"), audio()]));
        assert_eq!(asked(&chat_of(&parts)), (expected, vec![id("a")]), "{part}");
    }
}

#[test]
fn batch_requests_have_recordings_in_their_messages() {
    let request = |url: &str, body: Value| json!({"custom_id": "a", "url": url, "body": body});
    let part = json!({"type": "input_audio",
        "input_audio": {"data": base64::encode(&wav("b")), "format": "wav"}});
    let messages = json!([{"role": "user", "content": [part]}]);
    let chat = request("/v1/chat/completions", json!({"messages": messages}));
    let response = request("/v1/responses", json!({"input": messages}));
    for line in [chat, response] {
        assert_eq!(asked(&line), (turn(json!([audio()])), vec![id("b")]), "{line}");
    }
}

#[test]
fn wrong_parts_say_what_is_wrong() {
    let of = |part: Value| fault(&chat_of(&json!([part])));
    let (unsupported, invalid) = ("unsupported_field", "invalid_prompt");
    for (part, code, what) in [
        (json!({"type": "input_audio"}), invalid, "without `input_audio`"),
        (json!({"type": "input_audio", "input_audio": {}}), invalid, "`data` is no text"),
        (json!({"type": "input_audio", "input_audio": "x"}), invalid, "`input_audio` is no text"),
        (json!({"type": "input_audio", "input_audio": {"data": "%"}}), "media_format", "base64"),
        (json!({"type": "input_audio", "file_id": "f"}), unsupported, "with `file_id`"),
        (json!({"type": "audio_url", "audio_url": {"uri": "a"}}), invalid, "`url` is no text"),
        (json!({"type": "audio", "path": "a", "url": "b"}), invalid, "in `url` and in `path`"),
        (json!({"type": "audio"}), invalid, "has a part of type 'audio' without a recording"),
        (json!({"type": "audio", "audio": 7}), invalid, "`audio`: expected a path"),
        (json!({"type": "audio", "path": "no.wav"}), "media_not_found", "message 0: `no.wav`: "),
        (json!({"type": "audio", "path": "../x"}), "media_forbidden", "message 0: `../x`: "),
        (json!({"type": "audio", "path": "c.gif"}), "media_decode", "no recording of a known"),
        (
            json!({"type": "audio", "url": "data:image/gif;base64,AA=="}),
            "media_format",
            "no record",
        ),
        (json!({"type": "audio", "url": "https://a/b.wav"}), "media_forbidden", "--allow-media"),
        (json!({"type": "image", "path": "a.wav"}), "media_decode", "no image of a known format"),
    ] {
        let (found, message) = of(part.clone());
        assert_eq!(found, code, "{part}: {message}");
        assert!(message.contains(what), "{part}: {message}");
    }
}

#[test]
fn recordings_beside_a_prompt_come_before_its_text_or_where_it_has_marks() {
    let a = base64::encode(&wav("a"));
    let (one, two) = (json!("a.wav"), json!(["a.wav", "b.wav"]));
    let with = |text: &str, audio: Value| json!({"prompt": text, "audio": audio});
    for (row, content, ids) in [
        (with("Who?", one.clone()), json!([audio(), text_part("Who?")]), vec![id("a")]),
        (with("Who?", json!(a)), json!([audio(), text_part("Who?")]), vec![id("a")]),
        (
            json!({"prompt": "x", "audios": two}),
            json!([audio(), audio(), text_part("x")]),
            vec![id("a"), id("b")],
        ),
        (
            with("x <audio> y <audio>", two.clone()),
            json!([text_part("x "), audio(), text_part(" y "), audio()]),
            vec![id("a"), id("b")],
        ),
        (with("", one.clone()), json!([audio()]), vec![id("a")]),
        (
            json!({"messages": turn(json!([text_part("x"), audio()])), "audio": one}),
            json!([text_part("x"), audio()]),
            vec![id("a")],
        ),
        (
            json!({"prompt": "x", "audio": "a.wav", "image": "c.gif"}),
            json!([{"type": "image"}, audio(), text_part("x")]),
            vec![MediaId::new(MediaKind::Image, &gif("c")), id("a")],
        ),
        (json!({"id": 7, "audio": "b.wav"}), json!([audio()]), vec![id("b")]),
    ] {
        assert_eq!(asked(&row), (turn(content), ids), "{row}");
    }
}

#[test]
fn samples_of_a_row_are_a_recording() {
    let samples = json!({"array": [0.5, -0.25, 0], "sampling_rate": 8000, "path": "gone.wav"});
    let found = row(&json!({"prompt": "x", "audio": samples}), &options()).expect("a row");
    let Prompt::WithMedia(asked) = found.prompt else { panic!("no media") };
    let decoded = asked.media[0].decode_sound().expect("samples");
    assert_eq!((decoded.rate(), decoded.values()), (8000, &[0.5, -0.25, 0.0][..]));
    for (audio, code, what) in [
        (json!({"array": [1.0]}), "invalid_prompt", "no `sampling_rate`"),
        (json!({"array": ["a"], "sampling_rate": 8000}), "invalid_prompt", "no list of numbers"),
        (json!({"array": [], "sampling_rate": 8000}), "media_decode", "no samples"),
        (json!({"array": [1.0], "sampling_rate": 7}), "media_unsupported", "7 samples a second"),
    ] {
        let (found, message) = fault(&json!({"prompt": "x", "audio": audio}));
        assert_eq!(found, code, "{message}");
        assert!(message.contains(what), "{message}");
    }
}

#[test]
fn a_flag_names_the_field_or_none() {
    let named = |name: &str| RowOptions { audio_column: Some(name.to_owned()), ..options() };
    let given = json!({"prompt": "x", "clip": {"file": "b.wav"}, "audio": "a.wav"});
    let expected = turn(json!([audio(), text_part("x")]));
    assert_eq!(seen(row(&given, &named("clip.file"))), (expected, vec![id("b")]));
    let none = row(&given, &named("")).expect("a row");
    assert_eq!(none.prompt, Prompt::Text("x".to_owned()));
    let table = "prompt,clip\nx,b.wav\n";
    let found = row_of(InputFormat::Csv, table, &named("clip"));
    assert_eq!(seen(found).1, vec![id("b")]);
}

#[test]
fn a_row_has_as_many_recordings_as_are_allowed() {
    let media = MediaOptions { max_sounds: Some(1), ..MediaOptions::default() };
    let limited = RowOptions { media, ..options() };
    let two = json!({"prompt": "x", "audio": ["a.wav", "b.wav"]});
    let error = row(&two, &limited).expect_err("two");
    assert_eq!(error.code, "media_count");
    assert!(error.message.contains(r#"{"audio": 2}"#), "{}", error.message);
    assert!(row(&json!({"prompt": "x", "audio": "a.wav", "image": "c.gif"}), &limited).is_ok());
    for (row, what) in [
        (
            json!({"prompt": "<audio> <audio>", "audio": "a.wav"}),
            "marks `<audio>` in the prompt: 2",
        ),
        (json!({"prompt": "x", "audio": "a.wav", "audios": ["b.wav"]}), "`audio` and in `audios`"),
        (
            json!({"messages": turn(json!([{"type": "audio", "path": "a.wav"}])), "audio": "b.wav"}),
            "recordings of their own",
        ),
    ] {
        let (_, message) = fault(&row);
        assert!(message.contains(what), "{row}: {message}");
    }
}
