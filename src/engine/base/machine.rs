//! Refusals of the machine: memory, threads, open files. That is neither a bug nor a damaged
//! model: the same command may succeed later, or with smaller flags.

mod abort;
pub mod address_space;
mod main_stack;

use std::io;

use super::EngineError;
pub use abort::{Abort, on_abort};
pub use address_space::{bound_heaps, has_address_limit, has_room_for_stack};
pub use main_stack::reserve_main_stack;

/// The payload of a panic, for what cannot return an error: an op that is refused memory. A hook
/// tells it from a bug by its type.
#[derive(Debug)]
pub struct Refused(pub String);

/// The value, or a panic with [`Refused`].
///
/// # Panics
/// The machine has refused.
pub fn granted<T>(result: Result<T, Refused>) -> T {
    result.unwrap_or_else(|refused| std::panic::panic_any(refused))
}

/// A thread that was started, or a panic with [`Refused`].
///
/// # Panics
/// The system refuses a thread.
pub fn started<T>(thread: io::Result<T>) -> T {
    granted(thread.map_err(|error| no_thread(&error)))
}

/// A thread that the system refuses.
pub fn no_thread(error: &io::Error) -> Refused {
    Refused(format!("the system refused a thread: {error}"))
}

/// The system's number of an error, in a text that ends with its words or has them within.
pub fn error_number(text: &str) -> Option<i32> {
    let (_, rest) = text.rsplit_once("(os error ")?;
    rest.split_once(')')?.0.parse().ok()
}

/// Whether an error is of this process's share of the machine, and not of the file that it was met
/// at: no descriptors, no memory.
pub fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN))
}

impl From<Refused> for EngineError {
    fn from(refused: Refused) -> Self {
        EngineError::Machine(refused.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_of_descriptors_is_no_fault_of_a_file() {
        assert!(is_refusal(&io::Error::from_raw_os_error(libc::EMFILE)));
        for fault in [libc::ENOENT, libc::EACCES, libc::EIO] {
            assert!(!is_refusal(&io::Error::from_raw_os_error(fault)));
        }
    }

    #[test]
    fn the_number_of_an_error_is_in_its_text() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(error_number(&format!("cannot read a: {error}; 3 rows")), Some(libc::EACCES));
        assert_eq!(error_number("cannot read a: it is a folder"), None);
    }

    #[test]
    fn what_cannot_return_an_error_panics_with_a_payload_of_its_own() {
        let panic = std::panic::catch_unwind(|| granted::<()>(Err(Refused("no".into()))));
        assert_eq!(panic.unwrap_err().downcast_ref::<Refused>().unwrap().0, "no");
    }
}
