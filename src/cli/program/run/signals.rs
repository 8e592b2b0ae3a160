//! Signals. The first SIGINT, SIGTERM or SIGHUP asks the run to end in order, the second ends it at
//! once. SIGUSR1 asks for a line of progress. SIGUSR2 and SIGXFSZ do nothing. SIGABRT ends as what
//! came before it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::flag;

use vllm_batch_base::machine::{Abort, on_abort};
use vllm_batch_dataset::terminal::error::MACHINE_HELP;
use vllm_batch_dataset::terminal::exit::Exit;

/// Signals that end a run, and how.
const ENDS: [(i32, Exit); 3] =
    [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated), (SIGHUP, Exit::HungUp)];

/// Which signal has come, and whether the next one ends the process.
#[derive(Clone, Debug)]
pub struct Signals {
    received: Arc<AtomicUsize>,
    immediate: Arc<AtomicBool>,
    progress: Arc<AtomicBool>,
    is_of_process: bool,
}

impl Signals {
    /// Installs the handlers. Until `begin`, a signal ends the process at once: there is nothing to
    /// save.
    ///
    /// # Errors
    /// The system refuses.
    pub fn install() -> io::Result<Self> {
        let received = Arc::new(AtomicUsize::new(0));
        let immediate = Arc::new(AtomicBool::new(true));
        let progress = asked_for_progress()?;
        // `nohup` has it ignored, so that the run outlives its terminal.
        let is_ignored = |signal: i32| signal == SIGHUP && is_ignored(signal);
        for (signal, exit) in ENDS.into_iter().filter(|(signal, _)| !is_ignored(*signal)) {
            // The order matters: a first signal must not see the flag that it sets itself.
            flag::register_conditional_shutdown(signal, exit.code().into(), immediate.clone())?;
            flag::register_usize(signal, received.clone(), signal as usize)?;
            flag::register(signal, immediate.clone())?;
        }
        Ok(Self { received, immediate, progress, is_of_process: true })
    }

    /// Signals that come from within the process, by `tell`: to a run that is a part of what it
    /// does.
    pub fn by_hand() -> Self {
        let (received, immediate, progress) = Default::default();
        Self { received, immediate, progress, is_of_process: false }
    }

    /// Asks the run to end.
    pub fn tell(&self, exit: Exit) {
        let signal = ENDS.into_iter().find(|(_, known)| *known == exit);
        self.received.store(signal.map_or(SIGTERM, |(signal, _)| signal) as usize, SeqCst);
    }

    /// Whether the process ends with the run.
    pub fn are_of_process(&self) -> bool {
        self.is_of_process
    }

    /// From now on the first signal only asks.
    pub fn begin(&self) {
        self.immediate.store(false, SeqCst);
    }

    /// How the process should end, once a signal has come.
    pub fn exit(&self) -> Option<Exit> {
        let received = self.received.load(SeqCst);
        let end = ENDS.into_iter().find(|(signal, _)| *signal as usize == received);
        end.map(|(_, exit)| exit)
    }

    /// Set when a line of progress is asked for.
    pub fn progress(&self) -> Arc<AtomicBool> {
        self.progress.clone()
    }
}

/// Set whenever SIGUSR1 comes: a line of progress is asked for.
///
/// # Errors
/// The system refuses.
pub fn asked_for_progress() -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    flag::register(SIGUSR1, asked.clone())?;
    Ok(asked)
}

/// Whether the process was started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_signals(&status).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The ignored signals that `/proc/self/status` lists, the first in the lowest bit.
fn ignored_signals(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Lets what the limits of the process forbid end as it should, and signals that end no command. A
/// write that crosses the limit on the size of files fails, as on a full disk. An allocation that
/// fails and a stack that overflows end the process by `abort`, after the standard library has said
/// so: with an exit code, and not by a signal.
///
/// # Errors
/// The system refuses.
pub fn survive_limits() -> io::Result<()> {
    for signal in [SIGXFSZ, SIGUSR1, SIGUSR2] {
        flag::register(signal, Arc::default())?;
    }
    let is_ending = AtomicBool::new(false);
    on_abort(move |abort| {
        if is_ending.swap(true, SeqCst) {
            // Another thread has aborted too, and ends the process.
            std::thread::sleep(Duration::from_secs(60));
        }
        end_after(abort);
    })
}

/// Neither allocates nor locks: `dup`, `write` and `_exit`.
fn end_after(abort: Abort) -> ! {
    let (error, help, exit) = match abort {
        Abort::StackOverflow => (
            "error[internal]: a thread has overflowed its stack, a bug in vllm-batch\nhelp: ",
            "please report it with the command and the output of a run with -v",
            Exit::Internal,
        ),
        Abort::NoMemory => {
            ("error[machine]: the system refused memory\nhelp: ", MACHINE_HELP, Exit::Stopped)
        }
    };
    if let Ok(descriptor) = io::stderr().as_fd().try_clone_to_owned() {
        let mut stderr = File::from(descriptor);
        let _ = [error, help, "\n"].iter().try_for_each(|text| stderr.write_all(text.as_bytes()));
    }
    signal_hook::low_level::exit(exit.code().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_a_mask() {
        let mask = ignored_signals("SigBlk:\t0000\nSigIgn:\t0000000000001001\nSigCgt:\t01\n");
        assert_eq!(mask, Some(0x1001));
        assert_eq!(ignored_signals("Name:\tx\n"), None);
    }
}
