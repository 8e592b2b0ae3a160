//! Runs that end before their last row: signals, readers that go away, a bad row.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::{TINY, demo, rows, temporary, vllm_batch};
use crate::signal;

/// Rows without end, each of which takes a while.
fn endless(folder: &Path, flags: &[&str]) -> Child {
    let input = folder.join("long.jsonl");
    let row = |id| format!("{{\"id\":{id},\"prompt\":\"once upon a time\"}}\n");
    fs::write(&input, (0..50_000).map(row).collect::<String>()).unwrap();
    let mut command = demo(folder, &["-i", "long.jsonl", "--ignore-eos"]);
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn wait(mut child: Child) -> (i32, String) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the run goes on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    (child.wait().unwrap().code().expect("an exit code, no signal"), errors)
}

#[test]
fn a_reader_that_goes_away_ends_the_run_in_silence() {
    let folder = temporary();
    let mut child = endless(folder.path(), &["-q"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for id in 0..3 {
        let row: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(row["id"], id);
    }
    drop(lines);
    let (code, errors) = wait(child);
    assert_eq!((code, errors.as_str()), (141, ""));
}

fn part_with_rows(folder: &Path) -> PathBuf {
    let part = folder.join("out.jsonl.part");
    let deadline = Instant::now() + Duration::from_secs(300);
    while fs::metadata(&part).map_or(0, |found| found.len()) == 0 {
        assert!(Instant::now() < deadline, "no row is written");
        std::thread::sleep(Duration::from_millis(10));
    }
    part
}

#[test]
fn a_bad_row_that_ends_the_run_keeps_what_is_finished() {
    let folder = temporary();
    let flags = ["run", "--model", TINY, "-o", "out.jsonl", "--on-bad-row", "fail"];
    let mut command = vllm_batch(folder.path(), &flags);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"prompt\":\"a\"}\n").unwrap();
    let part = part_with_rows(folder.path());
    input.write_all(b"{\"prompt\" 1}\n").unwrap();
    let (code, errors) = wait(child);
    let kept = "help: 1 row finished and kept in out.jsonl.journal; the same command continues";
    assert!(code == 2 && errors.contains(kept), "{errors}");
    assert_eq!(rows(&fs::read_to_string(part).unwrap()).len(), 1);
}

#[test]
fn signals_keep_what_is_finished() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let folder = temporary();
        let child = endless(folder.path(), &["-o", "out.jsonl"]);
        let part = part_with_rows(folder.path());
        assert!(signal::send(name, child.id()));
        let (exit, errors) = wait(child);
        assert_eq!(exit, code, "{errors}");
        let out = fs::read_to_string(&part).unwrap();
        assert!(out.ends_with('\n'), "whole lines");
        for (index, row) in rows(&out).iter().enumerate() {
            assert_eq!(row["id"], index, "a prefix, in order");
        }
        let kept = "finished and kept in out.jsonl.journal; the same command continues";
        assert!(
            errors.contains("error[interrupted]: stopped by SIG") && errors.contains(kept),
            "{errors}"
        );
        assert!(errors.contains("\nOutput: out.jsonl.part (incomplete)\n"), "{errors}");
        assert!(!folder.path().join("out.jsonl").exists());
    }
}

/// A closed terminal ends a run as SIGTERM does; one that was started by `nohup` goes on.
#[test]
fn a_closed_terminal_keeps_what_is_finished() {
    let folder = temporary();
    let child = endless(folder.path(), &["-o", "out.jsonl"]);
    part_with_rows(folder.path());
    assert!(signal::send("HUP", child.id()));
    let (exit, errors) = wait(child);
    assert_eq!(exit, 129, "{errors}");
    let kept = "finished and kept in out.jsonl.journal; the same command continues";
    assert!(errors.contains("stopped by SIGHUP") && errors.contains(kept), "{errors}");

    let folder = temporary();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    shell.arg(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    shell.args(["run", "--device", "cpu", "--model", TINY, "-o", "out.jsonl"]);
    shell.current_dir(folder.path()).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"prompt\":\"a\"}\n").unwrap();
    part_with_rows(folder.path());
    assert!(signal::send("HUP", child.id()));
    input.write_all(b"{\"prompt\":\"b\"}\n").unwrap();
    drop(input);
    let (exit, errors) = wait(child);
    assert_eq!(exit, 0, "{errors}");
    assert_eq!(rows(&fs::read_to_string(folder.path().join("out.jsonl")).unwrap()).len(), 2);
}

/// As `dd` does it: SIGUSR1 prints a line, however quiet the rest is. SIGUSR2 does nothing.
#[test]
fn a_line_of_progress_comes_when_it_is_asked_for() {
    let folder = temporary();
    let mut child = endless(folder.path(), &["-o", "out.jsonl", "-qq"]);
    part_with_rows(folder.path());
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(signal::send("USR2", child.id()));
        assert!(signal::send("USR1", child.id()));
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains(" [00:") && line.contains(", out "), "{line}");
        assert!(child.try_wait().unwrap().is_none());
    }
    assert!(signal::send("TERM", child.id()));
    assert!(lines.all(|line| line.is_ok()));
    assert_eq!(child.wait().unwrap().code(), Some(143));
}
