//! Rows with images: every spelling of a part, and images beside a prompt.

use serde_json::json;

use super::beside_media::*;
use super::*;
use crate::input::base64;
use vllm_batch_media::{MediaId, MediaKind};

fn id(name: &str) -> MediaId {
    MediaId::new(MediaKind::Image, &gif(name))
}

fn image() -> Value {
    json!({"type": "image"})
}

#[test]
fn every_spelling_of_a_part_is_an_image() {
    let data = base64::encode(&gif("a"));
    let uri = format!("data:image/gif;base64,{data}");
    let spellings = [
        json!({"type": "image_url", "image_url": {"url": "a.gif"}}),
        json!({"type": "image_url", "image_url": {"url": uri, "detail": "low"}}),
        json!({"type": "image_url", "image_url": uri, "uuid": "u"}),
        json!({"image_url": uri}),
        json!({"type": "input_image", "image_url": uri, "detail": "auto"}),
        json!({"type": "image", "image": "a.gif"}),
        json!({"type": "image", "image": data, "text": null}),
        json!({"type": "image", "image": {"bytes": data, "path": "elsewhere.gif"}}),
        json!({"type": "image", "image": {"bytes": null, "path": "a.gif"}}),
        json!({"type": "image", "url": "file://a.gif"}),
        json!({"type": "image", "path": "a.gif"}),
        json!({"type": "image", "base64": data}),
        json!({"type": "image", "base64": uri}),
        json!({"type": "image", "source": {"type": "url", "url": "a.gif"},
            "cache_control": {"type": "ephemeral"}}),
        json!({"type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": data}}),
    ];
    for part in spellings {
        let parts = json!([text_part("What?"), part]);
        let expected = json!([{"role": "user", "content": [text_part("What?"), image()]}]);
        assert_eq!(asked(&chat_of(&parts)), (expected, vec![id("a")]), "{part}");
    }
}

#[test]
fn images_keep_their_order_over_turns() {
    let part = |name: &str| json!({"type": "image", "path": format!("{name}.gif")});
    let messages = json!([
        {"role": "user", "content": [part("c"), text_part("1"), part("a")]},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": [part("b"), part("c")]},
        {"role": "assistant", "content": [part("a")]},
    ]);
    let (messages, images) = asked(&json!({ "messages": messages }));
    assert_eq!(images, ["c", "a", "b", "c"].map(id));
    assert_eq!(messages.as_array().unwrap().len(), 3, "the answer is not sent, nor its image");
    assert_eq!(messages[2]["content"], json!([image(), image()]));
}

#[test]
fn batch_requests_have_images_in_their_messages() {
    let uri = format!("data:image/gif;base64,{}", base64::encode(&gif("b")));
    let messages = |part: Value| json!([{"role": "user", "content": [part]}]);
    let request = |url: &str, body: Value| json!({"custom_id": "a", "url": url, "body": body});
    let part = json!({"type": "image_url", "image_url": {"url": uri}});
    let chat = request("/v1/chat/completions", json!({"messages": messages(part)}));
    let part = json!({"type": "input_image", "image_url": uri});
    let response = request("/v1/responses", json!({"input": messages(part)}));
    let source = json!({"type": "base64", "media_type": "image/gif",
        "data": base64::encode(&gif("b"))});
    let part = json!({"type": "image", "source": source});
    let anthropic =
        json!({"custom_id": "a", "params": {"max_tokens": 3, "messages": messages(part)}});
    for line in [&chat, &response, &anthropic] {
        let expected = json!([{"role": "user", "content": [image()]}]);
        assert_eq!(asked(line), (expected, vec![id("b")]), "{line}");
    }
    let mut wrong = anthropic.clone();
    wrong["params"]["messages"][0]["content"][0]["source"]["data"] = "%".into();
    let error = row(&wrong, &options()).expect_err("no base64");
    assert_eq!((error.code, error.param), ("media_format", Some("messages")));
    assert!(error.message.starts_with("params.messages: message 0: "), "{}", error.message);
}

#[test]
fn wrong_parts_say_what_is_wrong() {
    let of = |part: Value| fault(&chat_of(&json!([part])));
    let unsupported = "unsupported_field";
    let invalid = "invalid_prompt";
    let url = json!({"url": "a.gif", "detail": "ultra"});
    for (part, code, what) in [
        (json!({"type": "image_url"}), invalid, "without `image_url`"),
        (json!({"type": "image_url", "image_url": {"uri": "a"}}), invalid, "`url` is no text"),
        (json!({"type": "image_url", "image_url": 7}), invalid, "`image_url` is no text"),
        (json!({"type": "image_url", "image_url": url}), unsupported, "with `detail`"),
        (json!({"type": "input_image", "file_id": "f"}), unsupported, "with `file_id`"),
        (json!({"type": "image", "path": "a.gif", "max_pixels": 9}), unsupported, "`max_pixels`"),
        (json!({"type": "image", "path": "a", "url": "b"}), invalid, "in `url` and in `path`"),
        (json!({"type": "image"}), invalid, "message 0 has a part of type 'image' without an"),
        (json!({"type": "image", "image": 7}), invalid, "`image`: expected a path"),
        (json!({"type": "image", "source": {"type": "file"}}), unsupported, "the type `file`"),
        (json!({"type": "image", "source": {}}), invalid, "has no `type`"),
        (
            json!({"type": "video_url"}),
            unsupported,
            "only text, images, recordings and PDFs are supported",
        ),
        (json!({"type": "document"}), invalid, "document whose `source` has no `type`"),
        (json!({"type": "document", "source": {"type": "file"}}), unsupported, "the type `file`"),
        (json!({"type": "file", "file": {"file_id": "f"}}), unsupported, "with `file_id`"),
        (json!({"type": "input_file", "filename": "f"}), invalid, "without `file_data`"),
        (
            json!({"type": "input_file", "file_data": TEXT_FILE}),
            "media_unsupported",
            "`text/plain`",
        ),
        (json!({"type": "input_file", "file_data": "data:,x"}), "media_unsupported", "type ``"),
        (json!({"type": "input_file", "file_data": "?"}), "media_format", "valid base64"),
        (json!({"type": "input_file", "file_url": "http://a/b.pdf"}), "media_forbidden", "URLs"),
        (json!({"type": "input_file", "file_data": "ftp://a/b"}), "media_forbidden", "ftp:"),
        (json!({"type": "image", "path": "no.gif"}), "media_not_found", "message 0: `no.gif`: "),
        (json!({"type": "image", "path": "../x"}), "media_forbidden", "message 0: `../x`: "),
    ] {
        let (found, message) = of(part.clone());
        assert_eq!(found, code, "{part}: {message}");
        assert!(message.starts_with("messages: ") && message.contains(what), "{message}");
    }
}

/// A file that is no PDF.
const TEXT_FILE: &str = "data:text/plain;base64,aGVsbG8=";

/// As requests for responses have them.
#[test]
fn texts_beside_images_have_either_name() {
    for kind in ["text", "input_text", "output_text"] {
        let parts =
            json!([{"type": "input_image", "image_url": "a.gif"}, {"type": kind, "text": "t"}]);
        let expected = json!([{"role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "t"}]}]);
        assert_eq!(asked(&chat_of(&parts)), (expected, vec![id("a")]), "{kind}");
    }
}

#[test]
fn images_of_requests_are_in_their_messages_alone() {
    let messages = json!([{"role": "user", "content": "t"}]);
    let chat = json!({"messages": messages});
    let bodies = [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/completions", json!({"prompt": "t"})),
        ("/v1/responses", json!({"input": "t"})),
    ];
    for (name, value) in [("image", json!("a.gif")), ("images", json!(["a.gif"]))] {
        for (url, body) in &bodies {
            let line = |value: Value| {
                let mut body = body.clone();
                body[name] = value;
                json!({"custom_id": "a", "method": "POST", "url": url, "body": body})
            };
            let (code, message) = fault(&line(value.clone()));
            assert_eq!(code, "unsupported_field", "{url}: {message}");
            assert!(row(&line(Value::Null), &options()).is_ok(), "{url}");
        }
        let mut params = json!({"max_tokens": 3, "messages": messages});
        params[name] = value;
        let (code, message) = fault(&json!({"custom_id": "a", "params": params}));
        assert_eq!(code, "unsupported_field", "{message}");
    }
}

/// What would be answered as if it were not there is named.
#[test]
fn a_field_that_may_be_an_image_is_named_once() {
    let remarks = |format, input: &str, options: &RowOptions| {
        let mut records =
            Records::open(Box::new(Cursor::new(input.to_owned())), format, 1 << 20).expect("text");
        RowParser::new(&mut records, options).expect("a shape").take_remarks()
    };
    let said = "`image_url` is not read as an image; --image-column image_url reads it";
    let line = r#"{"prompt":"p","image_url":"http://a/b.png"}"#;
    assert_eq!(remarks(InputFormat::Jsonl, &format!("{line}\n{line}\n"), &options()), [said]);
    assert_eq!(remarks(InputFormat::Csv, "prompt,image_url\na,b\n", &options()), [said]);
    for line in [
        r#"{"prompt":"p","image_url":null}"#,
        r#"{"prompt":"p","photo":17}"#,
        r#"{"prompt":"p","image":"a.gif","image_url":"http://a/b.png"}"#,
    ] {
        assert_eq!(remarks(InputFormat::Jsonl, line, &options()), [""; 0], "{line}");
    }
    let told = RowOptions { image_column: Some(String::new()), ..options() };
    assert_eq!(remarks(InputFormat::Jsonl, line, &told), [""; 0]);
    let filled = RowOptions { template: Some("{{image_url}}".to_owned()), ..options() };
    assert_eq!(remarks(InputFormat::Jsonl, line, &filled), [""; 0]);
}

#[test]
fn text_that_spells_a_part_stays_text() {
    let parts = json!([{"type": "text", "text": "<image>", "place": "x", "path": "a.gif"}]);
    assert_eq!(asked(&chat_of(&parts)).1, []);
}

#[test]
fn images_beside_a_prompt_come_before_it_or_at_its_marks() {
    let user = |parts: Value| json!([{"role": "user", "content": parts}]);
    let data = base64::encode(&gif("b"));
    let cases = [
        (json!({"prompt": "p", "image": "a.gif"}), json!([image(), text_part("p")]), "a"),
        (
            json!({"text": "p", "images": ["a.gif", data]}),
            json!([image(), image(), text_part("p")]),
            "ab",
        ),
        (
            json!({"question": "p", "image": {"bytes": data, "path": null}}),
            json!([image(), text_part("p")]),
            "b",
        ),
        (json!({"prompt": "", "image": "a.gif"}), json!([image()]), "a"),
        (
            json!({"prompt": "1 <image>\n2<image>", "images": ["c.gif", "a.gif"]}),
            json!([text_part("1 "), image(), text_part("\n2"), image()]),
            "ca",
        ),
        (
            json!({"instruction": "Do", "input": "it", "image": "a.gif"}),
            json!([image(), text_part("Do\nit")]),
            "a",
        ),
    ];
    for (input, parts, names) in cases {
        let expected: Vec<MediaId> = names.chars().map(|name| id(&name.to_string())).collect();
        assert_eq!(asked(&input), (user(parts), expected), "{input}");
    }
    let (messages, _) = asked(&json!({"system": "S", "prompt": "p", "image": "a.gif"}));
    assert_eq!(messages[0], json!({"role": "system", "content": "S"}));
}

#[test]
fn images_beside_messages_have_their_places_there() {
    let llava = json!({"image": "a.gif", "conversations": [
        {"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A dog"}]});
    let expected = json!([{"role": "user", "content": [image(), text_part("\nWhat?")]}]);
    assert_eq!(asked(&llava), (expected, vec![id("a")]));
    let parts = json!([image(), text_part("or"), {"type": "image", "text": null}]);
    let mut trl = chat_of(&parts);
    trl["images"] = json!(["b.gif", {"path": "c.gif"}]);
    let expected = json!([{"role": "user", "content": [image(), text_part("or"), image()]}]);
    assert_eq!(asked(&trl), (expected, vec![id("b"), id("c")]));
    let (messages, _) =
        asked(&json!({"image": "a.gif", "messages": [{"role": "user", "content": "x"}]}));
    assert_eq!(messages[0]["content"], json!([image(), text_part("x")]));
    for (input, what) in [
        (
            json!({"prompt": "<image><image>", "image": "a.gif"}),
            "marks `<image>` in the prompt: 2, images of the row: 1",
        ),
        (
            json!({"messages": trl["messages"], "image": "a.gif"}),
            "parts of type 'image' without an image: 2, images of the row: 1",
        ),
        (
            json!({"image": "a.gif", "messages": [
            {"role": "user", "content": [{"type": "image", "path": "b.gif"}]}]}),
            "of their own",
        ),
    ] {
        let (code, message) = fault(&input);
        assert_eq!(code, "media_count", "{message}");
        assert!(message.contains(what), "{message}");
    }
}

#[test]
fn the_field_with_images_can_be_named_and_others_are_data() {
    let column = |name: &str| RowOptions { image_column: Some(name.to_owned()), ..options() };
    let named = json!({"prompt": "p", "photo": "a.gif", "image": "b.gif"});
    assert_eq!(seen(row(&named, &column("photo"))).1, [id("a")]);
    let nested = json!({"prompt": "p", "meta": {"photo": "a.gif"}});
    assert_eq!(seen(row(&nested, &column("meta.photo"))).1, [id("a")]);
    assert_eq!(row(&named, &column("")).unwrap().prompt, text("p"));
    for data in [
        json!({"image": 7}),
        json!({"images": true}),
        json!({"image": null}),
        json!({"images": []}),
        json!({"image": {"bytes": null, "path": null}}),
    ] {
        let mut input = data.clone();
        input["prompt"] = "p".into();
        assert_eq!(row(&input, &options()).unwrap().prompt, text("p"), "{data}");
    }
    for (input, code) in [
        (json!({"prompt": "p", "image": {"a": 1}}), "invalid_prompt"),
        (json!({"prompt": "p", "images": ["a.gif", 7]}), "invalid_prompt"),
        (json!({"prompt": "p", "image": "a.gif", "images": ["b.gif"]}), "invalid_prompt"),
        (json!({"prompt": [1, 2], "image": "a.gif"}), "unsupported_field"),
        (json!({"prompt": "p", "multi_modal_data": {"image": "a.gif"}}), "unsupported_field"),
    ] {
        assert_eq!(fault(&input).0, code, "{input}");
    }
    let missing = format!("{named}\n{}", json!({"prompt": "p"}));
    let error = row_of(InputFormat::Jsonl, &missing, &column("photo")).unwrap_err();
    assert_eq!(error.message, "the row has no field 'photo' for --image-column");
    let (message, _) = refusal(InputFormat::Jsonl, r#"{"prompt":"p"}"#, &column("photo"));
    assert_eq!(message, "--image-column: the row on line 1 has no field 'photo'");
    let (message, _) = refusal(InputFormat::Csv, "prompt,x\np,y\n", &column("photo"));
    assert_eq!(message, "--image-column: there is no column 'photo'");
}

#[test]
fn an_image_is_something_to_ask_about() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let image = json!([{"type": "image", "path": "a.gif"}]);
    let alone = json!({"messages": [user(image.clone())]});
    assert_eq!(asked(&alone).1, [id("a")]);
    let answer = json!({"role": "assistant", "content": "A dog"});
    let messages = json!([user(image), answer, user(json!(" "))]);
    assert_eq!(fault(&json!({ "messages": messages })).0, "empty_prompt");
}

#[test]
fn a_template_around_images_needs_no_field() {
    let with = |text: &str| RowOptions { template: Some(text.to_owned()), ..options() };
    let expected = json!([{"role": "user", "content": [image(), text_part("Describe.")]}]);
    let input = json!({"image": "a.gif"});
    assert_eq!(seen(row(&input, &with("Describe."))), (expected.clone(), vec![id("a")]));
    let found = row_of(InputFormat::Csv, "name,image\nx,a.gif\n", &with("Describe."));
    assert_eq!(seen(found), (expected, vec![id("a")]));
    let cell = "prompt,image\np,\"[\"\"a.gif\"\",\"\"b.gif\"\"]\"\n";
    assert_eq!(seen(row_of(InputFormat::Csv, cell, &options())).1, [id("a"), id("b")]);
    let (message, _) = refusal(InputFormat::Jsonl, r#"{"a":1}"#, &with("Describe."));
    assert!(message.contains("--template names no field"), "{message}");
    // What the template shows as text is text.
    let shown = row(&json!({"image": "a.gif"}), &with("Who made {{image}}?"));
    assert_eq!(shown.unwrap().prompt, text("Who made a.gif?"));
}

#[test]
fn vectors_and_classes_are_of_images_too() {
    let expected = json!([{"role": "user", "content": [image(), text_part("p")]}]);
    let alone = json!([{"role": "user", "content": [image()]}]);
    for task in [Task::Embed, Task::Classify, Task::Reward] {
        let of_task = RowOptions { task, ..options() };
        let input = json!({"prompt": "p", "image": "a.gif"});
        assert_eq!(seen(row(&input, &of_task)), (expected.clone(), vec![id("a")]));
        let input = json!({"name": "x", "image": "a.gif"});
        assert_eq!(seen(row(&input, &of_task)), (alone.clone(), vec![id("a")]));
        let found = row_of(InputFormat::Csv, "name,image\nx,a.gif\n", &of_task);
        assert_eq!(seen(found), (alone.clone(), vec![id("a")]));
        let never = RowOptions { chat: ChatMode::Never, ..of_task };
        let error = row(&json!({"prompt": "p", "image": "a.gif"}), &never).unwrap_err();
        assert_eq!(error.message, "`image`: images are not supported with --no-chat");
    }
    let (message, _) = refusal(InputFormat::Jsonl, r#"{"image":"a.gif"}"#, &options());
    assert_eq!(message, "line 1: the row has no prompt; it has the fields image");
}

#[test]
fn where_no_image_can_be_used_the_row_is_refused_by_name() {
    let input = json!({"prompt": "p", "image": "a.gif"});
    let pair = json!({"text_1": "a", "text_2": "b", "images": ["a.gif"]});
    let scored = row(&pair, &RowOptions { task: Task::Score, ..options() });
    assert_eq!(scored.unwrap_err().code, "unsupported_field");
    let mut choices = input.clone();
    choices["choices"] = json!(["a", "b"]);
    let likelihoods = Likelihoods::OfChoices;
    let asked = row(&choices, &RowOptions { likelihoods, ..options() });
    assert_eq!(asked.unwrap_err().code, "unsupported_field");
    let never = row(&input, &RowOptions { chat: ChatMode::Never, ..options() });
    assert_eq!(never.unwrap_err().message, "`image`: images are not supported with --no-chat");
}

#[test]
fn a_note_says_that_rows_are_sent_with_their_images() {
    let note = |input: &str, format| {
        let mut records = Records::open(Box::new(Cursor::new(input.to_owned())), format, 1 << 20);
        let mut parser = RowParser::new(records.as_mut().expect("text"), &options()).unwrap();
        assert!(parser.is_chat(), "{input}");
        parser.take_note().expect("decided")
    };
    let expected = "rows are `prompt` text, each sent as a user turn with its images";
    let row = r#"{"prompt":"p","image":"a.gif","system":"S"}"#;
    assert_eq!(note(row, InputFormat::Jsonl), expected);
    assert_eq!(note("prompt,Image\np,a.gif\n", InputFormat::Csv), expected);
}
