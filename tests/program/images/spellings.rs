//! Every way in which rows name an image, through a model that can read it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

use super::{SEES, codes, program, rows};

const READS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo-vision");
const CLIP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_vision/clip");
const ASKED: &str = "Describe the image.";
/// What the picture shows.
const ANSWER: &str = "the number 4 in orange";

/// A folder with `a.png` alone, its bytes, and these as base64.
fn folder() -> (tempfile::TempDir, Vec<u8>, String) {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(format!("{READS}/pictures/01.png")).unwrap();
    fs::write(folder.path().join("a.png"), &bytes).unwrap();
    let text = base64::encode(&bytes);
    (folder, bytes, text)
}

fn write(folder: &Path, name: &str, rows: &[Value]) {
    fs::write(folder.join(name), rows.iter().map(|row| format!("{row}\n")).collect::<String>())
        .unwrap();
}

/// Rows of an output in JSON.
fn run(folder: &Path, input: &str, flags: &[&str]) -> Vec<Value> {
    let fixed = ["run", "-q", "--model", READS, "-i", input, "--temperature", "0"];
    let flags = [&["--max-tokens", "16", "-o", "out.jsonl", "--overwrite"], flags].concat();
    let said = program(folder, &[&fixed[..], &flags].concat());
    assert_eq!(said.code, 0, "{input}: {}", said.errors);
    rows(&fs::read_to_string(folder.join("out.jsonl")).unwrap())
}

#[track_caller]
fn assert_seen(row: &Value, answer: &Value) {
    assert_eq!(answer.as_str().map(str::trim), Some(ANSWER), "{row}");
}

fn user(parts: Value) -> Value {
    json!([{"role": "user", "content": parts}])
}

/// Parts of an image, as they are written for APIs and for templates.
fn parts(text: &str, folder: &Path) -> Vec<Value> {
    let uri = format!("data:image/png;base64,{text}");
    let file = format!("file://{}/a.png", folder.display());
    let source = json!({"type": "base64", "media_type": "image/png", "data": text});
    vec![
        json!({"type": "image_url", "image_url": {"url": uri, "detail": "low"}}),
        json!({"type": "image_url", "image_url": {"url": "a.png"}}),
        json!({"type": "image_url", "image_url": {"url": file}}),
        json!({"type": "image_url", "image_url": uri}),
        json!({"image_url": uri}),
        json!({"type": "input_image", "image_url": uri}),
        json!({"type": "image", "source": source}),
        json!({"type": "image", "source": {"type": "url", "url": uri}}),
        json!({"type": "image", "image": "a.png"}),
        json!({"type": "image", "image": {"bytes": text, "path": null}}),
        json!({"type": "image", "url": "a.png"}),
        json!({"type": "image", "path": "a.png"}),
        json!({"type": "image", "base64": text}),
    ]
}

/// Fields of a row with its image.
fn fields(text: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("image", json!("a.png")),
        ("image", json!(format!("data:image/png;base64,{text}"))),
        ("image", json!(text)),
        ("image", json!({"bytes": text, "path": "gone.png"})),
        ("image", json!({"bytes": null, "path": "a.png"})),
        ("images", json!(["a.png"])),
        ("images", json!([{"bytes": text, "path": null}])),
    ]
}

#[test]
fn every_spelling_of_a_dataset_is_seen() {
    let (folder, _, text) = folder();
    let words = json!({"type": "text", "text": ASKED});
    let mut asked: Vec<Value> = parts(&text, folder.path())
        .into_iter()
        .map(|part| json!({"messages": user(json!([part, words]))}))
        .collect();
    asked.push(json!({"messages": user(json!([{"type": "input_image", "image_url": "a.png"},
        {"type": "input_text", "text": ASKED}]))}));
    asked.push(json!({"messages": user(json!([{"type": "image"}, words])), "image": "a.png"}));
    asked.push(json!({"messages": user(json!(ASKED)), "image": "a.png"}));
    for turns in [
        json!([{"from": "human", "value": format!("<image>\n{ASKED}")}]),
        json!([{"from": "human", "value": format!("<image>\n{ASKED}")},
            {"from": "gpt", "value": "A cat."}]),
    ] {
        asked.push(json!({"conversations": turns, "image": "a.png"}));
        asked.push(json!({"conversations": turns, "images": ["a.png"]}));
    }
    for (name, image) in fields(&text) {
        let mut row = json!({"prompt": ASKED});
        row[name] = image;
        asked.push(row);
    }
    write(folder.path(), "in.jsonl", &asked);
    let found = run(folder.path(), "in.jsonl", &[]);
    assert_eq!(found.len(), asked.len());
    for (row, asked) in found.iter().zip(&asked) {
        assert_seen(asked, &row["response"]);
    }
    write(folder.path(), "in.jsonl", &[json!({"question": ASKED, "photo": {"file": "a.png"}})]);
    let found = run(folder.path(), "in.jsonl", &["--image-column", "photo.file"]);
    assert_seen(&found[0], &found[0]["response"]);
}

#[test]
fn every_spelling_of_a_batch_line_is_seen() {
    let (folder, _, text) = folder();
    let words = json!({"type": "text", "text": ASKED});
    let parts = parts(&text, folder.path());
    let line = |id: usize, url: &str, body: Value| {
        let id = id.to_string();
        json!({"custom_id": id, "method": "POST", "url": url, "body": body})
    };
    let chats: Vec<Value> = parts
        .iter()
        .map(|part| json!({"messages": user(json!([part, words])), "max_tokens": 16}))
        .collect();
    let lines: Vec<Value> = chats
        .iter()
        .enumerate()
        .map(|(id, body)| line(id, "/v1/chat/completions", body.clone()))
        .collect();
    write(folder.path(), "in.jsonl", &lines);
    for (row, line) in run(folder.path(), "in.jsonl", &[]).iter().zip(&lines) {
        assert_seen(line, &row["response"]["body"]["choices"][0]["message"]["content"]);
    }
    let lines: Vec<Value> = chats
        .iter()
        .enumerate()
        .map(|(id, params)| json!({"custom_id": id.to_string(), "params": params}))
        .collect();
    write(folder.path(), "in.jsonl", &lines);
    for (row, line) in run(folder.path(), "in.jsonl", &[]).iter().zip(&lines) {
        assert_seen(line, &row["result"]["message"]["content"][0]["text"]);
    }
    let uri = format!("data:image/png;base64,{text}");
    let lines: Vec<Value> = [json!(uri), json!({"url": uri}), json!("a.png")]
        .into_iter()
        .enumerate()
        .map(|(id, url)| {
            let image = json!({"type": "input_image", "image_url": url, "detail": "auto"});
            let input = user(json!([image, {"type": "input_text", "text": ASKED}]));
            line(id, "/v1/responses", json!({"input": input, "max_output_tokens": 16}))
        })
        .collect();
    write(folder.path(), "in.jsonl", &lines);
    for (row, line) in run(folder.path(), "in.jsonl", &[]).iter().zip(&lines) {
        assert_seen(line, &row["response"]["body"]["output"][0]["content"][0]["text"]);
    }
}

#[test]
fn every_spelling_of_a_table_is_seen() {
    let (folder, _, text) = folder();
    let tables = [
        ("a.csv", format!("prompt,image\n{ASKED},a.png\n"), None),
        ("b.csv", format!("prompt,images\n{ASKED},\"['a.png']\"\n"), None),
        ("c.tsv", format!("index\timage\tquestion\n1\t{text}\t{ASKED}\n"), None),
        ("d.tsv", format!("index\timage_path\tquestion\n1\ta.png\t{ASKED}\n"), Some("image_path")),
    ];
    for (name, table, column) in tables {
        fs::write(folder.path().join(name), table).unwrap();
        let flags = column.map(|column| ["--image-column", column]);
        let flags = flags.as_ref().map_or(&[][..], |flags| flags);
        // Tables have tables as outputs.
        let fixed = ["run", "-q", "--model", READS, "-i", name, "--temperature", "0"];
        let said = program(folder.path(), &[&fixed[..], &["--max-tokens", "16"], flags].concat());
        assert_eq!(said.code, 0, "{name}: {}", said.errors);
        assert!(said.out.contains(ANSWER), "{name}: {}", said.out);
    }
}

/// A Parquet file of one row: a prompt, and columns of bytes below it.
fn write_parquet(path: &Path, image: &str, columns: &[&[u8]]) {
    let schema = format!("message row {{ required binary prompt (UTF8); {image} }}");
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for value in [&[ASKED.as_bytes()], columns].concat() {
        let mut column = group.next_column().unwrap().expect("as many as the schema has");
        let typed = column.typed::<ByteArrayType>();
        let descriptor = typed.get_descriptor();
        let (max_def, max_rep) = (descriptor.max_def_level(), descriptor.max_rep_level());
        let is_null = value.is_empty();
        let values = if is_null { Vec::new() } else { vec![ByteArray::from(value.to_vec())] };
        let def = [max_def - i16::from(is_null)];
        let written = typed.write_batch(
            &values,
            (max_def > 0).then_some(&def[..]),
            (max_rep > 0).then_some(&[0][..]),
        );
        assert_eq!(written.unwrap(), usize::from(!is_null));
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

/// As the hub's files have them, and as other programs write bytes.
#[test]
fn every_spelling_of_parquet_is_seen() {
    let (folder, bytes, text) = folder();
    let of_hub = "optional binary bytes; optional binary path (UTF8);";
    let list = |element: &str| {
        format!("optional group images (LIST) {{ repeated group list {{ {element} }} }}")
    };
    let cases = [
        (format!("optional group image {{ {of_hub} }}"), vec![&bytes[..], b"gone.png"]),
        (format!("optional group image {{ {of_hub} }}"), vec![b"", b"a.png"]),
        ("optional binary image;".to_owned(), vec![&bytes[..]]),
        ("optional binary image (UTF8);".to_owned(), vec![b"a.png"]),
        ("optional binary image (UTF8);".to_owned(), vec![text.as_bytes()]),
        (list("optional binary element;"), vec![&bytes[..]]),
        (list(&format!("optional group element {{ {of_hub} }}")), vec![&bytes[..], b""]),
    ];
    for (schema, columns) in cases {
        write_parquet(&folder.path().join("in.parquet"), &schema, &columns);
        let found = run(folder.path(), "in.parquet", &[]);
        assert_seen(&json!(schema), &found[0]["response"]);
    }
}

/// As Hugging Face's imagefolder has it.
#[test]
fn a_folder_may_have_its_rows_in_parquet() {
    let (folder, bytes, _) = folder();
    let photos = folder.path().join("photos");
    fs::create_dir(&photos).unwrap();
    fs::write(photos.join("b.png"), bytes).unwrap();
    let columns: [&[u8]; 1] = [b"b.png"];
    write_parquet(&photos.join("metadata.parquet"), "required binary file_name (UTF8);", &columns);
    let found = run(folder.path(), "photos", &[]);
    assert_seen(&found[0], &found[0]["response"]);
    assert_eq!(found[0]["file_name"], "b.png");
}

/// What is seen is what vectors, classes and scores are of.
#[test]
fn other_commands_see_what_run_sees() {
    let (folder, _, text) = folder();
    let path = folder.path();
    let words = json!({"type": "text", "text": ASKED});
    let parts = parts(&text, path);
    let mut chats: Vec<Value> =
        parts.iter().map(|part| json!({"messages": user(json!([part, words]))})).collect();
    let mut alone: Vec<Value> =
        parts.iter().map(|part| json!({"messages": user(json!([part]))})).collect();
    for (name, image) in fields(&text) {
        let (mut chat, mut image_alone) = (json!({"text": ASKED}), json!({}));
        (chat[name], image_alone[name]) = (image.clone(), image);
        chats.push(chat);
        alone.push(image_alone);
    }
    let same = |rows_in: &[Value], command: &[&str], field: &str| {
        write(path, "in.jsonl", rows_in);
        let said = program(path, &[command, &["-q", "-i", "in.jsonl"]].concat());
        assert!(codes(&said.out).iter().all(|code| code == "ok"), "{command:?}: {}", said.out);
        let found = rows(&said.out);
        assert!(!found[0][field].is_null(), "{command:?}");
        for (row, asked) in found.iter().zip(rows_in) {
            assert_eq!(row[field], found[0][field], "{command:?}: {asked}");
        }
    };
    same(&chats, &["embed", "--model", SEES], "embedding");
    let classes = ["classify", "--model", SEES, "--classifier-from-token", "a,b"];
    same(&chats, &classes, "probs");
    same(&alone, &["embed", "--model", CLIP], "embedding");
    let contents = parts.iter().map(|part| json!({"content": [part]}));
    let images = fields(&text).into_iter().filter(|(name, _)| *name == "image");
    let contents: Vec<Value> =
        contents.chain(images.map(|(_, image)| json!({"image": image}))).collect();
    let pairs: Vec<Value> =
        contents.iter().map(|image| json!({"text_1": "a cat", "text_2": image})).collect();
    same(&pairs, &["score", "--model", CLIP], "score");
    write(path, "in.jsonl", &[json!({"query": "a cat", "documents": contents})]);
    let said = program(path, &["rerank", "-q", "--model", CLIP, "-i", "in.jsonl"]);
    let ranked = rows(&said.out)[0]["results"].clone();
    let scores: Vec<&Value> =
        ranked.as_array().unwrap().iter().map(|result| &result["relevance_score"]).collect();
    assert_eq!(scores.len(), contents.len(), "{}", said.errors);
    assert!(scores.iter().all(|score| *score == scores[0]), "{ranked}");
}
