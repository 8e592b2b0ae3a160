//! `Document`: what a flag asks for beside the rows, written whole: `--stats`, `--report`,
//! `--output-json`. An older one of its kind is replaced; no other file is, unless that is asked
//! for.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use vllm_batch_dataset::PROGRAM;

use serde_json::Value;

use super::claim::Claim;
use super::error::{LedgerError, unreadable};
use super::files::Destination;
use super::meta::Meta;
use super::record::Header;
use super::storage::{Access, Storage, StoredFile, read_at_most};
use crate::args::{DocumentKind, ReportForm};
use vllm_batch_dataset::terminal::error::CliError;

/// No document of JSON is longer.
const MAX_BYTES: u64 = 64 << 20;

/// Bytes that tell what a file is.
const PREFIX: usize = 4096;

/// How long a pipe is waited for that takes no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two tries.
const TRY: Duration = Duration::from_millis(5);

/// The first line of a report in Markdown.
pub const MARKDOWN_MARK: &str = "<!-- vllm-batch: report of eval -->\n";

/// The line of a page's head that says who made it.
pub const HTML_MARK: &str = "<meta name=\"generator\" content=\"vllm-batch\">\n";

/// All kinds.
const KINDS: [DocumentKind; 7] = [
    DocumentKind::Stats,
    DocumentKind::Bench,
    DocumentKind::Plan,
    DocumentKind::Report(ReportForm::Json),
    DocumentKind::Report(ReportForm::Markdown),
    DocumentKind::Report(ReportForm::JUnit),
    DocumentKind::Report(ReportForm::Html),
];

/// A document that is to be written, under a name that is this run's.
pub struct Document {
    /// The flag that asks for it.
    pub flag: String,
    /// What it says.
    pub kind: DocumentKind,
    /// Where it goes.
    pub destination: Destination,
    /// Of a file.
    pub claim: Option<Claim>,
}

impl Document {
    /// Writes a JSON document.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self, document: &Value) -> Result<(), CliError> {
        self.write_with(&mut |out| writeln!(out, "{document:#}").map_err(unwritten))
    }

    /// Writes what a function writes. A file has its name when it is whole.
    ///
    /// # Errors
    /// It cannot be written, or the function's.
    pub fn write_with(
        self,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut stream: Box<dyn Write> = match (self.destination, self.claim) {
            (_, Some(mut claim)) => {
                claim.file().set_length(0).map_err(unwritten)?;
                let mut out = BufWriter::new(FromBeginning { file: claim.file(), at: 0 });
                write(&mut out)?;
                out.flush().map_err(unwritten)?;
                drop(out);
                claim.file().sync().map_err(unwritten)?;
                return claim.publish().map_err(LedgerError::midway);
            }
            (Destination::Stream(stream), None) => stream,
            (Destination::Stdout, None) => Box::new(io::stdout()),
            (Destination::File(_), None) => unreachable!("files are claimed"),
        };
        let mut out = BufWriter::new(&mut stream);
        write(&mut out)?;
        out.flush().map_err(unwritten)
    }

    /// Refuses to replace a file that is no document of this kind, under the name or that of its
    /// part.
    ///
    /// # Errors
    /// There is one, or it cannot be read.
    pub fn refuse_other(&mut self, storage: &dyn Storage) -> Result<(), LedgerError> {
        let Some(claim) = &mut self.claim else { return Ok(()) };
        let refused = |path: &Path| LedgerError::NotOurs {
            path: path.to_owned(),
            flag: self.flag.clone(),
            what: name_of(self.kind),
        };
        if storage.kind(claim.path()).is_some() {
            let bytes = content(storage, claim.path())?;
            if !is_document(self.kind, &bytes) {
                return Err(refused(claim.path()));
            }
        }
        // Of a run that was killed before it could give it its name.
        let begun = beginning(claim)?;
        if !may_begin(begin_of(self.kind).as_bytes(), &begun) {
            return Err(refused(claim.part()));
        }
        if begun.is_empty() {
            return Ok(());
        }
        // It is written anew, or removed where there is nothing to write.
        let emptied = claim.file().set_length(0);
        emptied.map_err(|error| LedgerError::of(format!("empty {}", claim.part().display()), error))
    }
}

/// A document that cannot be written to its end: the rows are.
fn unwritten(error: io::Error) -> CliError {
    LedgerError::of("write the document", error).midway()
}

/// A writer to a file, from its beginning on.
struct FromBeginning<'a> {
    file: &'a mut dyn StoredFile,
    at: u64,
}

impl Write for FromBeginning<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A device, or a pipe that someone reads. It is never waited for without end.
pub struct PatientStream(File);

impl PatientStream {
    /// Opens it.
    ///
    /// # Errors
    /// Nobody reads the pipe, or the system's.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        options.open(path).map(Self).map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => {
                let what = "a pipe that nobody reads, or a socket";
                LedgerError::NoFile { path: path.to_owned(), what }
            }
            _ => LedgerError::of(format!("open {}", path.display()), error),
        })
    }
}

impl Write for PatientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let began = Instant::now();
        loop {
            match self.0.write(bytes) {
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && began.elapsed() < PATIENCE =>
                {
                    sleep(TRY);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(io::Error::new(ErrorKind::TimedOut, "nobody reads the pipe"));
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What messages call a kind.
fn name_of(kind: DocumentKind) -> &'static str {
    match kind {
        DocumentKind::Stats => "summary of a run",
        DocumentKind::Bench => "result of bench",
        DocumentKind::Plan => "result of plan",
        DocumentKind::Report(_) => "report of eval",
    }
}

/// How a document begins that this program wrote.
fn begin_of(kind: DocumentKind) -> &'static str {
    match kind {
        DocumentKind::Stats | DocumentKind::Bench => "{\n  \"model_id\": ",
        DocumentKind::Plan => "{\n  \"schema\": 1,\n  \"elapsed_time\": ",
        DocumentKind::Report(ReportForm::Json) => concat!(
            "{\n  \"schema\": 1,\n  \"tool\": \"vllm-batch\",\n  \"version\": \"",
            env!("CARGO_PKG_VERSION"),
            "\",\n  \"origin\": "
        ),
        DocumentKind::Report(ReportForm::Markdown) => MARKDOWN_MARK,
        DocumentKind::Report(ReportForm::JUnit) => {
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"vllm-batch\" "
        }
        DocumentKind::Report(ReportForm::Html) => "<!DOCTYPE html>\n",
    }
}

/// A key of a document, and what its value is.
type Key = (&'static str, fn(&Value) -> bool);

/// Whether bytes are a document of a kind; or none: that is nobody's loss, and what `mktemp`
/// leaves. Someone may have formatted the JSON anew.
fn is_document(kind: DocumentKind, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let begin = &bytes[..bytes.len().min(PREFIX)];
    let has = |keys: &[Key]| {
        let document: Option<Value> = serde_json::from_slice(bytes).ok();
        document.is_some_and(|document| {
            keys.iter().all(|(key, is_it)| document.get(key).is_some_and(is_it))
        })
    };
    let figures: [Key; 2] = [("elapsed_time", Value::is_number), ("schema", Value::is_number)];
    let is_own: fn(&Value) -> bool = |tool| tool == PROGRAM;
    match kind {
        DocumentKind::Stats => {
            has(&figures) && has(&[("exit_code", Value::is_number), ("rows", Value::is_object)])
        }
        DocumentKind::Bench => has(&figures) && has(&[("mode", Value::is_string)]),
        DocumentKind::Plan => {
            has(&figures) && has(&[("rows", Value::is_object)]) && !has(&[("exit_code", |_| true)])
        }
        DocumentKind::Report(ReportForm::Json) => {
            has(&[("tool", is_own), ("gates", Value::is_array), ("failures", Value::is_array)])
        }
        DocumentKind::Report(ReportForm::Html) => {
            let text = String::from_utf8_lossy(begin);
            text.starts_with(begin_of(kind)) && text.contains(HTML_MARK)
        }
        DocumentKind::Report(ReportForm::Markdown | ReportForm::JUnit) => {
            begin.starts_with(begin_of(kind).as_bytes())
        }
    }
}

/// Whether bytes may be what a run left that was killed while it wrote a file with this beginning:
/// a part of the beginning, zeros that took its place, or more than it.
pub fn may_begin(begin: &[u8], bytes: &[u8]) -> bool {
    let count = begin.len().min(bytes.len());
    bytes[..count] == begin[..count] || bytes.iter().all(|byte| *byte == 0)
}

/// The first bytes of a name's part.
///
/// # Errors
/// They cannot be read.
pub fn beginning(claim: &mut Claim) -> Result<Vec<u8>, LedgerError> {
    let part = claim.part().to_owned();
    let mut bytes = vec![0; PREFIX];
    let count = read_at_most(claim.file(), &mut bytes, 0);
    bytes.truncate(count.map_err(|error| unreadable(&part, error))?);
    Ok(bytes)
}

/// A small file's bytes. Of a larger one the beginning.
///
/// # Errors
/// It cannot be read.
pub fn content(storage: &dyn Storage, path: &Path) -> Result<Vec<u8>, LedgerError> {
    let read = || -> io::Result<Vec<u8>> {
        let file = storage.open(path, Access::Read)?;
        let length = file.length()?;
        let wanted = if length > MAX_BYTES { PREFIX as u64 } else { length };
        let mut bytes = vec![0; wanted as usize];
        let count = read_at_most(&*file, &mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    read().map_err(|error| unreadable(path, error))
}

/// Whether a file is one that this program writes beside rows: a document, a side file, a journal.
/// What cannot be read is none.
pub fn is_ours(path: &Path) -> bool {
    let read = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let Ok(bytes) = read() else { return false };
    let is_meta = || std::str::from_utf8(&bytes).is_ok_and(|text| Meta::parse(text).is_ok());
    !bytes.is_empty()
        && (Header::is_begun(&bytes)
            || KINDS.iter().any(|kind| is_document(*kind, &bytes))
            || is_meta())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_told_from_those_of_other_kinds() {
        let stats = r#"{"model_id":"m","elapsed_time":1.0,"schema":1,"exit_code":0,"rows":{}}"#;
        let bench = r#"{"elapsed_time":1.0,"schema":1,"mode":"decode"}"#;
        let plan = r#"{"schema":1,"elapsed_time":1.0,"rows":{}}"#;
        let report = r#"{"schema":1,"tool":"vllm-batch","gates":[],"failures":[]}"#;
        let markdown = format!("{MARKDOWN_MARK}# Evaluation\n");
        let junit = format!("{}tests=\"1\">", begin_of(DocumentKind::Report(ReportForm::JUnit)));
        let html = format!("<!DOCTYPE html>\n<head>\n{HTML_MARK}");
        let documents = [stats, bench, plan, report, &markdown, &junit, &html];
        for (kind, own) in KINDS.iter().zip(0..) {
            for (at, document) in documents.iter().enumerate() {
                let is_it = is_document(*kind, document.as_bytes());
                assert_eq!(is_it, at == own, "{kind:?}: {document}");
            }
            for foreign in ["{}", "[1]", "a week of work", "# Evaluation\n", "<html>", "\0\0"] {
                assert!(!is_document(*kind, foreign.as_bytes()), "{kind:?}: {foreign}");
            }
            assert!(is_document(*kind, b""));
        }
    }

    #[test]
    fn a_part_of_a_killed_run_is_known_by_its_beginning() {
        for (bytes, expected) in
            [("", true), ("{\n", true), ("{\n  \"a\": 1", true), ("\0\0\0", true), ("pre", false)]
        {
            assert_eq!(may_begin(b"{\n  \"a\"", bytes.as_bytes()), expected, "{bytes:?}");
        }
    }
}
