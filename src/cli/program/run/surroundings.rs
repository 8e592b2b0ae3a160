//! `Surroundings`: what a run is started with beside its configuration. A run is the only one of
//! its process, or a batch of a server, whose engine answers others too.

use std::sync::{Arc, OnceLock};

use super::Load;
use super::open_model::OpenModel;
use super::progress::Counters;
use super::signals::Signals;
use crate::config::RunConfig;
use vllm_batch_dataset::input::row_error::NotRun;
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
pub struct Rest(Arc<OnceLock<NotRun>>);

impl Rest {
    /// Gives them up. The first reason stays.
    pub fn give_up(&self, why: NotRun) {
        let _ = self.0.set(why);
    }

    /// Why they are given up, if they are.
    pub fn given_up(&self) -> Option<NotRun> {
        self.0.get().copied()
    }
}
