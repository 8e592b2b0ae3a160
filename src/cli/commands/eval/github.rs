//! What a job on GitHub shows: failed rows at their lines of the input, and the report in the job's
//! summary.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Origin;
use super::totals::Failure;
use crate::cli::args::FormatArg;
use crate::cli::input::files::{self, Files};
use crate::cli::input::sources::Sources;
use crate::cli::terminal::console::Console;

/// GitHub shows so many errors of a step.
const MAX_ANNOTATIONS: usize = 10;

/// Bytes of a step's summary.
const MAX_SUMMARY: u64 = 1 << 20;

/// Where a job's steps say things; None elsewhere.
pub struct Job {
    summary: Option<PathBuf>,
}

impl Job {
    /// The job that this process is a step of.
    #[expect(clippy::disallowed_methods, reason = "the variables are GitHub's")]
    pub fn found() -> Option<Self> {
        let is_job = std::env::var("GITHUB_ACTIONS").is_ok_and(|value| value == "true");
        let summary = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty());
        (is_job || summary.is_some()).then(|| Self { summary: summary.map(PathBuf::from) })
    }

    /// The file of the summary, which other steps write too.
    pub fn summary(&self) -> Option<&Path> {
        self.summary.as_deref()
    }

    /// Appends a report to the summary of the step.
    pub fn summarize(&self, markdown: &str, console: &Console) {
        let Some(path) = &self.summary else { return };
        let length = fs::metadata(path).map_or(0, |found| found.len());
        if length + markdown.len() as u64 > MAX_SUMMARY {
            console.warn("the summary of the step has no room for the report");
            return;
        }
        let appended = OpenOptions::new()
            .create(true)
            .append(true)
            // A pipe that nobody reads is not waited for.
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .and_then(|mut file| file.write_all(markdown.as_bytes()));
        if let Err(error) = appended {
            console.warn(&format!("cannot write the summary of the step: {error}"));
        }
    }
}

/// The commands that show failed rows at their places, `places` in the order of `failures`.
pub fn annotations(failures: &[Failure], places: &[(String, u64)]) -> String {
    let mut text = String::new();
    for (at, failure) in failures.iter().take(MAX_ANNOTATIONS).enumerate() {
        let place =
            places.get(at).map(|(file, line)| format!("file={},line={line},", property(file)));
        let title = property(&failure.name());
        let place = place.unwrap_or_default();
        text += &format!("::error {place}title={title}::{}\n", message(&failure.said()));
    }
    text
}

fn message(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    message(text).replace(':', "%3A").replace(',', "%2C")
}

/// Files and lines of the first failed rows, by reading the input once more; none where it is no
/// file.
pub fn places(failures: &[Failure], origin: &Origin) -> Vec<(String, u64)> {
    let Origin { args, config } = origin;
    let format = args.format;
    // Sources of their own: lines are counted in them.
    let sources = Sources::new(&args.input, |path| FormatArg::resolve(format, path));
    let Some(sources) = sources.ok().filter(Sources::are_files).map(Arc::new) else {
        return Vec::new();
    };
    let numbers = failures.iter().take(MAX_ANNOTATIONS).map(|failure| failure.row.number);
    let mut numbers = numbers.peekable();
    let opened = files::open(&sources)
        .and_then(|first| Files::new(Arc::clone(&sources), first, &config.rows));
    let Ok(mut files) = opened else { return Vec::new() };
    let (mut places, mut index, mut number) = (Vec::new(), 0, 0);
    while let Some(wanted) = numbers.peek() {
        let Ok(Some(record)) = files.next_record() else { break };
        if config.shard.owns(index) {
            number += 1;
            if number == *wanted {
                let (file, line) = sources.place(record.line);
                places.push((file.to_owned(), line));
                numbers.next();
            }
        }
        index += 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::super::rows::JudgedRow;
    use super::*;

    #[test]
    fn text_of_rows_ends_no_command() {
        let row = JudgedRow {
            id: Some("a:b,\nc%".to_owned()),
            reason: Some("x\r\n::set-output y%".to_owned()),
            ..JudgedRow::default()
        };
        let failures = vec![Failure { row }; 12];
        let text = annotations(&failures, &[("in,put.jsonl".to_owned(), 7)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), MAX_ANNOTATIONS);
        let title = "title=a%3Ab%2C%0Ac%25::x%0D%0A::set-output y%25";
        assert_eq!(lines[0], format!("::error file=in%2Cput.jsonl,line=7,{title}"));
        assert_eq!(lines[1], format!("::error {title}"));
    }
}
