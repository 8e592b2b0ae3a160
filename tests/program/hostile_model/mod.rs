//! Model folders that are damaged or made to do harm: each is refused with one message and its exit
//! code, or costs the rows that it touches. Nothing crashes, hangs, or passes in silence.

mod checkpoints;
mod configs;
mod lost_file;
mod pickles;
pub(super) mod poison;
mod templates;
mod tokenizers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Against hanging, not for speed.
const HANG: Duration = Duration::from_secs(300);

/// A model of random weights with an index and three shards.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/llama2");

/// A folder that holds a copy of a golden model, to be damaged.
pub(super) struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        Self::of(Path::new(MODEL))
    }

    fn of(source: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        fs::create_dir(&model).unwrap();
        for entry in fs::read_dir(source).unwrap() {
            let path = entry.unwrap().path();
            fs::write(model.join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
        }
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn model(&self, name: &str) -> PathBuf {
        self.folder.path().join("model").join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.model(name)).unwrap()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.model(name), bytes).unwrap();
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    /// Runs the model over rows, greedy and short, with further flags.
    #[track_caller]
    fn run(&self, rows: &[Value], flags: &[&str]) -> Run {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(self.path().join("in.jsonl"), lines).unwrap();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        command.current_dir(self.path()).args(["run", "--model", "./model", "-i", "in.jsonl"]);
        command.args(["--device", "cpu", "--threads", "1", "--kv-cache-memory-bytes", "8MiB"]);
        command.args(["--temperature", "0", "--max-tokens", "4", "-qq", "--progress", "none"]);
        Run::of(command.args(flags))
    }
}

/// How a run ended.
struct Run {
    code: Option<i32>,
    rows: Vec<Value>,
    stdout: String,
    stderr: String,
}

impl Run {
    #[track_caller]
    fn of(command: &mut Command) -> Self {
        let mut run = Self::of_any(command);
        let parse = |line: &str| serde_json::from_str(line).expect(line);
        run.rows = run.stdout.lines().map(parse).collect();
        run
    }

    /// Of a command whose output is not rows.
    #[track_caller]
    fn of_any(command: &mut Command) -> Self {
        let started = Instant::now();
        let pipe = || Stdio::piped();
        let child = command.stdin(Stdio::null()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
        let Output { status, stdout, stderr } = wait(child, started);
        let (stdout, stderr) =
            (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        Self { code: status.code(), rows: Vec::new(), stdout, stderr }
    }

    /// The model was refused, by one message that says so.
    #[track_caller]
    fn assert_refused(&self, what: &str, wanted: &str) {
        assert_eq!(self.code, Some(7), "{what}: {}", self.stderr);
        assert!(self.rows.is_empty(), "{what}: {}", self.stdout);
        let lines: Vec<&str> = self.stderr.lines().collect();
        let has_help = lines.get(1).is_none_or(|line| line.starts_with("help: "));
        assert!(lines.len() <= 2 && has_help, "{what}: {}", self.stderr);
        assert!(lines[0].starts_with("error[model"), "{what}: {}", self.stderr);
        assert!(self.stderr.contains(wanted), "{what}: {} lacks {wanted}", self.stderr);
        assert!(self.stderr.len() < 1000, "{what}: {} bytes", self.stderr.len());
    }

    /// The codes of the rows' errors; "" for a row that was answered.
    fn codes(&self) -> Vec<String> {
        let code = |row: &Value| row["error"]["code"].as_str().unwrap_or_default().to_owned();
        let codes: Vec<_> = self.rows.iter().map(code).collect();
        for (row, code) in self.rows.iter().zip(&codes) {
            assert_eq!(row["response"].is_null(), !code.is_empty(), "an error row has no text");
        }
        codes
    }

    /// Every row is an error row of this code.
    #[track_caller]
    fn assert_error_rows(&self, what: &str, code: &str) {
        assert_eq!(self.code, Some(3), "{what}: {} {}", self.stdout, self.stderr);
        let codes = self.codes();
        assert!(!codes.is_empty() && codes.iter().all(|found| found == code), "{what}: {codes:?}");
    }
}

/// Waits for a process, and ends one that hangs.
#[track_caller]
fn wait(child: std::process::Child, started: Instant) -> Output {
    let id = child.id();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(HANG.saturating_sub(started.elapsed())) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = crate::signal::send("KILL", id);
            panic!("no end after {HANG:?}");
        }
    }
}

fn prompt(text: &str) -> Value {
    serde_json::json!({"prompt": text})
}

fn chat(text: &str) -> Value {
    serde_json::json!({"messages": [{"role": "user", "content": text}]})
}

#[test]
fn the_model_itself_answers() {
    let run = Folder::new().run(&[prompt("a"), chat("b")][..1], &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stderr, "");
}
