//! What a job on GitHub shows: gates that fail, rows at their lines of the input, and the report in
//! the job's summary.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::Origin;
use super::input_again::records_of;
use super::report::Report;
use super::totals::Failure;
use vllm_batch_dataset::input::reader::Content;
use vllm_batch_dataset::terminal::console::Console;

/// GitHub shows so many errors of a step.
const MAX_ANNOTATIONS: usize = 10;

/// Bytes of a step's summary.
const MAX_SUMMARY: u64 = 1 << 20;

/// Where a job's steps say things; None elsewhere.
pub struct Job {
    summary: Option<PathBuf>,
    /// The folder that names of files are relative to.
    workspace: Option<PathBuf>,
}

impl Job {
    /// The job that this process is a step of.
    #[expect(clippy::disallowed_methods, reason = "the variables are GitHub's")]
    pub fn found() -> Option<Self> {
        let is_job = std::env::var("GITHUB_ACTIONS").is_ok_and(|value| value == "true");
        let summary = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty());
        let workspace = std::env::var_os("GITHUB_WORKSPACE").filter(|path| !path.is_empty());
        let (summary, workspace) = (summary.map(PathBuf::from), workspace.map(PathBuf::from));
        (is_job || summary.is_some()).then_some(Self { summary, workspace })
    }

    /// A file's name from the workspace, if it is in there.
    fn in_workspace(&self, name: &str) -> String {
        let Some(workspace) = &self.workspace else { return name.to_owned() };
        let full = |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
        let inside = [
            (full(Path::new(name)), full(workspace)),
            (std::path::absolute(name).ok(), Some(workspace.clone())),
        ];
        let inside = inside.into_iter().find_map(|(file, folder)| {
            Some(file?.strip_prefix(folder?).ok()?.display().to_string())
        });
        inside.unwrap_or_else(|| name.to_owned())
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

/// What a job shows of an output: gates that fail and rows that became wrong are errors, other rows
/// notices. Where all gates hold nothing is an error. `places`: of rows by their numbers.
pub fn annotations(report: &Report, places: &HashMap<u64, (String, u64)>) -> String {
    let failing: Vec<_> = report.outcomes.iter().filter(|outcome| !outcome.holds()).collect();
    let gates = failing.iter().map(|outcome| {
        let said = format!("{}: it is {}", outcome.gate(), outcome.value());
        format!("title={}::{}\n", property("gate"), message(&said))
    });
    let row = |failure: &Failure| {
        let place = places.get(&failure.row.number);
        let place = place.map(|(file, line)| format!("file={},line={line},", property(file)));
        let title = property(&failure.name());
        format!("{}title={title}::{}\n", place.unwrap_or_default(), message(&failure.said()))
    };
    let worse = report.newly_wrong().map(|flipped| row(&flipped.now));
    let is_worse: HashSet<u64> = report.newly_wrong().map(|one| one.now.row.number).collect();
    let others = report.totals.failures.iter();
    let others = others.filter(|one| !is_worse.contains(&one.row.number)).map(row);
    let (errors, notices): (Vec<String>, Vec<String>) = match failing.is_empty() {
        true => (Vec::new(), worse.chain(others).take(MAX_ANNOTATIONS).collect()),
        false => (
            gates.chain(worse).take(MAX_ANNOTATIONS).collect(),
            others.take(MAX_ANNOTATIONS).collect(),
        ),
    };
    let errors = errors.iter().map(|text| format!("::error {text}"));
    errors.chain(notices.iter().map(|text| format!("::notice {text}"))).collect()
}

/// Numbers of the rows that annotations may show, in their order.
fn shown_rows(report: &Report) -> BTreeSet<u64> {
    let worse = report.newly_wrong().take(MAX_ANNOTATIONS).map(|flipped| flipped.now.row.number);
    let failed = report.totals.failures.iter().map(|failure| failure.row.number);
    worse.chain(failed.take(2 * MAX_ANNOTATIONS)).collect()
}

fn message(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    message(text).replace(':', "%3A").replace(',', "%2C")
}

/// Files and lines of the rows that annotations may show, by reading the input once more; none
/// where it is no file. Files are named as in the workspace of the job.
pub fn places(report: &Report, origin: &Origin, job: &Job) -> HashMap<u64, (String, u64)> {
    let mut places = HashMap::new();
    let Some(mut records) = records_of(origin) else { return places };
    let wanted = shown_rows(report);
    let mut wanted = wanted.into_iter().peekable();
    let (mut index, mut number) = (0, 0);
    while let Some(next) = wanted.peek() {
        let Ok(Some(record)) = records.files.next_record() else { break };
        if records.shard.owns(index) {
            number += 1;
            if number == *next {
                let (file, line) = records.sources.place(record.line);
                places.insert(number, (job.in_workspace(file), line));
                wanted.next();
            }
        }
        index += 1;
    }
    places
}

/// Whether a row of the input may have an `assert` with this name: it has the words. True where the
/// input is no file.
pub fn has_assert_named(origin: &Origin, name: &str) -> bool {
    let Some(mut records) = records_of(origin) else { return true };
    let names_it = |text: &str| text.contains("assert") && text.contains(name);
    while let Ok(Some(record)) = records.files.next_record() {
        let has = match &record.content {
            Content::Line(line) => names_it(line),
            Content::Sample(sample) => names_it(&sample.text),
            Content::Cells(cells) => cells.iter().any(|cell| cell.contains(name)),
        };
        if has {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::gates::Outcome;
    use super::super::rows::JudgedRow;
    use super::super::totals::Totals;
    use super::*;
    use crate::args::EvalFlags;

    fn report(failures: Vec<Failure>, holds: bool) -> Report {
        let mut totals = Totals::new(true, &EvalFlags::default());
        totals.failures = failures;
        let gate = Outcome::of_errors(u64::from(!holds));
        let origin = serde_json::Value::Null;
        Report { totals, outcomes: vec![gate], baseline: None, origin }
    }

    #[test]
    fn text_of_rows_ends_no_command() {
        let row = JudgedRow {
            id: Some("a:b,\nc%".to_owned()),
            reason: Some("x\r\n::set-output y%".to_owned()),
            number: 3,
            ..JudgedRow::default()
        };
        let failures = vec![Failure { row }; 12];
        let places = HashMap::from([(3, ("in,put.jsonl".to_owned(), 7))]);
        let text = annotations(&report(failures.clone(), true), &places);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), MAX_ANNOTATIONS);
        let title = "title=a%3Ab%2C%0Ac%25::x%0D%0A::set-output y%25";
        assert_eq!(lines[0], format!("::notice file=in%2Cput.jsonl,line=7,{title}"));
        let text = annotations(&report(failures, false), &HashMap::new());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "::error title=gate::error rows <= 0: it is 1");
        assert_eq!(lines[1], format!("::notice {title}"));
    }

    #[test]
    fn files_are_named_from_the_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Some(folder.path().to_owned());
        let job = Job { summary: None, workspace };
        let inside = folder.path().join("eval/in.jsonl");
        assert_eq!(job.in_workspace(inside.to_str().unwrap()), "eval/in.jsonl");
        assert_eq!(job.in_workspace("/elsewhere/in.jsonl"), "/elsewhere/in.jsonl");
        let without = Job { summary: None, workspace: None };
        assert_eq!(without.in_workspace("in.jsonl"), "in.jsonl");
    }
}
