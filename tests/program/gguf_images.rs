//! `--mmproj`: a GGUF model that sees, in every command that loads a model.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");

/// Exit code, standard output and standard error of a command.
fn run(folder: &Path, command: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(command)
        .args(["--progress", "none", "--threads", "1"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A folder with links to files of testdata/gguf, and to a picture.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, file) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(Path::new(TESTDATA).join("gguf").join(file), path).unwrap();
    }
    fs::copy(Path::new(TESTDATA).join("media/rgb.png"), folder.path().join("rgb.png")).unwrap();
    folder
}

const MODEL: (&str, &str) = ("model.gguf", "qwen3vl.gguf");
const MMPROJ: (&str, &str) = ("mmproj.gguf", "mmproj-qwen3vl.gguf");
const ROWS: [&str; 8] =
    ["-i", "rgb.png", "--template", "What?", "--temperature", "0", "--max-tokens", "4"];

fn with<'a>(command: &'a str, model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[command, "--model", model][..], &ROWS, more].concat()
}

#[test]
fn a_pair_is_found_in_its_folder_and_by_its_flag() {
    let folder =
        folder(&[MODEL, MMPROJ, ("both/m.gguf", MODEL.1), ("both/mmproj-m.gguf", MMPROJ.1)]);
    let (code, expected, said) = run(folder.path(), &with("run", MODEL.0, &["--mmproj", MMPROJ.0]));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(run(folder.path(), &with("run", "both", &[])).1, expected);
    // A file beside another one is not looked for, and a model without its projector is blind.
    for (model, more) in [("model.gguf", &[][..]), ("both", &["--language-model-only"])] {
        let (code, rows, said) = run(folder.path(), &with("run", model, more));
        assert_eq!(code, Some(3), "{said}");
        assert!(rows.contains("no_image_input"), "{rows}");
    }
    symlink(folder.path().join(MODEL.0), folder.path().join("both/n.gguf")).unwrap();
    let (code, _, said) = run(folder.path(), &with("run", "both", &[]));
    assert!(code == Some(2) && said.contains("several GGUF files"), "{said}");
}

#[test]
fn every_byte_of_a_projector_is_in_the_fingerprint() {
    let folder = folder(&[MODEL, MMPROJ]);
    let path = folder.path();
    let out =
        |more: &[&str]| run(path, &with("run", MODEL.0, &[&["-o", "out.jsonl"], more].concat()));
    let (code, _, said) = out(&["--mmproj", MMPROJ.0]);
    assert_eq!(code, Some(0), "{said}");
    let (code, _, said) = out(&["--mmproj", MMPROJ.0]);
    assert!(code == Some(0) && said.contains("Nothing to do"), "{said}");
    let meta: Value =
        serde_json::from_slice(&fs::read(path.join("out.jsonl.meta.json")).unwrap()).unwrap();
    assert!(meta.to_string().contains("\"mmproj\":\""), "{meta}");
    // The same projector under another name; with another value; none.
    fs::copy(path.join(MMPROJ.0), path.join("p.gguf")).unwrap();
    let (code, _, said) = out(&["--mmproj", "p.gguf"]);
    assert!(code == Some(0) && said.contains("Nothing to do"), "{said}");
    let mut bytes = fs::read(path.join("p.gguf")).unwrap();
    let last = bytes.len() - 64;
    bytes[last] ^= 1;
    fs::write(path.join("p.gguf"), bytes).unwrap();
    for other in [&["--mmproj", "p.gguf"][..], &[]] {
        let (code, _, said) = out(other);
        assert!(code == Some(6) && said.contains("mmproj"), "{other:?}: {said}");
    }
}

#[test]
fn every_command_reads_a_projector_and_plan_counts_it() {
    let folder = folder(&[MODEL, MMPROJ]);
    let weights = |more: &[&str]| {
        let more = [&["--output-json", "plan.json"], more].concat();
        let (code, _, said) = run(folder.path(), &with("plan", MODEL.0, &more));
        // Rows of a model that is blind fail.
        assert!(matches!(code, Some(0 | 3)), "{said}");
        let plan = fs::read_to_string(folder.path().join("plan.json")).unwrap();
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let found = plan.pointer("/model/weight_bytes").or(plan.get("weight_bytes"));
        found.and_then(Value::as_u64).unwrap_or_else(|| panic!("{plan}"))
    };
    let (blind, seeing) = (weights(&["--language-model-only"]), weights(&["--mmproj", MMPROJ.0]));
    assert!(seeing > blind + 50_000, "{blind} and {seeing}");
    let mmproj = ["--mmproj", MMPROJ.0];
    let embed = [&["embed", "--model", MODEL.0, "-i", "rgb.png"][..], &mmproj].concat();
    let (code, rows, said) = run(folder.path(), &embed);
    assert!(code == Some(0) && rows.contains("\"embedding\""), "{said}{rows}");
    let (code, _, said) =
        run(folder.path(), &with("run", MODEL.0, &[&mmproj[..], &["-v"]].concat()));
    assert!(code == Some(0) && said.contains("projector: "), "{said}");
}

#[test]
fn a_projector_that_is_none_is_refused_by_name() {
    let folder = folder(&[MODEL, MMPROJ]);
    let golden = format!("{TESTDATA}/golden/qwen3_vl");
    for (model, mmproj, wanted_code, wanted) in [
        (golden.as_str(), MMPROJ.0, 2, "--mmproj: a projector goes with a GGUF file"),
        (MODEL.0, MODEL.0, 7, "it is no projector"),
        (MMPROJ.0, MMPROJ.0, 7, "give it as --mmproj"),
        (MODEL.0, "none.gguf", 2, "--mmproj: no such file: none.gguf"),
        (MODEL.0, golden.as_str(), 2, "--mmproj: "),
    ] {
        let (code, _, said) = run(folder.path(), &with("run", model, &["--mmproj", mmproj]));
        assert!(code == Some(wanted_code) && said.contains(wanted), "{code:?}: {said}");
    }
}
