//! Standard error: the one place that prints there. Messages go above the progress bar, and never
//! fail: a closed standard error must not end a run.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::display::{DisplayArgs, ProgressArg};
use super::error::CliError;
use super::exit::Exit;
use super::style::{Environment, Style};

/// Columns of a terminal that does not say how many it has.
const DEFAULT_COLUMNS: usize = 80;

/// How progress is shown, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressMode {
    /// Redrawn in place on a terminal.
    Bar,
    /// A line every 30 seconds.
    Plain,
    /// A JSON object every second.
    Json,
    /// Nothing.
    None,
}

/// What is shown, and how.
#[derive(Clone, Debug)]
pub struct Console {
    quiet: u8,
    verbose: bool,
    style: Style,
    stdout_style: Style,
    mode: ProgressMode,
    bar: ProgressBar,
    /// Columns that the line of the bar took when it was last drawn.
    drawn_width: Arc<AtomicUsize>,
    /// The result of the run was said as JSON.
    said_result: Arc<AtomicBool>,
}

impl Console {
    /// Resolves the display flags.
    pub fn new(args: &DisplayArgs, environment: &Environment) -> Self {
        let mode = progress_mode(args, environment);
        let bar = match mode {
            ProgressMode::Bar => {
                let target = ProgressDrawTarget::stderr_with_hz(10);
                let style = ProgressStyle::with_template("{msg}").expect("a fixed template");
                ProgressBar::with_draw_target(None, target).with_style(style)
            }
            _ => ProgressBar::hidden(),
        };
        let color = args.color.unwrap_or_default();
        let style = Style::new(color, environment);
        let stdout_style = Style::of_stdout(color, environment);
        let (quiet, verbose) = (args.quiet, args.verbose);
        let (drawn_width, said_result) = Default::default();
        Self { quiet, verbose, style, stdout_style, mode, bar, drawn_width, said_result }
    }

    /// The same, which shows nothing.
    pub fn silent(&self) -> Self {
        Self { quiet: 2, mode: ProgressMode::None, bar: ProgressBar::hidden(), ..self.clone() }
    }

    /// How progress is shown.
    pub fn mode(&self) -> ProgressMode {
        self.mode
    }

    /// Whether `-v` was given.
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// Whether the end summary is shown.
    pub fn shows_summary(&self) -> bool {
        self.quiet < 2 && !self.is_json_alone()
    }

    /// Whether standard error has JSON objects and nothing else: `--progress json -q`.
    fn is_json_alone(&self) -> bool {
        self.mode == ProgressMode::Json && self.quiet > 0
    }

    /// Colours of this standard error.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Colours of this standard output.
    pub fn stdout_style(&self) -> Style {
        self.stdout_style
    }

    /// Columns of the terminal. One that does not say gets what indicatif gives it.
    pub fn columns(&self) -> usize {
        let size = terminal_size::terminal_size_of(std::io::stderr());
        let columns = size.map_or(0, |(width, _)| usize::from(width.0));
        if columns == 0 { DEFAULT_COLUMNS } else { columns }
    }

    /// Redraws the bar on a terminal of so many columns.
    pub fn draw_bar(&self, line: String, columns: usize) {
        self.erase_broken(visible_width(&line), columns);
        self.bar.set_message(line);
    }

    /// Erases the rows into which a terminal that became narrower has broken the last line.
    ///
    /// `width`: of the next one.
    fn erase_broken(&self, width: usize, columns: usize) {
        let num_above = rows_above(self.drawn_width.swap(width, Relaxed), columns);
        if num_above > 0 {
            self.bar.suspend(|| {
                let _ = write!(std::io::stderr(), "\x1b[{num_above}A\r\x1b[J");
            });
        }
    }

    /// An event for a machine that asked for JSON.
    pub fn event(&self, name: &str, mut value: Value) {
        if self.mode == ProgressMode::Json {
            value["event"] = name.into();
            self.print(&value.to_string());
        }
    }

    /// The last event of a run.
    pub fn result(&self, value: Value) {
        self.event("result", value);
        self.said_result.store(true, Relaxed);
    }

    /// Leaves a last line where the bar was.
    pub fn finish_bar(&self, line: &str) {
        self.erase_broken(0, self.columns());
        self.bar.finish_and_clear();
        self.print(line);
    }

    /// A line of progress or summary.
    pub fn print(&self, text: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }

    /// What the run does, for a person who watches.
    pub fn note(&self, text: &str) {
        if self.quiet == 0 {
            self.print(text);
        }
    }

    /// What the run does in detail.
    pub fn detail(&self, text: &str) {
        if self.verbose && !self.is_json_alone() {
            self.print(text);
        }
    }

    /// Something that may surprise.
    pub fn warn(&self, text: &str) {
        if self.quiet >= 2 {
            return;
        }
        match self.is_json_alone() {
            true => self.event("warning", json!({ "message": text })),
            false => self.print(&format!("{} {text}", self.style.warning("warning:"))),
        }
    }

    /// Shows what ended a command, and says how the process ends.
    pub fn end(&self, result: Result<Exit, CliError>) -> Exit {
        match result {
            Ok(exit) => exit,
            // The reader of our output has seen enough: nothing to say.
            Err(error) if error.exit == Exit::BrokenPipe => Exit::BrokenPipe,
            Err(error) => {
                let error = error.or_of_machine();
                self.error(&error);
                error.exit
            }
        }
    }

    /// What ends the run. Shown however quiet it is.
    pub fn error(&self, error: &CliError) {
        match self.is_json_alone() {
            false => self.print(&error.render(self.style)),
            // The result has it.
            true if self.said_result.load(Relaxed) => {}
            true => self.result(json!({ "exit_code": error.exit.code(), "error": error.json() })),
        }
    }
}

/// Rows that a line of this width takes above its last one.
fn rows_above(width: usize, columns: usize) -> usize {
    width.saturating_sub(1) / columns.max(1)
}

/// Columns of a line, without what switches colours. Its characters take one each.
fn visible_width(line: &str) -> usize {
    let escapes = line.matches('\x1b').count();
    let switches: usize =
        line.split('\x1b').skip(1).map(|part| part.find('m').unwrap_or(0) + 1).sum();
    line.chars().count() - escapes - switches
}

fn progress_mode(args: &DisplayArgs, environment: &Environment) -> ProgressMode {
    let wanted = args.progress.unwrap_or_default();
    match wanted {
        ProgressArg::None => ProgressMode::None,
        // A machine that asked for JSON gets it however quiet the rest is.
        ProgressArg::Json => ProgressMode::Json,
        _ if args.quiet > 0 => ProgressMode::None,
        ProgressArg::Plain => ProgressMode::Plain,
        // A bar cannot be redrawn in a file: there it is a line now and then.
        ProgressArg::Auto | ProgressArg::Bar => {
            match environment.stderr_is_terminal && !environment.dumb {
                true => ProgressMode::Bar,
                false => ProgressMode::Plain,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrower_terminal_has_broken_the_line_into_rows() {
        let line = "█".repeat(100);
        let cases = [(100, 0), (120, 0), (99, 1), (50, 1), (49, 2), (1, 99)];
        for (columns, rows) in cases {
            assert_eq!(rows_above(visible_width(&line), columns), rows, "{columns}");
        }
        // A short line stays whole, and nothing above it is erased.
        assert_eq!(rows_above(visible_width("412 rows [00:31]"), 20), 0);
        assert_eq!(rows_above(0, 0), 0);
        let style = Style::new(super::super::display::ColorArg::Always, &Environment::default());
        assert_eq!(visible_width(&format!("a{}b", style.error("12 failed"))), 11);
        assert_eq!(visible_width("a"), 1);
    }

    fn mode(progress: Option<ProgressArg>, quiet: u8, terminal: bool) -> ProgressMode {
        let args = DisplayArgs { progress, quiet, ..DisplayArgs::default() };
        let environment = Environment { stderr_is_terminal: terminal, ..Environment::default() };
        Console::new(&args, &environment).mode()
    }

    #[test]
    fn progress_fits_where_standard_error_goes() {
        assert_eq!(mode(None, 0, true), ProgressMode::Bar);
        assert_eq!(mode(None, 0, false), ProgressMode::Plain);
        assert_eq!(mode(Some(ProgressArg::Bar), 0, false), ProgressMode::Plain);
        assert_eq!(mode(Some(ProgressArg::Plain), 0, true), ProgressMode::Plain);
        assert_eq!(mode(None, 1, true), ProgressMode::None);
        assert_eq!(mode(Some(ProgressArg::Json), 2, false), ProgressMode::Json);
        assert_eq!(mode(Some(ProgressArg::None), 0, true), ProgressMode::None);
    }
}
