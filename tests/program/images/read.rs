//! Which images may be read, and what is said of those that may not.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

use super::{beside, check, codes, folder, picture, program, run};

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
