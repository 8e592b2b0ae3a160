//! Pictures as a dataset: files that are named, folders, and folders with Hugging Face's metadata.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");
const MEDIA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/media");

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

/// Asks the model that sees about every picture.
fn run(folder: &Path, flags: &[&str]) -> Said {
    let model = ["run", "--model", SEES, "--max-tokens", "4", "--temperature", "0"];
    program(folder, &[&model[..], flags].concat())
}

const ASKED: [&str; 2] = ["--template", "Describe the image."];

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What rows say of a field.
fn field(rows: &[Value], name: &str) -> Vec<Value> {
    rows.iter().map(|row| row[name].clone()).collect()
}

fn copy(name: &str, to: impl AsRef<Path>) {
    fs::create_dir_all(to.as_ref().parent().unwrap()).unwrap();
    fs::copy(Path::new(MEDIA).join(name), to).unwrap();
}

/// A folder `photos` with three pictures, one of them deeper.
fn photos() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let photos = folder.path().join("photos");
    copy("l.png", photos.join("b.png"));
    copy("24_420_20x16_q95.jpg", photos.join("a.jpg"));
    copy("lossy0.webp", photos.join("sub/c.webp"));
    folder
}

#[test]
fn a_prompt_is_asked_of_each_picture() {
    let folder = photos();
    let path = folder.path();
    let expected = run(path, &[&["-i", "photos"], &ASKED[..]].concat());
    assert_eq!(expected.code, 0, "{}", expected.errors);
    for flags in [
        &["-i", "photos", "-p", "Describe the image."][..],
        &["--prompt", "Describe the image.", "--input", "photos/*.*", "photos/sub/c.webp"],
    ] {
        let said = run(path, flags);
        assert_eq!((said.code, &said.out), (0, &expected.out), "{flags:?}: {}", said.errors);
    }
    let said = run(path, &["-i", "photos", "-p", "Describe the image.", "-o", "out.jsonl"]);
    assert_eq!(said.code, 0, "{}", said.errors);
    assert_eq!(fs::read_to_string(path.join("out.jsonl")).unwrap(), expected.out);
}

#[test]
fn a_prompt_beside_other_rows_is_refused() {
    let folder = photos();
    let path = folder.path();
    fs::write(path.join("in.jsonl"), "{\"prompt\": \"a\"}\n").unwrap();
    for (flags, text) in [
        (&["-i", "in.jsonl", "-p", "b"][..], "--prompt goes with --input only where that is"),
        (&["-i", "photos", "-p", "a {{b}}"], "use --template"),
        (&["-i", "photos", "-p", "a", "--template", "b"], "cannot be used with"),
        (&["-p", "a", "-o", "out.jsonl"], "cannot be used with"),
    ] {
        let said = run(path, flags);
        assert_eq!(said.code, 2, "{flags:?}: {}", said.errors);
        assert!(said.errors.contains(text), "{flags:?}: {}", said.errors);
    }
}

#[test]
fn a_folder_a_pattern_and_names_are_rows_of_pictures() {
    let folder = photos();
    let path = folder.path();
    let all = ["photos/a.jpg", "photos/b.png", "photos/sub/c.webp"];
    // The same pictures in rows of a file.
    let lines: String = all.iter().map(|name| format!("{}\n", json!({"image": name}))).collect();
    fs::write(path.join("in.jsonl"), lines).unwrap();
    let expected = run(path, &[&["-i", "in.jsonl"], &ASKED[..]].concat());
    assert_eq!(expected.code, 0, "{}", expected.errors);
    let expected = rows(&expected.out);
    assert!(expected.iter().all(|row| row["response"].is_string()), "{expected:?}");
    assert_eq!(field(&expected, "image"), all);
    for (inputs, rows_of) in [
        (&["-i", "photos"][..], 0..3),
        (&["-i", "photos/a.jpg", "photos/b.png", "-i", "photos/sub/c.webp"], 0..3),
        (&["-i", "photos/*.jpg", "photos/*.png"], 0..2),
        (&["-i", "photos/[b]*", "photos/sub"], 1..3),
    ] {
        let said = run(path, &[inputs, &ASKED].concat());
        assert_eq!(said.code, 0, "{inputs:?}: {}", said.errors);
        assert_eq!(rows(&said.out), expected[rows_of], "{inputs:?}");
        assert!(
            said.errors.contains("each sent as a user turn with its images"),
            "{}",
            said.errors
        );
    }
    let shard = run(path, &[&["-i", "photos/", "--shard", "1/2"], &ASKED[..]].concat());
    assert_eq!(rows(&shard.out), expected[1..2]);
    let sample = run(path, &[&["-i", "photos/", "--sample", "3"], &ASKED[..]].concat());
    assert_eq!(rows(&sample.out), expected);
    let plan = program(path, &["plan", "--model", SEES, "-i", "photos", "--template", "Describe."]);
    assert!(plan.code == 0 && plan.out.contains('3'), "{}{}", plan.out, plan.errors);
}

#[test]
fn a_run_over_a_folder_goes_on_and_sees_what_has_changed() {
    let folder = photos();
    let path = folder.path();
    let broken = path.join("photos/sub/d.png");
    fs::write(&broken, "no picture").unwrap();
    let again = |max_errors: &str| {
        let flags = ["-i", "photos", "-o", "photos/out.jsonl"];
        let said = run(path, &[&flags, &ASKED[..], &["--max-errors", max_errors]].concat());
        said.code
    };
    assert_eq!(again("0"), 5);
    fs::copy(path.join("photos/a.jpg"), &broken).unwrap();
    copy("rgb.png", path.join("photos/b.png"));
    assert_eq!(again("0"), 0);
    let out = rows(&fs::read_to_string(path.join("photos/out.jsonl")).unwrap());
    let fresh = run(path, &[&["-i", "photos"], &ASKED[..]].concat());
    assert_eq!(rows(&fresh.out), out);
    assert!(fresh.errors.contains("photos/out.jsonl"), "{}", fresh.errors);
}

#[test]
fn what_is_no_picture_is_passed_over_in_folders_and_refused_by_name() {
    let folder = photos();
    let path = folder.path();
    fs::write(path.join("photos/notes.txt"), "a\n").unwrap();
    fs::write(path.join("photos/.DS_Store"), "a\n").unwrap();
    fs::write(path.join("rows.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    fs::create_dir(path.join("empty")).unwrap();
    let check = |inputs: &[&str]| program(path, &[&["check"], inputs, &ASKED].concat());
    let said = check(&["photos"]);
    let note = "photos: photos/notes.txt is no picture, and passed over";
    assert!(said.code == 0 && said.errors.contains(note), "{}", said.errors);
    assert!(said.errors.contains("photos: 3 rows, 0 bad"), "{}", said.errors);
    fs::write(path.join("photos/more.md"), "a\n").unwrap();
    let said = check(&["photos"]);
    let note = "2 files are no pictures, and passed over, such as photos/more.md";
    assert!(said.errors.contains(note), "{}", said.errors);
    for (inputs, expected) in [
        (&["photos/*.txt", "photos"][..], "photos/notes.txt is no picture, and photos/a.jpg is"),
        (&["photos/[bn]*"], "photos/b.png is a picture, and photos/notes.txt is no picture"),
        (&["-", "photos"], "standard input is no picture, and photos/a.jpg is a picture"),
        (&["photos", "rows.jsonl"], "photos/a.jpg is a picture, and rows.jsonl is no picture"),
        (&["empty"], "cannot read empty: it is a folder without pictures"),
        (&["s3://bucket/a.png"], "s3://bucket/a.png: pictures of a store are not read"),
    ] {
        let said = run(path, &[&["-i"], inputs, &ASKED].concat());
        assert!(said.code == 2 && said.errors.contains(expected), "{inputs:?}: {}", said.errors);
        assert!(said.errors.contains("help: "), "{}", said.errors);
    }
    let said = run(path, &["-i", "photos"]);
    let expected = "photos: pictures have no text to answer";
    assert!(said.code == 2 && said.errors.contains(expected), "{}", said.errors);
    assert!(said.errors.contains("--template 'Describe the image.'"), "{}", said.errors);
}

#[test]
fn bad_files_of_a_folder_are_error_rows_in_their_places() {
    let folder = photos();
    let path = folder.path();
    copy("rgb.png", path.join("secret.png"));
    symlink("../secret.png", path.join("photos/link.png")).unwrap();
    symlink("..", path.join("photos/up")).unwrap();
    fs::write(path.join("photos/data:x.png"), fs::read(path.join("secret.png")).unwrap()).unwrap();
    fs::write(path.join("photos/e.heic"), b"\0\0\0\x18ftypheic").unwrap();
    fs::write(path.join("photos/z.png"), "text").unwrap();
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff.png");
    copy("rgb.png", path.join("photos").join(name));
    let codes = |text: &str| -> Vec<String> {
        let code = |row: &Value| row["error"]["code"].as_str().unwrap_or("ok").to_owned();
        rows(text).iter().map(code).collect()
    };
    let said = run(path, &[&["-i", "photos"], &ASKED[..]].concat());
    let expected = [
        "ok",
        "ok",
        "ok",
        "media_unsupported",
        "media_forbidden",
        "ok",
        "media_decode",
        "bad_utf8",
    ];
    assert_eq!((said.code, codes(&said.out)), (3, expected.map(str::to_owned).to_vec()));
    // Whoever names a link means the file behind it, as of any input.
    let said = run(path, &[&["-i", "photos/link.png"], &ASKED[..]].concat());
    assert_eq!((said.code, codes(&said.out)), (0, vec!["ok".to_owned()]), "{}", said.errors);
    let said = program(&path.join("photos"), &[&["check", "."], &ASKED[..]].concat());
    assert!(
        said.errors.contains("error[media_decode]: .:7: `image`: `./z.png`"),
        "{}",
        said.errors
    );
    assert!(said.errors.contains(".: 8 rows, 4 bad"), "{}", said.errors);
}

#[test]
fn metadata_of_a_folder_has_its_rows() {
    let folder = photos();
    let path = folder.path();
    let photos = path.join("photos");
    let table = "file_name,label\na.jpg,dog\nsub/c.webp,cat\n../x.png,none\n";
    fs::write(photos.join("metadata.csv"), table).unwrap();
    let said = run(path, &[&["-i", "photos", "-o", "o.jsonl"], &ASKED[..]].concat());
    assert_eq!(said.code, 3, "{}", said.errors);
    let found = rows(&fs::read_to_string(path.join("o.jsonl")).unwrap());
    assert_eq!(field(&found, "label"), ["dog", "cat", "none"]);
    assert_eq!(found[2]["error"]["code"], "media_forbidden");
    let alone = run(path, &[&["-i", "photos/a.jpg"], &ASKED[..]].concat());
    assert_eq!(rows(&alone.out)[0]["response"], found[0]["response"]);
    // The prompt may name a field of files; they are images all the same.
    let named = ["-i", "photos", "--template", "Is {{file_name}} a {{label}}?", "--limit", "1"];
    let said = run(path, &named);
    assert!(said.code == 0 && said.errors.contains("with its images"), "{}", said.errors);
    // Two images of a row, in the order of their fields, and a text of its own.
    fs::remove_file(photos.join("metadata.csv")).unwrap();
    let row = json!({"front_file_name": "a.jpg", "back_file_names": ["b.png"], "text": "Equal?"});
    fs::write(photos.join("metadata.jsonl"), format!("{row}\n")).unwrap();
    let said = run(path, &["-i", "photos"]);
    assert_eq!(said.code, 0, "{}", said.errors);
    let row = json!({"images": ["photos/a.jpg", "photos/b.png"], "text": "Equal?"});
    fs::write(path.join("in.jsonl"), format!("{row}\n")).unwrap();
    let same = run(path, &["-i", "in.jsonl"]);
    assert_eq!(rows(&same.out)[0]["response"], rows(&said.out)[0]["response"]);
    fs::write(photos.join("metadata.csv"), table).unwrap();
    let said = run(path, &["-i", "photos"]);
    assert!(said.code == 2 && said.errors.contains("both have rows"), "{}", said.errors);
    fs::remove_file(photos.join("metadata.csv")).unwrap();
    fs::rename(photos.join("metadata.jsonl"), photos.join("sub/metadata.jsonl")).unwrap();
    let said = run(path, &["-i", "photos"]);
    assert!(said.code == 2 && said.errors.contains("is in no folder that has"), "{}", said.errors);
}

/// Rows as VLMEvalKit writes them: an image, a list, the index of another row, before or after it.
#[test]
fn a_table_of_vlmevalkit_is_read_as_it_is() {
    let folder = photos();
    let path = folder.path();
    let encoded = |name: &str| base64::encode(&fs::read(path.join("photos").join(name)).unwrap());
    let (a, b) = (encoded("a.jpg"), encoded("b.png"));
    let lines = [
        "index\timage\tquestion\tA\tB\tanswer".to_owned(),
        "1000001\t1\tWhich?\tcat\tdog\tB".to_owned(),
        format!("0\t{a}\tWhat?\tcat\tdog\tA"),
        format!("1\t['{a}', '{b}']\tWhich?\tcat\tdog\tB"),
        "1000000\t0\tWhat?\tcat\tdog\tA".to_owned(),
        "7\t8\tWhat?\tcat\tdog\tA".to_owned(),
    ];
    fs::write(path.join("bench.tsv"), lines.join("\n") + "\n").unwrap();
    let template = ["--template", "{{question}}\nA. {{A}}\nB. {{B}}"];
    let flags = ["-i", "bench.tsv", "-o", "out.jsonl", "--overwrite"];
    let said = run(path, &[&flags, &template[..]].concat());
    assert_eq!(said.code, 3, "{}", said.errors);
    let found = rows(&fs::read_to_string(path.join("out.jsonl")).unwrap());
    let response = field(&found, "response");
    assert_eq!((&response[0], &response[1]), (&response[2], &response[3]));
    assert!(response[..4].iter().all(Value::is_string) && response[0] != response[1]);
    assert_eq!(field(&found, "image")[3], "0", "fields are as they were");
    assert_eq!(found[4]["error"]["code"], "media_not_found");
    // The same by paths.
    let lines = [
        "index\timage_path\tquestion\tA\tB",
        "0\tphotos/a.jpg\tWhat?\tcat\tdog",
        "1\t['photos/a.jpg', 'photos/b.png']\tWhich?\tcat\tdog",
    ];
    fs::write(path.join("paths.tsv"), lines.join("\n") + "\n").unwrap();
    let flags = ["-i", "paths.tsv", "-o", "paths.jsonl", "--image-column", "image_path"];
    let said = run(path, &[&flags, &template[..]].concat());
    assert_eq!(said.code, 0, "{}", said.errors);
    let found = rows(&fs::read_to_string(path.join("paths.jsonl")).unwrap());
    assert_eq!(field(&found, "response"), response[1..3]);
}
