//! Long recordings as rows: a row for each clip, cut where the recording is quiet.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Writes down recordings of a second, with random weights.
const HEARS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_sounds/english");

const RATE: usize = 16_000;

/// Sound of so many samples at 16 kHz, with a pause in the middle of each second.
fn speech(num_samples: usize) -> Vec<i16> {
    let sample = |at: usize| match at % RATE {
        6_400..9_600 => 0,
        place => ((place * place / 50 + at / RATE * 977) % 20_000) as i16 - 10_000,
    };
    (0..num_samples).map(sample).collect()
}

fn wav(samples: &[i16]) -> Vec<u8> {
    let num_bytes = samples.len() as u32 * 2;
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + num_bytes).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend((RATE as u32).to_le_bytes());
    bytes.extend((RATE as u32 * 2).to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend(num_bytes.to_le_bytes());
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    bytes
}

/// A folder `rec` with a long recording, a short one, one that is cut off and one of another kind.
fn recordings() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rec = folder.path().join("rec");
    fs::create_dir(&rec).unwrap();
    fs::write(rec.join("a.wav"), wav(&speech(7 * RATE + 100))).unwrap();
    fs::write(rec.join("b.wav"), wav(&speech(3_000))).unwrap();
    let cut = wav(&speech(3 * RATE));
    fs::write(rec.join("c.wav"), &cut[..cut.len() - 1000]).unwrap();
    fs::write(rec.join("d.opus"), "OggS").unwrap();
    folder
}

struct Said {
    code: i32,
    rows: Vec<Value>,
    errors: String,
}

fn program(folder: &Path, flags: &[&str]) -> Said {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(flags).current_dir(folder).stdin(Stdio::null()).env("COLUMNS", "400");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let errors = String::from_utf8(output.stderr).unwrap();
    Said { code: output.status.code().unwrap(), rows, errors }
}

fn run(folder: &Path, flags: &[&str]) -> Said {
    let model = ["run", "--model", HEARS, "--max-tokens", "6", "--temperature", "0"];
    program(folder, &[&model[..], flags].concat())
}

fn read(folder: &Path, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const CLIPS: [&str; 4] = ["--max-audio-clip-s", "1", "-i", "rec"];

#[test]
fn clips_are_rows_and_each_is_a_recording_of_its_own() {
    let folder = recordings();
    let said = run(folder.path(), &CLIPS);
    let place = |row: &Value| {
        let error = row["error"]["code"].as_str().unwrap_or_default();
        let file = row["file"].as_str().unwrap();
        (file.to_owned(), row["start"].as_f64(), row["end"].as_f64(), error.to_owned())
    };
    let places: Vec<_> = said.rows.iter().map(place).collect();
    let of = |name: &str| places.iter().filter(|place| place.0 == name).collect::<Vec<_>>();
    assert_eq!((said.code, places.len()), (3, of("rec/a.wav").len() + 5), "{}", said.errors);
    let long = of("rec/a.wav");
    assert!(long.windows(2).all(|two| two[0].2 == two[1].1), "{long:?}");
    assert_eq!((long[0].1, long.last().unwrap().2), (Some(0.0), Some(7.006)));
    assert!(long.iter().all(|place| place.2.unwrap() - place.1.unwrap() <= 1.0), "{long:?}");
    assert_eq!(of("rec/b.wav")[0].2, Some(0.188));
    let codes: Vec<&str> = of("rec/c.wav").iter().map(|place| place.3.as_str()).collect();
    assert_eq!(codes.split_last(), Some((&"media_decode", &["", ""][..])));
    assert_eq!(of("rec/d.opus"), [&("rec/d.opus".into(), None, None, "media_unsupported".into())]);

    // A clip says what its samples say that are a file.
    let (start, end) = (long[3].1.unwrap(), long[3].2.unwrap());
    let sample = |seconds: f64| (seconds * RATE as f64).round() as usize;
    let clip = &speech(7 * RATE + 100)[sample(start)..sample(end)];
    fs::write(folder.path().join("clip.wav"), wav(clip)).unwrap();
    let alone = run(folder.path(), &["-i", "clip.wav", "--logprobs", "1"]);
    let among = run(folder.path(), &[&CLIPS[..], &["--logprobs", "1"]].concat());
    assert_eq!(alone.rows[0]["outputs"], among.rows[3]["outputs"]);
    assert!(alone.rows[0]["outputs"].is_array(), "{}", alone.rows[0]);
}

#[test]
fn a_run_goes_on_by_clip_and_joins_what_was_said() {
    let folder = recordings();
    let path = folder.path();
    let clips = ["--max-audio-clip-s", "1", "-i", "rec/a.wav", "rec/b.wav", "--return-timestamps"];
    let whole = run(path, &clips);
    assert_eq!(whole.code, 0, "{}", whole.errors);
    let alone = ["--max-num-seqs", "1", "--threads", "1", "--no-enable-prefix-caching"];
    assert_eq!(run(path, &[&clips[..], &alone].concat()).rows, whole.rows, "whatever runs beside");
    let first = [&clips[..], &["-o", "out.jsonl", "--limit", "3"]].concat();
    assert_eq!(run(path, &first).code, 0);
    let all = [&clips[..], &["-o", "out.jsonl"]].concat();
    let grown = run(path, &all);
    assert!(grown.code == 0 && grown.errors.contains("3 "), "{}", grown.errors);
    assert_eq!(read(path, "out.jsonl"), whole.rows);

    let join = ["join", "out.jsonl", "--separator", " ", "--to"];
    assert_eq!(program(path, &[&join[..], &["{name}.txt"]].concat()).code, 0);
    let of_a = whole.rows.iter().filter(|row| row["file"] == "rec/a.wav");
    let texts: Vec<&str> = of_a.map(|row| row["response"].as_str().unwrap()).collect();
    assert_eq!(
        fs::read_to_string(path.join("a.txt")).unwrap().trim_end(),
        texts.join(" ").trim_end()
    );

    // Another recording of the same name, and clips of another length, are other rows.
    let longer = [&["--max-audio-clip-s", "2"], &all[2..]].concat();
    assert_eq!(run(path, &longer).code, 6);
    fs::write(path.join("rec/b.wav"), wav(&speech(3_001))).unwrap();
    assert_eq!(run(path, &all).code, 6);
}

#[test]
fn only_recordings_that_are_named_are_cut() {
    let folder = recordings();
    let path = folder.path();
    fs::write(path.join("rows.jsonl"), json!({"audio": "rec/a.wav"}).to_string()).unwrap();
    let none = run(path, &["--max-audio-clip-s", "1", "-i", "none.wav"]);
    let message = none.rows[0]["error"]["message"].as_str().unwrap();
    assert_eq!((none.code, message), (3, "`none.wav`: there is no such file"));
    for (flags, said) in [
        (&["--max-audio-clip-s", "1", "-i", "rows.jsonl"][..], "cuts files of recordings"),
        (&["--max-audio-clip-s", "1", "--prompt", "a"], "cuts files of recordings"),
        (&["--max-audio-clip-s", "0", "-i", "rec"], "0 is not in 1..=600"),
    ] {
        let refused = run(path, flags);
        assert!(refused.code == 2 && refused.errors.contains(said), "{}", refused.errors);
    }
    // Without the flag it is said.
    let whole = run(path, &["-i", "rows.jsonl"]);
    assert_eq!(whole.rows[0]["error"]["code"], "media_too_large");
    let message = whole.rows[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("as --max-audio-clip-s does"), "{message}");
    let check = program(path, &["check", "--max-audio-clip-s", "1", "rec"]);
    assert!(check.code == 2 && check.errors.contains("13 rows, 2 bad"), "{}", check.errors);
}
