//! Rows with recordings through the program. The demo model hears nothing, so that every such row
//! is an error row of `run`; `check` looks at recordings without a model.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

/// A model that reads text alone.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
/// A model that sees, with random weights.
const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");
/// Recordings of every format.
const SOUNDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/sound");

fn sound(name: &str) -> Vec<u8> {
    fs::read(format!("{SOUNDS}/{name}")).unwrap()
}

/// A WAV of silence.
fn silence(rate: u32, num_samples: u32) -> Vec<u8> {
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + num_samples).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend(rate.to_le_bytes());
    bytes.extend(rate.to_le_bytes());
    bytes.extend(b"\x01\0\x08\0data");
    bytes.extend(num_samples.to_le_bytes());
    bytes.resize(bytes.len() + num_samples as usize, 128);
    bytes
}

/// A folder `data` with recordings and rows, and a recording outside of it.
fn folder(rows: &[Value]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    for name in ["mono_pcm_16.wav", "stereo_16.flac", "mono.mp3", "mono.m4a", "mono.ogg"] {
        fs::write(data.join(name), sound(name)).unwrap();
    }
    fs::write(folder.path().join("secret.wav"), sound("mono_pcm_16.wav")).unwrap();
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(data.join("in.jsonl"), text).unwrap();
    folder
}

fn program(folder: &Path, flags: &[&str]) -> (i32, String, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("COLUMNS", "400")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn check(folder: &Path, flags: &[&str]) -> (i32, String) {
    let fixed = ["check", "--color", "never", "--max-errors", "100"];
    let (code, _, errors) = program(folder, &[&fixed[..], flags].concat());
    (code, errors)
}

/// Codes of the rows of `run`.
fn codes(folder: &Path, model: &str, input: &str) -> Vec<String> {
    let flags = ["run", "-q", "--model", model, "-i", input, "--max-tokens", "2"];
    let (_, out, errors) = program(folder, &flags);
    assert!(!out.is_empty(), "{errors}");
    let code = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        row["error"]["code"].as_str().unwrap_or("ok").to_owned()
    };
    out.lines().map(code).collect()
}

fn beside(audio: impl Into<Value>) -> Value {
    json!({"prompt": "What is said?", "audio": audio.into()})
}

#[test]
fn check_finds_every_recording_that_cannot_be_used() {
    let uri = |bytes: &[u8]| format!("data:audio/wav;base64,{}", base64::encode(bytes));
    let wav = sound("mono_pcm_16.wav");
    let mut forged = wav.clone();
    forged[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut silent = silence(8000, 64);
    silent[22] = 0;
    let part = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    let data = base64::encode(&wav);
    let cases = [
        (beside("mono_pcm_16.wav"), "ok"),
        (beside(json!(["stereo_16.flac", "mono.mp3", "mono.m4a", "mono.ogg"])), "ok"),
        (beside(uri(&wav)), "ok"),
        (beside(data.clone()), "ok"),
        (beside(json!({"bytes": null, "path": "mono.mp3"})), "ok"),
        (beside(json!({"array": [0.5, -0.5], "sampling_rate": 16000})), "ok"),
        (json!({"id": "alone", "audio": "mono.mp3"}), "ok"),
        (part(json!({"type": "input_audio", "input_audio": {"data": data}})), "ok"),
        (beside("no.wav"), "media_not_found"),
        (beside("../secret.wav"), "media_forbidden"),
        (beside("https://169.254.169.254/a.wav"), "media_forbidden"),
        (beside("in.jsonl"), "media_decode"),
        (beside(uri(&wav[..wav.len() - 9])), "media_decode"),
        (beside(uri(&silent)), "media_decode"),
        (beside(uri(&forged)), "media_unsupported"),
        (beside(uri(&sound("stereo_ima_adpcm.wav"))), "media_unsupported"),
        (beside("data:audio/wav;base64,????"), "media_format"),
        (beside("data:text/plain;base64,AAAA"), "media_format"),
        (beside(uri(&silence(1000, 600_001))), "media_too_large"),
        (json!({"prompt": "<audio> or <audio>?", "audio": "mono.mp3"}), "media_count"),
        (json!({"prompt": "p", "audio": {"a": 1}}), "invalid_prompt"),
    ];
    let all: Vec<Value> = cases.iter().map(|(row, _)| row.clone()).collect();
    let folder = folder(&all);
    let (code, errors) = check(folder.path(), &["data/in.jsonl"]);
    assert_eq!(code, 2, "{errors}");
    // A setting is called as it is typed.
    assert!(errors.contains("--max-audio-clip-s") && !errors.contains("settings."), "{errors}");
    let found = codes(folder.path(), DEMO, "data/in.jsonl");
    for (line, (row, code)) in cases.iter().enumerate() {
        let place = format!("data/in.jsonl:{}: ", line + 1);
        let said = errors.lines().find(|text| text.contains(&place) && text.starts_with("error["));
        // The rows of `run` have the same codes, each in its place.
        match *code {
            "ok" => {
                assert_eq!(said, None, "{row}");
                assert_eq!(found[line], "no_audio_input", "{row}");
            }
            code => {
                let said = said.unwrap_or_else(|| panic!("no {code} of {row}: {errors}"));
                assert!(said.starts_with(&format!("error[{code}]: ")), "{row}: {said}");
                assert_eq!(found[line], code, "{row}");
            }
        }
    }
}

#[test]
fn a_model_that_sees_does_not_hear() {
    let folder = folder(&[beside("mono.mp3"), json!({"prompt": "Say a word."})]);
    assert_eq!(codes(folder.path(), SEES, "data/in.jsonl"), ["no_audio_input", "ok"]);
}

#[test]
fn a_field_that_may_hold_recordings_is_named() {
    let folder = folder(&[json!({"prompt": "p", "audio_path": "mono.mp3"})]);
    let (code, errors) = check(folder.path(), &["data/in.jsonl"]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("`audio_path` is not read as a recording; --audio-column"), "{errors}");
    let flags = ["data/in.jsonl", "--audio-column", "audio_path"];
    assert!(!check(folder.path(), &flags).1.contains("is not read"));
    let (code, errors) = check(folder.path(), &["data/in.jsonl", "--audio-column", "clip"]);
    assert!(code == 2 && errors.contains("--audio-column: the row on line 1 has no"), "{errors}");
}

#[test]
fn a_table_and_columns_of_hubs_have_recordings() {
    let folder = folder(&[]);
    let data = folder.path().join("data");
    fs::write(data.join("in.csv"), "prompt,audio\nWhat?,mono.mp3\nWhat?,no.mp3\n").unwrap();
    let path = data.join("in.parquet");
    write_audio(&path, &sound("mono.ogg"));
    for (input, bad) in [("data/in.csv", 1), ("data/in.parquet", 0)] {
        let (code, errors) = check(folder.path(), &[input]);
        assert_eq!(code, if bad > 0 { 2 } else { 0 }, "{errors}");
        assert_eq!(errors.matches("error[media_not_found]").count(), bad, "{errors}");
    }
    assert_eq!(codes(folder.path(), DEMO, "data/in.parquet"), ["no_audio_input"]);
}

/// A file with a row of a prompt and an `Audio` of the hub.
fn write_audio(path: &Path, bytes: &[u8]) {
    let schema = "message schema { required binary prompt (UTF8);
        optional group audio { optional binary bytes; optional binary path (UTF8); } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (bytes, level) in [(&b"What?"[..], 0), (bytes, 2), (b"a.ogg", 2)] {
        let mut column = group.next_column().unwrap().unwrap();
        let values = [ByteArray::from(bytes.to_vec())];
        column.typed::<ByteArrayType>().write_batch(&values, Some(&[level]), None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_number_of_recordings_is_allowed() {
    let folder = folder(&[beside(json!(["mono.mp3", "mono.ogg"]))]);
    let limit = |json| check(folder.path(), &["data/in.jsonl", "--limit-mm-per-prompt", json]);
    assert_eq!(limit(r#"{"image": 1, "audio": 2}"#).0, 0);
    let (code, errors) = limit(r#"{"audio": {"count": 1}}"#);
    assert!(code == 2 && errors.contains("2 recordings, and 1 are the most"), "{errors}");
}

#[test]
fn files_of_recordings_are_rows_without_a_text() {
    let folder = folder(&[]);
    let (code, errors) = check(folder.path(), &["data/*.m*", "data/mono.ogg"]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("rows are recordings, each a user turn without text"), "{errors}");
    assert!(errors.contains("2 rows, 0 bad"), "{errors}");
    assert!(errors.contains("1 row, 0 bad"), "{errors}");
    let flags = ["run", "-q", "--model", DEMO, "-i", "data/mono.mp3", "data/mono.ogg"];
    let (_, out, errors) = program(folder.path(), &flags);
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2, "{errors}");
    assert_eq!(rows[1]["audio"], "data/mono.ogg");
    assert_eq!(rows[1]["error"]["code"], "no_audio_input");
    // A text for all of them, as for pictures.
    let asked = [&flags[..], &["-p", "What is said?"]].concat();
    assert_eq!(program(folder.path(), &asked).1.lines().count(), 2);
    fs::write(folder.path().join("data/a.png"), b"\x89PNG").unwrap();
    let both = ["run", "-q", "--model", DEMO, "-i", "data/a.png", "data/mono.mp3"];
    let (code, _, errors) = program(folder.path(), &both);
    assert!(code == 2 && errors.contains("data/mono.mp3 is a recording"), "{errors}");
    fs::remove_file(folder.path().join("data/in.jsonl")).unwrap();
    let (code, errors) = check(folder.path(), &["data"]);
    assert!(code == 2 && errors.contains("is a picture, and"), "{errors}");
    fs::remove_file(folder.path().join("data/a.png")).unwrap();
    let (code, errors) = check(folder.path(), &["data"]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("5 rows, 0 bad"), "{errors}");
}

#[test]
fn a_folder_with_rows_about_recordings_has_those_rows() {
    let folder = folder(&[]);
    let data = folder.path().join("data");
    fs::remove_file(data.join("in.jsonl")).unwrap();
    let rows = "file_name,text\nmono.mp3,a\nmono.ogg,b\nstereo_16.flac,c\nmono.m4a,d\n\
                mono_pcm_16.wav,e\n";
    fs::write(data.join("metadata.csv"), rows).unwrap();
    let (code, errors) = check(folder.path(), &["data"]);
    assert_eq!(code, 0, "{errors}");
    let input = ["run", "-q", "--model", DEMO, "-i", "data"];
    let (_, out, errors) = program(folder.path(), &input);
    assert_eq!(out.matches("no_audio_input").count(), 5, "{errors}{out}");
}
