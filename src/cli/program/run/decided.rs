//! `Decided`, the second phase: the first row has said what the run is for. The configuration is
//! final, what an earlier run left of the work is known, and the flags as typed are gone.

use std::sync::Arc;

use super::complete::{Comparison, Remaining, refuse_unknown_rows};
use super::fingerprinted::FileFields;
use super::open_model::OpenModel;
use super::opened::{FirstRow, Opened, Session};
use super::read::{self, ReadThread};
use super::surroundings::ModelFrom;
use crate::config::RunConfig;
use crate::ledger::LockedOutput;
use crate::model;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::output::RowFormat;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// What is to be done.
pub enum Next<'a> {
    /// The output is this run's.
    Nothing(Exit),
    /// Rows are to be asked.
    Run(Box<Decided<'a>>),
}

/// A run whose first row was seen.
pub struct Decided<'a> {
    /// Its surroundings.
    pub session: Session<'a>,
    /// What the flags mean for these rows.
    pub config: Arc<RunConfig>,
    /// Who reads the input, from its beginning.
    pub reading: ReadThread,
    /// What the input is.
    pub shape: Shape,
    /// Where rows will go.
    pub output: LockedOutput,
    /// The rows of the output that is there, where they are among those of the input.
    pub then: Option<RowsThen>,
    /// How much of the model is there.
    pub model: ModelState,
}

/// How much of the model is there once the run is decided.
pub enum ModelState {
    /// Nobody has looked for it.
    Unread,
    /// An output was compared with it, so its files are hashed.
    Hashed(FileFields),
    /// It was loaded while the first row was waited for.
    Open(Box<OpenModel>),
}

impl<'a> Decided<'a> {
    /// Decides by the first row. Whoever compares an output that is complete waits for that row;
    /// else the model is loaded meanwhile.
    ///
    /// # Errors
    /// A flag does not go with the rows, the output is another run's, or the model that was to be
    /// loaded meanwhile cannot be.
    pub fn of(opened: Opened<'a>, model: ModelFrom<'_>) -> Result<Next<'a>, CliError> {
        let is_awaited = matches!(opened.first, FirstRow::Awaited);
        match is_awaited && opened.output.complete().is_none() {
            true => Self::beside_loading(opened, model).map(|run| Next::Run(Box::new(run))),
            false => Self::before_loading(opened),
        }
    }

    fn before_loading(opened: Opened<'a>) -> Result<Next<'a>, CliError> {
        let Opened { session, input, mut reading, first, undecided, mut output, earlier } = opened;
        let (config, mut shape) = match first {
            FirstRow::Seen(shape) => {
                let config = undecided.decide(shape.task)?;
                check_flags(&config, &shape, session.console)?;
                (config, shape)
            }
            // A stream is only compared with the output: no row of it uses a flag.
            FirstRow::Awaited => {
                let shape = reading.shape()?;
                (undecided.decide(shape.task)?, shape)
            }
        };
        let remaining = match &earlier {
            None => Remaining::All,
            Some(meta) => {
                let (config, session, shape) = (&config, &session, &shape);
                Comparison { config, session, shape, meta }.remaining(&reading, &mut output)?
            }
        };
        let (then, model) = match remaining {
            Remaining::Nothing(exit) => return Ok(Next::Nothing(exit)),
            Remaining::All => (None, ModelState::Unread),
            Remaining::Rest { then, files } => {
                reading = read::start(&input, session.console, &session.counters)?;
                shape = reading.shape()?;
                (then, ModelState::Hashed(files))
            }
        };
        // Before the model is loaded, where that is possible.
        RowFormat::new(&config.format_settings(), &shape)?;
        let decided = Self { session, config, reading, shape, output, then, model };
        Ok(Next::Run(Box::new(decided)))
    }

    /// A row that takes its time mostly asks for a completion: the model is loaded for that.
    fn beside_loading(opened: Opened<'a>, model: ModelFrom<'_>) -> Result<Self, CliError> {
        let Opened { session, reading, undecided, output, earlier, .. } = opened;
        if let Some(meta) = &earlier {
            // Read once only: its rows are known by their fields.
            refuse_unknown_rows(&output, meta)?;
        }
        let config = &undecided.config;
        let open = OpenModel::open((config, None), &output, &session, model);
        let makes_vectors = || {
            let folders = model::find(config, session.console);
            folders.is_ok_and(|folders| model::makes_vectors(config, &folders))
        };
        // Whoever waits for the model before the first row would wait for ever.
        let may_pool =
            || undecided.flags.is_some() && !session.ready.is_awaited() && makes_vectors();
        let open = match open {
            Err(error) if !may_pool() => return Err(error),
            open => open,
        };
        let shape = reading.shape()?;
        check_flags(config, &shape, session.console)?;
        let model = match shape.task == config.input.rows.task {
            true => ModelState::Open(Box::new(open?)),
            false => {
                drop(open);
                ModelState::Unread
            }
        };
        let config = undecided.decide(shape.task)?;
        Ok(Self { session, config, reading, shape, output, then: None, model })
    }
}

/// Refuses flags that no row can use, and says which rows may not.
fn check_flags(config: &RunConfig, shape: &Shape, console: &Console) -> Result<(), CliError> {
    if let Some(headers) = shape.headers.as_deref().filter(|_| config.output.unordered)
        && !headers.iter().any(|name| name == "id" || name == "custom_id")
    {
        let message =
            "--unordered: the table has no column `id`, and its rows are told apart by it";
        return Err(CliError::refused("missing_id", message).help("add one, or leave it out"));
    }
    for note in config.particular.check(shape)? {
        match config.input.is_prompt() {
            // It has no notes.
            true => console.warn(&note),
            false => console.note(&note),
        }
    }
    Ok(())
}
