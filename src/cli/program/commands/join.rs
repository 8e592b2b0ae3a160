//! `join`: the answers of an output as one file for each file that its rows are parts of.

mod subtitles;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::args::JoinArgs;
use crate::ledger::LedgerError;
use crate::ledger::claim::Claim;
use crate::ledger::storage::{Disk, Storage};
use subtitles::{Cue, TextForm};
use vllm_batch_base::files::quoted;
use vllm_batch_dataset::input::output_records::{MAX_ROW, OutputRecords};
use vllm_batch_dataset::input::path;
use vllm_batch_dataset::input::reader::{Content, Record};
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::{CliError, sanitized};
use vllm_batch_dataset::terminal::exit::Exit;

/// What is between two texts.
const SEPARATOR: &str = "\n\n";

/// Joins the rows of an output.
///
/// # Errors
/// It cannot be read, a row belongs to no file, or a file cannot be written.
pub fn run(args: &JoinArgs, console: &Console) -> Result<Exit, CliError> {
    if !["{file}", "{name}"].iter().any(|field| args.to.contains(field)) {
        let message = format!("--to {}: all files would have one name", args.to);
        return Err(CliError::refused("flag", message).help("write {file} or {name} into it"));
    }
    let mut rows = Rows::open(args)?;
    let mut joined = Joined::new(args, console);
    while let Some(row) = rows.next_row()? {
        joined.add(row)?;
    }
    joined.finish()
}

/// A row of the output.
struct Row {
    line: u64,
    /// What it is a part of.
    of: String,
    /// What is said; None of an error row.
    said: Option<Said>,
}

/// What a row adds to its file.
enum Said {
    Text(String),
    Cues(Vec<Cue>),
}

/// The rows of the output.
struct Rows<'a> {
    args: &'a JoinArgs,
    records: OutputRecords,
}

impl<'a> Rows<'a> {
    fn open(args: &'a JoinArgs) -> Result<Self, CliError> {
        Ok(Self { args, records: OutputRecords::open(&args.out, &args.field)? })
    }

    fn next_row(&mut self) -> Result<Option<Row>, CliError> {
        let Some(record) = self.records.next_record()? else { return Ok(None) };
        let line = record.line;
        let value = self.values(record)?;
        let wrong = |what: &str| {
            let message = format!("{}:{line}: {what}", self.records.name());
            CliError::refused("join", message).help("name fields of the output's rows")
        };
        let Some(Value::String(of)) = value(&self.args.by) else {
            return Err(wrong(&format!("no text in `{}` (--by)", self.args.by)));
        };
        let has_failed = value("error").is_some_and(|e| !e.is_null() && e != "");
        let is_plain = TextForm::of(&self.args.to) == TextForm::Plain;
        let said = match value(&self.args.field) {
            _ if has_failed => None,
            _ if !is_plain => {
                let without = "no `segments`, of which subtitles are made: `run \
                               --return-timestamps` writes them, to JSON lines";
                Some(Said::Cues(subtitles::cues(value).ok_or_else(|| wrong(without))?))
            }
            Some(Value::String(text)) => Some(Said::Text(text)),
            _ => return Err(wrong(&format!("no text in `{}` (--field)", self.args.field))),
        };
        Ok(Some(Row { line, of, said }))
    }

    /// The values of a record, by their names.
    fn values(&self, record: Record) -> Result<impl Fn(&str) -> Option<Value>, CliError> {
        let line = record.line;
        let (fields, cells) = match record.content {
            Content::Cells(cells) => (None, cells),
            Content::Line(text) => (Some(self.records.fields(text, line)?), Vec::new()),
            Content::Sample(_) => {
                let message = format!("{}: an archive is no output", self.records.name());
                return Err(CliError::refused("join", message));
            }
        };
        let headers = self.records.headers();
        Ok(move |name: &str| match &fields {
            Some(fields) => {
                path::find(fields, name).ok().and_then(|json| serde_json::from_str(json).ok())
            }
            None => {
                let at = headers.as_deref()?.iter().position(|header| header == name)?;
                cells.get(at).cloned().map(Value::String)
            }
        })
    }
}

/// The file whose rows are read.
struct Current {
    of: String,
    text: String,
    num_rows: u64,
    num_failed: u64,
    num_cues: usize,
}

/// The texts on their way to files.
struct Joined<'a> {
    args: &'a JoinArgs,
    console: &'a Console,
    storage: Arc<dyn Storage>,
    current: Option<Current>,
    /// What each file is of.
    done: HashMap<PathBuf, String>,
    num_rows: u64,
    num_written: u64,
    num_left: u64,
    num_failed: u64,
}

impl<'a> Joined<'a> {
    fn new(args: &'a JoinArgs, console: &'a Console) -> Self {
        let storage = Arc::new(Disk) as Arc<dyn Storage>;
        let (current, done) = (None, HashMap::new());
        let (num_rows, num_written, num_left, num_failed) = (0, 0, 0, 0);
        Self { args, console, storage, current, done, num_rows, num_written, num_left, num_failed }
    }

    fn add(&mut self, row: Row) -> Result<(), CliError> {
        self.num_rows += 1;
        if self.current.as_ref().is_some_and(|current| current.of != row.of) {
            self.write_current()?;
        }
        let of = row.of;
        let form = TextForm::of(&self.args.to);
        let text = form.head().to_owned();
        let new = || Current { of, text, num_rows: 0, num_failed: 0, num_cues: 0 };
        let current = self.current.get_or_insert_with(new);
        if current.num_rows > 0 && form == TextForm::Plain {
            current.text += self.args.separator.as_deref().unwrap_or(SEPARATOR);
        }
        current.num_rows += 1;
        match row.said {
            Some(Said::Text(text)) => current.text += &text,
            Some(Said::Cues(cues)) => {
                for cue in &cues {
                    current.num_cues += 1;
                    form.push(current.num_cues, cue, &mut current.text);
                }
            }
            None => current.num_failed += 1,
        }
        if current.text.len() > MAX_ROW {
            let message = format!("line {}: the text of {} is too long", row.line, current.of);
            return Err(CliError::refused("join", message));
        }
        Ok(())
    }

    /// Writes the file whose rows are all read.
    fn write_current(&mut self) -> Result<(), CliError> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let target = target(&self.args.to, &current.of)?;
        let real = |path: &Path| fs::canonicalize(path).ok();
        if real(&target).is_some_and(|target| real(&self.args.out) == Some(target)) {
            let message = format!("--to {}: it would replace the output", target.display());
            return Err(CliError::refused("flag", message).help("name another folder"));
        }
        if let Some(other) = self.done.insert(target.clone(), current.of.clone()) {
            let message = match other == current.of {
                true => format!("the rows of {} do not follow each other", quoted(&other)),
                false => format!(
                    "{} and {} would both be {}",
                    quoted(&other),
                    quoted(&current.of),
                    target.display()
                ),
            };
            return Err(CliError::refused("join", message)
                .help("join the output of a run over the parts of files, each named once"));
        }
        let Current { num_rows, num_failed, .. } = current;
        if num_failed > 0 {
            self.num_failed += 1;
            let of = sanitized(&current.of);
            self.console
                .warn(&format!("{of}: {num_failed} of {num_rows} rows failed; not written"));
            return Ok(());
        }
        if !current.text.is_empty() && !current.text.ends_with('\n') {
            current.text.push('\n');
        }
        match self.is_there(&target, &current.text)? {
            true => self.num_left += 1,
            false => {
                self.write(&target, &current.text)?;
                self.num_written += 1;
            }
        }
        Ok(())
    }

    /// Whether a file has a text already.
    fn is_there(&self, target: &Path, text: &str) -> Result<bool, CliError> {
        match fs::read(target) {
            Ok(bytes) if bytes == text.as_bytes() => Ok(true),
            Ok(_) if self.args.overwrite => Ok(false),
            Ok(_) => {
                let message = format!("{} is there, and has another text", target.display());
                Err(CliError::new(Exit::OutputExists, "output_exists", message)
                    .help("--overwrite replaces it"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => {
                let message = format!("cannot read {}: {error}", target.display());
                Err(CliError::refused("output", message))
            }
        }
    }

    fn write(&self, target: &Path, text: &str) -> Result<(), CliError> {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(|error| {
                let message = format!("cannot make the folder {}: {error}", folder.display());
                CliError::refused("output", message)
            })?;
        }
        let claim = Claim::take(&self.storage, target).map_err(LedgerError::at_start)?;
        claim.publish_text(text).map_err(LedgerError::midway)
    }

    fn finish(mut self) -> Result<Exit, CliError> {
        self.write_current()?;
        if self.num_rows == 0 {
            let message = format!("{} has no rows", self.args.out.display());
            return Err(CliError::new(Exit::NoRows, "no_rows", message));
        }
        let (rows, written, left) = (self.num_rows, self.num_written, self.num_left);
        let failed = match self.num_failed {
            0 => String::new(),
            failed => format!(", {failed} not written"),
        };
        self.console.note(&format!(
            "Joined: {rows} rows; files: {written} written, {left} there already{failed}"
        ));
        Ok(if self.num_failed > 0 { Exit::ErrorRows } else { Exit::Success })
    }
}

/// The name of the text of a file. It stays where the template says: what a row says may not lead
/// out of there.
fn target(template: &str, of: &str) -> Result<PathBuf, CliError> {
    let refused = |what: &str| {
        let message = format!("{}: {what}", quoted(of));
        CliError::refused("join", message).help("{name} takes the last part of a path alone")
    };
    let mut plain = PathBuf::new();
    for part in Path::new(of).with_extension("").components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::ParentDir if template.contains("{file}") => {
                return Err(refused("`..` in {file} would lead out of the folder of --to"));
            }
            Component::ParentDir => {}
        }
    }
    let name = plain.file_name().and_then(|name| name.to_str());
    let (Some(file), Some(name)) = (plain.to_str(), name) else {
        return Err(refused("is no name of a file"));
    };
    let mut target = String::new();
    let mut rest = template;
    // In one pass: a name may have braces.
    while let Some(at) = rest.find('{') {
        target += &rest[..at];
        rest = &rest[at..];
        let (found, value) = match () {
            () if rest.starts_with("{file}") => ("{file}", file),
            () if rest.starts_with("{name}") => ("{name}", name),
            () => ("{", "{"),
        };
        target += value;
        rest = &rest[found.len()..];
    }
    target += rest;
    Ok(PathBuf::from(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_beneath_the_template() {
        let of = |template: &str, of: &str| {
            target(template, of).map(|path| path.to_str().unwrap().to_owned()).ok()
        };
        let all = |template: &str| {
            ["docs/a.b.pdf", "./a.pdf", "/srv/a.pdf", "{name}.pdf"].map(|file| of(template, file))
        };
        let some = |names: [&str; 4]| names.map(|name| Some(name.to_owned()));
        assert_eq!(
            all("md/{file}.md"),
            some(["md/docs/a.b.md", "md/a.md", "md/srv/a.md", "md/{name}.md"])
        );
        assert_eq!(all("{name}"), some(["a.b", "a", "a", "{name}"]));
        assert_eq!(of("md/{file}.md", "../a.pdf"), None);
        assert_eq!(of("md/{name}.md", "../a.pdf").as_deref(), Some("md/a.md"));
        assert_eq!(of("{file}", ""), None);
        assert_eq!(of("a{b{name}}", "c.pdf").as_deref(), Some("a{bc}"));
    }
}
