//! `Loaded`, the third phase: the model is there, its flags are checked against it, and the
//! fingerprint says which bytes the run would write. The ledger can begin.

use std::sync::Arc;
use std::time::Duration;

use super::decided::{Decided, ModelState};
use super::end::Left;
use super::fingerprinted::FileFields;
use super::open_model::OpenModel;
use super::opened::Session;
use super::previous::Previous;
use super::read::{ReadThread, Requests};
use super::row_params::RowParams;
use super::surroundings::ModelFrom;
use super::{by_model, fingerprinted};
use crate::config::RunConfig;
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::record::Header;
use crate::ledger::{Document, Ledger, LedgerError, LockedOutput, Recovered};
use crate::model::{self, Summary};
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::serve::runner::Runner;

/// A run whose model is loaded.
pub struct Loaded<'a> {
    /// Its surroundings.
    pub session: Session<'a>,
    /// What the flags mean for its rows.
    pub config: Arc<RunConfig>,
    /// Who reads the input.
    pub reading: ReadThread,
    /// What the input is.
    pub shape: Shape,
    /// How rows are written.
    pub format: RowFormat,
    /// What rows override.
    pub base: RowParams,
    /// What answers.
    pub engine: Runner,
    /// What loading took.
    pub load_time: Duration,
    /// What the bytes of the run depend on.
    pub fingerprint: Fingerprint,
    /// Where rows will go.
    pub output: LockedOutput,
    /// The rows of the output that is there, where they are among those of the input.
    pub then: Option<RowsThen>,
}

impl<'a> Loaded<'a> {
    /// Loads the model, where it is not loaded yet.
    ///
    /// # Errors
    /// It cannot be loaded, or a flag does not go with it.
    pub fn of(decided: Decided<'a>, from: ModelFrom<'_>) -> Result<Self, CliError> {
        let Decided { session, config, reading, shape, output, then, model } = decided;
        let open = |hashed| OpenModel::open((&config, hashed), &output, &session, from);
        let open = match model {
            ModelState::Open(open) => *open,
            ModelState::Hashed(files) => open(Some(files))?,
            // Where another was loaded for a row of another task: with what its vectors are made
            // of.
            ModelState::Unread => open(None)?,
        };
        let OpenModel { summary, base, files, loaded } = open;
        let files = files.join().expect("a panic ends the process in its hook")?;
        // A file of batch requests was read to its end meanwhile.
        let requests = reading.checked.recv().unwrap_or(Ok(Requests::Unknown))?;
        if requests == Requests::NoChats && shape.task == Task::Complete {
            config.particular.refuse_of_chats()?;
        }
        let (processor, info) = (loaded.engine.input_processor(), loaded.engine.info());
        let all_chat = shape.is_chat || requests == Requests::Chats;
        let needs_template = all_chat && !processor.reads_images_alone();
        config.check_chat(processor.has_chat_template(), needs_template)?;
        by_model::check(&config, &base, &processor)?;
        loaded.announce(info, &config, session.console);
        for note in config.particular.of_device(&info.kernel_set) {
            session.console.note(&note);
        }
        by_model::say(&config, &shape, &base, &processor, session.console)?;
        let (format, fingerprint) = signed(&config, &shape, files, &summary, &loaded.engine)?;
        let format = format.with_width(base.width());
        let model::Loaded { engine, load_time, .. } = loaded;
        Ok(Self {
            session,
            config,
            reading,
            shape,
            format,
            base,
            engine,
            load_time,
            fingerprint,
            output,
            then,
        })
    }
}

/// How rows are written, and what their bytes depend on, which some of them show.
///
/// # Errors
/// The flags do not go with the rows.
pub fn signed(
    config: &RunConfig,
    shape: &Shape,
    files: FileFields,
    summary: &Summary,
    engine: &Runner,
) -> Result<(RowFormat, Fingerprint), CliError> {
    let processor = engine.input_processor();
    let shows_date = shape.has_batch_lines || processor.shows_date();
    let date = shows_date.then_some(config.started);
    let files = files.showing(config.shown_model_name(shape));
    let fingerprint = files.with_engine(engine.info(), date);
    let format = RowFormat::new(&config.format_settings(), shape)?
        .with_parser(*processor.answer_parser())
        .with_system_fingerprint(fingerprint.system())
        .with_labels(labels(summary));
    Ok((format, fingerprint))
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

/// An output that has begun: its ledger, and what earlier runs left for it.
pub struct Begun {
    /// Takes finished rows.
    pub ledger: Ledger,
    /// What an unfinished run answered.
    pub recovered: Option<Recovered>,
    /// What a complete run answered, where this one goes on from its output.
    pub previous: Option<Previous>,
    /// What this run leaves if it does not finish.
    pub left: Left,
    /// Where `--stats` goes.
    pub document: Option<Document>,
}

impl Begun {
    /// Continues what was found, or starts over. `then`: the rows of the output that is there,
    /// where they are among those of the input.
    ///
    /// # Errors
    /// An earlier run would have written other bytes.
    pub fn of(
        mut output: LockedOutput,
        config: &RunConfig,
        fingerprint: &Fingerprint,
        then: Option<RowsThen>,
        console: &Console,
    ) -> Result<Self, CliError> {
        let left = Left::of(&output);
        let previous = previous_of(&output, config, fingerprint, then)?;
        let document = output.take_documents("--stats").pop();
        if let Some(found) = output.found() {
            let rows = found.num_rows;
            console.note(&format!(
                "Continuing a run with {rows} finished row{}",
                if rows == 1 { "" } else { "s" }
            ));
            if let Some(at) = found.damaged_at {
                console.warn(&format!(
                    "the journal is damaged at byte {at}; rows that are lost are computed again"
                ));
            }
        }
        let keeps = output.previous().is_some();
        let header = Header {
            started: config.started,
            replaces: config.output.overwrite || config.output.retry_failed || keeps,
            keeps,
            fingerprint: fingerprint.clone(),
        };
        let (mut ledger, recovered) = output.begin(header).map_err(LedgerError::at_start)?;
        if config.output.unordered {
            ledger.emit_in_any_order();
        }
        let recovered = recovered.map(|recovered| match config.input.trusts_media {
            true => recovered.with_images(),
            false => recovered,
        });
        Ok(Self { ledger, recovered, previous, left, document })
    }
}

/// The good rows of a complete output that the run goes on from.
fn previous_of(
    output: &LockedOutput,
    config: &RunConfig,
    fingerprint: &Fingerprint,
    then: Option<RowsThen>,
) -> Result<Option<Previous>, CliError> {
    let Some((path, meta)) = output.path().zip(output.previous()) else { return Ok(None) };
    let differences = fingerprinted::differences(config, &meta.fingerprint, fingerprint);
    if !differences.is_empty() {
        return Err(LedgerError::Complete { path: path.to_owned(), differences }.at_start());
    }
    Previous::open(path, meta, then).map(Some)
}
