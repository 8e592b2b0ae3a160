//! SIGINT and SIGTERM: the first asks the run to end in order, the second ends it at once. SIGXFSZ
//! does nothing, SIGABRT says that memory lacks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use signal_hook::consts::{SIGABRT, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::cli::terminal::exit::Exit;

/// Which signal has come, and whether the next one ends the process.
#[derive(Clone, Debug)]
pub struct Signals {
    received: Arc<AtomicUsize>,
    immediate: Arc<AtomicBool>,
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
        for (signal, exit) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)] {
            // The order matters: a first signal must not see the flag that it sets itself.
            flag::register_conditional_shutdown(signal, exit.code().into(), immediate.clone())?;
            flag::register_usize(signal, received.clone(), signal as usize)?;
            flag::register(signal, immediate.clone())?;
        }
        Ok(Self { received, immediate })
    }

    /// From now on the first signal only asks.
    pub fn begin(&self) {
        self.immediate.store(false, SeqCst);
    }

    /// How the process should end, once a signal has come.
    pub fn exit(&self) -> Option<Exit> {
        match self.received.load(SeqCst) {
            0 => None,
            signal if signal == SIGTERM as usize => Some(Exit::Terminated),
            _ => Some(Exit::Interrupted),
        }
    }
}

/// Lets what the limits of the process forbid end as it should. A write that crosses the limit on
/// the size of files fails, as on a full disk. An allocation that fails ends the process by
/// `abort`, after the standard library has said so: with the exit code of what can be continued,
/// and not by a signal.
///
/// # Errors
/// The system refuses.
pub fn survive_limits() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default())?;
    let always = Arc::new(AtomicBool::new(true));
    flag::register_conditional_shutdown(SIGABRT, Exit::Stopped.code().into(), always).map(drop)
}
