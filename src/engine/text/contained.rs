//! Panics of foreign code that cost one row and not the run.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; None if it panicked.
pub(super) fn contain<T>(work: impl FnOnce() -> T) -> Option<T> {
    CONTAINED.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(false);
    result.ok()
}

/// Whether a panic of this thread is caught and becomes an error row: a panic hook should let it pass.
pub fn panic_is_contained() -> bool {
    CONTAINED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_set_while_work_runs_and_only_then() {
        assert_eq!(contain(panic_is_contained), Some(true));
        assert!(!panic_is_contained());
        assert_eq!(contain(|| -> u32 { panic!("planted") }), None);
        assert!(!panic_is_contained());
    }
}
