//! Files and batches: through their states, over kills, beside what `run` writes of the same lines.

mod ended;
mod endpoints;
mod results;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::DEMO;
use super::client::{Reply, Server};

/// Longest wait for a batch.
const PATIENCE: Duration = Duration::from_secs(300);

/// What `created` of answers is.
const EPOCH: &str = "1711652795";

/// A folder of batches, and what serves it.
struct Home {
    dir: TempDir,
    model: &'static str,
    flags: Vec<String>,
}

impl Home {
    fn new(model: &'static str, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { dir: TempDir::new().unwrap(), model, flags }
    }

    fn batches(&self) -> PathBuf {
        self.dir.path().join("batches of this server")
    }

    fn serve(&self) -> Server {
        self.serve_by(Command::new(program()))
    }

    fn serve_by(&self, mut command: Command) -> Server {
        command.env("SOURCE_DATE_EPOCH", EPOCH);
        let dir = self.batches();
        let mut flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        flags.extend(["--batch-dir", dir.to_str().unwrap()]);
        Server::of(command, self.model, &flags)
    }

    /// What `run` makes of lines: answers, and errors.
    fn run(&self, lines: &str) -> [String; 2] {
        let path = |name: &str| self.dir.path().join(name);
        std::fs::write(path("in.jsonl"), lines).unwrap();
        let mut command = Command::new(program());
        command.args(["run", "-q", "--overwrite", "--model", self.model]).args(&self.flags);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env("SOURCE_DATE_EPOCH", EPOCH);
        command.arg("-i").arg(path("in.jsonl")).arg("-o").arg(path("out.jsonl"));
        command.arg("--errors").arg(path("err.jsonl"));
        let code = command.output().unwrap().status.code();
        assert!(matches!(code, Some(0 | 3)), "{code:?}");
        ["out.jsonl", "err.jsonl"]
            .map(|name| std::fs::read_to_string(path(name)).unwrap_or_default())
    }

    /// The record of a batch, as it lies in the folder.
    fn record(&self, id: &str) -> PathBuf {
        self.batches().join("batches").join(format!("{id}.json"))
    }
}

fn program() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("vllm-batch")
}

/// A form with a file.
fn form(fields: &[(&str, &str)], name: &str, content: &str) -> String {
    let mut form = String::new();
    for (field, value) in fields {
        let head = format!("Content-Disposition: form-data; name=\"{field}\"");
        form.push_str(&format!("--edge\r\n{head}\r\n\r\n{value}\r\n"));
    }
    let head = format!("Content-Disposition: form-data; name=\"file\"; filename=\"{name}\"");
    form + &format!("--edge\r\n{head}\r\n\r\n{content}\r\n--edge--\r\n")
}

const FORM: (&str, &str) = ("Content-Type", "multipart/form-data; boundary=edge");

impl Server {
    fn send_form(&self, form: &str) -> Reply {
        self.ask("POST /v1/files", &[FORM], form)
    }

    /// Sends lines: the id of their file.
    fn upload(&self, lines: &str) -> String {
        let reply = self.send_form(&form(&[("purpose", "batch")], "in.jsonl", lines));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["id"].as_str().unwrap().to_owned()
    }

    /// Begins a batch of lines: its id.
    fn begin(&self, endpoint: &str, lines: &str) -> String {
        let input_file_id = self.upload(lines);
        let window = "24h";
        let asked = json!({"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": window});
        let reply = self.post("/v1/batches", &asked);
        assert_eq!(reply.status, 200, "{reply:?}");
        let batch = reply.json();
        assert_eq!(batch["status"], "validating");
        batch["id"].as_str().unwrap().to_owned()
    }

    fn batch(&self, id: &str) -> Value {
        self.get(&format!("/v1/batches/{id}")).json()
    }

    /// Waits until a batch is as it is to be.
    fn batch_when(&self, id: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let batch = self.batch(id);
            if is_it(&batch) {
                return batch;
            }
            assert!(started.elapsed() < PATIENCE, "{batch}");
            std::thread::yield_now();
        }
    }

    /// Waits for the end of a batch.
    fn ended_batch(&self, id: &str) -> Value {
        self.batch_when(id, has_ended)
    }

    fn cancel(&self, id: &str) -> Reply {
        self.ask(&format!("POST /v1/batches/{id}/cancel"), &[], "")
    }

    /// The lines of a file that a batch names; none where it names none.
    fn lines(&self, batch: &Value, name: &str) -> String {
        let Some(id) = batch[name].as_str() else { return String::new() };
        let reply = self.get(&format!("/v1/files/{id}/content"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body
    }

    /// Answers and errors of a batch.
    fn results(&self, batch: &Value) -> [String; 2] {
        ["output_file_id", "error_file_id"].map(|name| self.lines(batch, name))
    }
}

fn has_ended(batch: &Value) -> bool {
    ["completed", "failed", "expired", "cancelled"].contains(&batch["status"].as_str().unwrap())
}

/// Lines that ask for texts of many tokens; every seventh is wrong.
fn long_lines(num_lines: usize, max_tokens: usize) -> String {
    (0..num_lines).map(|i| line(i, max_tokens).to_string() + "\n").collect()
}

fn line(i: usize, max_tokens: usize) -> Value {
    let temperature = if i % 7 == 3 { json!("hot") } else { json!(1.0) };
    json!({"custom_id": format!("row-{i}"), "method": "POST", "url": "/v1/completions", "body": {
        "model": "demo", "prompt": format!("{i} and {i}"), "max_tokens": max_tokens,
        "ignore_eos": true, "temperature": temperature,
    }})
}

/// The names of lines.
fn ids(lines: &str) -> Vec<String> {
    let id = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["custom_id"].as_str().unwrap().to_owned()
    };
    lines.lines().map(id).collect()
}
