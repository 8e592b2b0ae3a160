//! From rows to requests, on the reading thread: what an earlier run answered is found in its
//! journal, everything else is tokenized and sent to the engine. What is warned about is in
//! `warnings`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::lora_of_row::lora_of_row;
use super::previous::{Good, Place, Previous};
use super::read::{Input, Parsed};
use super::read_ahead::Reading;
use super::row_params::RowParams;
use super::shared::Shared;
use super::warnings::Warnings;
use super::write::{InputRead, Message, Waiting};
use crate::config::RunConfig;
use crate::ledger::row_hash::ContentHash;
use crate::ledger::row_key::{RowName, row_key};
use crate::ledger::{Recovered, Reused, RowHash, fetched_media};
use vllm_batch_api::request::RequestError;
use vllm_batch_dataset::input::batch_line::BatchLines;
use vllm_batch_dataset::input::custom_ids::CustomIds;
use vllm_batch_dataset::input::fields::Passthrough;
use vllm_batch_dataset::input::row::{BadRow, Row};
use vllm_batch_dataset::input::row_error::{RowError, code};
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_engine::serve::runner::Work;
use vllm_batch_text::AnswerForm;

/// Where rows go, once the model is loaded. Both channels are bounded by the window: a row in them
/// has entered it.
pub struct Feed {
    /// What the threads look at.
    pub shared: Arc<Shared>,
    /// Tokenizes and checks.
    pub processor: Arc<InputProcessor>,
    /// How rows are written.
    pub format: RowFormat,
    /// What rows override.
    pub base: RowParams,
    /// Every row, to the thread that writes.
    pub rows: Sender<Message>,
    /// Rows that can be asked, to the engine; an error ends the run.
    pub requests: Sender<Result<Work, CliError>>,
    /// What an earlier run answered.
    pub recovered: Option<Recovered>,
    /// What a complete run answered, where a run goes on from its output.
    pub previous: Option<Previous>,
    /// Names of batch requests that come in a stream; the reading thread makes it.
    pub ids: Option<CustomIds>,
}

/// Sends every row on its way.
pub fn feed_all(input: &mut Input, mut feed: Feed, console: &Console) {
    feed.ids = input.is_batch_stream(&feed.shared.config.input).then(CustomIds::default);
    let warnings = Warnings::new(console);
    let shared = Arc::clone(&feed.shared);
    let (shape, shape_of_bad) = (input.shape_text(), input.shape_text_of_bad());
    let (run, form) = (&*shared.config, Arc::default());
    let decodes_ahead = feed.recovered.is_none() && feed.previous.is_none();
    let recovered = feed.recovered.take().map(|recovered| Rc::new(RefCell::new(recovered)));
    input.begin(recovered.clone().filter(|_| run.input.trusts_media));
    let position = 0;
    let mut feeder = Feeder {
        feed,
        recovered,
        run,
        warnings,
        shape,
        shape_of_bad,
        position,
        form,
        decodes_ahead,
    };
    match feeder.feed_all(input, console) {
        Ok(Some(read)) => {
            shared.counters.set_total(feeder.position);
            let _ = feeder.feed.rows.send(Message::InputEnd(read));
        }
        // The run has ended.
        Ok(None) => {}
        Err(error) => drop(feeder.feed.requests.send(Err(error))),
    }
}

/// Rows on their way.
struct Feeder<'a> {
    feed: Feed,
    /// What an earlier run answered.
    recovered: Option<Rc<RefCell<Recovered>>>,
    run: &'a RunConfig,
    warnings: Warnings<'a>,
    /// Of the file that is read.
    shape: String,
    /// The same for rows that cannot be asked, which may show the file.
    shape_of_bad: String,
    /// Of the next row in the output.
    position: u64,
    /// Of the last chat: rows of one input mostly have the same tools.
    form: Arc<AnswerForm>,
    /// The last row had to be asked: so will the next ones, and images of rows that are answered
    /// already are not decoded.
    decodes_ahead: bool,
}

impl Feeder<'_> {
    /// Returns what was read; None if the run ended before.
    fn feed_all(
        &mut self,
        input: &mut Input,
        console: &Console,
    ) -> Result<Option<InputRead>, CliError> {
        let mut reading = Reading::new(self.run);
        loop {
            let read = reading.fill(input, console, &self.feed.processor, self.decodes_ahead);
            while let Some(next) = reading.next(read.is_err() || reading.is_at_end) {
                if let Some([shape, shape_of_bad]) = next.shapes {
                    (self.shape, self.shape_of_bad) = (shape, shape_of_bad);
                }
                if !self.feed_row(next.parsed, next.is_own)? {
                    return Ok(None);
                }
            }
            read?;
            if reading.is_at_end {
                break;
            }
        }
        input.say_totals(&self.run.input.name, console);
        Ok(Some(reading.digest.into()))
    }

    /// Sends a row to the writing thread, and its request to the engine. False: the run has ended.
    fn feed_row(&mut self, parsed: Parsed, is_own: bool) -> Result<bool, CliError> {
        let index = parsed.index();
        let Parsed { bytes, text, content, row } = parsed;
        // What is out cannot be refused any more, so a duplicate in a stream is an error row. Those
        // of other shards count too: every shard gives a row that is twice there the same answer.
        let sources = &self.run.input.sources;
        let duplicate =
            self.feed.ids.as_mut().and_then(|ids| ids.check(&row, &|line| sources.said(line)));
        if !is_own {
            return Ok(true);
        }
        let row = match (duplicate.or_else(|| self.refused(&row)), row) {
            (None, row) => row,
            (Some(error), Ok(Row { passthrough, .. }) | Err(BadRow { passthrough, .. })) => {
                Err(BadRow { index, passthrough, error })
            }
        };
        let position = self.position;
        self.position += 1;
        let has_own_length = row.as_ref().is_ok_and(|row| row.overrides.has_own_length());
        let fetched = row.as_ref().map_or(&[][..], |row| &row.fetched);
        let media = fetched_media::encode(text, fetched);
        let mut answer_form = None;
        let (line, passthrough, asked) = match row {
            Ok(mut row) => {
                answer_form = row.answer_form.take().map(|form| self.shared(form));
                self.asked(position, content, row, answer_form.as_deref())?
            }
            Err(bad) => {
                let line = bad.error.line;
                let hash = content.of_bad_row(&self.shape_of_bad, bad.index, line);
                let asked = match self.recover(position, &hash)? {
                    Some(reused) if !self.run.input.fail_on_bad_row => Asked::Reused(reused),
                    _ => Asked::Failed(hash, bad.error),
                };
                (line, bad.passthrough, asked)
            }
        };
        match asked {
            Asked::Request(..) => self.decodes_ahead = true,
            Asked::Reused(_) | Asked::Good(..) => self.decodes_ahead = false,
            Asked::Failed(..) => {}
        }
        let (hash, request) = match asked {
            Asked::Reused(reused) => {
                return Ok(self.send_finished(Message::Reused { position, line, reused }));
            }
            Asked::Good(hash, good) => {
                return Ok(self.send_finished(Message::Good { position, hash, good, media }));
            }
            Asked::Request(hash, request) => (hash, Ok(request)),
            Asked::Failed(hash, error) => (hash, Err(error)),
        };
        let waiting = Waiting {
            position,
            line,
            bytes,
            hash,
            passthrough,
            answer_form,
            has_own_length,
            media,
        };
        self.begin(waiting, request)
    }

    /// Sends a row to whoever writes, and what is asked to the engine. False: the run has ended.
    fn begin(
        &mut self,
        waiting: Waiting,
        request: Result<Work, RowError>,
    ) -> Result<bool, CliError> {
        match &request {
            Ok(Work::Generate(request)) => {
                let sources = &self.run.input.sources;
                self.warnings.two_bos(request, waiting.line, &self.feed.processor, sources);
            }
            Err(error) if self.run.input.fail_on_bad_row => {
                return Err(self.run.input.sources.row_error(error));
            }
            Ok(Work::Pooling(_)) | Err(_) => {}
        }
        if !self.feed.shared.window.enter(waiting.bytes) {
            return Ok(false);
        }
        let position = waiting.position;
        // The row goes first, so that whoever writes knows it before its answer comes.
        if self.feed.rows.send(Message::Row(waiting)).is_err() {
            return Ok(false);
        }
        Ok(match request {
            Ok(request) => self.feed.requests.send(Ok(request)).is_ok(),
            Err(error) => self.feed.rows.send(Message::Failed { position, error }).is_ok(),
        })
    }

    /// Why a row that could be asked is not.
    fn refused(&self, row: &Result<Row, BadRow>) -> Option<RowError> {
        let row = row.as_ref().ok()?;
        self.nameless(row).or_else(|| self.not_judged(row))
    }

    /// Why a row cannot be judged when it is answered.
    fn not_judged(&self, row: &Row) -> Option<RowError> {
        let reason = self.run.judge.as_ref()?.check(&row.passthrough).err()?;
        Some(RowError::new(code::NOT_JUDGED, row.line, reason))
    }

    /// Why a row that must be matched by its name cannot be.
    fn nameless(&self, row: &Row) -> Option<RowError> {
        let line = Some(row.line).filter(|_| self.run.output.unordered && row.id.is_none())?;
        let message = format!("the row of line {line} has no `id`, and --unordered needs one");
        Some(RowError::new(code::MISSING_ID, line, message))
    }

    /// The form of a row's answer, in memory once for rows that follow each other.
    fn shared(&mut self, form: AnswerForm) -> Arc<AnswerForm> {
        if *self.form != form {
            self.form = Arc::new(form);
        }
        Arc::clone(&self.form)
    }

    /// Sends a row that needs no engine. False: the run has ended.
    fn send_finished(&self, message: Message) -> bool {
        self.feed.shared.window.enter_finished() && self.feed.rows.send(message).is_ok()
    }

    /// What is asked of the engine, or why nothing is.
    fn asked(
        &mut self,
        position: u64,
        content: ContentHash,
        row: Row,
        form: Option<&AnswerForm>,
    ) -> Result<(u64, Passthrough, Asked), CliError> {
        let Row { index, line, prompt, overrides, id, lora, priority, passthrough, .. } = row;
        self.warnings.collisions(|| self.feed.format.collisions(&passthrough));
        let (processor, sources) = (&self.feed.processor, &self.run.input.sources);
        if let Some(form) = form {
            self.warnings.unread_calls(form, line, processor, sources);
            self.warnings.unread_thinking(form, processor);
        }
        if let Some(chat) = prompt.chat() {
            self.warnings.unread_kwargs(chat, line, processor, sources);
            self.warnings.unshown(chat, line, processor, sources);
        }
        let key = row_key(RowName::of(overrides.seed(), id.as_deref(), index));
        let failed =
            |error: &RequestError, hash| Asked::Failed(hash, overrides.row_error(error, line));
        let params = match self.feed.base.of_row(&overrides) {
            Ok(mut params) => {
                if let RowParams::Sampling(params) = &mut params {
                    self.feed.format.adjust(params, form);
                }
                params
            }
            Err(error) => {
                let asked = failed(&error, content.of_bad_row(&self.shape_of_bad, index, line));
                return Ok((line, passthrough, asked));
            }
        };
        let sampling = params.sampling();
        if let Err(error) = params.check_room(&self.feed.format, &prompt, line) {
            let asked = Asked::Failed(content.of_bad_row(&self.shape_of_bad, index, line), error);
            return Ok((line, passthrough, asked));
        }
        // OpenAI's lines of rows without a name have one by their index, as the key does.
        let shows_key = self.run.input.rows.lines == BatchLines::OpenAi;
        let is_random = sampling
            .is_some_and(|params| params.temperature != 0.0 && params.beam_search.is_none());
        let has_key = is_random || shows_key;
        // The adapter's name is in the row's text, and its files are in the run's fingerprint.
        let hash = content.of_row(&self.shape, has_key.then_some(key));
        let by_place = has_key && id.is_none() && overrides.seed().is_none();
        // First: a row that the journal has is passed in the output too.
        let has_images = !prompt.media().is_empty();
        let place = Place { index, is_key: by_place, has_images };
        let good = self.previous_answer(&passthrough, place)?;
        if let Some(reused) = self.recover(position, &hash)? {
            return Ok((line, passthrough, Asked::Reused(reused)));
        }
        if let Some(good) = good {
            return Ok((line, passthrough, Asked::Good(hash, good)));
        }
        if let Some(why) = self.feed.shared.rest.given_up() {
            return Ok((line, passthrough, Asked::Failed(hash, why.error(line))));
        }
        let adapters = (&self.run.engine.lora, &*self.feed.processor);
        let lora = match lora_of_row(lora, has_images, adapters) {
            Ok(lora) => lora,
            Err(error) => return Ok((line, passthrough, failed(&error, hash))),
        };
        let asked = match params.work(&self.feed.processor, position, prompt, key) {
            Ok(request) => Asked::Request(hash, request.with_lora(lora).with_priority(priority)),
            Err(error) => failed(&error.of_row()?, hash),
        };
        Ok((line, passthrough, asked))
    }

    /// The row's answer in the output that the run goes on from.
    fn previous_answer(
        &mut self,
        passthrough: &Passthrough,
        place: Place,
    ) -> Result<Option<Good>, CliError> {
        let Some(previous) = &mut self.feed.previous else { return Ok(None) };
        previous.take(passthrough, &self.feed.format, place).map_err(|error| {
            let message = format!("cannot read the output before: {error}");
            CliError::new(Exit::Stopped, "retry_failed", message)
        })
    }

    /// The row's output, if an earlier run finished it.
    fn recover(&mut self, position: u64, hash: &RowHash) -> Result<Option<Reused>, CliError> {
        let Some(recovered) = &self.recovered else { return Ok(None) };
        recovered.borrow_mut().find(position, hash).map_err(|error| {
            CliError::new(Exit::Stopped, "journal", format!("cannot read the journal: {error}"))
        })
    }
}

/// What becomes of a row.
enum Asked {
    /// It goes to the engine.
    Request(RowHash, Work),
    /// It is an error row.
    Failed(RowHash, RowError),
    /// An earlier run answered it.
    Reused(Reused),
    /// The output before has its answer.
    Good(RowHash, Good),
}
