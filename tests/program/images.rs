//! Rows with images through the program: what may be read, what is said of what may not, and that
//! a changed file is a changed row. The demo model takes no images, so that every such row is an
//! error row of `run`; `check` looks at images without a model.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
const CLIP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_vision/clip");
const ENCODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");

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

#[test]
fn check_finds_every_image_that_cannot_be_used() {
    let uri = |bytes: &[u8]| format!("data:image/png;base64,{}", base64::encode(bytes));
    let mut bomb = picture(4, 1);
    // Width and height of the header, and their checksum.
    bomb[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let sum = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&sum.to_be_bytes());
    let cases = [
        (beside("a.png"), "ok"),
        (beside("./b.png"), "ok"),
        (beside(json!(["a.png", "b.png"])), "ok"),
        (beside(uri(&picture(4, 1))), "ok"),
        (beside(base64::encode(&picture(4, 1))), "ok"),
        (beside("inside.png"), "ok"),
        (beside("no.png"), "media_not_found"),
        (beside("fifo"), "media_not_found"),
        (beside("."), "media_not_found"),
        (beside("../secret.png"), "media_forbidden"),
        (beside("link.png"), "media_forbidden"),
        (beside("up/secret.png"), "media_forbidden"),
        (beside("/etc/passwd"), "media_forbidden"),
        (beside("https://169.254.169.254/latest"), "media_forbidden"),
        (beside("in.jsonl"), "media_decode"),
        (beside(uri(b"GIF89a")), "media_decode"),
        (beside(uri(b"%PDF-1.7")), "media_unsupported"),
        (beside("data:image/png;base64,????"), "media_format"),
        (beside(uri(&bomb)), "media_too_large"),
        (json!({"prompt": "<image> or <image>?", "image": "a.png"}), "media_count"),
        (json!({"prompt": "p", "image": {"a": 1}}), "invalid_prompt"),
    ];
    let all: Vec<Value> = cases.iter().map(|(row, _)| row.clone()).collect();
    let folder = folder(&all);
    let data = folder.path().join("data");
    symlink("../secret.png", data.join("link.png")).unwrap();
    symlink("..", data.join("up")).unwrap();
    symlink("a.png", data.join("inside.png")).unwrap();
    assert!(Command::new("mkfifo").arg(data.join("fifo")).status().unwrap().success());
    let said = check(folder.path(), &["--max-errors", "100"]);
    assert_eq!(said.code, 2, "{}", said.errors);
    for (line, (row, code)) in cases.iter().enumerate() {
        let found = said.errors.lines().find(|text| {
            text.contains(&format!("data/in.jsonl:{}: ", line + 1)) && text.starts_with("error[")
        });
        match (*code, found) {
            ("ok", found) => assert_eq!(found, None, "{row}"),
            (code, None) => panic!("no {code} of {row}: {}", said.errors),
            (code, Some(text)) => {
                assert!(text.starts_with(&format!("error[{code}]: ")), "{row}: {text}");
                assert!(text.contains('`'), "{text}");
            }
        }
    }
    // The rows of `run` have the same codes, each in its place.
    let found = codes(&run(folder.path(), &[]).out);
    for (line, (row, code)) in cases.iter().enumerate() {
        match *code {
            // What the model says of images.
            "ok" => assert!(!found[line].starts_with("media_"), "{row}: {}", found[line]),
            code => assert_eq!(found[line], code, "{row}"),
        }
    }
}

/// The checksum of a chunk.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

#[test]
fn flags_allow_a_folder_and_a_number_of_images() {
    let part = |path: &str| json!({"type": "image", "path": path});
    let user = |parts: Value| json!({"messages": [{"role": "user", "content": parts}]});
    let folder = folder(&[
        user(json!([part("a.png"), part("b.png")])),
        user(json!([part("../secret.png")])),
    ]);
    let path = folder.path();
    let said = |flags: &[&str]| {
        let said = check(path, &[&["-q"][..], flags].concat());
        (said.code, said.errors)
    };
    let (code, errors) = said(&[]);
    assert!(code == 2 && errors.contains("media_forbidden 1"), "{errors}");
    assert_eq!(said(&["--allowed-local-media-path", "."]).0, 0);
    assert_eq!(said(&["--allowed-local-media-path", "data"]).0, 2);
    let (code, errors) = said(&["--allowed-local-media-path", "no_such"]);
    assert!(code == 2 && errors.contains("no_such: no such folder"), "{errors}");
    let (_, errors) = said(&["--limit-mm-per-prompt", r#"{"image": 1}"#]);
    assert!(errors.contains("the row has 2 images, and 1 are the most; help: "), "{errors}");
    let (_, errors) = said(&["--limit-mm-per-prompt", r#"{"image": {"count": 2}, "video": 0}"#]);
    assert!(!errors.contains("media_count"), "{errors}");
    for wrong in
        ["2", r#"{"image": -1}"#, r#"{"images": 1}"#, r#"{"image": {"count":1,"width":2}}"#]
    {
        let (code, errors) = said(&["--limit-mm-per-prompt", wrong]);
        assert!(code == 2 && errors.contains("--limit-mm-per-prompt"), "{errors}");
    }
}

#[test]
fn paths_of_standard_input_are_relative_to_the_current_folder() {
    let folder = folder(&[]);
    let rows = format!("{}\n{}\n", beside("a.png"), beside("../secret.png"));
    fs::write(folder.path().join("rows"), rows).unwrap();
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(["check", "-q", "-"])
        .current_dir(folder.path().join("data"))
        .stdin(fs::File::open(folder.path().join("rows")).unwrap())
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("<stdin>: 2 rows, 1 bad (media_forbidden 1)"), "{errors}");
}

#[test]
fn a_machine_without_room_for_a_file_is_no_fault_of_the_row() {
    let folder = folder(&[beside("a.png")]);
    // Standard streams and the rows.
    let line =
        format!("ulimit -n 4 && exec {} check -q data/in.jsonl", env!("CARGO_BIN_EXE_vllm-batch"));
    let output =
        Command::new("sh").args(["-c", &line]).current_dir(folder.path()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(errors.contains("`a.png`: Too many open files"), "{errors}");
    assert!(!errors.contains("media_"), "{errors}");
}

#[test]
fn large_uris_and_tables_are_read() {
    let large = base64::encode(&picture(600, 7));
    assert!(large.len() > 1_000_000);
    let uri = format!("data:image/png;base64,{large}");
    let part = json!({"type": "image_url", "image_url": {"url": uri, "detail": "high"}});
    let messages = json!([{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]);
    let body = json!({"model": "m", "messages": messages});
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": body});
    let folder = folder(&[line]);
    let said = check(folder.path(), &[]);
    assert_eq!(said.code, 0, "{}", said.errors);
    let table = "id,photo\n1,a.png\n2,\n3,no.png\n";
    fs::write(folder.path().join("data/t.csv"), table).unwrap();
    let flags = ["--image-column", "photo", "--template", "Describe the photo."];
    let said = program(folder.path(), &[&["check", "data/t.csv"][..], &flags].concat());
    assert!(said.errors.contains("sent as a user turn with its images"), "{}", said.errors);
    assert!(said.errors.contains("3 rows, 1 bad (media_not_found 1)"), "{}", said.errors);
}

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

/// Rows that a run took over.
fn num_reused(folder: &Path) -> u64 {
    let text = fs::read_to_string(folder.join("stats.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["rows"]["reused"].as_u64().unwrap()
}

#[test]
fn a_changed_file_is_a_changed_row_of_the_journal() {
    let folder = folder(&[
        beside("a.png"),
        beside("b.png"),
        beside("no.png"),
        json!({"prompt": 5}),
        json!({"prompt": "2+3="}),
    ]);
    let path = folder.path();
    let start = |flags: &[&str]| {
        let always = ["run", "--model", DEMO, "-i", "data/in.jsonl", "--max-tokens", "4"];
        let side = ["--stats", "stats.json", "-o", "out.jsonl"];
        program(path, &[&always[..], &side, flags].concat())
    };
    // Four error rows end the run, and are in its journal.
    let again = || {
        let said = start(&["--max-errors", "3"]);
        assert_eq!(said.code, 5, "{}", said.errors);
        let text = fs::read_to_string(path.join("stats.json")).unwrap();
        let stats: Value = serde_json::from_str(&text).unwrap();
        (num_reused(path), stats["rows"]["by_code"]["media_not_found"] == 1)
    };
    assert_eq!(again(), (0, true));
    assert_eq!(again(), (4, true));
    fs::write(path.join("data/b.png"), picture(5, 9)).unwrap();
    assert_eq!(again(), (3, true), "one picture is another");
    // The same bytes under the same name are the same row, whenever they were written.
    fs::write(path.join("data/a.png"), picture(4, 1)).unwrap();
    assert_eq!(again(), (4, true));
    fs::write(path.join("data/no.png"), "no picture").unwrap();
    assert_eq!(again(), (3, false), "it fails for another reason");
    fs::write(path.join("data/no.png"), picture(4, 4)).unwrap();
    assert_eq!(again(), (3, false));
    assert_eq!(start(&[]).code, 3);
    let found = codes(&fs::read_to_string(path.join("out.jsonl")).unwrap());
    assert_eq!((&found[2], found[4].as_str()), (&found[0], "ok"), "{found:?}");
}

#[test]
fn a_complete_output_is_that_of_its_images() {
    let text = json!({"prompt": "2+3="});
    let folder = folder(&[text.clone(), beside("a.png"), beside("no.png"), text]);
    let path = folder.path();
    let again = |flags: &[&str]| {
        let always = ["run", "--model", DEMO, "-i", "data/in.jsonl", "--max-tokens", "4"];
        let side = ["--stats", "stats.json", "-o", "out.jsonl"];
        program(path, &[&always[..], &side, flags].concat())
    };
    let out = || fs::read_to_string(path.join("out.jsonl")).unwrap();
    assert_eq!(again(&[]).code, 3);
    let first = codes(&out());
    assert_eq!(first[2], "media_not_found");
    let said = again(&[]);
    assert!(said.errors.contains("Nothing to do"), "{}", said.errors);
    // A file that has come is asked for by `--retry-failed` alone, like any failed row.
    fs::write(path.join("data/no.png"), picture(4, 4)).unwrap();
    let said = again(&[]);
    assert!(said.code == 3 && said.errors.contains("Nothing to do"), "{}", said.errors);
    let said = again(&["--retry-failed"]);
    assert_eq!(num_reused(path), 2, "{}", said.errors);
    assert_eq!(codes(&out())[2], first[1]);
    // Another picture under the same name is another input.
    fs::write(path.join("data/a.png"), picture(4, 8)).unwrap();
    let said = again(&[]);
    assert!(said.code == 6 && said.errors.contains("--retry-failed"), "{}", said.errors);
    let said = again(&["--retry-failed"]);
    assert_eq!(said.code, 3, "{}", said.errors);
    assert!(again(&[]).errors.contains("Nothing to do"));
}

const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");

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

#[test]
fn answers_are_of_the_pictures_and_of_nothing_beside_them() {
    let folder = folder(&seen_rows());
    let data = folder.path().join("data");
    fs::write(data.join("c.png"), picture(37, 9)).unwrap();
    let expected = answers(folder.path(), &[]);
    assert!(expected.iter().all(|row| row["response"].is_string()), "{expected:?}");
    for flags in [
        &["--max-num-seqs", "1", "--threads", "1", "--no-enable-prefix-caching"][..],
        &["--mm-processor-cache-gb", "0", "--max-num-batched-tokens", "9"],
        &["--num-gpu-blocks-override", "9", "--mm-processor-cache-gb", "0"],
    ] {
        assert_eq!(answers(folder.path(), flags), expected, "{flags:?}");
    }
    fs::write(data.join("c.png"), picture(37, 10)).unwrap();
    let changed = answers(folder.path(), &[]);
    for (id, (changed, expected)) in changed.iter().zip(&expected).enumerate() {
        assert_eq!(changed != expected, id % 4 == 3, "row {id}");
    }
}

#[test]
fn a_continued_run_computes_the_rows_of_a_changed_picture_again() {
    let folder = folder(&seen_rows());
    let data = folder.path().join("data");
    fs::write(data.join("c.png"), picture(37, 9)).unwrap();
    let before = answers(folder.path(), &[]);
    let lines = fs::read_to_string(data.join("in.jsonl")).unwrap();
    // A row that ends the run, in the place of the last one.
    let cut = lines.lines().take(15).map(|line| format!("{line}\n")).collect::<String>();
    fs::write(data.join("in.jsonl"), cut + "{broken\n").unwrap();
    let run = |max_errors: &str| {
        let model = ["run", "--model", SEES, "-i", "data/in.jsonl", "-o", "out.jsonl"];
        let flags = ["--max-tokens", "6", "--max-errors", max_errors];
        program(folder.path(), &[&model[..], &flags].concat())
    };
    let stopped = run("0");
    assert_ne!(stopped.code, 0, "{}", stopped.errors);
    fs::write(data.join("c.png"), picture(37, 10)).unwrap();
    fs::write(data.join("in.jsonl"), &lines).unwrap();
    let ended = run("0");
    assert_eq!(ended.code, 0, "{}", ended.errors);
    let after = rows(&fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    assert_eq!(after, answers(folder.path(), &[]));
    let changed = after.iter().zip(&before).enumerate().filter(|(_, (a, b))| a != b);
    assert_eq!(changed.map(|(id, _)| id).collect::<Vec<_>>(), [3, 7, 11, 15]);
}

#[test]
fn images_are_counted_in_summaries_and_plans() {
    let folder = folder(&seen_rows());
    fs::write(folder.path().join("data/c.png"), picture(37, 9)).unwrap();
    let run = ["run", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "2", "-o", "out"];
    let run = [&run[..], &["--no-enable-prefix-caching", "--stats", "stats.json"]].concat();
    let said = program(folder.path(), &run);
    let stats = fs::read_to_string(folder.path().join("stats.json")).unwrap();
    let images = &serde_json::from_str::<Value>(&stats).unwrap()["images"];
    let num = |key: &str| images[key].as_u64().unwrap();
    // Of three kinds: four rows have one, four have two, four another.
    assert_eq!((num("num_images"), num("num_encoded")), (16, 3), "{images}");
    let seconds = images["encode_time"].as_f64().unwrap();
    let expected = format!("Images: 16, {} tokens; 3 encoded in {seconds:.1} s", num("num_tokens"));
    assert!(said.errors.contains(&expected), "{}", said.errors);
    let plan = ["plan", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "2"];
    let said = program(folder.path(), &plan);
    let expected = format!("Tokens of 16 images: {}; mean", num("num_tokens"));
    assert!(said.out.contains(&expected), "{}{}", said.out, said.errors);
}

#[test]
fn a_model_without_its_tower_reads_texts_alone() {
    let folder = folder(&seen_rows());
    fs::write(folder.path().join("data/c.png"), picture(37, 9)).unwrap();
    let fixed = ["run", "-q", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "6"];
    let said = program(folder.path(), &[&fixed[..], &["--language-model-only"]].concat());
    assert_eq!(said.code, 3, "{}", said.errors);
    let codes = rows(&said.out);
    let codes: Vec<_> = codes.iter().map(|row| row["error"]["code"].as_str()).collect();
    assert_eq!(
        codes[..4],
        [Some("no_image_input"), Some("no_image_input"), None, Some("no_image_input")]
    );
    assert!(said.out.contains("without --language-model-only"), "{}", said.out);
}

#[test]
fn no_tower_is_loaded_where_rows_may_have_no_image() {
    let folder = folder(&seen_rows());
    fs::write(folder.path().join("data/c.png"), picture(37, 9)).unwrap();
    let plan = |more: &[&str]| {
        let fixed = ["plan", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "2"];
        let said = program(folder.path(), &[&fixed[..], more].concat());
        let weights = said.out.lines().find(|line| line.contains("Weights"));
        weights.unwrap_or_else(|| panic!("{}{}", said.out, said.errors)).to_owned()
    };
    let alone = plan(&["--language-model-only"]);
    assert_eq!(plan(&["--limit-mm-per-prompt", r#"{"image": 0}"#]), alone);
    assert_ne!(plan(&["--limit-mm-per-prompt", r#"{"image": 1}"#]), alone);
}
