//! `Window`: how far reading may be ahead. It bounds the memory of a run, whatever the input's
//! size: of rows that are computed by their bytes, of finished rows that wait on disk for a slow
//! earlier one by their number.

use crate::config::WindowLimits;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is under way.
#[derive(Debug)]
pub struct Window {
    state: Mutex<State>,
    changed: Condvar,
    limits: WindowLimits,
}

#[derive(Debug, Default)]
struct State {
    rows: usize,
    bytes: usize,
    ahead: u64,
    closed: bool,
}

impl Window {
    /// An empty window.
    pub fn new(limits: WindowLimits) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limits }
    }

    /// Waits for room for a row that is to be computed. A single row may be larger than the window.
    /// False: the run is ending.
    pub fn enter(&self, bytes: usize) -> bool {
        let mut state = self.wait_while(|state, limits| {
            let over = state.rows >= limits.max_rows || state.bytes + bytes > limits.max_bytes;
            state.rows > 0 && over || state.ahead >= limits.max_ahead
        });
        state.rows += 1;
        state.bytes += bytes;
        state.ahead += 1;
        !state.closed
    }

    /// Waits for room for a row that is finished already. False: the run is ending.
    pub fn enter_finished(&self) -> bool {
        let mut state = self.wait_while(|state, limits| state.ahead >= limits.max_ahead);
        state.ahead += 1;
        !state.closed
    }

    /// A row is finished.
    pub fn leave(&self, bytes: usize) {
        let mut state = self.lock();
        state.rows -= 1;
        state.bytes -= bytes;
        drop(state);
        self.changed.notify_one();
    }

    /// So many rows have come into the output.
    pub fn emitted(&self, rows: u64) {
        if rows > 0 {
            self.lock().ahead -= rows;
            self.changed.notify_one();
        }
    }

    /// Ends all waiting: no row will be written any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Whether the run is ending.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn wait_while(&self, is_full: impl Fn(&State, &WindowLimits) -> bool) -> MutexGuard<'_, State> {
        let waits = |state: &mut State| !state.closed && is_full(state, &self.limits);
        let state = self.changed.wait_while(self.lock(), waits);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(10);

    fn window(max_rows: usize, max_bytes: usize, max_ahead: u64) -> Window {
        Window::new(WindowLimits { max_rows, max_bytes, max_ahead })
    }

    #[test]
    fn rows_and_bytes_are_bounded() {
        let window = window(2, 100, 1000);
        let (sender, entered) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for bytes in [60, 30, 1, 500] {
                    sender.send(window.enter(bytes)).unwrap();
                }
            });
            let next = |wait| entered.recv_timeout(wait).ok();
            assert_eq!([next(LONG), next(LONG)], [Some(true); 2]);
            assert_eq!(next(SHORT), None, "two rows are in");
            window.leave(60);
            assert_eq!(next(LONG), Some(true));
            window.leave(30);
            assert_eq!(next(SHORT), None, "500 bytes wait until they are alone");
            window.leave(1);
            assert_eq!(next(LONG), Some(true));
        });
    }

    #[test]
    fn finished_rows_that_wait_are_bounded_apart() {
        let window = window(1, 100, 3);
        let (sender, entered) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    sender.send(window.enter(1)).unwrap();
                }
                for _ in 0..2 {
                    sender.send(window.enter_finished()).unwrap();
                }
            });
            let next = |wait| entered.recv_timeout(wait).ok();
            assert_eq!(next(LONG), Some(true));
            assert_eq!(next(SHORT), None, "one row is computed at a time");
            window.leave(1);
            assert_eq!([next(LONG), next(LONG)], [Some(true); 2], "the first waits on disk");
            assert_eq!(next(SHORT), None, "three rows are not out");
            window.emitted(1);
            assert_eq!(next(LONG), Some(true));
        });
    }

    #[test]
    fn closing_wakes_who_waits() {
        let window = window(1, 1, 1);
        assert!(window.enter(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| window.enter(1));
            window.close();
            assert!(!waiting.join().unwrap());
        });
    }
}
