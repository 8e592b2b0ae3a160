//! The program as a process: started, fed, waited for.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::resume::journal;

/// A model of random weights with a context of 256 tokens: a row takes milliseconds.
pub const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/llama2");

/// After so long a process hangs, on a machine that does sixty other things too. No test passes or
/// fails by less.
pub const HANG: Duration = Duration::from_secs(300);

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    #[track_caller]
    pub fn assert_exit(&self, code: i32) {
        assert_eq!(self.status.code(), Some(code), "{}", self.stderr);
    }

    #[track_caller]
    pub fn assert_says(&self, text: &str) {
        assert!(self.stderr.contains(text), "no {text:?} in:\n{}", self.stderr);
    }
}

/// `run` in a folder, without variables that change what it shows.
pub fn run_of(model: &str, folder: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder).args(["run", "--device", "cpu", "--model", model]).args(flags);
    for name in ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "SOURCE_DATE_EPOCH"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same of the tiny model.
pub fn run(folder: &Path, flags: &[&str]) -> Command {
    run_of(TINY, folder, flags)
}

/// Runs to the end, without an input on standard input.
pub fn finish(command: &mut Command) -> Ended {
    wait(command.spawn().unwrap())
}

/// Runs to the end over rows on standard input.
pub fn finish_with(command: &mut Command, rows: &[u8]) -> Ended {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // On a thread: the program may write before it has read all. One that refuses does not
        // read.
        scope.spawn(move || drop(stdin.write_all(rows)));
        wait(child)
    })
}

/// Waits for the end and takes what was written.
pub fn wait(mut child: Child) -> Ended {
    let take = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.map_or(Ok(0), |mut stream| stream.read_to_end(&mut bytes)).unwrap();
            bytes
        })
    };
    let stdout = take(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = take(child.stderr.take().map(|stream| Box::new(stream) as _));
    let status = wait_for_exit(&mut child);
    let stderr = String::from_utf8(stderr.join().unwrap()).unwrap();
    Ended { status, stdout: stdout.join().unwrap(), stderr }
}

/// Waits for the end; a process that hangs fails the test.
pub fn wait_for_exit(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the process hangs");
        }
        sleep(Duration::from_millis(1));
    }
}

/// Kills. An error: it had ended by itself.
pub fn kill(mut child: Child) -> Result<(), Ended> {
    child.kill().unwrap();
    let ended = wait(child);
    match ended.status.signal() {
        Some(9) => Ok(()),
        _ => Err(ended),
    }
}

/// Sends a signal by its name.
pub fn signal(child: &Child, name: &str) {
    assert!(crate::signal::send(name, child.id()), "kill -{name}");
}

/// Waits until a journal has so many rows, while a process writes it.
pub fn wait_for_rows(child: &mut Child, journal: &Path, number: usize) {
    let deadline = Instant::now() + HANG;
    while journal::num_rows(journal) < number {
        if let Some(status) = child.try_wait().unwrap() {
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("{status} before row {number}: {errors}");
        }
        assert!(Instant::now() < deadline, "no row {number}");
        sleep(Duration::from_millis(1));
    }
}

/// A run that waits for more rows on standard input: it cannot come to its end.
pub struct Held {
    pub child: Child,
    stdin: ChildStdin,
    journal: PathBuf,
}

impl Held {
    pub fn start(command: &mut Command, journal: PathBuf) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        Self { child, stdin, journal }
    }

    /// Gives rows, and waits until so many are in the journal.
    pub fn feed(&mut self, rows: &[u8], number: usize) {
        self.stdin.write_all(rows).unwrap();
        wait_for_rows(&mut self.child, &self.journal, number);
    }

    pub fn kill(self) {
        kill(self.child).expect("its input has no end");
    }

    /// Stops it by a signal, its input still open.
    pub fn stop(self, name: &str) -> Ended {
        signal(&self.child, name);
        let ended = wait(self.child);
        drop(self.stdin);
        ended
    }
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A JSON document.
pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).expect("a JSON document")
}

/// Rows that a run with `--stats stats.json` took over.
pub fn num_reused(folder: &Path) -> u64 {
    json(&folder.join("stats.json"))["rows"]["reused"].as_u64().unwrap()
}
