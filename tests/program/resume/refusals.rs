//! What a run may not be continued with: everything that its bytes depend on. Each is refused by
//! its name, one at a time, and nothing is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::resume::journal;
use crate::resume::program::{Ended, Held, TINY, finish_with, names, num_reused, run_of};
use crate::resume::rows::{rows, with_bad_rows};

/// The command's own flags.
const FLAGS: &[(&str, &str)] =
    &[("--temperature", "0.9"), ("--seed", "3"), ("--max-tokens", "9"), ("--ignore-eos", "")];

/// A field, and the flag that changes it. A flag of `FLAGS` takes another value.
const CHANGES: &[(&str, (&str, &str))] = &[
    ("temperature", ("--temperature", "0.8")),
    ("seed", ("--seed", "4")),
    ("max_tokens", ("--max-tokens", "10")),
    ("min_tokens", ("--min-tokens", "2")),
    ("top_p", ("--top-p", "0.5")),
    ("top_k", ("--top-k", "7")),
    ("min_p", ("--min-p", "0.1")),
    ("n", ("-n", "2")),
    ("stop", ("--stop", "x")),
    ("stop_token_ids", ("--stop-token-ids", "7")),
    ("logprobs", ("--logprobs", "1")),
    ("prompt_logprobs", ("--prompt-logprobs", "1")),
    ("presence_penalty", ("--presence-penalty", "0.5")),
    ("frequency_penalty", ("--frequency-penalty", "0.5")),
    ("repetition_penalty", ("--repetition-penalty", "1.5")),
    ("logit_bias", ("--logit-bias", "5=1")),
    ("allowed_token_ids", ("--allowed-token-ids", "7,8,9")),
    ("bad_words", ("--bad-words", "sum")),
    ("skip_special_tokens", ("--no-skip-special-tokens", "")),
    ("truncate_prompt_tokens", ("--truncate-prompt-tokens", "5")),
    ("truncation_side", ("--truncation-side", "right")),
    ("beam_search", ("--beam-width", "2")),
    ("dtype", ("--dtype", "bfloat16")),
    ("max_model_len", ("--max-model-len", "200")),
    ("chat_template", ("--chat-template", "template.jinja")),
    ("chat", ("--chat", "")),
    ("template", ("--template", "Q: {{prompt}}")),
    ("prompt_column", ("--prompt-column", "prompt")),
    ("row_params", ("--row-params", "none")),
    ("encoding", ("--encoding", "utf-8")),
    ("out_field", ("--out-field", "answer")),
    ("output_format", ("--output-format", "full")),
    ("reasoning_parser", ("--reasoning-parser", "deepseek_r1")),
    ("tool_call_parser", ("--tool-call-parser", "hermes")),
    ("overflow", ("--overflow", "truncate-left")),
    ("allow_special", ("--allow-special", "")),
];

/// A model of one's own, an input, and the command over them.
struct Setting {
    folder: TempDir,
    rows: String,
}

impl Setting {
    fn new(rows: String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("model")).unwrap();
        for file in fs::read_dir(TINY).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_name().unwrap();
            fs::copy(&file, folder.path().join("model").join(name)).unwrap();
        }
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
        fs::write(folder.path().join("template.jinja"), template).unwrap();
        Self { folder, rows }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command with one flag more, or with another value of one of its own.
    fn command(&self, change: Option<(&str, &str)>) -> Command {
        let is_other = |flag: &&(&str, &str)| change.is_none_or(|(name, _)| name != flag.0);
        let flags = FLAGS.iter().filter(is_other).copied().chain(change);
        let words = flags.flat_map(|(name, value)| [name, value]).filter(|word| !word.is_empty());
        let mut command = run_of("model", self.folder.path(), &["--format", "jsonl"]);
        command.args(words).args(["-o", "out.jsonl", "--stats", "stats.json"]);
        command
    }

    fn run(&self, change: Option<(&str, &str)>) -> Ended {
        finish_with(&mut self.command(change), self.rows.as_bytes())
    }

    /// The bytes of a run in another folder.
    fn undisturbed(&self) -> Vec<u8> {
        let other = Setting::new(self.rows.clone());
        other.run(None);
        fs::read(other.path("out.jsonl")).unwrap()
    }

    /// The command is killed when it has so many rows.
    fn interrupt(&self, command: &mut Command, number: usize) {
        let journal = self.path("out.jsonl.journal");
        let first: String = self.rows.split_inclusive('\n').take(number).collect();
        let mut held = Held::start(command, journal);
        held.feed(first.as_bytes(), number);
        held.kill();
    }
}

/// Refused by the name of the field, with a remedy, and nothing is touched.
#[track_caller]
fn assert_refused(setting: &Setting, code: &str, field: &str, ended: &Ended, before: &Kept) {
    assert_eq!(ended.status.code(), Some(6), "{field}: {}", ended.stderr);
    ended.assert_says(&format!("error[{code}]: out.jsonl"));
    ended.assert_says("start over with --overwrite");
    let is_named = ended.stderr.contains(&format!("\n  {field}: "));
    assert!(is_named, "{field} is not named: {}", ended.stderr);
    assert!(*before == Kept::of(setting.folder.path()), "{field}: something was touched");
}

/// Every file of a folder, but for a part without a byte: that is a lock, which a process that was
/// killed left and the next one takes away.
#[derive(PartialEq, Eq)]
struct Kept(Vec<(String, Vec<u8>)>);

impl Kept {
    fn of(folder: &Path) -> Self {
        let files = names(folder).into_iter().filter(|name| name != "model");
        let files = files.map(|name| (name.clone(), fs::read(folder.join(name)).unwrap()));
        Self(files.filter(|(name, bytes)| !name.ends_with(".part") || !bytes.is_empty()).collect())
    }
}

/// Files of the model with a change that no loader refuses.
const FILES: &[(&str, &str)] = &[
    ("model", "model-00002-of-00003.safetensors"),
    ("tokenizer", "tokenizer.json"),
    ("tokenizer", "tokenizer_config.json"),
    ("config", "config.json"),
    ("eos_token_ids", "generation_config.json"),
];

/// Another number in the weights, another end of text, or a space more.
fn changed(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    match name {
        "generation_config.json" => return br#"{"eos_token_id": [2, 3]}"#.to_vec(),
        name if name.ends_with("safetensors") => *changed.last_mut().unwrap() ^= 1,
        _ => changed.push(b' '),
    }
    changed
}

#[test]
fn an_unfinished_run_is_continued_by_nothing_that_would_write_other_bytes() {
    let setting = Setting::new(rows(41, 12, true).concat());
    let expected = setting.undisturbed();
    setting.interrupt(&mut setting.command(None), 7);
    let before = Kept::of(setting.folder.path());
    let refused = |field: &str, ended: &Ended| {
        assert_refused(&setting, "journal_differs", field, ended, &before);
    };
    for (field, change) in CHANGES {
        refused(field, &setting.run(Some(*change)));
    }
    let flags = ["--format", "jsonl", "--temperature", "0.9", "--seed", "3", "--max-tokens", "9"];
    let mut command = run_of("model", setting.folder.path(), &flags);
    refused("ignore_eos", &finish_with(command.args(["-o", "out.jsonl"]), setting.rows.as_bytes()));
    for (field, name) in FILES {
        let path = setting.path("model").join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, changed(name, &bytes)).unwrap();
        refused(field, &setting.run(None));
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(journal::num_rows(&setting.path("out.jsonl.journal")), 7);
    let ended = setting.run(None);
    ended.assert_exit(0);
    ended.assert_says("Continuing a run with 7 finished rows");
    assert_eq!(num_reused(setting.folder.path()), 7);
    assert!(fs::read(setting.path("out.jsonl")).unwrap() == expected);
}

#[test]
fn a_complete_output_is_that_of_the_same_command_alone() {
    let mut setting = Setting::new(rows(42, 6, true).concat());
    setting.run(None).assert_exit(0);
    let before = Kept::of(setting.folder.path());
    let ended = setting.run(None);
    ended.assert_exit(0);
    ended.assert_says("Nothing to do: out.jsonl is complete, with 6 rows, 0 of them error rows");
    assert!(before == Kept::of(setting.folder.path()), "nothing was done");
    let refused = |setting: &Setting, field: &str, ended: &Ended| {
        assert_refused(setting, "output_complete", field, ended, &before);
    };
    for (field, change) in CHANGES {
        refused(&setting, field, &setting.run(Some(*change)));
    }
    for (field, name) in FILES {
        let path = setting.path("model").join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, changed(name, &bytes)).unwrap();
        refused(&setting, field, &setting.run(None));
        fs::write(&path, bytes).unwrap();
    }
    let same = setting.rows.clone();
    let lines: Vec<&str> = same.split_inclusive('\n').collect();
    let swapped = [&lines[1..2], &lines[..1], &lines[2..]].concat().concat();
    for other in [lines[1..].concat(), same.replace("row-3", "row-x"), swapped] {
        setting.rows = other;
        refused(&setting, "input", &setting.run(None));
    }
    let ended = finish_with(setting.command(None).arg("--overwrite"), setting.rows.as_bytes());
    ended.assert_exit(0);
    assert_eq!(num_reused(setting.folder.path()), 0);
    assert!(fs::read(setting.path("out.jsonl")).unwrap() == setting.undisturbed());
}

/// How the model is spelled and where it is mounted, and flags that only say what holds anyway.
const SAME: &[(&str, &str)] = &[
    ("--model", "./model"),
    ("--model", "model/"),
    ("--model", "../SETTING/model"),
    ("--model", "mount"),
    ("--top-p", "1"),
    ("--skip-special-tokens", ""),
    ("--generation-config", "vllm"),
    ("--dtype", "float32"),
];

#[test]
fn the_same_model_under_another_name_continues_a_run() {
    let setting = Setting::new(rows(46, 12, true).concat());
    let expected = setting.undisturbed();
    let folder = setting.folder.path();
    std::os::unix::fs::symlink("model", setting.path("mount")).unwrap();
    let own = folder.file_name().unwrap().to_str().unwrap();
    for (number, (flag, value)) in SAME.iter().enumerate() {
        let change = (*flag, value.replace("SETTING", own));
        let change = Some((change.0, change.1.as_str()));
        setting.interrupt(&mut setting.command(None), 3 + number % 5);
        let ended = setting.run(change);
        ended.assert_exit(0);
        ended.assert_says("Continuing a run with ");
        assert!(fs::read(setting.path("out.jsonl")).unwrap() == expected, "{flag} {value}");
        let ended = setting.run(change);
        ended.assert_exit(0);
        ended.assert_says("Nothing to do: ");
        fs::remove_file(setting.path("out.jsonl")).unwrap();
        fs::remove_file(setting.path("out.jsonl.meta.json")).unwrap();
    }
}

#[test]
fn a_complete_output_with_error_rows_says_so_again() {
    let setting = Setting::new(with_bad_rows(rows(43, 8, true)).concat());
    setting.run(None).assert_exit(3);
    let ended = setting.run(None);
    ended.assert_exit(3);
    ended.assert_says("Nothing to do: out.jsonl is complete, with 8 rows, 1 of them error rows");
}

#[test]
fn overwrite_begins_an_unfinished_run_anew() {
    let setting = Setting::new(rows(44, 8, true).concat());
    setting.interrupt(&mut setting.command(None), 5);
    let change = ("--temperature", "0.5");
    let ended =
        finish_with(setting.command(Some(change)).arg("--overwrite"), setting.rows.as_bytes());
    ended.assert_exit(0);
    assert_eq!(num_reused(setting.folder.path()), 0);
    let fresh = Setting::new(setting.rows.clone());
    fresh.run(Some(change)).assert_exit(0);
    let bytes = |setting: &Setting| fs::read(setting.path("out.jsonl")).unwrap();
    assert!(bytes(&setting) == bytes(&fresh));
    assert!(!setting.path("out.jsonl.journal").exists());
}

#[test]
fn an_output_that_is_to_be_replaced_stays_until_the_new_one_is_complete() {
    let setting = Setting::new(rows(45, 8, true).concat());
    let folder = setting.folder.path();
    setting.run(None).assert_exit(0);
    let before = fs::read(setting.path("out.jsonl")).unwrap();
    let change = Some(("--temperature", "0.5"));
    setting.interrupt(setting.command(change).arg("--overwrite"), 5);
    assert!(fs::read(setting.path("out.jsonl")).unwrap() == before);
    // The old output's command does not continue it, the new one's does.
    let ended = setting.run(None);
    ended.assert_exit(6);
    ended.assert_says("error[journal_differs]: ");
    let ended = setting.run(change);
    ended.assert_exit(0);
    assert_eq!(num_reused(folder), 5);
    let fresh = Setting::new(setting.rows.clone());
    fresh.run(change).assert_exit(0);
    let bytes = fs::read(setting.path("out.jsonl")).unwrap();
    assert!(bytes != before && bytes == fs::read(fresh.path("out.jsonl")).unwrap());
    setting.run(change).assert_says("Nothing to do: ");
}
