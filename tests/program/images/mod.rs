//! Rows with images through the program. `read`: what may be read, and what is said of what may
//! not; `spellings`: how rows name images; `answers`, `vectors`, `reported`: what comes of them;
//! `changed`: a changed file is a changed row; `reports`: what other programs got wrong.
//!
//! The demo model takes no images, so that every such row is an error row of `run`; `check` looks
//! at images without a model.

mod answers;
mod changed;
mod read;
mod reported;
mod reports;
mod spellings;
mod vectors;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A model that reads text alone.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
/// A model that sees, with random weights.
const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");

/// A picture of noise, which no compression makes smaller.
pub fn picture(side: u32, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let noise = (0..side * side * 3).map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    });
    let noise: Vec<u8> = noise.collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, side, side);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&noise).unwrap();
    bytes
}

/// A folder `data` with two pictures and rows, and a picture outside of it.
fn folder(rows: &[Value]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("a.png"), picture(4, 1)).unwrap();
    fs::write(data.join("b.png"), picture(5, 2)).unwrap();
    fs::write(folder.path().join("secret.png"), picture(4, 3)).unwrap();
    write_rows(folder.path(), rows);
    folder
}

fn write_rows(folder: &Path, rows: &[Value]) {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.join("data/in.jsonl"), text).unwrap();
}

struct Said {
    code: i32,
    out: String,
    errors: String,
}

fn program(folder: &Path, flags: &[&str]) -> Said {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("COLUMNS", "400")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        errors: text(output.stderr),
    }
}

fn check(folder: &Path, flags: &[&str]) -> Said {
    program(folder, &[&["check", "--color", "never", "data/in.jsonl"], flags].concat())
}

fn run(folder: &Path, flags: &[&str]) -> Said {
    let always = ["run", "--model", DEMO, "-i", "data/in.jsonl", "--max-tokens", "4"];
    program(folder, &[&always[..], &["--stats", "stats.json", "--overwrite"], flags].concat())
}

/// Rows of an output.
fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn codes(text: &str) -> Vec<String> {
    let code = |row: &Value| row["error"]["code"].as_str().unwrap_or("ok").to_owned();
    rows(text).iter().map(code).collect()
}

fn beside(image: impl Into<Value>) -> Value {
    json!({"prompt": "What is it?", "image": image.into()})
}

/// Rows of a model that sees, where each picture is in several.
fn seen_rows() -> Vec<Value> {
    let image = |name: &str| json!({"type": "image_url", "image_url": {"url": name}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let content = |id: usize| match id % 4 {
        0 => json!([image("a.png"), text("What is this?")]),
        1 => json!([text(&format!("{id} and ")), image("b.png"), image("a.png")]),
        2 => json!("Is it alone?"),
        _ => json!([image("c.png"), text(&format!("Say {id} <image>"))]),
    };
    let row = |id: usize| json!({"id": id, "messages": [{"role": "user", "content": content(id)}]});
    (0..16).map(row).collect()
}

/// Runs the model that sees over the rows of a folder.
fn answers(folder: &Path, flags: &[&str]) -> Vec<Value> {
    let fixed = ["run", "-q", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "6"];
    let said = program(folder, &[&fixed[..], flags].concat());
    assert_eq!(said.code, 0, "{}", said.errors);
    rows(&said.out)
}
