//! `show`: the finished rows of a run, from its journal while it works and after it was stopped,
//! else from its complete output.

mod complete;
mod unfinished;

use std::fs;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::{Path, PathBuf};

use self::unfinished::Unfinished;
use crate::args::ShowArgs;
use crate::ledger::journal_view::JournalView;
use crate::ledger::output::{part_of, with_suffix};
use vllm_batch_dataset::object_store::is_object;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// The extension of a journal.
const JOURNAL: &str = ".journal";

/// Prints the finished rows of a run.
///
/// # Errors
/// There is no such run, it cannot be read, or standard output not be written; with `--follow`: the
/// run ended before its last row.
pub fn run(args: &ShowArgs, console: &Console) -> Result<Exit, CliError> {
    let job = Job::find(&args.out)?;
    let mut rows = Rows::new(args.failed);
    let unfinished = Unfinished::open(&job.journal, job.output.as_deref(), args.follow)?;
    let ended = match (unfinished, &job.output) {
        (Some(unfinished), output) => unfinished.show(&mut rows, args.follow, output.as_deref()),
        (None, Some(output)) if output.exists() => complete::show(output, &mut rows),
        (None, _) => return Err(job.is_missing(&args.out)),
    };
    rows.flush()?;
    ended?;
    if rows.num_shown > 0 {
        return Ok(Exit::Success);
    }
    console.note(match args.failed {
        true => "No row has failed",
        false => "No row has finished yet",
    });
    Ok(Exit::NoRows)
}

/// The files of a run.
struct Job {
    /// None: the journal was named.
    output: Option<PathBuf>,
    journal: PathBuf,
}

impl Job {
    fn find(name: &Path) -> Result<Self, CliError> {
        if is_object(name) {
            let message = format!("{}: the rows of a run in a store are not shown", name.display());
            return Err(CliError::refused("show", message).help(
                "name the journal of the run on its machine (--work-dir, or ~/.cache/vllm-batch), \
                 or fetch the object when it is complete",
            ));
        }
        if name == Path::new("-") {
            let message = "standard output has no journal";
            return Err(CliError::refused("show", message).help("name the FILE of --journal FILE"));
        }
        // A link stays a link: a run replaces the file that it names.
        let output = fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
        let is_named = name.to_string_lossy().ends_with(JOURNAL) || begins_as_journal(&output);
        Ok(match is_named {
            true => Self { output: None, journal: output },
            false => Self { journal: with_suffix(&output, JOURNAL), output: Some(output) },
        })
    }

    fn is_missing(&self, name: &Path) -> CliError {
        let shown = name.display();
        match &self.output {
            Some(output) if part_of(output).exists() => {
                let message = format!("{shown} has a part, and no journal beside it");
                CliError::refused("no_job", message)
                    .help("name the FILE that the run was given with --journal FILE")
            }
            _ => CliError::refused("no_job", format!("no run of {shown} was found"))
                .help("give the name that follows -o in the command of the run, in its folder"),
        }
    }
}

fn begins_as_journal(path: &Path) -> bool {
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0);
    let view = is_file.then(|| JournalView::open(path).ok().flatten()).flatten();
    view.is_some_and(|mut view| view.header().is_ok_and(|header| header.is_some()))
}

/// The error of a file that cannot be read.
fn unreadable(path: &Path, error: &io::Error) -> CliError {
    CliError::refused("show", format!("cannot read {}: {error}", path.display()))
}

/// Rows on their way to standard output.
struct Rows {
    out: BufWriter<StdoutLock<'static>>,
    /// Only error rows are wanted.
    failed: bool,
    /// The last header line of a CSV.
    header: Vec<u8>,
    num_shown: u64,
}

impl Rows {
    fn new(failed: bool) -> Self {
        let out = BufWriter::new(io::stdout().lock());
        Self { out, failed, header: Vec::new(), num_shown: 0 }
    }

    /// Whether such rows are wanted.
    fn wants(&self, is_error: bool) -> bool {
        is_error || !self.failed
    }

    /// Prints the header line of a CSV, unless it is there.
    fn header(&mut self, header: &[u8]) -> Result<(), CliError> {
        if self.header == header {
            return Ok(());
        }
        self.header = header.to_vec();
        self.write(header)
    }

    /// Prints a row, line end included.
    fn row(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.num_shown += 1;
        self.write(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.out.write_all(bytes).map_err(|error| CliError::from_stdout(&error))
    }

    fn flush(&mut self) -> Result<(), CliError> {
        self.out.flush().map_err(|error| CliError::from_stdout(&error))
    }
}

/// The row of a matrix as a JSON line, with its place from 0.
fn matrix_line(place: u64, bytes: &[u8]) -> Vec<u8> {
    let (values, _) = bytes.as_chunks::<4>();
    let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let values = serde_json::to_string(&values).expect("numbers are JSON");
    format!("{{\"row\":{place},\"embedding\":{values}}}\n").into_bytes()
}
