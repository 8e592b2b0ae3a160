//! `FewestBlocks`: stages of a model have equally many blocks in their KV caches, as many as the
//! one with the least room.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vllm_batch_base::EngineError;

/// Where stages meet, once, each with the number of blocks that it has room for.
#[derive(Debug)]
pub(super) struct FewestBlocks {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Debug)]
struct State {
    num_awaited: usize,
    fewest: usize,
    /// A stage will not come.
    is_short: bool,
    /// By their index.
    have_waited_in_vain: Vec<bool>,
}

/// A stage's seat there. Dropped before it has come, the others do not wait for it.
#[derive(Debug)]
pub struct Seat {
    index: usize,
    of: Arc<FewestBlocks>,
    has_come: bool,
}

impl FewestBlocks {
    /// So many stages meet, each on its seat.
    pub(super) fn new(num_stages: usize) -> (Arc<Self>, Vec<Seat>) {
        let state = State {
            num_awaited: num_stages,
            fewest: usize::MAX,
            is_short: false,
            have_waited_in_vain: vec![false; num_stages],
        };
        let of = Arc::new(Self { state: Mutex::new(state), has_changed: Condvar::new() });
        let seat = |index| Seat { index, of: Arc::clone(&of), has_come: false };
        let seats = (0..num_stages).map(seat).collect();
        (of, seats)
    }

    /// Whether the stage came, and another did not.
    pub(super) fn has_waited_in_vain(&self, index: usize) -> bool {
        self.lock().have_waited_in_vain[index]
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits for all stages; returns the least of their numbers.
    ///
    /// # Errors
    /// A stage will not come.
    pub fn agree(mut self, num_blocks: usize) -> Result<usize, EngineError> {
        self.has_come = true;
        let mut state = self.of.lock();
        state.num_awaited -= 1;
        state.fewest = state.fewest.min(num_blocks);
        self.of.has_changed.notify_all();
        while state.num_awaited > 0 && !state.is_short {
            state = self.of.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.num_awaited {
            0 => Ok(state.fewest),
            _ => {
                state.have_waited_in_vain[self.index] = true;
                Err(EngineError::Device("another stage was not loaded".to_owned()))
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.has_come {
            self.of.lock().is_short = true;
            self.of.has_changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_the_least_and_nobody_waits_for_one_that_failed() {
        let (blocks, seats) = FewestBlocks::new(3);
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads = seats
                .into_iter()
                .zip([7, 5, 9])
                .map(|(seat, num)| scope.spawn(move || seat.agree(num).unwrap()));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(all, [5, 5, 5]);
        assert!((0..3).all(|index| !blocks.has_waited_in_vain(index)));
        let (blocks, seats) = FewestBlocks::new(2);
        let [waits, fails]: [Seat; 2] = seats.try_into().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| waits.agree(7).is_err());
            drop(fails);
            assert!(waits.join().unwrap());
        });
        assert!(blocks.has_waited_in_vain(0));
        assert!(!blocks.has_waited_in_vain(1));
    }
}
