//! `Shared`: what the threads of a run look at together, once the model is loaded. Each of them has
//! an `Arc` of it.

use std::sync::{Arc, Mutex, PoisonError};

use super::progress::Counters;
use super::surroundings::Rest;
use super::window::Window;
use crate::config::RunConfig;
use vllm_batch_engine::stats::EngineStats;

/// What the threads of a run look at together.
pub struct Shared {
    /// The run.
    pub config: Arc<RunConfig>,
    /// Bounds what is read ahead.
    pub window: Window,
    /// What is done.
    pub counters: Arc<Counters>,
    /// What becomes of rows without an answer.
    pub rest: Rest,
    /// The engine after its last step.
    pub stats: Mutex<EngineStats>,
}

impl Shared {
    /// The engine after a step.
    pub fn set_stats(&self, stats: EngineStats) {
        self.counters.set_engine(&stats);
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// The engine after its last step.
    pub fn stats(&self) -> EngineStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
