//! `FewestBlocks`: stages of a model have equally many blocks in their KV caches, as many as the
//! one with the least room.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use vllm_batch_base::EngineError;

/// What a stage says that waited in vain.
const OF_ANOTHER: &str = "another stage was not loaded";

/// Where stages meet, once, each with the number of blocks that it has room for.
#[derive(Debug)]
pub struct FewestBlocks {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Debug)]
struct State {
    num_awaited: usize,
    fewest: usize,
    /// A stage will not come.
    is_short: bool,
}

impl FewestBlocks {
    /// So many stages meet.
    pub fn new(num_stages: usize) -> Self {
        let state = State { num_awaited: num_stages, fewest: usize::MAX, is_short: false };
        Self { state: Mutex::new(state), has_changed: Condvar::new() }
    }

    /// Waits for all stages; returns the least of their numbers.
    ///
    /// # Errors
    /// A stage will not come.
    pub fn agree(&self, num_blocks: usize) -> Result<usize, EngineError> {
        let mut state = self.lock();
        state.num_awaited -= 1;
        state.fewest = state.fewest.min(num_blocks);
        self.has_changed.notify_all();
        while state.num_awaited > 0 && !state.is_short {
            state = self.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.num_awaited {
            0 => Ok(state.fewest),
            _ => Err(EngineError::Device(OF_ANOTHER.to_owned())),
        }
    }

    /// Whether it is the error of a stage that waited in vain.
    pub fn is_of_another(error: &EngineError) -> bool {
        matches!(error, EngineError::Device(text) if text == OF_ANOTHER)
    }

    /// A stage will not come, or has come before.
    pub fn give_up(&self) {
        self.lock().is_short = true;
        self.has_changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_the_least_and_nobody_waits_for_one_that_failed() {
        let blocks = FewestBlocks::new(3);
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads = [7, 5, 9].map(|num| {
                let blocks = &blocks;
                scope.spawn(move || blocks.agree(num).unwrap())
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(all, [5, 5, 5]);
        let blocks = FewestBlocks::new(2);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| blocks.agree(7).is_err());
            blocks.give_up();
            assert!(waits.join().unwrap());
        });
    }
}
