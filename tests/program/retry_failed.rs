//! `--retry-failed` over complete outputs: error rows are asked again, good ones keep their bytes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use vllm_batch::cli::ledger::fingerprint::Fingerprint;
use vllm_batch::cli::ledger::journal::LockedJournal;
use vllm_batch::cli::ledger::record::{Header, Kind, Record};
use vllm_batch::cli::ledger::storage::Disk;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

/// Runs over `in.jsonl`; exit code and what was said.
fn run(folder: &Path, out: &str, flags: &[&str]) -> (i32, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(["run", "--model", DEMO, "-o", out, "--stats", "stats.json"])
        .args(if flags.contains(&"-i") { &[][..] } else { &["-i", "in.jsonl"] })
        .args(["--max-tokens", "8", "--color", "never"])
        .args(flags)
        .current_dir(folder)
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn num_reused(folder: &Path) -> u64 {
    let text = fs::read_to_string(folder.join("stats.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["rows"]["reused"].as_u64().unwrap()
}

fn rows(bad: &[usize], with_ids: bool) -> String {
    let row = |index: usize| match (bad.contains(&index), with_ids) {
        (true, _) => format!("{{\"id\":\"r{index}\",\"prompt\" {index}}}\n"),
        (false, true) => format!("{{\"id\":\"r{index}\",\"prompt\":\"{index}+{index}=\"}}\n"),
        (false, false) => format!("{{\"prompt\":\"{index}+{index}=\"}}\n"),
    };
    (0..30).map(row).collect()
}

#[test]
fn only_what_failed_is_asked_again_and_the_bytes_are_those_of_a_fresh_run() {
    let greedy = &["--temperature", "0"][..];
    let sampled = &["--temperature", "1", "--seed", "3"][..];
    for (flags, with_ids) in [(greedy, false), (sampled, true), (sampled, false)] {
        for out in ["out.jsonl", "out.jsonl.gz", "out.jsonl.zst"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            let write =
                |bad: &[usize]| fs::write(path.join("in.jsonl"), rows(bad, with_ids)).unwrap();
            let bytes = |name: &str| fs::read(path.join(name)).unwrap();
            write(&[3, 17]);
            assert_eq!(run(path, out, flags).0, 3);
            let retry = [flags, &["--retry-failed"]].concat();
            // Nothing was mended: the same rows fail, and the bytes stay.
            let before = bytes(out);
            assert_eq!(run(path, out, &retry).0, 3);
            assert_eq!((bytes(out) == before, num_reused(path)), (true, 28));
            write(&[]);
            let (code, said) = run(path, out, &retry);
            assert_eq!(code, 0, "{said}");
            assert_eq!(num_reused(path), 28, "{flags:?} {out} {said}");
            let fresh = format!("fresh.{out}");
            assert_eq!(run(path, &fresh, flags).0, 0);
            assert!(bytes(out) == bytes(&fresh), "{flags:?} {out}");
            // Now there is nothing left to ask.
            let (code, said) = run(path, out, &retry);
            assert!(code == 0 && said.contains("Nothing to do: "), "{said}");
        }
    }
}

#[test]
fn outputs_of_other_runs_and_forms_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.jsonl"), rows(&[3], true)).unwrap();
    let greedy = ["--temperature", "0"];
    assert_eq!(run(path, "out.jsonl", &greedy).0, 3);
    let before = fs::read(path.join("out.jsonl")).unwrap();
    let (code, said) = run(path, "out.jsonl", &["--temperature", "1", "--retry-failed"]);
    assert!(code == 6 && said.contains("temperature: 0 then, 1 now"), "{said}");
    let (code, said) =
        run(path, "out.jsonl", &["--temperature", "0", "--retry-failed", "--overwrite"]);
    assert!(code == 2 && said.contains("cannot be used with"), "{said}");
    assert_eq!(fs::read(path.join("out.jsonl")).unwrap(), before);
    let csv = "id,prompt,temperature\n1,a,0\n2,b,9\n";
    fs::write(path.join("in.csv"), csv).unwrap();
    let csv = ["-i", "in.csv"];
    assert_eq!(run(path, "out.csv", &csv).0, 3);
    let (code, said) = run(path, "out.csv", &["-i", "in.csv", "--retry-failed"]);
    assert!(code == 3 && num_reused(path) == 1, "{said}");
}

#[test]
fn errors_in_a_file_of_their_own_are_asked_again_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.jsonl"), rows(&[0, 9, 29], true)).unwrap();
    let flags = ["--temperature", "0", "--errors", "errors.jsonl"];
    assert_eq!(run(path, "out.jsonl", &flags).0, 3);
    let count = |name: &str| fs::read_to_string(path.join(name)).unwrap().lines().count();
    assert_eq!((count("out.jsonl"), count("errors.jsonl")), (27, 3));
    fs::write(path.join("in.jsonl"), rows(&[9], true)).unwrap();
    let (code, said) = run(path, "out.jsonl", &[&flags[..], &["--retry-failed"]].concat());
    assert_eq!(code, 3, "{said}");
    assert_eq!((count("out.jsonl"), count("errors.jsonl"), num_reused(path)), (29, 1, 27));
}

#[test]
fn a_run_that_was_killed_before_its_journal_went_is_asked_again_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.jsonl"), rows(&[5], true)).unwrap();
    let greedy = ["--temperature", "0"];
    assert_eq!(run(path, "out.jsonl", &greedy).0, 3);
    let side_text = fs::read(path.join("out.jsonl.meta.json")).unwrap();
    let name = path.join("out.jsonl.journal");
    let header =
        Header { started: 0, replaces: false, keeps: false, fingerprint: Fingerprint::default() };
    let journal = LockedJournal::open(Arc::new(Disk), &name).unwrap();
    let mut journal = journal.create(&header).unwrap();
    journal.append(&Record::mark(Kind::End, &side_text)).unwrap();
    journal.sync().unwrap();
    drop(journal);
    fs::write(path.join("in.jsonl"), rows(&[], true)).unwrap();
    let (code, said) = run(path, "out.jsonl", &["--temperature", "0", "--retry-failed"]);
    assert_eq!((code, num_reused(path)), (0, 29), "{said}");
    assert!(!name.exists(), "{said}");
    assert_eq!(run(path, "fresh.jsonl", &greedy).0, 0);
    let bytes = |name: &str| fs::read(path.join(name)).unwrap();
    assert!(bytes("out.jsonl") == bytes("fresh.jsonl"));
}
