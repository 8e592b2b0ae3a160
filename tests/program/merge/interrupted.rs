//! Merges that were killed: the same command gives the same bytes, and nothing else is replaced.

use std::fs;
use std::process::{Command, Stdio};

use vllm_batch::cli::ledger::fingerprint::Fingerprint;
use vllm_batch::cli::ledger::record::{Header, Kind, Record, RecordHead};

use crate::merge::{Run, assert_exit, names, text};

/// A journal as merges have it, or another run.
fn journal(version: &str, end: Option<&[u8]>) -> Vec<u8> {
    let fields = [("version".to_owned(), version.to_owned())].into();
    let header =
        Header { started: 5, replaces: false, keeps: false, fingerprint: Fingerprint::new(fields) };
    let mut bytes = header.encode();
    if let Some(text) = end {
        RecordHead::encode(&Record::mark(Kind::End, text), 0, &mut bytes);
    }
    bytes
}

const OF_MERGE: &str = "a merge of shards";

impl Run {
    /// The files of outputs.
    fn left(&self) -> Vec<String> {
        let mut names = names(self.folder.path());
        names.retain(|name| name.starts_with("out"));
        names.sort();
        names
    }
}

#[test]
fn a_merge_that_was_killed_begins_again() {
    let run = Run::jsonl(8, 2);
    let longer = [&run.whole[..], b"half a row of a longer merge"].concat();
    for part in [&b""[..], b"{\"id\"", &run.whole[..20], &longer] {
        run.write("out.journal", &journal(OF_MERGE, None));
        run.write("out.part", part);
        run.assert_whole(&run.merge(&["--verify"]));
        assert_eq!(run.left(), ["out", "out.meta.json"]);
        fs::remove_file(run.path("out")).unwrap();
    }
    // Killed before it had a part.
    run.write("out.journal", &journal(OF_MERGE, None));
    run.assert_whole(&run.merge(&["--verify"]));
    assert_eq!(run.left(), ["out", "out.meta.json"]);
}

/// Shards of rows that take a while.
fn many_rows(number: usize) -> Run {
    let row = |row| format!("{row}{}\n", "x".repeat(2_000));
    Run::new("jsonl", "", &(0..number).map(row).collect::<Vec<_>>(), 2)
}

/// Kills a merge while it writes rows. It may be faster: then another one is killed.
fn kill_in_the_middle(run: &Run) {
    let part = run.path("out.part");
    loop {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        command.args(["merge", "s0.jsonl", "s1.jsonl", "--out", "out"]).stderr(Stdio::null());
        let mut child = command.current_dir(run.folder.path()).spawn().unwrap();
        let is_empty = || fs::metadata(&part).map_or(true, |found| found.len() == 0);
        while is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        if status.code().is_none() && part.exists() {
            return;
        }
        run.left().iter().for_each(|name| fs::remove_file(run.path(name)).unwrap());
    }
}

#[test]
fn a_merge_that_is_killed_leaves_what_the_next_one_knows() {
    let run = many_rows(6_000);
    kill_in_the_middle(&run);
    assert_eq!(run.left(), ["out.journal", "out.meta.json.part", "out.part"]);
    let part = run.read("out.part");
    assert!(!part.is_empty() && run.whole.starts_with(&part));
    assert_eq!(fs::read(run.path("out.journal")).unwrap()[..8], journal(OF_MERGE, None)[..8]);
    run.assert_whole(&run.merge(&["--verify"]));
    assert_eq!(run.left(), ["out", "out.meta.json"]);
}

#[test]
fn a_merge_into_a_disk_that_takes_no_more_leaves_nothing() {
    let run = many_rows(300);
    let limited = format!(
        "ulimit -f 200; exec {} merge s0.jsonl s1.jsonl --out out",
        assert_cmd::cargo::cargo_bin!("vllm-batch").display()
    );
    let mut command = Command::new("sh");
    let output = command.args(["-c", &limited]).current_dir(run.folder.path()).output().unwrap();
    assert_exit(&output, 5);
    let message = "cannot write out.part: File too large";
    assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    assert!(run.left().is_empty(), "{:?}", run.left());
}

#[test]
fn a_merge_that_was_killed_at_its_end_is_completed() {
    let run = Run::jsonl(8, 2);
    run.assert_whole(&run.merge(&["--verify"]));
    let (whole, meta) = (run.read("out"), run.read("out.meta.json"));
    for named in [false, true] {
        run.write("out.journal", &journal(OF_MERGE, Some(&meta)));
        fs::remove_file(run.path("out.meta.json")).unwrap();
        if !named {
            fs::rename(run.path("out"), run.path("out.part")).unwrap();
        }
        let output = run.merge(&["--verify"]);
        assert_exit(&output, 6);
        assert!(text(&output.stderr).contains("error[output_exists]: out exists\nhelp: "));
        assert_eq!(run.left(), ["out", "out.meta.json"]);
        assert!(run.read("out") == whole && run.read("out.meta.json") == meta, "{named}");
    }
    // Its part was changed since: it is merged again.
    run.write("out.journal", &journal(OF_MERGE, Some(&meta)));
    fs::remove_file(run.path("out.meta.json")).unwrap();
    fs::remove_file(run.path("out")).unwrap();
    run.write("out.part", &whole[..whole.len() - 1]);
    run.assert_whole(&run.merge(&["--verify"]));
    assert_eq!(run.left(), ["out", "out.meta.json"]);
}

#[test]
fn a_refusal_after_a_killed_merge_leaves_nothing() {
    let run = Run::jsonl(8, 2);
    run.write("out.journal", &journal(OF_MERGE, None));
    run.write("out.part", &run.whole[..20]);
    let mut bytes = run.read("s1.jsonl");
    bytes[2] ^= 1;
    run.write("s1.jsonl", &bytes);
    run.assert_refused(&run.merge(&["--verify"]), 6, &["error[shard_changed]: s1.jsonl"]);
}

#[test]
fn the_journal_of_a_run_is_no_merge() {
    let run = Run::jsonl(8, 2);
    let of_run = journal("0.1, rows 1", None);
    run.write("out.journal", &of_run);
    run.write("out.part", b"rows of a run\n");
    let output = run.merge(&["--verify"]);
    assert_exit(&output, 6);
    assert!(text(&output.stderr).contains("error[output_unfinished]: out.part holds rows"));
    assert_eq!(
        (run.read("out.part"), run.read("out.journal")),
        (b"rows of a run\n".to_vec(), of_run)
    );
    // A run that was replaced is not continued.
    run.assert_whole(&run.merge(&["--verify", "--overwrite"]));
    assert_eq!(run.left(), ["out", "out.meta.json"]);
    // An output is not replaced because there was a merge once.
    run.write("out.journal", &journal(OF_MERGE, None));
    let output = run.merge(&["--verify"]);
    assert_exit(&output, 6);
    assert!(text(&output.stderr).contains("error[output_exists]: out exists\nhelp: "));
    assert_eq!(run.read("out"), run.whole);
}

#[test]
fn a_run_does_not_continue_a_merge() {
    let run = Run::jsonl(8, 2);
    run.write("in.jsonl", b"{\"prompt\":\"a\"}\n");
    run.write("out.journal", &journal(OF_MERGE, None));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
    let output = run.vllm_batch(&["run", "--model", model, "-i", "in.jsonl", "-o", "out"]);
    assert_exit(&output, 6);
    let wanted = "error[journal_differs]: out.journal belongs to another run:\n  version: \
                  a merge of shards then, ";
    assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));
}
