//! Panics of the template engine that cost one row and not the run.

use std::panic::{AssertUnwindSafe, Location, catch_unwind};

/// Runs `render`; None if it panicked.
pub(super) fn contain<T>(render: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(render)).ok()
}

/// Whether a panic at this place is caught and becomes an error row: a panic hook should let it
/// pass.
/// minijinja runs within `contain` only.
pub fn is_contained(location: &Location<'_>) -> bool {
    location.file().contains("minijinja")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_only_the_template_engine_is_let_pass() {
        assert_eq!(contain(|| 1), Some(1));
        assert_eq!(contain(|| -> u32 { panic!("planted") }), None);
        assert!(!is_contained(Location::caller()));
    }
}
