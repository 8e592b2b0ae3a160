//! The thread that writes: answers and errors, in any order, to the ledger. It owns the ledger, and
//! says how writing ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::previous::Good;
use super::shared::Shared;
use super::tally::Tally;
use super::unfinished::Unfinished;
use crate::args::values::MaxErrors;
use crate::ledger::meta::TokenCounts;
use crate::ledger::{Finished, Ledger, LedgerError, Reused, RowHash, Totals};
use vllm_batch_api::answer::Answer;
use vllm_batch_dataset::input::fields::Passthrough;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::judge::CommandError;
use vllm_batch_dataset::output::{Asked, RowFormat, Tokens};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_text::AnswerForm;

/// A share of error rows says little before so many rows.
const MIN_ROWS_FOR_SHARE: u64 = 100;

/// A finished row is durable after at most this time.
const SYNC_INTERVAL: Duration = Duration::from_secs(2);

/// What the writing thread is told. Rows have positions in the output: 0, 1, 2, ...
pub enum Message {
    /// A row was read.
    Row(Waiting),
    /// The engine answered it, or a part of it: the request's number is the row's position.
    Done(Answer),
    /// It cannot be asked.
    Failed {
        /// Of the row.
        position: u64,
        /// Why.
        error: RowError,
    },
    /// It was given up before it was answered.
    NotRun {
        /// Of the row.
        position: u64,
    },
    /// An earlier run answered it.
    Reused {
        /// Of the row.
        position: u64,
        /// Physical line, from 1.
        line: u64,
        /// Where the answer is.
        reused: Reused,
    },
    /// The output before has its answer.
    Good {
        /// Of the row.
        position: u64,
        /// Of what is asked.
        hash: RowHash,
        /// The answer.
        good: Good,
        /// Its images at URLs.
        media: Vec<u8>,
    },
    /// The input is read to its end.
    InputEnd(InputRead),
    /// The run ends early: write what is in order, and no more.
    Stop,
}

/// What was read in all.
#[derive(Clone, Debug, Default)]
pub struct InputRead {
    /// Rows, those of other shards too.
    pub num_rows: u64,
    /// Hash of their contents.
    pub digest: String,
    /// Numbers of rows whose images could not be used.
    pub unread_images: Vec<u64>,
    /// Hash of the same without images, where some are at URLs.
    pub texts: Option<String>,
}

/// A row that waits for its answer.
pub struct Waiting {
    /// In the output.
    pub position: u64,
    /// Physical line, from 1.
    pub line: u64,
    /// What it takes of the window.
    pub bytes: usize,
    /// Of what is asked.
    pub hash: RowHash,
    /// What appears again.
    pub passthrough: Passthrough,
    /// What a chat's answer may be.
    pub answer_form: Option<Arc<AnswerForm>>,
    /// It says itself how long its answer may be.
    pub has_own_length: bool,
    /// Its images at URLs.
    pub media: Vec<u8>,
}

/// How writing ended.
pub struct Written {
    /// Counts over all rows that were answered.
    pub tally: Tally,
    /// Rows that are in the output; None if writing them failed.
    pub emitted: Option<u64>,
    /// What is wrong with the first row that failed.
    pub first_error: Option<RowError>,
    /// Why it ended early.
    pub result: Result<(), CliError>,
}

/// Why the thread ends.
enum End {
    /// Every row is written.
    Complete,
    /// It was told to.
    Told,
    /// `--max-errors`; or a program that judges gives no verdict.
    Early(CliError),
}

/// Makes the side file's text of a complete run.
pub type SideText = Box<dyn FnOnce(&Totals, &Tally, &InputRead) -> String + Send>;

/// State of the thread.
pub struct WriteThread {
    shared: Arc<Shared>,
    format: RowFormat,
    processor: Arc<InputProcessor>,
    tally: Tally,
    waiting: HashMap<u64, Waiting>,
    input: InputRead,
    /// When the oldest row that is not durable must be.
    sync_due: Option<Instant>,
    first_error: Option<RowError>,
    unfinished: Unfinished,
    /// Why the last row has no verdict; the run ends.
    unjudged: Option<CommandError>,
}

/// The end of a run whose judge is a program that gives no verdict.
pub fn no_verdict(error: CommandError) -> CliError {
    let message = match error {
        CommandError::Failed(message) => message,
        CommandError::Stopped => "the judge was stopped".to_owned(),
    };
    CliError::new(Exit::Stopped, "judge", message)
}

impl WriteThread {
    /// A thread that has not begun.
    pub fn new(shared: Arc<Shared>, format: RowFormat, processor: Arc<InputProcessor>) -> Self {
        Self {
            shared,
            format,
            processor,
            tally: Tally::default(),
            waiting: HashMap::new(),
            input: InputRead::default(),
            sync_due: None,
            first_error: None,
            unfinished: Unfinished::default(),
            unjudged: None,
        }
    }

    /// The same after rows that do not say how many tokens they took.
    pub fn after(mut self, untold: TokenCounts) -> Self {
        self.tally.add_untold(&untold);
        self
    }

    /// Writes until all senders are gone (the output is then complete), or until it must stop.
    pub fn run(
        mut self,
        mut ledger: Ledger,
        shape: &Shape,
        messages: &Receiver<Message>,
        side_text: SideText,
    ) -> Written {
        self.header(&mut ledger, shape);
        let end = self.write(&mut ledger, messages);
        let emitted = ledger.emitted();
        let end = match end {
            Ok(End::Complete) => {
                let (tally, input) = (&self.tally, &self.input);
                let finished = ledger.finish(|totals| side_text(totals, tally, input));
                finished.map(|()| End::Complete)
            }
            Ok(end) => ledger.stop().map(|()| end),
            Err(error) => {
                ledger.rescue();
                Err(error)
            }
        };
        // No row will leave the window any more.
        self.shared.window.close();
        let (emitted, result) = match end {
            Ok(End::Complete | End::Told) => (Some(emitted), Ok(())),
            Ok(End::Early(error)) => (Some(emitted), Err(error)),
            Err(error) => (None, Err(error.midway())),
        };
        Written { tally: self.tally, emitted, first_error: self.first_error, result }
    }

    fn header(&self, ledger: &mut Ledger, shape: &Shape) {
        match (&self.format, &shape.headers) {
            (RowFormat::Npy(npy), _) => ledger.begin_matrix(npy.width),
            (RowFormat::Parquet(format), _) => ledger.begin_table(format.table()),
            (RowFormat::Csv(csv), Some(names)) => {
                let mut line = Vec::new();
                csv.format_marked_header(names, &mut line);
                ledger.write_header(&line);
            }
            _ => {}
        }
    }

    fn write(
        &mut self,
        ledger: &mut Ledger,
        messages: &Receiver<Message>,
    ) -> Result<End, LedgerError> {
        loop {
            let Some(message) = self.next(ledger, messages)? else { return Ok(End::Complete) };
            let before = ledger.emitted();
            match message {
                Message::Stop => return Ok(End::Told),
                Message::InputEnd(input) => self.input = input,
                Message::Row(row) => drop(self.waiting.insert(row.position, row)),
                Message::Done(Answer::Generate(output)) if !output.finished => {
                    let row = self.waiting.get(&output.request_id);
                    let form = row.and_then(|row| row.answer_form.as_deref());
                    let more = self.unfinished.take_in(&output.deltas, &self.format, form);
                    if !more.is_empty() {
                        ledger.begin_row(more.as_bytes())?;
                    }
                }
                Message::Done(answer) => {
                    let position = answer.request_id();
                    let row = self.waiting.get(&position);
                    let line = row.map_or(0, |row| row.line);
                    let has_own_length = row.is_some_and(|row| row.has_own_length);
                    let max_model_len = self.processor.max_model_len();
                    let error = RowError::from_answer(&answer, line);
                    match (&error, &answer) {
                        (Some(error), _) => self.count_failed(error),
                        (None, Answer::Generate(output)) => {
                            self.tally.answered(output, max_model_len, has_own_length);
                        }
                        (None, Answer::Pooling(output)) => {
                            self.tally.pooled(output.num_prompt_tokens);
                        }
                    }
                    self.finish_row(ledger, position, error.as_ref().map_or(Ok(&answer), Err))?;
                }
                Message::Failed { position, error } => {
                    self.fail_row(ledger, position, Some(error))?;
                }
                Message::NotRun { position } => self.fail_row(ledger, position, None)?,
                Message::Reused { position, line, reused } => {
                    let (file, line) = self.shared.config.input.sources.place(line);
                    self.tally.reused(&reused, line, file);
                    self.shared.counters.row_reused(reused.code.as_deref());
                    ledger.reuse(position, &reused)?;
                }
                Message::Good { position, hash, good, media } => {
                    let Good { row, input_tokens, output_tokens } = good;
                    self.tally.kept(input_tokens, output_tokens, row.len());
                    self.shared.counters.row_reused(None);
                    let code = None;
                    ledger.push(Finished {
                        position,
                        hash,
                        code,
                        input_tokens,
                        output_tokens,
                        row,
                        media,
                    })?;
                }
            }
            self.shared.window.emitted(ledger.emitted() - before);
            if let Some(end) = self.early_end() {
                return Ok(end);
            }
        }
    }

    /// A row gets an error; None: that it was given up.
    fn fail_row(
        &mut self,
        ledger: &mut Ledger,
        position: u64,
        error: Option<RowError>,
    ) -> Result<(), LedgerError> {
        let error = error.unwrap_or_else(|| {
            let line = self.waiting.get(&position).map_or(0, |row| row.line);
            self.shared.rest.given_up().expect("it is given up").error(line)
        });
        self.count_failed(&error);
        self.finish_row(ledger, position, Err(&error))
    }

    fn count_failed(&mut self, error: &RowError) {
        self.first_error.get_or_insert_with(|| error.clone());
        let (file, error) = self.shared.config.input.sources.located(error);
        self.tally.failed(&error, file);
    }

    /// The next message; None when all senders are gone. Meanwhile what is due is synced, and what
    /// is ready is shown.
    fn next(
        &mut self,
        ledger: &mut Ledger,
        messages: &Receiver<Message>,
    ) -> Result<Option<Message>, LedgerError> {
        let now = Instant::now();
        if self.sync_due.is_some_and(|due| due <= now) {
            ledger.sync()?;
            self.sync_due = None;
        }
        if self.sync_due.is_none() && ledger.is_unsynced() {
            self.sync_due = Some(now + SYNC_INTERVAL);
        }
        match messages.try_recv() {
            Ok(message) => return Ok(Some(message)),
            Err(TryRecvError::Disconnected) => return Ok(None),
            Err(TryRecvError::Empty) => {}
        }
        // Nothing is ready: readers of the output see what there is.
        ledger.flush()?;
        loop {
            let wait = self
                .sync_due
                .map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
            match messages.recv_timeout(wait) {
                Ok(message) => return Ok(Some(message)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    ledger.sync()?;
                    self.sync_due = None;
                }
            }
        }
    }

    /// Formats a row, and gives it to the ledger.
    fn finish_row(
        &mut self,
        ledger: &mut Ledger,
        position: u64,
        result: Result<&Answer, &RowError>,
    ) -> Result<(), LedgerError> {
        let row = self.waiting.remove(&position);
        let mut row = row.expect("a row is read before it is answered, and answered once");
        let media = std::mem::take(&mut row.media);
        let (input_tokens, output_tokens) = result.map_or((0, 0), Answer::num_tokens);
        let line = match self.format(&row, result) {
            Ok(line) => line,
            Err(error) => {
                self.unjudged = Some(error);
                return Ok(());
            }
        };
        let finished = Finished {
            position,
            hash: row.hash,
            code: result.err().map(|error| error.code),
            input_tokens: input_tokens as u32,
            output_tokens: output_tokens as u32,
            row: self.unfinished.whole(line),
            media,
        };
        match &finished.code {
            Some(code) => self.shared.counters.row_failed(code),
            None => self.shared.counters.row_done(output_tokens as u64),
        }
        self.tally.wrote(finished.row.len());
        self.shared.window.leave(row.bytes);
        ledger.push(finished)
    }

    fn format(
        &self,
        row: &Waiting,
        result: Result<&Answer, &RowError>,
    ) -> Result<Vec<u8>, CommandError> {
        let mut line = Vec::new();
        let result = match result {
            Ok(Answer::Pooling(output)) => {
                self.format.format_pooled(&row.passthrough, output, &mut line);
                return Ok(line);
            }
            Ok(Answer::Generate(output)) => Ok(output),
            Err(error) => Err(error),
        };
        let tokens = Tokens {
            text: &|id| self.processor.token_text(id),
            num_reasoning: &|ids, form| self.processor.num_reasoning_tokens(ids, form),
        };
        let asked = Asked { passthrough: &row.passthrough, form: row.answer_form.as_deref() };
        self.format.format_row(asked, result, &tokens, &mut line);
        if let Some(judge) = &self.shared.config.judge {
            judge.append(&mut line)?;
        }
        Ok(line)
    }

    fn early_end(&mut self) -> Option<End> {
        match self.unjudged.take() {
            Some(CommandError::Stopped) => Some(End::Told),
            Some(error) => Some(End::Early(no_verdict(error))),
            None => self.too_many_errors().map(End::Early),
        }
    }

    fn too_many_errors(&self) -> Option<CliError> {
        let (rows, failed) = (self.tally.rows(), self.tally.num_failed());
        let (limit, reached) = match self.shared.config.output.max_errors? {
            MaxErrors::Rows(limit) => (limit.to_string(), failed > limit),
            MaxErrors::Share(share) => {
                let over = failed as f64 > share * rows as f64;
                (format!("{}%", share * 100.0), rows >= MIN_ROWS_FOR_SHARE && over)
            }
        };
        if !reached {
            return None;
        }
        let message = format!("{failed} of {rows} rows failed, more than --max-errors {limit}");
        let error = CliError::new(Exit::Stopped, "max_errors", message);
        Some(error.help("correct the rows listed above, or raise --max-errors"))
    }
}
