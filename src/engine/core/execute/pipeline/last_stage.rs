//! `LastStage`: the stage that makes logits, which one engine after the other has: from its rows'
//! arrival until it has sampled.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::execute::executor::ExecutorError;
use crate::execute::model_executor::ModelExecutor;

/// The last stage of a model.
pub(super) struct LastStage {
    place: Mutex<Place>,
    has_changed: Condvar,
}

enum Place {
    Here(Box<ModelExecutor>),
    /// An engine has it.
    Taken,
    /// The engine that had it has ended.
    Lost,
}

impl LastStage {
    pub(super) fn new(executor: ModelExecutor) -> Self {
        Self { place: Mutex::new(Place::Here(Box::new(executor))), has_changed: Condvar::new() }
    }

    /// Waits until it is here.
    ///
    /// # Errors
    /// It will not come back.
    pub(super) fn take(&self) -> Result<Box<ModelExecutor>, ExecutorError> {
        let mut place = self.lock();
        loop {
            match std::mem::replace(&mut *place, Place::Taken) {
                Place::Here(executor) => return Ok(executor),
                Place::Taken => {}
                Place::Lost => {
                    *place = Place::Lost;
                    return Err(ExecutorError("another engine of the model has failed".to_owned()));
                }
            }
            place = self.has_changed.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Brings it back.
    pub(super) fn put(&self, executor: Box<ModelExecutor>) {
        *self.lock() = Place::Here(executor);
        self.has_changed.notify_one();
    }

    /// Nobody waits for it any more.
    pub(super) fn lose(&self) {
        *self.lock() = Place::Lost;
        self.has_changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
