//! Reads and tokenizes every row: lengths, error rows, rows to run as a sample, the row to show.

use std::sync::Arc;

use super::lengths::Lengths;
use crate::config::RunConfig;
use crate::run::lora_of_row::lora_of_row;
use crate::run::progress::{Counters, Progress};
use crate::run::read::{Input, Parsed};
use crate::run::row_params::RowParams;
use crate::run::signals::asked_for_progress;
use vllm_batch_api::request::RowKey;
use vllm_batch_dataset::input::row::{BadRow, Row};
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::input::sources::Sources;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::{CliError, Location};
use vllm_batch_engine::request::images_of;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_engine::serve::runner::Work;

/// Rows that are looked at, not run.
pub struct Survey<'a> {
    config: &'a RunConfig,
    processor: Arc<InputProcessor>,
    base: RowParams,
    format: RowFormat,
    explain: u64,
}

/// Error rows of one kind.
#[derive(Clone, Debug)]
pub struct Failures {
    /// Their code.
    pub code: &'static str,
    /// How many.
    pub count: u64,
    /// The first of them: place and message.
    pub example: String,
}

/// A row as the model will see it.
#[derive(Clone, Debug)]
pub enum Explained {
    /// Its texts with all special tokens, their ids, and how tokens are chosen.
    Request {
        /// Decoded from the ids.
        texts: Vec<String>,
        /// What the model gets.
        request: Box<Work>,
    },
    /// It would be an error row.
    Error(String),
}

/// What all rows are.
#[derive(Clone, Debug, Default)]
pub struct Surveyed {
    /// Rows read, of this shard.
    pub num_rows: u64,
    /// Those of them that can be run.
    pub num_good: u64,
    /// Prompt tokens of the rows that can be run; of rows of several texts, those of each.
    pub prompt_tokens: Lengths,
    /// Tokens of each image and recording among them.
    pub image_tokens: Lengths,
    /// Recordings among them.
    pub num_sounds: u64,
    /// Most output tokens of each completion.
    pub max_output_tokens: Lengths,
    /// Most KV-cache tokens of each row: its prompt and its longest output.
    pub max_cache_tokens: Lengths,
    /// Error rows by code, in the order of appearance.
    pub failures: Vec<Failures>,
    /// Rows from all over the input.
    pub sample: Vec<Work>,
    /// The row that was asked for: its number and what it is.
    pub explained: Option<(u64, Explained)>,
}

impl Surveyed {
    /// Rows that would be error rows of this code.
    pub fn failed_by(&self, code: &str) -> u64 {
        let failures = self.failures.iter().find(|failures| failures.code == code);
        failures.map_or(0, |failures| failures.count)
    }

    /// Rows that would be error rows.
    pub fn num_failed(&self) -> u64 {
        self.failures.iter().map(|failures| failures.count).sum()
    }
}

/// At most so many rows, evenly over an input whose length nobody knows: every `stride`th row is
/// kept, and the stride doubles whenever there are too many.
struct EvenSample {
    rows: Vec<Work>,
    stride: u64,
    max_rows: usize,
}

impl EvenSample {
    fn offer(&mut self, number: u64, request: Work) {
        if !number.is_multiple_of(self.stride) {
            return;
        }
        if self.rows.len() == self.max_rows {
            self.stride *= 2;
            let mut index = 0;
            self.rows.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            if !number.is_multiple_of(self.stride) {
                return;
            }
        }
        self.rows.push(request);
    }
}

impl<'a> Survey<'a> {
    /// A survey that shows row `explain`, counted from 1.
    ///
    /// `base`: what rows without own parameters are asked with, and how rows are written.
    pub fn new(
        config: &'a RunConfig,
        processor: Arc<InputProcessor>,
        (base, format): (RowParams, RowFormat),
        explain: u64,
    ) -> Self {
        Self { config, processor, base, format, explain }
    }

    /// Reads all rows, and keeps at most `max_sample_rows` to run.
    ///
    /// # Errors
    /// The input cannot be read to its end, or a bad row ends the run.
    pub fn read(
        &self,
        rows: &mut Input,
        max_sample_rows: usize,
        console: &Console,
    ) -> Result<Surveyed, CliError> {
        let counters = Arc::new(Counters::default());
        let asked = asked_for_progress().map_err(|error| CliError::from_signals(&error))?;
        let progress = Progress::start(console.clone(), counters.clone(), asked);
        let surveyed = self.read_all(rows, max_sample_rows, |rows| {
            rows.take_notes();
            rows.say_notes(console);
            counters.row_done(0);
        });
        progress.stop();
        surveyed
    }

    fn read_all(
        &self,
        rows: &mut Input,
        max_sample_rows: usize,
        mut on_row: impl FnMut(&mut Input),
    ) -> Result<Surveyed, CliError> {
        let input = &self.config.input;
        let mut surveyed = Surveyed::default();
        let mut sample =
            EvenSample { rows: Vec::new(), stride: 1, max_rows: max_sample_rows.max(2) };
        let mut num_read = 0;
        while input.limit.is_none_or(|limit| num_read < limit) {
            let Some(Parsed { row, .. }) = rows.next_row()? else { break };
            on_row(rows);
            num_read += 1;
            if !input.shard.owns(num_read - 1) {
                continue;
            }
            surveyed.num_rows += 1;
            let request = self.request(surveyed.num_rows, row)?;
            if surveyed.num_rows == self.explain {
                surveyed.explained = Some((self.explain, self.explained(&request)));
            }
            match request {
                Ok(request) => {
                    surveyed.add(&request, self.processor.max_model_len());
                    sample.offer(surveyed.num_good, request);
                    surveyed.num_good += 1;
                }
                Err(error) if input.fail_on_bad_row => {
                    return Err(input.sources.row_error(&error));
                }
                Err(error) => surveyed.fail(&error, &input.sources),
            }
        }
        surveyed.sample = sample.rows;
        Ok(surveyed)
    }

    /// What would be asked of the engine, or the error row.
    fn request(
        &self,
        number: u64,
        row: Result<Row, BadRow>,
    ) -> Result<Result<Work, RowError>, CliError> {
        let Row { line, prompt, overrides, lora, .. } = match row {
            Ok(row) => row,
            Err(bad) if bad.of_other_task().is_some() && self.config.input.sources.are_files() => {
                return Err(self.config.input.sources.row_error(&bad.error));
            }
            Err(bad) => return Ok(Err(bad.error)),
        };
        let params = match self.base.of_row(&overrides) {
            Ok(params) => params,
            Err(error) => return Ok(Err(overrides.row_error(&error, line))),
        };
        if let Err(error) = params.check_room(&self.format, &prompt, line) {
            return Ok(Err(error));
        }
        let has_images = !prompt.media().is_empty();
        let lora = match lora_of_row(lora, has_images, (&self.config.engine.lora, &self.processor))
        {
            Ok(lora) => lora,
            Err(error) => return Ok(Err(overrides.row_error(&error, line))),
        };
        match params.work(&self.processor, number, prompt, RowKey(number)) {
            Ok(request) => Ok(Ok(request.with_lora(lora))),
            Err(error) => Ok(Err(overrides.row_error(&error.of_row()?, line))),
        }
    }

    fn explained(&self, request: &Result<Work, RowError>) -> Explained {
        match request {
            Err(error) => Explained::Error(said(error, &self.config.input.sources)),
            Ok(request) => {
                let text = |ids: &[u32]| {
                    let text = self.processor.tokenizer().decode(ids, false);
                    text.unwrap_or_else(|error| format!("<{error}>"))
                };
                let texts = request.prompts().into_iter().map(text).collect();
                Explained::Request { texts, request: Box::new(request.clone()) }
            }
        }
    }
}

impl Surveyed {
    fn add(&mut self, request: &Work, max_model_len: usize) {
        let lengths = request.prompts().into_iter().map(<[u32]>::len);
        lengths.for_each(|length| self.prompt_tokens.add(length, 1));
        if let Work::Generate(request) = request {
            for runs in images_of(&request.media) {
                self.image_tokens.add(runs.iter().map(|run| run.positions.len()).sum(), 1);
                self.num_sounds += u64::from(runs[0].medium.form().is_sound());
            }
            let num_prompt = request.num_prompt_tokens();
            let limit = request.max_output_tokens(max_model_len);
            let n = request.params.n as usize;
            self.max_output_tokens.add(limit, n as u64);
            self.max_cache_tokens.add(num_prompt + n * limit, 1);
        }
    }

    fn fail(&mut self, error: &RowError, sources: &Sources) {
        match self.failures.iter_mut().find(|failures| failures.code == error.code) {
            Some(failures) => failures.count += 1,
            None => self.failures.push(Failures {
                code: error.code,
                count: 1,
                example: said(error, sources),
            }),
        }
    }
}

/// Where a bad row is, and what is wrong with it.
fn said(error: &RowError, sources: &Sources) -> String {
    let (file, error) = sources.located(error);
    format!("{}: {}", Location::of(&error, file), error.message)
}
