//! The flags of what is shown on standard error.

/// What is shown on standard error.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Display")]
pub struct DisplayArgs {
    /// No progress; twice: errors only
    #[arg(short = 'q', long, action = clap::ArgAction::Count)]
    pub quiet: u8,
    /// Say more
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// How progress is shown [default: auto, a bar on a terminal, else a line each 30 s]
    #[arg(long, value_name = "HOW")]
    pub progress: Option<ProgressArg>,
    /// Colours [default: auto, on a terminal; NO_COLOR and FORCE_COLOR are heeded]
    #[arg(long, value_name = "WHEN")]
    pub color: Option<ColorArg>,
}

impl DisplayArgs {
    /// The same of a run that shows one answer: warnings and errors, unless more is asked for.
    pub fn of_one_answer(&self) -> Self {
        let quiet = if self.verbose { self.quiet } else { self.quiet.max(1) };
        let progress = self.progress.filter(|how| *how == ProgressArg::Json);
        Self { quiet, progress: progress.or(Some(ProgressArg::None)), ..self.clone() }
    }
}

/// What commands without progress show on standard error.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Display")]
pub struct MessageArgs {
    /// Errors only
    #[arg(short = 'q', long, action = clap::ArgAction::Count)]
    pub quiet: u8,
    /// Say more
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Colours [default: auto, on a terminal; NO_COLOR and FORCE_COLOR are heeded]
    #[arg(long, value_name = "WHEN")]
    pub color: Option<ColorArg>,
}

impl MessageArgs {
    /// The same, as a console takes it.
    pub fn resolved(&self) -> DisplayArgs {
        let progress = Some(ProgressArg::None);
        DisplayArgs { quiet: self.quiet, verbose: self.verbose, progress, color: self.color }
    }
}

/// `--progress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ProgressArg {
    /// A bar on a terminal, else plain
    #[default]
    Auto,
    /// A bar that is redrawn
    Bar,
    /// A line each 30 seconds
    Plain,
    /// A JSON object each second
    Json,
    /// Nothing
    None,
}

/// `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorArg {
    /// On a terminal
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}
