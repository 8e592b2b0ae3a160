//! SIGINT and SIGTERM: the first asks the run to end in order, the second ends it at once. SIGXFSZ
//! does nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
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

/// Lets a write that crosses the limit on the size of files fail, as on a full disk. The signal
/// would end the process.
///
/// # Errors
/// The system refuses.
pub fn fail_at_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}
