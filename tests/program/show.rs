//! `show`: the rows of a job that works, was stopped or is complete.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resume::program::{Ended, HANG, finish, kill, run, wait};

const FLAGS: [&str; 4] = ["--max-tokens", "4", "--temperature", "0"];

fn show_command(folder: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder).arg("show").args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn show(folder: &Path, flags: &[&str]) -> Ended {
    finish(&mut show_command(folder, flags))
}

fn rows(numbers: std::ops::Range<u32>) -> String {
    let row = |number: u32| match number % 5 {
        3 => format!("{{\"id\":{number},\"prompt\":{number}}}\n"),
        _ => format!("{{\"id\":{number},\"prompt\":\"row {number}\"}}\n"),
    };
    numbers.map(row).collect()
}

/// A run that waits for more rows.
struct Working {
    child: Child,
    stdin: ChildStdin,
}

impl Working {
    fn start(folder: &Path, out: &str, format: &str) -> Self {
        let mut command = run(folder, &FLAGS);
        command.args(["-o", out, "--format", format]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        Self { child, stdin }
    }

    fn give(&mut self, rows: &str) {
        self.stdin.write_all(rows.as_bytes()).unwrap();
        self.stdin.flush().unwrap();
    }

    fn kill(self) {
        assert!(kill(self.child).is_ok());
    }

    fn finish(self) -> Ended {
        drop(self.stdin);
        wait(self.child)
    }
}

/// Shows until so many lines, or what is wanted, are there.
fn wait_for_lines(folder: &Path, flags: &[&str], number: usize) -> String {
    wait_for(folder, flags, |text| text.lines().count() >= number)
}

fn wait_for(folder: &Path, flags: &[&str], is_done: impl Fn(&str) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let ended = show(folder, flags);
        let text = String::from_utf8(ended.stdout).unwrap();
        if is_done(&text) {
            return text;
        }
        assert!(begun.elapsed() < HANG, "{text}{}", ended.stderr);
        sleep(Duration::from_millis(50));
    }
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn lines_of(path: &Path) -> Vec<String> {
    sorted(&fs::read_to_string(path).unwrap())
}

#[test]
fn rows_of_a_running_a_killed_and_a_complete_job_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    show(path, &["out.jsonl"]).assert_exit(2);
    let mut job = Working::start(path, "out.jsonl", "jsonl");
    job.give(&rows(0..20));
    let running = wait_for_lines(path, &["out.jsonl"], 20);
    let failed = wait_for_lines(path, &["out.jsonl", "--failed"], 4);
    assert_eq!(failed.lines().count(), 4);
    assert!(failed.lines().all(|line| line.contains("\"finish_reason\":\"error\"")), "{failed}");
    job.kill();
    let killed = String::from_utf8(show(path, &["out.jsonl"]).stdout).unwrap();
    assert_eq!(sorted(&killed), sorted(&running));
    // By the name of the journal too, and with a torn end and a damaged middle.
    let journal = path.join("out.jsonl.journal");
    let whole = fs::read(&journal).unwrap();
    fs::write(path.join("other.journal"), &whole).unwrap();
    assert_eq!(show(path, &["other.journal"]).stdout, killed.as_bytes());
    for cut in [1, 20, 90] {
        fs::write(path.join("torn.journal"), &whole[..whole.len() - cut]).unwrap();
        let torn = show(path, &["torn.journal"]);
        torn.assert_exit(0);
        assert!(killed.as_bytes().starts_with(&torn.stdout), "{cut}");
        assert_eq!(torn.stdout.split(|byte| *byte == b'\n').count(), 20, "{cut}");
    }
    // The run ended: whoever follows it learns that.
    let followed = show(path, &["out.jsonl", "--follow"]);
    followed.assert_exit(5);
    assert_eq!(followed.stdout, killed.as_bytes());
    followed.assert_says("ended before its last row");
    let mut again = Working::start(path, "out.jsonl", "jsonl");
    again.give(&rows(0..25));
    again.finish().assert_exit(3);
    let complete = show(path, &["out.jsonl"]);
    assert_eq!(complete.stdout, fs::read(path.join("out.jsonl")).unwrap());
    let failed = show(path, &["out.jsonl", "--failed"]);
    assert_eq!(failed.stdout.split(|byte| *byte == b'\n').count() - 1, 5);
}

#[test]
fn who_follows_a_job_sees_each_row_once_and_its_end() {
    for (out, header) in [("out.jsonl", 0), ("out.csv", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let csv = header == 1;
        let rows = |numbers: std::ops::Range<u32>| match csv {
            true => numbers.map(|number| format!("{number},\"a\n{number}\"\n")).collect(),
            false => rows(numbers),
        };
        let mut job = Working::start(path, out, if csv { "csv" } else { "jsonl" });
        job.give(&format!("{}{}", if csv { "id,prompt\n" } else { "" }, rows(0..5)));
        wait_for_lines(path, &[out], 5);
        let mut follower = show_command(path, &[out, "--follow"]).spawn().unwrap();
        let mut read = BufReader::new(follower.stdout.take().unwrap());
        let mut seen = String::new();
        read.read_line(&mut seen).unwrap();
        job.give(&rows(5..8));
        let begun = Instant::now();
        while seen.matches(if csv { "\"a\n" } else { "\"id\"" }).count() < 8 {
            assert!(begun.elapsed() < HANG, "{seen}");
            read.read_line(&mut seen).unwrap();
        }
        // The job works on, without a new row: it is not taken for dead.
        sleep(Duration::from_millis(2500));
        assert!(follower.try_wait().unwrap().is_none());
        job.give(&rows(8..10));
        let ended = job.finish();
        assert!([Some(0), Some(3)].contains(&ended.status.code()), "{}", ended.stderr);
        let mut line = String::new();
        while read.read_line(&mut line).unwrap() > 0 {}
        seen += &line;
        assert_eq!(follower.wait().unwrap().code(), Some(0));
        assert_eq!(sorted(&seen), lines_of(&path.join(out)));
        if csv {
            let written = fs::read_to_string(path.join(out)).unwrap();
            assert_eq!(seen.lines().next(), written.lines().next());
        }
    }
}

#[test]
fn a_csv_has_its_header_and_failed_rows_alone_where_they_are_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let text = "id,prompt,max_tokens\n1,\"a,\nb\",2\n2,b,-1\n3,\"say \"\"x\"\"\",2\n";
    let mut job = Working::start(path, "out.csv", "csv");
    job.give(text);
    let begins = ["\n1,\"a,", "\n2,b", "\n3,\"say"];
    let has_all = |text: &str| begins.iter().all(|row| text.contains(row));
    let running = wait_for(path, &["out.csv"], has_all);
    job.kill();
    let failed = String::from_utf8(show(path, &["out.csv", "--failed"]).stdout).unwrap();
    assert_eq!(failed.lines().count(), 2, "{failed}");
    assert!(failed.starts_with("id,prompt,") && failed.contains("\n2,b,-1,"), "{failed}");
    let mut again = Working::start(path, "out.csv", "csv");
    again.give(text);
    again.finish().assert_exit(3);
    let written = fs::read_to_string(path.join("out.csv")).unwrap();
    assert_eq!(sorted(&running), sorted(&written));
    assert_eq!(show(path, &["out.csv"]).stdout, written.as_bytes());
    assert_eq!(show(path, &["out.csv", "--failed"]).stdout, failed.as_bytes());
}

#[test]
fn tables_and_compressed_outputs_are_lines() {
    for out in ["out.parquet", "out.jsonl.gz", "out.jsonl.zst"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let mut job = Working::start(path, out, "jsonl");
        job.give(&rows(0..5));
        let running = wait_for_lines(path, &[out], 5);
        job.finish().assert_exit(3);
        let complete = String::from_utf8(show(path, &[out]).stdout).unwrap();
        let parsed = |text: &str| -> Vec<(u64, String)> {
            let row = |line: &str| {
                let row: serde_json::Value = serde_json::from_str(line).expect(line);
                (row["id"].as_u64().unwrap(), row["response"].to_string())
            };
            let mut rows: Vec<_> = text.lines().map(row).collect();
            rows.sort();
            rows
        };
        assert_eq!(parsed(&complete), parsed(&running), "{out}");
        let failed = show(path, &[out, "--failed"]);
        assert_eq!(failed.stdout.split(|byte| *byte == b'\n').count(), 2, "{out}");
    }
}

#[test]
fn what_is_no_job_is_refused_and_no_row_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("notes.txt"), "a\n").unwrap();
    for (name, text) in [
        ("nothing.jsonl", "no run of nothing.jsonl was found"),
        ("notes.txt", "no run made"),
        ("-", "--journal FILE"),
        ("s3://bucket/out.jsonl", "in a store"),
    ] {
        let ended = show(path, &[name]);
        ended.assert_exit(2);
        ended.assert_says(text);
        ended.assert_says("help: ");
    }
    let mut job = Working::start(path, "out.jsonl", "jsonl");
    job.give("{\"prompt\":\"a\"}\n");
    wait_for_lines(path, &["out.jsonl"], 1);
    let ended = show(path, &["out.jsonl", "--failed"]);
    ended.assert_exit(4);
    ended.assert_says("No row has failed");
    job.finish().assert_exit(0);
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut job = Working::start(path, "out.jsonl", "jsonl");
    let pad = "x".repeat(20_000);
    let rows: String =
        (0..40).map(|id| format!("{{\"id\":{id},\"prompt\":\"a\",\"pad\":\"{pad}\"}}\n")).collect();
    job.give(&rows);
    job.finish().assert_exit(0);
    let mut child = show_command(path, &["out.jsonl"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141));
}
