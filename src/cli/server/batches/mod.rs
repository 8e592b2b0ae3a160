//! Files and batches, as OpenAI's API and Anthropic's have them. A batch is a run over its file:
//! [`RunBatches`] runs it, beside whatever else the engine is asked. What is known of files and
//! batches lies in a folder, so that a server that was killed goes on where it was.
//!
//! `record` says what a file and a batch are, `store` keeps them, `worker` is the thread that runs
//! batches one after the other, `routes` and `messages` are the endpoints.

mod borrowed;
mod checked_lines;
mod content;
mod lists;
mod messages;
mod published;
mod record;
mod routes;
mod store;
mod upload;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use self::messages::router as messages_router;
pub(crate) use self::routes::{Held, router};
pub use self::store::Store;
pub(crate) use self::worker::{Worker, joined};
use vllm_batch_dataset::input::row_error::NotRun;
use vllm_batch_engine::serve::runner::BorrowedEngine;

/// What batches are run with.
pub struct Batches {
    /// The folder of files and batches.
    pub store: Arc<Store>,
    /// Bytes of a file that is sent.
    pub max_file_bytes: u64,
    /// Whether what is not answered within the `completion_window` is given up.
    pub has_deadlines: bool,
    /// Paths that lines may ask, by what the model is for.
    pub endpoints: Vec<&'static str>,
    /// Whether the model answers Anthropic's messages.
    pub takes_messages: bool,
    /// Runs them.
    pub runner: Arc<dyn RunBatches>,
}

/// What runs batches.
pub trait RunBatches: Send + Sync {
    /// A batch that has not begun.
    fn prepare(&self) -> Arc<dyn BatchRun>;

    /// Tells people what no client is told.
    fn say(&self, text: &str);
}

/// A batch that runs, or will. Other threads ask after it, and end it.
pub trait BatchRun: Send + Sync {
    /// Runs its lines, or goes on with them. Once.
    ///
    /// # Errors
    /// It did not come to its end.
    fn run(&self, job: Job) -> Result<(), Unfinished>;

    /// Lines that are not answered yet are given up: each gets an error.
    fn give_up(&self, why: NotRun);

    /// Ends it, to be gone on with later.
    fn stop(&self);

    /// Lines that were answered, and lines that failed; neither counts those that were given up.
    fn counts(&self) -> (u64, u64);
}

/// Files of a batch, and its part of the engine.
pub struct Job {
    /// Its lines.
    pub input: PathBuf,
    /// Where answers go.
    pub output: PathBuf,
    /// Where errors go; None: beside the answers.
    pub errors: Option<PathBuf>,
    /// What answers.
    pub engine: Box<dyn BorrowedEngine>,
}

/// Why a batch did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// It was stopped, or the engine has ended: a later server goes on.
    Stopped,
    /// The machine lacks something, as room on its disk: it is tried again.
    Again(String),
    /// It cannot be run: what it says again has a code and words.
    Failed(&'static str, String),
}
