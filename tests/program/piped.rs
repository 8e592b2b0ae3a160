//! A program that is fed through a pipe, what it answers, and what every command of pooling models
//! promises: steps, threads and shards change no byte, and a killed run continues.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A command by name, with pipes around it. `SOURCE_DATE_EPOCH` fixes what answers say of time.
pub fn command(name: &str, model: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
    command.args([name, "--model", model, "--threads", "2"]).args(flags);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("SOURCE_DATE_EPOCH", "1711652795");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
pub fn fed(mut command: Command, input: &str) -> Output {
    let mut child = command.spawn().unwrap();
    let (mut stdin, text) = (child.stdin.take().unwrap(), input.to_owned());
    // A program that refuses its flags reads nothing.
    let writing = std::thread::spawn(move || drop(stdin.write_all(text.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    output
}

/// Rows of standard output.
pub fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The flags are refused before or while the model is loaded, by a message that says this.
pub fn assert_refused(output: &Output, flags: &[&str], what: &str) {
    let errors = errors(output);
    assert!(matches!(output.status.code(), Some(2 | 7)), "{flags:?}: {errors}");
    assert!(errors.contains(what), "{flags:?}: {errors}");
}

/// What transformers makes of the texts of a golden model.
pub fn golden(model: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(model).join("golden.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The numbers of a list.
pub fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// Lists that differ by less than 1e-5.
pub fn is_close(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// JSON lines.
pub fn rows(rows: &[Value]) -> String {
    rows.iter().map(|row| row.to_string() + "\n").collect()
}

/// Rows of texts of many lengths.
pub fn texts(num_rows: usize) -> String {
    let row = |index: usize| {
        let text = "the cat sits outside and a man is playing guitar ".repeat(index % 3);
        json!({"id": index, "text": format!("{text}row {index}")})
    };
    rows(&(0..num_rows).map(row).collect::<Vec<_>>())
}

/// Steps, threads, shards and the order of rows change no byte of what `command` with further flags
/// makes of an input.
pub fn change_no_byte(command: &dyn Fn(&[&str]) -> Command, input: &str) {
    let expected = fed(command(&[]), input);
    assert_eq!(expected.status.code(), Some(0), "{}", errors(&expected));
    let expected = expected.stdout;
    for flags in [
        ["--max-num-seqs", "1", "--threads", "1"],
        ["--max-num-batched-tokens", "1", "--threads", "3"],
        ["--max-num-seqs", "7", "--threads", "1"],
    ] {
        assert!(fed(command(&flags), input).stdout == expected, "{flags:?}");
    }
    let backwards = |text: &[u8]| {
        let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').rev().collect();
        String::from_utf8(lines.concat()).unwrap()
    };
    let turned = fed(command(&[]), &backwards(input.as_bytes())).stdout;
    assert!(backwards(&turned).as_bytes() == expected);
    let shard = |shard: &str| fed(command(&["--shard", shard]), input).stdout;
    let shards = ["0/2", "1/2"].map(shard);
    let [even, odd] = shards.each_ref().map(|bytes| bytes.split_inclusive(|byte| *byte == b'\n'));
    let joined: Vec<u8> = even.zip(odd).flat_map(|(a, b)| [a, b].concat()).collect();
    assert!(joined == expected);
}

/// Kills a command when it has answered all rows of `input` and waits for more.
pub fn kill_after(mut command: Command, input: &str) {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    let mut written = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in input.lines() {
        written.next().unwrap().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A run is killed after the rows that `input` begins with, and continues to the same bytes.
pub fn continues(command: &dyn Fn(&[&str]) -> Command, input: &str, num_rows: usize) {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let flags = ["--journal", journal.to_str().unwrap()];
    kill_after(command(&flags), &input.split_inclusive('\n').take(num_rows).collect::<String>());
    let continued = fed(command(&flags), input);
    let said = errors(&continued);
    assert!(said.contains(&format!("Continuing a run with {num_rows} finished rows")), "{said}");
    assert!(continued.stdout == fed(command(&[]), input).stdout);
}
