//! Exit codes: an interface, only ever added to.

/// Exit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Every row was answered.
    Success = 0,
    /// A bug.
    Internal = 1,
    /// Usage or input refused, no output written.
    Refused = 2,
    /// Complete, with at least one error row.
    ErrorRows = 3,
    /// The input has no rows.
    NoRows = 4,
    /// Stopped before the end: disk full, device lost, no memory or threads, `--max-errors`
    /// reached.
    Stopped = 5,
    /// The output exists or belongs to another run.
    OutputExists = 6,
    /// The model's files are rejected.
    Model = 7,
    /// A request does not hold: `diff` found rows that differ, a gate of `eval` fails.
    GateFailed = 100,
    /// SIGHUP: the terminal was closed.
    HungUp = 129,
    /// SIGINT.
    Interrupted = 130,
    /// The reader of our output went away: 128 + SIGPIPE, as shells say it.
    BrokenPipe = 141,
    /// SIGTERM.
    Terminated = 143,
}

impl Exit {
    /// The number the shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
