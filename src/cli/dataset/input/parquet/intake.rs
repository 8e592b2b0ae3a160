//! `Intake`: bytes and values of one column that are in memory, from when its pages are read until
//! its rows are taken.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that the pages of all columns may hold that are in memory together.
const MAX_HELD: usize = 1 << 30;

/// Bytes of pages that one call of the crate's reader may ask for, of all columns together; each
/// column has a page at least.
const CALL: usize = 4 << 20;

/// The least part of that which a column has.
const MIN_CALL: usize = 64 << 10;

/// Values of one row, in a column with lists. They are in memory.
const MAX_VALUES: usize = 1 << 22;

/// Values of one page of such a column.
const MAX_PAGE_VALUES: usize = 1 << 23;

/// Bytes of pages that all columns of a row group have in memory.
#[derive(Default)]
pub(super) struct Budget {
    held: AtomicUsize,
}

/// Bytes of a column in memory, for the reader of its pages and the reader of its rows.
pub(super) struct Intake {
    budget: Arc<Budget>,
    /// Bytes after which a call has no further page.
    per_call: usize,
    has_lists: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of the dictionary.
    dictionary: usize,
    /// Bytes of all other pages whose values may be in memory.
    pages: usize,
    /// Bytes of the pages of this call, and of the one that was begun before it.
    call: usize,
    before: usize,
    last: usize,
    /// Values since the rows before were taken.
    values: usize,
}

impl Intake {
    /// Intake of one of a number of columns.
    pub(super) fn new(budget: &Arc<Budget>, num_columns: usize, has_lists: bool) -> Arc<Self> {
        let per_call = (CALL / num_columns.max(1)).max(MIN_CALL);
        let (budget, state) = (Arc::clone(budget), Mutex::default());
        Arc::new(Self { budget, per_call, has_lists, state })
    }

    /// All whole rows are taken; `num_values` of one that is not whole are left. They are of the
    /// last call, or of the page that was begun before it. Without them the last page alone is
    /// held, by the crate's reader.
    pub(super) fn rows_are_taken(&self, num_values: usize) {
        let mut state = self.lock();
        let kept = if num_values == 0 { state.last } else { state.call + state.before };
        let kept = kept.min(state.pages);
        self.budget.held.fetch_sub(state.pages - kept, Relaxed);
        (state.pages, state.values) = (kept, num_values);
    }

    /// The crate's reader is called.
    pub(super) fn begin_call(&self) {
        let mut state = self.lock();
        (state.before, state.call) = (state.last, 0);
    }

    /// Whether a call may have a further page of so many bytes.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let state = self.lock();
        state.call == 0 || state.call.saturating_add(bytes) <= self.per_call
    }

    /// A page is read.
    ///
    /// # Errors
    /// There are too many values, or bytes of all columns together.
    pub(super) fn add_page(&self, bytes: usize, num_values: usize) -> Result<(), String> {
        let mut state = self.lock();
        if self.has_lists && num_values > MAX_PAGE_VALUES {
            let text = format!("a page of {num_values} values, the limit is {MAX_PAGE_VALUES}");
            return Err(text);
        }
        if self.has_lists && state.values > MAX_VALUES {
            return Err(format!("a row has more than {MAX_VALUES} values"));
        }
        state.values += num_values;
        (state.last, state.call) = (bytes, state.call + bytes);
        state.pages += bytes;
        drop(state);
        self.hold(bytes)
    }

    /// The page that was read last takes so many bytes more.
    ///
    /// # Errors
    /// Those of all columns together are too many.
    pub(super) fn add_to_page(&self, bytes: usize) -> Result<(), String> {
        let mut state = self.lock();
        (state.last, state.call) = (state.last + bytes, state.call + bytes);
        state.pages += bytes;
        drop(state);
        self.hold(bytes)
    }

    /// The dictionary takes so many bytes.
    ///
    /// # Errors
    /// Those of all columns together are too many.
    pub(super) fn add_dictionary(&self, bytes: usize) -> Result<(), String> {
        self.lock().dictionary += bytes;
        self.hold(bytes)
    }

    fn hold(&self, bytes: usize) -> Result<(), String> {
        match self.budget.held.fetch_add(bytes, Relaxed) + bytes > MAX_HELD {
            true => Err(format!("its pages take more than {} MiB at once", MAX_HELD >> 20)),
            false => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        let state = self.lock();
        let all = state.dictionary + state.pages;
        drop(state);
        self.budget.held.fetch_sub(all, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_no_longer_held() {
        let budget = Arc::<Budget>::default();
        let intake = Intake::new(&budget, 1, true);
        let held = || budget.held.load(Relaxed);
        intake.add_dictionary(10).unwrap();
        intake.begin_call();
        assert!(intake.has_room(CALL * 2), "a call has one page at least");
        intake.add_page(CALL - 5, 3).unwrap();
        assert!(intake.has_room(5) && !intake.has_room(6));
        intake.add_page(5, 3).unwrap();
        assert_eq!(held(), 10 + CALL);
        // All of the last call may be left of a row.
        intake.rows_are_taken(1);
        intake.begin_call();
        intake.add_page(7, 3).unwrap();
        assert_eq!(held(), 10 + CALL + 7);
        intake.rows_are_taken(1);
        assert_eq!(held(), 10 + 5 + 7, "and the page that was begun");
        intake.rows_are_taken(0);
        assert_eq!(held(), 10 + 7);
        assert!(intake.add_page(MAX_HELD, 1).is_err());
        drop(intake);
        assert_eq!(held(), 0);
    }

    #[test]
    fn values_of_a_row_are_bounded_where_there_are_lists() {
        let budget = Arc::<Budget>::default();
        for has_lists in [false, true] {
            let intake = Intake::new(&budget, 1, has_lists);
            assert_eq!(intake.add_page(1, MAX_PAGE_VALUES + 1).is_err(), has_lists);
            intake.add_page(1, MAX_PAGE_VALUES).unwrap();
            let next = intake.add_page(1, 1);
            assert_eq!(next.is_err(), has_lists, "{next:?}");
            intake.rows_are_taken(MAX_VALUES);
            intake.add_page(1, 1).unwrap();
        }
    }
}
