//! The thread that writes: answers and errors, in any order, to rows in input order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use crate::cli::args::values::MaxErrors;
use crate::cli::config::RunConfig;
use crate::cli::error::CliError;
use crate::cli::exit::Exit;
use crate::cli::fields::Passthrough;
use crate::cli::output::{RowFormat, Shape};
use crate::cli::progress::Counters;
use crate::cli::report::Tally;
use crate::cli::row_error::RowError;
use crate::cli::window::Window;
use crate::cli::writer::{OrderedWriter, OutputError, Sink};
use crate::engine::input_processor::InputProcessor;
use crate::engine::request::RequestOutput;

/// A share of error rows says little before so many rows.
const MIN_ROWS_FOR_SHARE: u64 = 100;

/// What the writing thread is told.
pub enum Message {
    /// A row was read.
    Row(Waiting),
    /// The engine answered it.
    Done(RequestOutput),
    /// It cannot be asked.
    Failed {
        /// Of the row.
        index: u64,
        /// Why.
        error: RowError,
    },
    /// The run ends early: write what is in order, and no more.
    Stop,
}

/// A row that waits for its answer.
pub struct Waiting {
    /// 0, 1, 2, ...
    pub index: u64,
    /// Physical line, from 1.
    pub line: u64,
    /// What it takes of the window.
    pub bytes: usize,
    /// What appears again.
    pub passthrough: Passthrough,
}

/// How writing ended.
pub struct Written {
    /// Counts over all rows that were answered.
    pub tally: Tally,
    /// Rows that are in the output; None if writing them failed.
    pub emitted: Option<u64>,
    /// Why it ended early.
    pub result: Result<(), CliError>,
}

/// Why the thread ends.
enum End {
    /// Every row is written.
    Complete,
    /// It was told to.
    Told,
    /// `--max-errors`.
    TooManyErrors(CliError),
}

/// State of the thread.
pub struct WriteThread {
    config: Arc<RunConfig>,
    format: RowFormat,
    processor: Arc<InputProcessor>,
    window: Arc<Window>,
    counters: Arc<Counters>,
    tally: Tally,
    waiting: HashMap<u64, Waiting>,
    /// Window bytes of the rows that are not yet in the output, in input order.
    bytes: VecDeque<usize>,
}

impl WriteThread {
    /// A thread that has not begun.
    pub fn new(
        config: Arc<RunConfig>,
        format: RowFormat,
        processor: Arc<InputProcessor>,
        window: Arc<Window>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            config,
            format,
            processor,
            window,
            counters,
            tally: Tally::default(),
            waiting: HashMap::new(),
            bytes: VecDeque::new(),
        }
    }

    /// Writes until all senders are gone (the output is then complete), or until it must stop.
    pub fn run(mut self, sink: Sink, shape: &Shape, messages: &Receiver<Message>) -> Written {
        let mut writer = OrderedWriter::new(sink);
        self.header(&mut writer, shape);
        let end = self.write(&mut writer, messages);
        let emitted = writer.emitted();
        let end = end.and_then(|end| match end {
            End::Complete => writer.into_inner().and_then(Sink::finish).map(|()| end),
            _ => writer.flush().map(|()| end),
        });
        // No row will leave the window any more.
        self.window.close();
        let (emitted, result) = match end {
            Ok(End::Complete | End::Told) => (Some(emitted), Ok(())),
            Ok(End::TooManyErrors(error)) => (Some(emitted), Err(error)),
            Err(error) => (None, Err(CliError::from_output_midway(error))),
        };
        Written { tally: self.tally, emitted, result }
    }

    fn header(&self, writer: &mut OrderedWriter<Sink>, shape: &Shape) {
        let (RowFormat::Csv(csv), Some(names)) = (&self.format, &shape.headers) else { return };
        let mut line = Vec::new();
        csv.format_header(names, &mut line);
        writer.write_header(&line);
    }

    fn write(
        &mut self,
        writer: &mut OrderedWriter<Sink>,
        messages: &Receiver<Message>,
    ) -> Result<End, OutputError> {
        loop {
            let message = match messages.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => return Ok(End::Complete),
                Err(TryRecvError::Empty) => {
                    // Nothing is ready: readers of the output see what there is.
                    writer.flush()?;
                    match messages.recv() {
                        Ok(message) => message,
                        Err(_) => return Ok(End::Complete),
                    }
                }
            };
            let (index, line) = match message {
                Message::Stop => return Ok(End::Told),
                Message::Row(row) => {
                    self.bytes.push_back(row.bytes);
                    self.waiting.insert(row.index, row);
                    continue;
                }
                Message::Done(output) => (output.request_id, self.answer(&output)),
                Message::Failed { index, error } => (index, self.failure(index, &error)),
            };
            self.counters.row_done();
            let before = writer.emitted();
            writer.push(index, line)?;
            for bytes in self.bytes.drain(..(writer.emitted() - before) as usize) {
                self.window.leave(bytes);
            }
            if let Some(error) = self.too_many_errors() {
                return Ok(End::TooManyErrors(error));
            }
        }
    }

    fn answer(&mut self, output: &RequestOutput) -> Vec<u8> {
        let row = self.take(output.request_id);
        match RowError::from_output(output, row.line) {
            None => self.tally.answered(output, self.processor.max_model_len()),
            Some(error) => self.tally.failed(&error, &self.config.input.name),
        }
        self.format(&row.passthrough, Ok(output))
    }

    fn failure(&mut self, index: u64, error: &RowError) -> Vec<u8> {
        let row = self.take(index);
        self.tally.failed(error, &self.config.input.name);
        self.format(&row.passthrough, Err(error))
    }

    fn take(&mut self, index: u64) -> Waiting {
        self.waiting.remove(&index).expect("a row is read before it is answered, and answered once")
    }

    fn format(
        &self,
        passthrough: &Passthrough,
        result: Result<&RequestOutput, &RowError>,
    ) -> Vec<u8> {
        let mut line = Vec::new();
        let token_text = |id| self.processor.token_text(id);
        self.format.format_row(passthrough, result, &token_text, &mut line);
        line
    }

    fn too_many_errors(&self) -> Option<CliError> {
        let (rows, failed) = (self.tally.rows(), self.tally.num_failed());
        let (limit, reached) = match self.config.output.max_errors? {
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
        Some(error.help("mend the rows listed above, or raise --max-errors"))
    }
}
