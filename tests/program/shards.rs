//! Shards of a real run, merged, are the bytes of one run: that is what `merge --verify` proves.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

/// A folder with an input and the flags of its runs.
struct Runs {
    folder: TempDir,
    input: &'static str,
    flags: &'static [&'static str],
}

impl Runs {
    fn new(input: &'static str, text: impl AsRef<[u8]>, flags: &'static [&'static str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(input), text).unwrap();
        Self { folder, input, flags }
    }

    fn vllm_batch(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        for name in ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).args(flags);
        command
    }

    /// `run` into an output.
    fn run(&self, out: &str, flags: &[&str]) -> Command {
        let mut command = self.vllm_batch(&["run", "--model", DEMO, "--out", out]);
        command.args(self.flags).args(flags);
        command
    }

    fn run_input(&self, out: &str, flags: &[&str]) {
        let output = self.run(out, flags).args(["--input", self.input]).output().unwrap();
        let has_failed = self.read_meta(out)["rows"]["failed"] != 0;
        assert_exit(&output, if has_failed { 3 } else { 0 });
    }

    fn run_shards(&self, count: usize, extension: &str) -> Vec<String> {
        let shard = |index| {
            let out = format!("s{index}-{count}.{extension}");
            self.run_input(&out, &["--shard", &format!("{index}/{count}")]);
            out
        };
        (0..count).map(shard).collect()
    }

    /// Merges in reverse, and compares with what one run wrote.
    #[track_caller]
    fn assert_merged(&self, shards: &[String], whole: &str, out: &str) {
        let mut command = self.vllm_batch(&["merge", "--verify", "--overwrite", "--out", out]);
        let output = command.args(shards.iter().rev()).output().unwrap();
        assert_exit(&output, 0);
        let (merged, expected) = (self.read(out), self.read(whole));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(merged == expected, "{}\n---\n{}", text(&merged), text(&expected));
        // The side file too, but for names, times and resumes.
        let (merged, expected) = (self.read_meta(out), self.read_meta(whole));
        for field in ["rows", "tokens", "output", "format", "compression", "shard", "limit"] {
            assert_eq!(merged[field], expected[field], "{field}");
        }
        assert_eq!(merged["fingerprint"], expected["fingerprint"]);
        assert_eq!(merged["input"]["digest"], expected["input"]["digest"]);
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let path = self.folder.path().join(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn read_meta(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(&format!("{name}.meta.json"))).unwrap()
    }
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
}

/// Rows with and without ids, greedy and sampled, two of them alike, and some that cannot be asked.
fn jsonl() -> String {
    let mut text = String::new();
    for index in 0..29 {
        let mut row = json!({"prompt": format!("{}+{}=", index % 9, index % 5)});
        match index % 4 {
            0 => row["temperature"] = json!(0),
            1 => row["id"] = json!(format!("row-{index}")),
            2 => row["seed"] = json!(index),
            _ => row["n"] = json!(2),
        }
        text += &match index {
            5 | 6 => "{\"id\":\"cut\",\"prompt\":\n".to_owned(),
            11 => "{\"id\":11,\"prompt\":\"a\",\"temperature\":-1}\n".to_owned(),
            // A blank line is no row, and shards count rows.
            17 => format!("\n\n{row}\n"),
            23 => "{\"id\":23}\n".to_owned(),
            _ => format!("{row}\n"),
        };
    }
    text
}

const SAMPLED: &[&str] = &["--format", "jsonl", "--temperature", "1", "--max-tokens", "6"];

#[test]
fn shards_merge_to_the_bytes_of_one_run() {
    let runs = Runs::new("in.jsonl", jsonl(), SAMPLED);
    runs.run_input("whole.jsonl", &[]);
    assert_eq!(
        runs.read_meta("whole.jsonl")["rows"],
        json!({
            "total": 29, "ok": 25, "failed": 4,
            "by_code": {"bad_json": 2, "invalid_parameter": 1, "row_shape": 1},
        })
    );
    for count in [1, 2, 3, 5] {
        let shards = runs.run_shards(count, "jsonl");
        runs.assert_merged(&shards, "whole.jsonl", "merged.jsonl");
    }
}

#[test]
fn more_shards_than_rows_and_a_limit() {
    let runs = Runs::new("in.jsonl", "{\"prompt\" 1}\n".repeat(9), SAMPLED);
    runs.run_input("whole.jsonl", &["--limit", "2"]);
    let shard = |index| {
        let out = format!("s{index}.jsonl");
        runs.run_input(&out, &["--limit", "2", "--shard", &format!("{index}/4")]);
        assert_eq!(runs.read_meta(&out)["rows"]["failed"], u64::from(index < 2));
        out
    };
    let shards: Vec<String> = (0..4).map(shard).collect();
    runs.assert_merged(&shards, "whole.jsonl", "merged.jsonl");
}

#[test]
fn shards_of_a_csv() {
    let mut text = "id,question\n".to_owned();
    for row in 0..11 {
        text += &match row {
            3 => format!("{row},\"two\nlines, \"\"quoted\"\"\"\n"),
            // A cell too many.
            7 => format!("{row},a,b\n"),
            _ => format!("{row},{row}+{row}=\n"),
        };
    }
    let flags = &["--template", "{{question}}", "--temperature", "1", "--max-tokens", "5"];
    let runs = Runs::new("in.csv", text, flags);
    runs.run_input("whole.csv", &[]);
    assert_eq!(runs.read_meta("whole.csv")["rows"]["failed"], 1);
    for count in [2, 3] {
        let shards = runs.run_shards(count, "csv");
        runs.assert_merged(&shards, "whole.csv", "merged.csv");
    }
}

#[test]
fn compressed_shards_and_outputs() {
    let runs = Runs::new("in.jsonl", jsonl(), SAMPLED);
    let shards = [runs.run_shards(2, "jsonl.gz"), runs.run_shards(2, "jsonl")];
    let mixed = vec![shards[0][0].clone(), shards[1][1].clone()];
    for whole in ["whole.jsonl.gz", "whole.jsonl", "whole.jsonl.zst"] {
        runs.run_input(whole, &[]);
        let out = whole.replace("whole", "merged");
        runs.assert_merged(&shards[0], whole, &out);
        runs.assert_merged(&mixed, whole, &out);
    }
}

#[test]
fn shards_that_are_parquet_files_merge_to_the_bytes_of_one_run() {
    let runs = Runs::new("in.jsonl", jsonl(), SAMPLED);
    runs.run_input("whole.parquet", &[]);
    for count in [1, 2, 5] {
        let shards = runs.run_shards(count, "parquet");
        runs.assert_merged(&shards, "whole.parquet", "merged.parquet");
    }
}

/// Waits until a run has written a row.
fn wait_for_rows(part: &Path) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while fs::metadata(part).map_or(0, |found| found.len()) == 0 {
        assert!(Instant::now() < deadline, "no row is written");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_shard_that_was_interrupted_and_continued_merges_the_same() {
    let runs = Runs::new("in.jsonl", jsonl(), SAMPLED);
    runs.run_input("whole.jsonl", &[]);
    let mut shards = vec!["s0.jsonl".to_owned(), "s1.jsonl".to_owned()];
    runs.run_input(&shards[0], &["--shard", "0/2"]);
    // The input is a pipe that stays open, so the run cannot end before the signal comes.
    let mut command = runs.run(&shards[1], &["--shard", "1/2"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let text = jsonl();
    let half: String = text.split_inclusive('\n').take(12).collect();
    pipe.write_all(half.as_bytes()).unwrap();
    wait_for_rows(&runs.folder.path().join("s1.jsonl.part"));
    assert!(crate::signal::send("INT", child.id()));
    assert_exit(&child.wait_with_output().unwrap(), 130);
    drop(pipe);
    let refused = runs.vllm_batch(&["merge", "s0.jsonl", "s1.jsonl", "-o", "x"]).output().unwrap();
    assert_exit(&refused, 2);
    // The same command.
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_exit(&output, 3);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("Continuing a run with "), "{errors}");
    assert_eq!(runs.read_meta("s1.jsonl")["resumes"], 1);
    runs.assert_merged(&shards, "whole.jsonl", "merged.jsonl");
    shards.pop();
    let refused = runs.vllm_batch(&["merge", &shards[0], "-o", "x"]).output().unwrap();
    assert_exit(&refused, 2);
}
