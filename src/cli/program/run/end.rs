//! How a run ends: the thread that waits for it, the files of a run that did not finish, and the
//! summary.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vllm_batch_dataset::PROGRAM;

use super::progress::Progress;
use super::report::Report;
use super::shared::Shared;
use super::signals::Signals;
use super::write::{Message, SideText, Written};
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::meta::{self, InputFacts, Meta, NamedFile};
use crate::ledger::output::{Facts, part_of};
use crate::ledger::remote::Remote;
use crate::ledger::{Document, LockedOutput};
use crate::model::resolved::Resolved;
use vllm_batch_base::run_date::RunDate;
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::clock::now;
use vllm_batch_dataset::terminal::console::{Console, ProgressMode};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_dataset::terminal::remedy;

/// How often signals are looked for.
const TICK: Duration = Duration::from_millis(25);

/// How long a step may take that a signal came into. Then the run ends without the engine.
const STEP_PATIENCE: Duration = Duration::from_millis(300);

/// Why the engine has nothing more to do.
pub enum Ended {
    /// Every row is answered.
    Complete,
    /// The writing thread is gone; it knows why.
    NoWriter,
    /// By the user.
    Signal(Exit),
}

/// What an unfinished run leaves.
pub struct Left {
    /// The first rows, where the output is a file.
    pub part: Option<PathBuf>,
    /// All finished rows, where there is a journal.
    pub journal: Option<PathBuf>,
}

impl Left {
    /// What a run would leave that has not begun.
    pub fn of(output: &LockedOutput) -> Self {
        Self {
            part: output.path().map(part_of),
            journal: output.journal_path().map(Path::to_owned),
        }
    }
}

/// Waits for the end of a run, on a thread of its own: the engine may be in the middle of a long
/// step when a signal comes.
pub struct Ending<'a> {
    /// What the threads look at.
    pub shared: Arc<Shared>,
    /// Where the summary goes.
    pub console: &'a Console,
    /// Looked at while the engine works.
    pub signals: Signals,
    /// When rows began to flow.
    pub started: Instant,
    /// What loading took.
    pub load_time: Duration,
    /// What was loaded.
    pub resolved: Resolved,
    /// Of rows without their own.
    pub max_tokens: Option<u32>,
    /// The model's context.
    pub max_model_len: usize,
    /// Files of an unfinished run.
    pub left: Left,
    /// Where `--stats` goes.
    pub document: Option<Document>,
    /// Where the output goes at the end, if it is an object.
    pub remote: Option<&'a Remote>,
}

impl Ending<'_> {
    /// Waits, and says how it ended. If the engine does not come back from its step, the process
    /// ends here.
    pub fn wait(
        mut self,
        ended: &Receiver<Result<Ended, CliError>>,
        rows: Sender<Message>,
        writing: JoinHandle<Written>,
        progress: Progress,
    ) -> Result<Exit, CliError> {
        let (ended, is_stuck) = self.wait_for_engine(ended);
        if !matches!(ended, Ok(Ended::Complete)) {
            // The reader may hold its end for ever, so the writer is told.
            let _ = rows.send(Message::Stop);
            self.shared.config.judge.iter().for_each(|judge| judge.stop());
        }
        drop(rows);
        let ended = self.wait_for_judge(ended, &writing);
        let written = writing.join().expect("a panic ends the process in its hook");
        progress.stop();
        let result = self.conclude(ended, written);
        if is_stuck {
            if let Some(remote) = self.remote {
                remote.leave(self.console);
            }
            std::process::exit(self.console.end(result).code().into());
        }
        result
    }

    /// A program that judges may take its time after the engine's last step.
    fn wait_for_judge(
        &self,
        ended: Result<Ended, CliError>,
        writing: &JoinHandle<Written>,
    ) -> Result<Ended, CliError> {
        let Some(judge) = self.shared.config.judge.as_ref().filter(|judge| judge.has_program())
        else {
            return ended;
        };
        while !writing.is_finished() {
            match (self.signals.exit(), &ended) {
                (Some(exit), Ok(Ended::Complete)) => {
                    judge.stop();
                    return Ok(Ended::Signal(exit));
                }
                _ => std::thread::sleep(TICK),
            }
        }
        ended
    }

    fn wait_for_engine(
        &self,
        ended: &Receiver<Result<Ended, CliError>>,
    ) -> (Result<Ended, CliError>, bool) {
        let mut signalled: Option<Instant> = None;
        loop {
            match ended.recv_timeout(TICK) {
                Ok(ended) => return (ended, false),
                Err(RecvTimeoutError::Disconnected) => return (Ok(Ended::NoWriter), false),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let signal = self.signals.exit().filter(|_| self.signals.are_of_process());
            let Some(exit) = signal else { continue };
            if signalled.get_or_insert_with(Instant::now).elapsed() > STEP_PATIENCE {
                return (Ok(Ended::Signal(exit)), true);
            }
        }
    }

    /// Summary, `--stats`, and how the process ends.
    fn conclude(
        &mut self,
        ended: Result<Ended, CliError>,
        written: Written,
    ) -> Result<Exit, CliError> {
        let complete = matches!(ended, Ok(Ended::Complete)) && written.result.is_ok();
        let report = self.report(&written, complete);
        let (emitted, first_error) = (written.emitted, written.first_error);
        let result = match (ended, written.result) {
            // The reader of the output has gone away: there is nothing to say.
            (_, Err(error)) if error.exit == Exit::BrokenPipe => return Err(error),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(Ended::Signal(exit)), Ok(())) => Err(interrupted(exit)),
            (Ok(_), Ok(())) if report.tally.num_failed() > 0 => Ok(Exit::ErrorRows),
            (Ok(_), Ok(())) => Ok(Exit::Success),
        };
        let mut result = result.map_err(|error| self.what_is_left(error, emitted, &report));
        if self.shared.config.input.is_prompt() && !self.console.verbose() {
            report.of_answer().iter().for_each(|warning| self.console.warn(warning));
        } else if self.console.shows_summary() && report.tally.rows() > 0 {
            self.console.print(&report.summary(self.console.style()));
        }
        if let Some(error) =
            first_error.filter(|_| self.shared.config.input.is_prompt() && result.is_ok())
        {
            let RowError { code, message, help, .. } = error;
            result = Err(CliError { help, ..CliError::new(Exit::ErrorRows, code, message) });
        }
        let exit = result.as_ref().map_or_else(|error| error.exit, |exit| *exit);
        if self.console.mode() == ProgressMode::Json {
            let mut stats = report.stats(exit.code());
            stats["error"] = result.as_ref().err().map(CliError::json).into();
            self.console.result(stats);
        }
        self.write_stats(&report, exit)?;
        result
    }

    fn report(&self, written: &Written, complete: bool) -> Report {
        Report {
            tally: written.tally.clone(),
            engine: self.shared.stats(),
            elapsed: self.started.elapsed(),
            load: self.load_time,
            resolved: self.resolved.clone(),
            model: self.shared.config.model.name.clone(),
            input: self.shared.config.input.name.clone(),
            output: self.output_name(complete),
            max_tokens: self.max_tokens,
            max_model_len: self.max_model_len,
            complete,
            is_judged: self.shared.config.judge.is_some(),
        }
    }

    fn write_stats(&mut self, report: &Report, exit: Exit) -> Result<(), CliError> {
        let Some(document) = self.document.take() else { return Ok(()) };
        let written = document.write(&report.stats(exit.code()));
        written.map_err(|error| error.help("the rows are written"))
    }

    /// Says what of an unfinished run is kept, and how to go on.
    fn what_is_left(&self, error: CliError, emitted: Option<u64>, report: &Report) -> CliError {
        let finished = report.tally.rows();
        if error.exit == Exit::Refused && finished == 0 {
            return error;
        }
        let rows = |number: u64| match number {
            1 => "1 row".to_owned(),
            number => format!("{number} rows"),
        };
        let kept = match (&self.left.journal, emitted) {
            _ if finished == 0 => "no row was finished; the same command begins again".to_owned(),
            (Some(journal), None) => format!(
                "finished rows are kept in {}, as far as it took them; the same command continues",
                journal.display()
            ),
            (Some(journal), Some(_)) => format!(
                "{} finished and kept in {}; the same command continues",
                rows(finished),
                journal.display()
            ),
            (None, Some(emitted)) => format!(
                "{} written; the same command begins again, with --journal FILE it would continue",
                rows(emitted)
            ),
            (None, None) => "some rows may have been written; the same command begins again \
                             (with --journal FILE it would continue)"
                .to_owned(),
        };
        let remedy = error.help.as_deref().or(remedy::of(&error.message));
        let help = match (remedy, error.code) {
            (_, "disk_full") => format!("{}; ", self.needed_space(report)),
            (Some(help), _) => format!("{help}; "),
            (None, _) => String::new(),
        };
        error.help(format!("{help}{kept}"))
    }

    /// What the rest of the rows needs on the disk.
    fn needed_space(&self, report: &Report) -> String {
        let (done, bytes) = (report.tally.rows(), report.tally.row_bytes());
        let Some(total) = self.shared.counters.total().filter(|total| done > 0 && *total > done)
        else {
            return "free some space".to_owned();
        };
        // Once in the journal and once in the output.
        let needed = 2 * (total - done) * bytes.div_ceil(done);
        format!("free about {} for the other {} rows", size(needed), total - done)
    }

    /// Where rows are; None where none is.
    fn output_name(&self, complete: bool) -> Option<String> {
        let path = match (&self.shared.config.output.path, &self.left.part) {
            (None, _) => return Some("<stdout>".to_owned()),
            (Some(_), Some(part)) if !complete => Some(part).filter(|part| part.exists())?,
            (Some(path), _) => path,
        };
        Some(path.display().to_string())
    }
}

/// Bytes as people read them, rounded up: less would not do.
fn size(bytes: u64) -> String {
    let (unit, bytes_of_unit) = match bytes {
        0..0x10_0000 => return format!("{} KiB", bytes.div_ceil(1 << 10).max(1)),
        0x10_0000..0x4000_0000 => ("MiB", 1u64 << 20),
        _ => ("GiB", 1 << 30),
    };
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(bytes_of_unit));
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// The error of a run that a signal stopped.
pub fn interrupted(exit: Exit) -> CliError {
    let name = match exit {
        Exit::Terminated => "SIGTERM",
        Exit::HungUp => "SIGHUP",
        _ => "SIGINT",
    };
    CliError::new(exit, "interrupted", format!("stopped by {name}"))
}

/// What will be said beside the output when it is complete.
pub fn side_text(shared: Arc<Shared>, fingerprint: Fingerprint, format: &RowFormat) -> SideText {
    let format = format.file_format();
    Box::new(move |totals, tally, input| {
        let config = &shared.config;
        let errors = config.output.errors.as_ref().zip(totals.errors.clone());
        let named = |(path, facts): (&PathBuf, Facts)| NamedFile {
            path: path.display().to_string(),
            facts: facts.into(),
        };
        let meta = Meta {
            schema: meta::SCHEMA,
            tool: PROGRAM.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: utc(config.started),
            finished: utc(now()),
            resumes: totals.num_resumes,
            rows: tally.counts(),
            tokens: tally.tokens(),
            input: InputFacts {
                path: config.input.name.clone(),
                rows: input.num_rows,
                digest: input.digest.clone(),
                unread_images: input.unread_images.clone(),
                texts: input.texts.clone(),
            },
            output: totals.output.clone().into(),
            errors: errors.map(named),
            format,
            compression: totals.compression.name().to_owned(),
            model: Some(config.model.name.clone()),
            fingerprint,
            shard: config.input.shard,
            limit: config.input.limit,
            sample: config.input.chosen().ok().flatten().map(|chosen| chosen.sampled),
        };
        meta.text()
    })
}

/// A time as side files say it.
pub fn utc(seconds: i64) -> String {
    RunDate::from_unix(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn space_is_rounded_up_in_a_unit_that_shows_it() {
        for (bytes, text) in [
            (0, "1 KiB"),
            (700, "1 KiB"),
            (51_200, "50 KiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 20) + 1, "1.1 MiB"),
            (1_468_007, "1.5 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }
}
