//! The stack of the main thread. The kernel maps it as it grows, and ends the process without a
//! word where other threads have taken the address space meanwhile.

use std::hint::black_box;

use super::Refused;

/// Bytes of stack that the main thread needs at most. Loading a model takes half of them in a
/// build without optimizations.
const STACK_BYTES: usize = 2 << 20;

/// Bytes of stack taken at a time.
const STEP_BYTES: usize = 16 << 10;

/// Maps the stack that the main thread will need. To be called on it, before there are other
/// threads: what it needs later is there.
///
/// # Errors
/// The machine has no such memory.
pub fn reserve_main_stack() -> Result<(), Refused> {
    let bytes = stack_limit().map_or(STACK_BYTES, |limit| STACK_BYTES.min(limit / 2));
    // A stack that cannot grow ends the process; an allocation fails.
    let mut room = Vec::<u8>::new();
    black_box(&mut room).try_reserve_exact(bytes).map_err(|_| {
        Refused(format!("the system refused {bytes} bytes of memory for the main thread's stack"))
    })?;
    drop(room);
    take(bytes);
    Ok(())
}

/// Limit of the main thread's stack, in bytes (`ulimit -s`).
fn stack_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it fills the structure that it is given.
    let is_read = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } == 0;
    if is_read && limit.rlim_cur != libc::RLIM_INFINITY {
        return usize::try_from(limit.rlim_cur).ok();
    }
    None
}

/// Writes to so much of the stack below the caller.
#[inline(never)]
fn take(bytes: usize) {
    let step = black_box([0_u8; STEP_BYTES]);
    if bytes > STEP_BYTES {
        take(bytes - STEP_BYTES);
    }
    // The step is in use until here, so that the next one lies below it.
    black_box(&step);
}
