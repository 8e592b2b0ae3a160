//! The role of each file that a flag names. A command's set of names is made of this table: a flag
//! that is in it is compared, locked and looked at as all others are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};

/// What a flag's file is to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read.
    Read,
    /// An output of this program that is read, with the files beside it.
    ReadOutput,
    /// A model, tokenizer or generation config: a folder, or a GGUF file.
    Model,
    /// `NAME=FOLDER`, or an object with `path`: an adapter.
    Adapter,
    /// A JSON object with `model`: the draft model.
    DraftModel,
    /// The words of a command line; those that are files are read.
    Program,
    /// Rows or a journal, which the ledger writes.
    Rows,
    /// A document, written whole.
    Document(DocumentKind),
    /// A folder in which the program keeps files of its own.
    Folder,
}

/// What a document says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentKind {
    /// The summary of a run.
    Stats,
    /// The result of `bench`.
    Bench,
    /// The result of `plan`.
    Plan,
    /// What an evaluated output is worth.
    Report(ReportForm),
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportForm {
    /// FILE.json
    Json,
    /// FILE.md
    Markdown,
    /// FILE.junit.xml
    JUnit,
    /// FILE.html
    Html,
}

impl ReportForm {
    /// The end of a name, and what it asks for.
    pub const ENDS: [(&'static str, Self); 4] = [
        (".json", ReportForm::Json),
        (".md", ReportForm::Markdown),
        (".junit.xml", ReportForm::JUnit),
        (".html", ReportForm::Html),
    ];

    /// What a name asks for.
    pub fn of(path: &Path) -> Option<Self> {
        let text = path.to_string_lossy();
        Self::ENDS.iter().find(|(end, _)| text.ends_with(end)).map(|(_, form)| *form)
    }
}

/// What a flag of a command is for; None: it names no file. `flag`: its long name, or that of an
/// argument without one. `value`: as typed.
pub fn role(command: &str, flag: &str, value: &OsStr) -> Option<Role> {
    Some(match flag {
        "input" | "dataset" | "config" | "chat-template" | "files" | "a" | "b" => Role::Read,
        "allowed-local-media-path" => Role::Read,
        "structured-outputs.json"
        | "structured-outputs.grammar"
        | "structured-outputs.structural-tag" => Role::Read,
        "shards" | "rescore" | "baseline" => Role::ReadOutput,
        "out" if command == "show" || command == "join" => Role::ReadOutput,
        "model" | "mmproj" | "tokenizer" | "generation-config" => Role::Model,
        "lora-modules" => Role::Adapter,
        "speculative-config" => Role::DraftModel,
        "scorer-command" => Role::Program,
        "out" | "errors" | "journal" => Role::Rows,
        "stats" => Role::Document(DocumentKind::Stats),
        "output-json" if command == "plan" => Role::Document(DocumentKind::Plan),
        "output-json" => Role::Document(DocumentKind::Bench),
        // A name that asks for no report is refused by the command.
        "report" => Role::Document(DocumentKind::Report(
            ReportForm::of(Path::new(value)).unwrap_or(ReportForm::Json),
        )),
        "work-dir" | "download-dir" | "batch-dir" => Role::Folder,
        _ => return None,
    })
}

/// A file that a flag names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagFile {
    /// The flag, as messages call it.
    pub flag: String,
    /// What the file is to the command.
    pub role: Role,
    /// As typed.
    pub path: PathBuf,
}

/// The files that the flags of a command name, wherever they were set.
#[derive(Clone, Debug, Default)]
pub struct FlagFiles(Vec<FlagFile>);

impl FlagFiles {
    /// Those of a command. `config`: the file of flags, if there is one.
    pub fn of(command: &Command, matches: &ArgMatches, config: Option<&Path>) -> Self {
        let mut files = Vec::new();
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            let name = arg.get_long().unwrap_or(id);
            let flag = match arg.get_long() {
                Some(long) => format!("--{long}"),
                None => id.to_owned(),
            };
            let Ok(Some(values)) = matches.try_get_raw(id) else { continue };
            for value in values {
                if let Some(role) = role(command.get_name(), name, value) {
                    files.push(FlagFile { flag: flag.clone(), role, path: value.into() });
                }
            }
        }
        let is_given = files.iter().any(|file| file.flag == "--config");
        if let Some(path) = config.filter(|_| !is_given) {
            let flag = "--config".to_owned();
            files.push(FlagFile { flag, role: Role::Read, path: path.to_owned() });
        }
        Self(files)
    }

    /// Adds a file that is read and that no flag names.
    pub fn add_read(&mut self, what: &str, path: PathBuf) {
        self.0.push(FlagFile { flag: what.to_owned(), role: Role::Read, path });
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &FlagFile> {
        self.0.iter()
    }

    /// The same for a command that takes a flag and writes nothing for it.
    pub fn without(mut self, flag: &str) -> Self {
        self.0.retain(|file| file.flag != flag);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;
    use std::ffi::OsString;

    use super::super::{Parsed, command, parse};
    use super::*;

    /// What the name of a value says that is a file.
    const WORDS: [&str; 8] = ["FILE", "DIR", "GGUF", "OUT", "OLD", "SHARD", "PROGRAM", "PATH"];

    /// A flag that takes a path, and has no role, would be in no command's set of names.
    #[test]
    fn every_flag_that_names_a_file_has_a_role() {
        let mut num_found = 0;
        for command in command(true).get_subcommands() {
            for arg in command.get_arguments() {
                let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
                let names = arg.get_value_names().unwrap_or_default();
                let words = names.iter().flat_map(|name| name.split(['|', '=', ',', '.']));
                if !is_path && !words.into_iter().any(|word| WORDS.contains(&word)) {
                    continue;
                }
                let name = arg.get_long().unwrap_or(arg.get_id().as_str());
                let found = role(command.get_name(), name, OsStr::new("a.json"));
                assert!(found.is_some(), "{} {name}: give it a role", command.get_name());
                num_found += 1;
            }
        }
        assert!(num_found > 80, "{num_found}");
    }

    /// The ledger knows three flags of rows. Another one needs a place there.
    #[test]
    fn rows_are_written_for_three_flags() {
        let all = command(true);
        // What `show` and `join` call OUT is read.
        for command in all.get_subcommands().filter(|c| !["join", "show"].contains(&c.get_name())) {
            for arg in command.get_arguments() {
                let name = arg.get_long().unwrap_or(arg.get_id().as_str());
                let is_rows = role(command.get_name(), name, OsStr::new("")) == Some(Role::Rows);
                assert_eq!(is_rows, ["out", "errors", "journal"].contains(&name), "{name}");
            }
        }
    }

    #[test]
    fn files_are_found_wherever_they_are_set() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("batch.toml");
        std::fs::write(&config, "[run]\nstats = \"s.json\"\n").unwrap();
        let words = "vllm-batch run -m m -i a.jsonl b.jsonl --structured-outputs.json {} -o o";
        let argv: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let variables = [
            ("VLLM_BATCH_CONFIG".into(), config.clone().into_os_string()),
            ("VLLM_BATCH_ERRORS".into(), "e.jsonl".into()),
        ];
        let Parsed { files, .. } = parse(&argv, &variables).unwrap();
        let mut found: Vec<_> =
            files.iter().map(|file| (file.flag.as_str(), file.path.to_str().unwrap())).collect();
        found.sort_unstable();
        let expected = [
            ("--config", config.to_str().unwrap()),
            ("--errors", "e.jsonl"),
            ("--input", "a.jsonl"),
            ("--input", "b.jsonl"),
            ("--model", "m"),
            ("--out", "o"),
            ("--stats", "s.json"),
            ("--structured-outputs.json", "{}"),
        ];
        assert_eq!(found, expected);
    }
}
