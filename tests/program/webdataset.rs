//! WebDatasets: tar archives whose members are rows, from files and from a pipe.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");
const MEDIA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/media");

struct Said {
    code: i32,
    out: String,
    errors: String,
}

fn program(folder: &Path, flags: &[&str], input: Option<&[u8]>) -> Said {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("COLUMNS", "400")
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.unwrap_or_default()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        errors: text(output.stderr),
    }
}

fn run(folder: &Path, flags: &[&str], input: Option<&[u8]>) -> Said {
    let model = ["run", "--model", SEES, "--max-tokens", "4", "--temperature", "0"];
    program(folder, &[&model[..], flags].concat(), input)
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn picture(name: &str) -> Vec<u8> {
    fs::read(Path::new(MEDIA).join(name)).unwrap()
}

/// A member of an archive, of a kind.
fn member(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block.extend_from_slice(bytes);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let members: Vec<u8> =
        members.iter().flat_map(|(name, bytes)| member(name, b'0', bytes)).collect();
    [members, vec![0; 1024]].concat()
}

/// Two archives: of three rows and of one.
fn shards(folder: &Path) -> [Vec<u8>; 2] {
    let (a, b) = (picture("24_420_20x16_q95.jpg"), picture("l.png"));
    let first = archive(&[
        ("000.jpg", &a),
        ("000.txt", b"What is it?"),
        ("000.cls", b"3"),
        ("001.left.jpg", &a),
        ("001.right.png", &b),
        ("001.txt", b"Equal?"),
        ("001.json", b"{\n \"kind\": [\"pair\"]\n}"),
        ("002.png", b"no picture"),
        ("002.txt", b"Broken?"),
    ]);
    let second = archive(&[("003.png", &b), ("003.txt", b"And this?")]);
    fs::write(folder.join("shard-0.tar"), &first).unwrap();
    fs::write(folder.join("shard-1.tar"), &second).unwrap();
    [first, second]
}

#[test]
fn members_of_archives_are_rows_from_files_and_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let [first, _] = shards(path);
    let asked = ["--prompt-column", "txt"];
    let said = run(path, &[&["-i", "shard-*.tar"], &asked[..]].concat(), None);
    assert_eq!(said.code, 3, "{}", said.errors);
    let found = rows(&said.out);
    assert_eq!(found.len(), 4);
    let fields = |row: &Value| {
        let mut row = row.clone();
        let kept = ["__key__", "jpg", "left.jpg", "right.png", "png", "txt", "cls", "json"];
        row.as_object_mut().unwrap().retain(|name, _| kept.contains(&name.as_str()));
        row
    };
    assert_eq!(
        fields(&found[0]),
        json!({"__key__": "000", "jpg": "000.jpg", "txt": "What is it?", "cls": 3})
    );
    let expected = json!({"__key__": "001", "left.jpg": "001.left.jpg",
        "right.png": "001.right.png", "txt": "Equal?", "json": {"kind": ["pair"]}});
    assert_eq!(fields(&found[1]), expected);
    assert_eq!(found[2]["error"]["code"], "media_decode");
    assert!(said.errors.contains("shard-0.tar:3"), "{}", said.errors);
    // The same pictures in files.
    fs::write(path.join("a.jpg"), picture("24_420_20x16_q95.jpg")).unwrap();
    fs::write(path.join("b.png"), picture("l.png")).unwrap();
    let lines = [
        json!({"txt": "What is it?", "image": "a.jpg"}),
        json!({"txt": "Equal?", "images": ["a.jpg", "b.png"]}),
        json!({"txt": "And this?", "image": "b.png"}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path.join("in.jsonl"), lines).unwrap();
    let same = rows(&run(path, &[&["-i", "in.jsonl"], &asked[..]].concat(), None).out);
    for (row, same) in [&found[0], &found[1], &found[3]].into_iter().zip(&same) {
        assert!(row["response"].is_string());
        assert_eq!(row["response"], same["response"]);
    }
    // A pipe, and compressed.
    let said = run(path, &[&["-i", "-"], &asked[..]].concat(), Some(&first));
    assert_eq!(rows(&said.out), found[..3], "{}", said.errors);
    fs::write(path.join("packed.tar"), first).unwrap();
    assert!(Command::new("gzip").arg(path.join("packed.tar")).status().unwrap().success());
    let said = run(path, &[&["-i", "packed.tar.gz"], &asked[..]].concat(), None);
    assert_eq!(rows(&said.out), found[..3], "{}", said.errors);
    let one = ["--image-column", "right.png", "--template", "Is it {{json.kind[0]}}?"];
    let said = run(path, &[&["-i", "shard-0.tar"], &one[..]].concat(), None);
    assert!(rows(&said.out)[1]["response"].is_string(), "{}", said.out);
    let said =
        program(path, &[&["check", "shard-0.tar", "shard-1.tar"], &asked[..]].concat(), None);
    assert!(said.errors.contains("shard-0.tar: 3 rows, 1 bad (media_decode 1)"), "{}", said.errors);
    assert!(said.errors.contains("shard-1.tar: 1 row, 0 bad"), "{}", said.errors);
}

#[test]
fn a_run_over_archives_goes_on_and_is_sharded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    shards(path);
    let flags = ["-i", "shard-*.tar", "--prompt-column", "txt"];
    let again = |more: &[&str]| run(path, &[&flags, more].concat(), None);
    let whole = rows(&again(&[]).out);
    assert_eq!(again(&["-o", "out.jsonl", "--max-errors", "0"]).code, 5);
    assert_eq!(again(&["-o", "out.jsonl"]).code, 3);
    assert_eq!(rows(&fs::read_to_string(path.join("out.jsonl")).unwrap()), whole);
    let odd = rows(&again(&["--shard", "1/2"]).out);
    assert_eq!(odd, [whole[1].clone(), whole[3].clone()]);
    // Another picture of the same name is another row.
    let changed = archive(&[("003.png", &picture("rgb.png")), ("003.txt", b"And this?")]);
    fs::write(path.join("shard-1.tar"), changed).unwrap();
    assert_eq!(again(&["-o", "out.jsonl"]).code, 6);
}

#[test]
fn faults_of_members_are_error_rows_and_those_of_archives_end_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let picture = picture("l.png");
    let members = [
        member("a.png", b'0', &picture),
        member("b.png", b'2', b""),
        member("c.png", b'0', &picture),
        member("c.json", b'0', b"{"),
        member("d.npy", b'0', b"?"),
    ];
    fs::write(path.join("x.tar"), members.concat()).unwrap();
    let flags = ["-i", "x.tar", "--template", "Describe the image."];
    let said = run(path, &flags, None);
    let codes: Vec<_> = rows(&said.out).iter().map(|row| row["error"]["code"].clone()).collect();
    // The last one has no image.
    let expected = [json!(null), json!("bad_value"), json!("bad_json"), json!(null)];
    assert_eq!((said.code, &codes[..3]), (3, &expected[..3]), "{}", said.errors);
    assert!(said.out.contains("member `b.png`: it is a link or no plain file"), "{}", said.out);
    assert_eq!(rows(&said.out)[3]["npy"], "d.npy");
    let cut = &members.concat()[..512 + picture.len() / 2];
    fs::write(path.join("x.tar"), cut).unwrap();
    let said = run(path, &flags, None);
    assert_ne!(said.code, 0);
    let what = "the tar archive is cut off, in or behind the member `a.png`";
    assert!(said.errors.contains(what), "{}", said.errors);
    let said = run(path, &["-i", "x.tar", "--format", "jsonl"], None);
    assert!(
        said.code == 2 && said.errors.contains("the input is a tar archive"),
        "{}",
        said.errors
    );
}
