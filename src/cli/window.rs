//! `Window`: how far reading may be ahead of writing. It bounds the memory of a run, whatever the
//! input's size.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Rows that were read and are not yet written, and their bytes.
#[derive(Debug)]
pub struct Window {
    state: Mutex<State>,
    changed: Condvar,
    max_rows: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    rows: usize,
    bytes: usize,
    closed: bool,
}

impl Window {
    /// A window of at most so many rows and bytes.
    pub fn new(max_rows: usize, max_bytes: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), max_rows, max_bytes }
    }

    /// Waits for room for a row. A single row may be larger than the window. False: the run is
    /// ending.
    pub fn enter(&self, bytes: usize) -> bool {
        let full = |state: &mut State| {
            let over = state.rows >= self.max_rows || state.bytes + bytes > self.max_bytes;
            !state.closed && state.rows > 0 && over
        };
        let state = self.changed.wait_while(self.lock(), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.rows += 1;
        state.bytes += bytes;
        !state.closed
    }

    /// A row was written.
    pub fn leave(&self, bytes: usize) {
        let mut state = self.lock();
        state.rows -= 1;
        state.bytes -= bytes;
        drop(state);
        self.changed.notify_one();
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn rows_and_bytes_are_bounded() {
        let window = Window::new(2, 100);
        let (sender, entered) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for bytes in [60, 30, 1, 500] {
                    sender.send(window.enter(bytes)).unwrap();
                }
            });
            let short = Duration::from_millis(20);
            let next = |wait| entered.recv_timeout(wait).ok();
            let long = Duration::from_secs(10);
            assert_eq!([next(long), next(long)], [Some(true); 2]);
            assert_eq!(next(short), None, "two rows are in");
            window.leave(60);
            assert_eq!(next(long), Some(true));
            window.leave(30);
            assert_eq!(next(short), None, "500 bytes wait until they are alone");
            window.leave(1);
            assert_eq!(next(long), Some(true));
        });
    }

    #[test]
    fn closing_wakes_who_waits() {
        let window = Window::new(1, 1);
        assert!(window.enter(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| window.enter(1));
            window.close();
            assert!(!waiting.join().unwrap());
        });
    }
}
