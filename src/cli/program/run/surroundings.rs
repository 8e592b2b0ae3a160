//! `Surroundings`: what a run is started with beside its configuration. A run is the only one of
//! its process, or a batch of a server, whose engine answers others too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use super::Load;
use super::open_model::OpenModel;
use super::progress::Counters;
use super::signals::Signals;
use crate::config::RunConfig;
use vllm_batch_dataset::input::row_error::{RowError, code};
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;

/// What a run is started with.
pub struct Surroundings<'a> {
    /// Who is told.
    pub console: &'a Console,
    /// Looked at while the engine works.
    pub signals: Signals,
    /// What is done.
    pub counters: Arc<Counters>,
    /// What becomes of rows without an answer.
    pub rest: Rest,
    /// Where its engine comes from.
    pub model: ModelFrom<'a>,
}

/// Where the engine of a run comes from.
#[derive(Clone, Copy)]
pub enum ModelFrom<'a> {
    /// It is loaded for the run.
    Load(Load<'a>),
    /// It is there. Makes a part of it for this run.
    Served(&'a dyn Fn(&Arc<RunConfig>) -> Result<OpenModel, CliError>),
}

impl<'a> Surroundings<'a> {
    /// Of a run that is all that the process does.
    ///
    /// # Errors
    /// The system refuses handlers of signals.
    pub fn of_process(console: &'a Console, load: Load<'a>) -> Result<Self, CliError> {
        let signals = Signals::install().map_err(|error| CliError::from_signals(&error))?;
        let (counters, rest) = Default::default();
        Ok(Self { console, signals, counters, rest, model: ModelFrom::Load(load) })
    }
}

/// What becomes of rows without an answer: they are asked, or they are given up and get an error
/// each. Shared with whoever gives them up, which cannot be taken back.
#[derive(Clone, Debug, Default)]
pub struct Rest(Arc<AtomicU8>);

/// Why rows are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// Somebody asked for it.
    Cancelled,
    /// Their time is over.
    Expired,
}

impl Rest {
    /// Gives them up. The first reason stays.
    pub fn give_up(&self, why: NotRun) {
        let why = match why {
            NotRun::Cancelled => 1,
            NotRun::Expired => 2,
        };
        let _ = self.0.compare_exchange(0, why, SeqCst, SeqCst);
    }

    /// Why they are given up, if they are.
    pub fn given_up(&self) -> Option<NotRun> {
        match self.0.load(SeqCst) {
            0 => None,
            1 => Some(NotRun::Cancelled),
            _ => Some(NotRun::Expired),
        }
    }
}

impl NotRun {
    /// What a row has in place of its answer.
    pub fn error(self, line: u64) -> RowError {
        let (code, why) = match self {
            NotRun::Cancelled => (code::BATCH_CANCELLED, "the batch was cancelled"),
            NotRun::Expired => (code::BATCH_EXPIRED, "the time of the batch was over"),
        };
        RowError::new(code, line, format!("{why} before this request was answered"))
    }
}
