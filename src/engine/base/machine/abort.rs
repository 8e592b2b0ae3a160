//! Why a process aborts: a thread's stack has overflowed, or memory lacks. The standard library
//! ends the process by `abort` in both cases, after it has said which on standard error.

use std::io;
use std::mem::MaybeUninit;

use libc::{SIGABRT, SIGBUS, SIGSEGV};

/// Event before an `abort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// A thread's stack has overflowed: a bug.
    StackOverflow,
    /// The system has refused memory.
    NoMemory,
}

/// Calls `end` when the process aborts.
///
/// `end`: is called in a signal handler, maybe by several threads at once: it may neither allocate
/// nor lock.
///
/// # Errors
/// The system refuses.
pub fn on_abort(end: impl Fn(Abort) + Send + Sync + 'static) -> io::Result<()> {
    let action = move || end(if is_in_fault() { Abort::StackOverflow } else { Abort::NoMemory });
    // SAFETY: the action asks for the mask of its thread; that `end` neither allocates nor locks is
    // its contract.
    unsafe { signal_hook_registry::register(SIGABRT, action) }.map(drop)
}

/// Whether this thread is in a handler of a fault, which has its signal blocked: the standard
/// library finds there that a stack has overflowed.
fn is_in_fault() -> bool {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: it changes no mask, and fills the one that it is given; which is then complete.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr()) == 0
            && [SIGSEGV, SIGBUS].iter().any(|signal| libc::sigismember(mask.as_ptr(), *signal) == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_handlers_no_fault_is_blocked() {
        assert!(!is_in_fault());
    }
}
