//! Vectors and classes of rows with images.

use std::fs;

use serde_json::{Value, json};

use super::{SEES, codes, folder, program, rows, write_rows};

const CLIP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_vision/clip");
const ENCODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");

#[test]
fn commands_and_models_that_read_text_alone_refuse_images_by_name() {
    let folder = folder(&[json!({"text": "a"}), json!({"text": "b", "image": "a.png"})]);
    let embed = |flags: &[&str]| {
        let always = ["embed", "--model", ENCODER, "-i", "data/in.jsonl", "-q"];
        program(folder.path(), &[&always[..], flags].concat())
    };
    let said = embed(&[]);
    assert_eq!(codes(&said.out), ["ok", "no_image_input"], "{}", said.errors);
    let said = embed(&["--image-column", ""]);
    assert_eq!(codes(&said.out), ["ok", "ok"], "{}", said.errors);
    assert_eq!(rows(&said.out)[1]["image"], "a.png");
    let texts = json!({"text_1": "a", "text_2": "b", "image": "a.png"});
    write_rows(folder.path(), &[texts]);
    let said = program(folder.path(), &["score", "--model", ENCODER, "-i", "data/in.jsonl", "-q"]);
    assert_eq!(codes(&said.out), ["unsupported_field"], "{}", said.errors);
}

/// In files of either kind; what a vector is of does not depend on where its row stands.
#[test]
fn vectors_are_of_texts_of_images_and_of_both() {
    let text = json!({"id": 1, "text": "What is this?"});
    let both = json!({"id": 2, "text": "What is this?", "image": "a.png"});
    let image = json!({"id": 3, "image": "a.png"});
    let parts = json!([{"type": "image", "image": "a.png"},
        {"type": "text", "text": "What is this?"}]);
    let chat = json!({"id": 4, "messages": [{"role": "user", "content": parts}]});
    let none = json!({"id": 5, "images": []});
    let rows_in = [text, both, image, chat, none];
    let folder = folder(&rows_in);
    let path = folder.path();
    let embed = |input: &[&str]| {
        let always = ["embed", "--model", SEES, "-q"];
        program(path, &[&always[..], &["-i"], input].concat())
    };
    let vectors = |text: &str| -> Vec<(Value, Value)> {
        rows(text).iter().map(|row| (row["id"].clone(), row["embedding"].clone())).collect()
    };
    let said = embed(&["data/in.jsonl"]);
    assert_eq!(codes(&said.out), ["ok", "ok", "ok", "ok", "row_shape"], "{}", said.errors);
    let first = vectors(&said.out);
    assert_eq!(first[1].1, first[3].1, "the same chat");
    assert!(first[0].1 != first[1].1 && first[1].1 != first[2].1);
    let turned: Vec<_> = rows_in.iter().rev().skip(1).cloned().collect();
    write_rows(path, &turned);
    let mut backwards = vectors(&embed(&["data/in.jsonl"]).out);
    backwards.reverse();
    assert_eq!(first[..4], backwards[..]);
    let table = "id,text,image\n2,What is this?,a.png\n3,,a.png\n";
    fs::write(path.join("data/t.csv"), table).unwrap();
    fs::write(path.join("data/i.csv"), "id,image\n3,a.png\n").unwrap();
    let of_tables = [embed(&["data/t.csv"]), embed(&["data/i.csv"]), embed(&["data/a.png"])];
    let of_tables = of_tables.map(|said| vectors(&said.out));
    assert_eq!(of_tables[0][0].1, first[1].1);
    assert!(
        [&of_tables[0][1], &of_tables[1][0], &of_tables[2][0]]
            .map(|row| &row.1)
            .iter()
            .all(|vector| **vector == first[2].1)
    );
    let said = program(
        path,
        &["classify", "--model", SEES, "-q", "-i", "data/a.png", "--classifier-from-token", "a,b"],
    );
    assert!(rows(&said.out)[0]["probs"][0].is_f64(), "{}", said.errors);
}

/// No chat template is asked for where every row is an image.
#[test]
fn clip_makes_vectors_of_texts_and_of_pictures() {
    let text = json!({"id": 1, "text": "a cat"});
    let image = json!({"id": 2, "image": "a.png"});
    let both = json!({"id": 3, "text": "a cat", "image": "a.png"});
    let two = json!({"id": 4, "images": ["a.png", "b.png"]});
    let folder = folder(&[text, image, both, two]);
    let path = folder.path();
    let embed = |flags: &[&str]| {
        program(path, &[&["embed", "--model", CLIP, "-q", "-i"][..], flags].concat())
    };
    let said = embed(&["data/in.jsonl"]);
    let expected = ["ok", "ok", "unsupported_field", "media_count"];
    assert_eq!(codes(&said.out), expected, "{}", said.errors);
    let of_picture = embed(&["data/a.png", "data/b.png"]);
    assert_eq!(codes(&of_picture.out), ["ok", "ok"], "{}", of_picture.errors);
    assert_eq!(rows(&of_picture.out)[0]["embedding"], rows(&said.out)[1]["embedding"]);
    let said = embed(&["data/a.png", "--device", "cuda"]);
    let why = "a tower that makes vectors of images";
    assert!(said.code != 0 && said.errors.contains(why), "{}", said.errors);
}

/// As vLLM's batch lines ask for them; a chat ends with its last message unless it is told to.
#[test]
fn batch_lines_ask_for_vectors_of_chats() {
    let part = json!({"type": "image_url", "image_url": {"url": "a.png"}});
    let text = json!({"type": "text", "text": "What is this?"});
    let line =
        |id: &str, body: Value| json!({"custom_id": id, "url": "/v1/embeddings", "body": body});
    let chat = |parts: Value| json!({"messages": [{"role": "user", "content": parts}]});
    let with = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        body
    };
    let both = chat(json!([part, text]));
    let lines = [
        line("both", both.clone()),
        line("answered", with(both.clone(), "add_generation_prompt", json!(true))),
        line("twice", with(both.clone(), "input", json!("a"))),
        line("lost", chat(json!([{"type": "image_url", "image_url": {"url": "no.png"}}]))),
        line("bytes", with(both, "encoding_format", json!("base64"))),
    ];
    let folder = folder(&lines);
    let path = folder.path();
    let embed = |model: &str| {
        let said = program(path, &["run", "--model", model, "-q", "-i", "data/in.jsonl"]);
        (rows(&said.out), said.errors)
    };
    let (found, errors) = embed(SEES);
    let body = |index: usize| &found[index]["response"]["body"];
    let vector = |index: usize| &body(index)["data"][0]["embedding"];
    assert_eq!(body(0)["object"], "list", "{errors}");
    assert!(
        body(0)["usage"]["prompt_tokens"].as_u64() < body(1)["usage"]["prompt_tokens"].as_u64()
    );
    assert_ne!(vector(0), vector(1));
    assert_eq!(body(2)["error"]["param"], "messages");
    assert!(body(3)["error"]["message"].as_str().unwrap().contains("no.png"), "{}", body(3));
    assert!(vector(4).is_string());
    // A row of the same chat whose answer begins behind it.
    let parts = json!([{"type": "image"}, text]);
    write_rows(
        path,
        &[json!({"messages": [{"role": "user", "content": parts}], "image": "a.png"})],
    );
    let of_row = program(path, &["embed", "--model", SEES, "-q", "-i", "data/in.jsonl"]);
    assert_eq!(&rows(&of_row.out)[0]["embedding"], vector(1), "{}", of_row.errors);

    write_rows(path, &[line("alone", chat(json!([part])))]);
    let (of_clip, errors) = embed(CLIP);
    let of_picture = program(path, &["embed", "--model", CLIP, "-q", "-i", "data/a.png"]);
    let of_clip = &of_clip[0]["response"]["body"]["data"][0]["embedding"];
    assert_eq!(*of_clip, rows(&of_picture.out)[0]["embedding"], "{errors}");
}
