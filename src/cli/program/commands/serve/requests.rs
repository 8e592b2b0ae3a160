//! Requests of a server as rows of a run: what `run` does with a line of a batch API, from its
//! text to what the engine is asked.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::RunConfig;
use crate::ledger::row_key::{RowName, row_key};
use crate::run::lora_of_row::lora_of_row;
use crate::run::row_params::RowParams;
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::{LoraId, RequestError, RowKey};
use vllm_batch_dataset::input::batch_line::{BatchKind, BatchLine};
use vllm_batch_dataset::input::fields::Passthrough;
use vllm_batch_dataset::input::overrides::Overrides;
use vllm_batch_dataset::input::row::{BadRow, ReadRequest, Row, RowParser};
use vllm_batch_dataset::input::row_error::{RowError, code};
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_engine::serve::runner::Work;
use vllm_batch_server::{AskedRow, Refused, RequestLine};
use vllm_batch_text::AnswerForm;

/// What reads requests.
pub(super) struct Requests {
    pub(super) config: Arc<RunConfig>,
    pub(super) base: RowParams,
    pub(super) processor: Arc<InputProcessor>,
    pub(super) format: RowFormat,
    pub(super) notes: Notes,
    /// Logprobs of a position that may be asked for.
    pub(super) max_logprobs: u32,
}

/// Surprises in requests, each said once.
pub(super) struct Notes {
    console: Console,
    said: Mutex<HashSet<String>>,
}

/// Letters of an error.
const MAX_LETTERS: usize = 2000;

/// Surprises that are said: clients may think of any number.
const MAX_NOTES: usize = 64;

impl Notes {
    pub(super) fn new(console: &Console) -> Self {
        Self { console: console.clone(), said: Mutex::default() }
    }

    fn say(&self, remarks: Vec<String>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        for remark in remarks {
            if said.len() < MAX_NOTES && said.insert(remark.clone()) {
                self.console.note(&format!("requests: {remark}"));
            }
        }
    }
}

/// A request that is not asked. What is wrong may be as long as the request, as a list of ids is.
fn refused(line: BatchLine, mut error: RowError) -> Box<Refused> {
    if let Some((end, _)) = error.message.char_indices().nth(MAX_LETTERS) {
        error.message.truncate(end);
        error.message.push_str(" ...");
    }
    Box::new(Refused { line, error })
}

impl Requests {
    /// What a request asks of the engine.
    ///
    /// # Errors
    /// It cannot be asked.
    pub(super) fn ask(&self, request: RequestLine) -> Result<AskedRow, Box<Refused>> {
        let RequestLine { api, line, request_id } = request;
        let line_of = |passthrough| match passthrough {
            Passthrough::Batch(line) => line,
            other => unreachable!("a request is a batch line: {other:?}"),
        };
        let row = RowParser::request(&self.config.input.rows, api, line);
        let row = row.map_err(|error| {
            // The machine lacks what an image needs.
            let error = RowError::new(code::ENGINE, 1, error.to_string());
            refused(BatchLine::new(BatchKind::Chat, None, ""), error)
        })?;
        let ReadRequest { row, remarks } = row;
        self.notes.say(remarks);
        let row = match row {
            Ok(row) => row,
            Err(BadRow { passthrough, error, .. }) => {
                return Err(refused(line_of(passthrough), error));
            }
        };
        let Row { prompt, overrides, id, lora, priority, answer_form, passthrough, .. } = row;
        let line = line_of(passthrough);
        let name = RowName::of(overrides.seed(), id.as_deref(), request_id);
        let asked = (prompt, &overrides, lora, answer_form.as_ref());
        match self.work(asked, request_id, row_key(name)) {
            Ok(work) => {
                Ok(AskedRow { work: work.with_priority(priority), line, form: answer_form })
            }
            Err(error) => Err(refused(line, error)),
        }
    }

    /// A server may run for days: chats whose template shows the date have that of their request.
    fn processor_now(&self) -> Cow<'_, InputProcessor> {
        match self.processor.shows_date() {
            true => Cow::Owned(self.processor.with_chat_date(self.config.date_now())),
            false => Cow::Borrowed(&self.processor),
        }
    }

    fn work(
        &self,
        (prompt, overrides, lora, form): (Prompt, &Overrides, Option<LoraId>, Option<&AnswerForm>),
        request_id: u64,
        key: RowKey,
    ) -> Result<Work, RowError> {
        let failed = |error: RequestError| overrides.row_error(&error, 1);
        let mut params = self.base.of_row(overrides).map_err(failed)?;
        if let RowParams::Sampling(params) = &mut params {
            self.format.adjust(params, form);
            params.verify(self.processor.vocab_size(), self.max_logprobs).map_err(failed)?;
        }
        let adapters = (&self.config.engine.lora, &*self.processor);
        let has_images = !prompt.media().is_empty();
        let lora = lora_of_row(lora, has_images, adapters).map_err(failed)?;
        match params.work(&self.processor_now(), request_id, prompt, key) {
            Ok(work) => Ok(work.with_lora(lora)),
            Err(error) => Err(match error.of_row() {
                Ok(error) => failed(error),
                Err(error) => RowError::new(code::ENGINE, 1, error.to_string()),
            }),
        }
    }
}
