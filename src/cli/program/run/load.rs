//! From the first row and a model's folders to what rows are run with: the model is loaded, and
//! what the first row asks for is decided.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::fingerprinted::{self, FileFields};
use super::read::{ReadThread, Requests};
use super::row_params::RowParams;
use super::{Job, Load, shape};
use crate::args::PoolingFlags;
use crate::config::{PoolingConfig, RunConfig};
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::names::files_of_model;
use crate::ledger::{Draft, LedgerError, Named};
use crate::model::{self, Folders, Summary, resolved};
use vllm_batch_api::compared::Scoring;
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::request::{Constraint, SamplingParams};
use vllm_batch_base::config::{GenerationConfigSource, SpeculationMethod};
use vllm_batch_base::machine;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_engine::serve::pooling::PoolingSummary;
use vllm_batch_engine::serve::runner::Runner;
use vllm_batch_text::json_schema::Validator;

/// A model that is loaded, and what is known of it before the first row is.
struct Opened {
    summary: Arc<Summary>,
    base: RowParams,
    files: JoinHandle<Result<FileFields, CliError>>,
    loaded: model::Loaded<Runner>,
}

/// What there is once the model is loaded.
pub(super) struct Loaded {
    pub engine: Runner,
    pub base: RowParams,
    pub load_time: Duration,
    pub shape: Shape,
    pub format: RowFormat,
    pub fingerprint: Fingerprint,
}

impl Job<'_> {
    /// Goes on with what the first row asks for.
    ///
    /// # Errors
    /// A flag does not go with it.
    pub(super) fn turn_to(&mut self, task: Task) -> Result<(), CliError> {
        let Some(flags) = self.flags.take().filter(|_| task != self.config.input.rows.task) else {
            return Ok(());
        };
        self.files = None;
        let mut config = RunConfig::of_lines(task, flags, PoolingFlags::default())?;
        config.begin_at(self.config.started);
        self.config = Arc::new(config);
        Ok(())
    }

    pub(super) fn load(
        &mut self,
        reading: &ReadThread,
        known: Option<Shape>,
        draft: &Draft,
        load: Load<'_>,
    ) -> Result<Loaded, CliError> {
        if let Some(shape) = known {
            // Before the model is loaded, where that is possible.
            RowFormat::new(&self.config.format_settings(), &shape)?;
            let folders = model::find(&self.config, self.console)?;
            let opened = self.open(&folders, draft, load)?;
            return self.loaded(opened, shape, reading);
        }
        // A row that takes its time mostly asks for a completion: the model is loaded meanwhile.
        let folders = model::find(&self.config, self.console)?;
        let opened = self.open(&folders, draft, load);
        let may_pool = || self.flags.is_some() && model::makes_vectors(&self.config, &folders);
        let opened = match opened {
            Err(error) if !may_pool() => return Err(error),
            opened => opened,
        };
        let shape = shape(reading)?;
        self.check_flags(&shape)?;
        let opened = match shape.task == self.config.input.rows.task {
            true => opened?,
            false => {
                drop(opened);
                self.turn_to(shape.task)?;
                // With what its vectors are made of.
                let folders = model::find(&self.config, self.console)?;
                self.open(&folders, draft, load)?
            }
        };
        self.loaded(opened, shape, reading)
    }

    /// Loads the model, while its files are hashed.
    fn open(&self, folders: &Folders, draft: &Draft, load: Load<'_>) -> Result<Opened, CliError> {
        let read = self.files_of(folders).and_then(|files| draft.refuse_read(&files));
        read.map_err(LedgerError::at_start)?;
        let summary = Arc::new(model::summary_for(&self.config, folders)?);
        let base = RowParams::start(&self.config, &summary)?;
        let (config, of_model) = (self.config.clone(), folders.clone());
        let of_summary = summary.clone();
        // While the engine reads the same files. Its result is dropped if the engine refuses them.
        let known = self.files.clone();
        let files = std::thread::Builder::new().spawn(move || match known {
            Some(files) => Ok(files),
            None => fingerprinted::of_files(&config, &of_model, &of_summary),
        });
        let files = machine::started(files);
        let loaded = match &*summary {
            _ if model::has_engines(&self.config) => {
                model::load_engines(&self.config, folders, &summary)?
            }
            Summary::Generate(summary) => load(&self.config, folders, summary)?.into_runner(),
            Summary::Pooling(summary) => model::load_pooling(&self.config, folders, summary)?,
        };
        self.ready.say(loaded.engine.info().max_model_len)?;
        Ok(Opened { summary, base, files, loaded })
    }

    /// What rows are run with, once both the model and the first row are there.
    fn loaded(
        &self,
        opened: Opened,
        shape: Shape,
        reading: &ReadThread,
    ) -> Result<Loaded, CliError> {
        let Opened { summary, base, files, loaded } = opened;
        let files = files.join().expect("a panic ends the process in its hook")?;
        // A file of batch requests was read to its end meanwhile.
        let requests = reading.checked.recv().unwrap_or(Ok(Requests::Unknown))?;
        if requests == Requests::NoChats && shape.task == Task::Complete {
            self.config.particular.refuse_of_chats()?;
        }
        let processor = loaded.engine.input_processor();
        let all_chat = shape.is_chat || requests == Requests::Chats;
        self.config.check_chat(processor.has_chat_template(), all_chat)?;
        self.check_by_model(&base, &processor)?;
        let info = loaded.engine.info();
        loaded.announce(info, &self.config, self.console);
        for note in self.config.particular.of_device(&info.kernel_set) {
            self.console.note(&note);
        }
        match &base {
            RowParams::Sampling(_) => {
                self.say_sampling(&processor.default_sampling_params(), &shape);
            }
            RowParams::Pooling(params, summary) => {
                self.say_pooling(params, summary, &processor)?;
            }
        }
        let shows_date = shape.has_batch_lines || processor.shows_date();
        let date = shows_date.then_some(self.config.started);
        let files = files.showing(self.config.shown_model_name(&shape));
        let fingerprint = files.with_engine(loaded.engine.info(), date);
        let format = RowFormat::new(&self.config.format_settings(), &shape)?
            .with_width(base.width())
            .with_parser(*processor.answer_parser())
            .with_system_fingerprint(fingerprint.system())
            .with_labels(labels(&summary));
        let model::Loaded { engine, load_time, .. } = loaded;
        Ok(Loaded { engine, base, load_time, shape, format, fingerprint })
    }

    /// What is refused of the file or flag that answers must match; and where, if the schema says
    /// it.
    fn refused_outputs(&self, params: &SamplingParams, code: &'static str, what: &str) -> CliError {
        let constraint = params.structured_outputs.as_ref().map(|outputs| &outputs.constraint);
        let found = match constraint {
            Some(Constraint::Json(schema)) => Validator::new(schema, &Arc::default()).err(),
            _ => None,
        };
        // The compiler of masks says what is wrong, the validator where.
        let path = found.as_deref().and_then(|text| text.rsplit_once(" at /")).map(|found| found.1);
        let path = path.filter(|_| !what.contains(" at /")).map(|path| format!(" at /{path}"));
        let place = &self.config.structured_outputs_place;
        CliError::refused(code, format!("{place}{what}{}", path.unwrap_or_default()))
    }

    /// Refuses flags that would make an error row of every row that they are for.
    fn check_by_model(&self, base: &RowParams, processor: &InputProcessor) -> Result<(), CliError> {
        if let Some(params) = base.sampling() {
            processor.check_guidance(params).map_err(|error| {
                // Its first word is the parameter's name.
                let end = error.message.find([':', '.', ' ']).unwrap_or(error.message.len());
                let (name, rest) = error.message.split_at(end);
                if name == "structured_outputs" {
                    return self.refused_outputs(params, error.code, rest);
                }
                let flag = name.replace('_', "-");
                CliError::refused(error.code, format!("--{flag}{rest}"))
            })?;
        }
        let chats = &self.config.input.rows.chats;
        if let Some(text) = &chats.system_prompt
            && let Some(what) = processor.refuses_system(text, &chats.template_kwargs)
        {
            let message = format!("--system-prompt: {what}");
            return Err(CliError::refused("chat_template", message)
                .help("leave the flag out, and put its text into the rows"));
        }
        Ok(())
    }

    fn say_sampling(&self, defaults: &SamplingParams, shape: &Shape) {
        let rows = self.start_of_rows(defaults, shape);
        let flags = &self.config.sampling;
        self.console.detail(&resolved::sampling_line(flags, defaults, &rows));
    }

    /// Says what texts become; refuses a chat template that would leave out both texts of a pair.
    fn say_pooling(
        &self,
        params: &PoolingParams,
        summary: &PoolingSummary,
        processor: &InputProcessor,
    ) -> Result<(), CliError> {
        self.console.detail(&PoolingConfig::line(params, summary));
        if let Some(warning) = PoolingConfig::warning(summary) {
            self.console.warn(&warning);
        }
        let is_own = self.config.engine.model.chat_template.is_none();
        match params.scoring {
            Scoring::Joined => self.console.note(
                "The model reads the second text right behind the first; --chat-template FILE \
                 gives the words that it was trained with",
            ),
            Scoring::Template if is_own && !processor.template_mentions("document") => {
                let message = "the model's own chat template knows no turn of role `document`";
                return Err(CliError::refused("chat_template", message)
                    .help("give the one that it was trained with: --chat-template FILE"));
            }
            Scoring::Template | Scoring::Vectors(_) | Scoring::Pair => {}
        }
        Ok(())
    }

    /// What rows without own parameters are sampled with. The length of a batch request is its
    /// endpoint's, where nothing says it.
    pub(super) fn start_of_rows(&self, defaults: &SamplingParams, shape: &Shape) -> SamplingParams {
        match shape.has_batch_lines {
            true => self.config.row_params(defaults.clone()),
            false => self.config.sampling_params(defaults.clone()),
        }
    }

    /// What is read of a model.
    fn files_of(&self, folders: &Folders) -> Result<Vec<Named>, LedgerError> {
        let defaults = match &self.config.engine.model.generation_config {
            GenerationConfigSource::Dir(folder) => Some(folder),
            _ => None,
        };
        let draft = match self.config.engine.speculation.as_ref().map(|config| &config.method) {
            Some(SpeculationMethod::DraftModel { model_dir }) => Some(model_dir),
            _ => None,
        };
        let mut files = files_of(folders)?;
        for folder in defaults.into_iter().chain(draft) {
            files.extend(files_of_model(folder)?);
        }
        Ok(files)
    }
}

/// The files of a model that was found, of its tokenizer and its adapters.
///
/// # Errors
/// A folder cannot be listed for want of descriptors.
pub fn files_of(folders: &Folders) -> Result<Vec<Named>, LedgerError> {
    let beside = folders.tokenizer.iter().chain(&folders.loras);
    let mut files = Vec::new();
    for folder in std::iter::once(&folders.model).chain(beside) {
        files.extend(files_of_model(folder)?);
    }
    Ok(files)
}

/// Names of the classes of a classifier.
fn labels(summary: &Summary) -> Arc<[String]> {
    match summary {
        Summary::Generate(_) => Arc::default(),
        Summary::Pooling(summary) => {
            let classifier = summary.classifier.as_ref();
            classifier.map(|classifier| classifier.labels.clone().into()).unwrap_or_default()
        }
    }
}
