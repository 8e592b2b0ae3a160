//! What ends a run, and how it is shown: `error[code]: file:line:column: message`, an excerpt, one
//! `help:` line.

use std::fmt::Write;
use std::io;

use super::exit::Exit;
use super::ledger::LedgerError;
use super::reader::InputError;
use super::row_error::{Excerpt, RowError};
use super::style::Style;
use crate::engine::EngineError;

/// Why the run ends early. Bad rows are not errors of this kind: they are rows of the output.
#[derive(Debug)]
pub struct CliError {
    /// How the process ends.
    pub exit: Exit,
    /// Stable word.
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Where in the input.
    pub location: Option<Box<Location>>,
}

/// A place in an input file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// As the user named it.
    pub file: String,
    /// From 1.
    pub line: u64,
    /// Byte in the line, from 1.
    pub column: Option<u64>,
    /// The place in the line.
    pub excerpt: Option<Excerpt>,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        self.column.map_or(Ok(()), |column| write!(f, ":{column}"))
    }
}

impl CliError {
    /// An error without help and place.
    pub fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Self {
        Self { exit, code, message: message.into(), help: None, location: None }
    }

    /// Adds what to do about it.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// A refusal: nothing was written.
    pub fn refused(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, code, message)
    }

    /// Adds where in the input.
    pub fn at(mut self, location: Location) -> Self {
        self.location = Some(Box::new(location));
        self
    }

    /// The text for standard error, without a final line break.
    pub fn render(&self, style: Style) -> String {
        let mut text = style.error(&format!("error[{}]:", self.code));
        text.push(' ');
        if let Some(location) = &self.location {
            let _ = write!(text, "{}: ", sanitized(&location.to_string()));
        }
        text += &sanitized_lines(&self.message);
        if let Some(location) = &self.location
            && let Some(excerpt) = &location.excerpt
        {
            text += &render_excerpt(location.line, excerpt);
        }
        if let Some(help) = &self.help {
            let _ = write!(text, "\n{} {}", style.help("help:"), sanitized_lines(help));
        }
        text
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Model(text) => CliError::new(Exit::Model, "model", text),
            EngineError::Config(text) => CliError::new(Exit::Refused, "config", text),
            EngineError::Device(text) => CliError::new(Exit::Stopped, "device", text),
            EngineError::Machine(text) => CliError::from_machine(text),
        }
    }
}

impl CliError {
    /// The system does not let signals be handled.
    pub fn from_signals(error: &io::Error) -> Self {
        Self::new(Exit::Internal, "signals", format!("cannot handle signals: {error}"))
    }

    /// The machine refuses memory, a thread or an open file.
    pub fn from_machine(text: impl Into<String>) -> Self {
        Self::new(Exit::Stopped, "machine", text).help(
            "the same command continues when the machine has room: see ulimit -a, the container's \
             limits, and what else runs",
        )
    }

    /// Standard output does not take what it is given.
    pub fn from_stdout(error: &io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::BrokenPipe => Exit::BrokenPipe,
            _ => Exit::Stopped,
        };
        Self::new(exit, "output", format!("cannot write to standard output: {error}"))
    }

    /// A bad row that ends the run (`--on-bad-row fail`).
    pub fn from_row(error: &RowError, file: &str) -> Self {
        let location = Location::of(error, file);
        let help = error.help.clone();
        Self { help, ..Self::new(Exit::Refused, error.code, error.message.as_str()) }.at(location)
    }

    /// An input that cannot be used.
    pub fn from_input(error: InputError, file: &str) -> Self {
        match error {
            InputError::Refused { message, help } => {
                Self::new(Exit::Refused, "input", format!("{file}: {message}")).help(help)
            }
            InputError::Io(error) => {
                Self::new(Exit::Refused, "input", format!("cannot read {file}: {error}"))
            }
        }
    }

    /// Output that cannot be written, at the start of a run.
    pub fn from_output(error: LedgerError) -> Self {
        let (exit, code, help) = match &error {
            LedgerError::Exists(_) => {
                let help = "choose another --out, or replace it with --overwrite";
                (Exit::OutputExists, "output_exists", Some(help))
            }
            LedgerError::Complete { .. } => {
                let help = "choose another --out, or start over with --overwrite";
                (Exit::OutputExists, "output_complete", Some(help))
            }
            LedgerError::Unfinished(_) => {
                let help = "move it away, or give --overwrite";
                (Exit::OutputExists, "output_unfinished", Some(help))
            }
            LedgerError::Locked(_) => {
                let help = "wait until it ends, or choose another name";
                (Exit::OutputExists, "output_locked", Some(help))
            }
            LedgerError::Changed { .. } => {
                let help = "put back what the run wrote, or start over with --overwrite";
                (Exit::OutputExists, "output_changed", Some(help))
            }
            LedgerError::NoJournal(_) => {
                let help = "move it away, or start over with --overwrite";
                (Exit::OutputExists, "journal", Some(help))
            }
            LedgerError::Foreign(_) => {
                (Exit::OutputExists, "journal", Some("move it away, or choose another --journal"))
            }
            LedgerError::Differs { .. } => {
                let help = "give the flags and the model of that run to continue it, or start over \
                            with --overwrite";
                (Exit::OutputExists, "journal_differs", Some(help))
            }
            LedgerError::IsRead(_) | LedgerError::Twice(_) => {
                (Exit::Refused, "output", Some("choose another name"))
            }
            LedgerError::NoFolder(_) => {
                (Exit::Refused, "output", Some("make it with mkdir -p, or choose another name"))
            }
            LedgerError::NoFile { .. } => {
                (Exit::Refused, "output", Some("move it away, or choose another name"))
            }
            LedgerError::BrokenPipe => (Exit::BrokenPipe, "broken_pipe", None),
            LedgerError::Full { .. } => (Exit::Stopped, "disk_full", Some("free some space")),
            LedgerError::Io { .. } => (Exit::Refused, "output", None),
        };
        let help = help.map(str::to_owned);
        Self { help, ..Self::new(exit, code, error.to_string()) }
    }

    /// Output that cannot be written in the middle of a run: what was written stays, so it is no
    /// refusal.
    pub fn from_output_midway(error: LedgerError) -> Self {
        let error = Self::from_output(error);
        let exit = if error.exit == Exit::Refused { Exit::Stopped } else { error.exit };
        Self { exit, ..error }
    }
}

impl Location {
    /// Where a bad row is.
    pub fn of(error: &RowError, file: &str) -> Self {
        let (line, column, excerpt) = (error.line, error.column, error.excerpt.as_deref().cloned());
        Self { file: file.to_owned(), line, column, excerpt }
    }
}

/// The piece of the line with a caret under the offending character.
fn render_excerpt(line: u64, excerpt: &Excerpt) -> String {
    let margin = " ".repeat(line.to_string().len());
    let indent = " ".repeat(excerpt.caret);
    format!("\n{line} | {}\n{margin} | {indent}^", excerpt.text)
}

/// Text of the user's files without anything a terminal would obey, each character in one column.
pub fn sanitized(text: &str) -> String {
    text.chars().map(printable).collect()
}

/// The same, line breaks kept: our own messages may have several lines.
pub fn sanitized_lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { printable(c) }).collect()
}

fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or('?'),
        '\u{7f}' => '\u{2421}',
        // C1 controls, and marks that reorder what follows them.
        '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_excerpt_caret_and_help() {
        let line = r#"{"id":26,"prompt":"a" 1}"#;
        let row = RowError::new("bad_json", 26, "expected ',' or '}'").at(line, 22);
        let error = CliError::from_row(&row, "prompts.jsonl").help("check the file");
        assert_eq!(
            error.render(Style::plain()),
            "error[bad_json]: prompts.jsonl:26:23: expected ',' or '}'\n\
             26 | {\"id\":26,\"prompt\":\"a\" 1}\n   |                       ^\n\
             help: check the file"
        );
    }

    #[test]
    fn nothing_in_a_file_reaches_the_terminal_as_a_command() {
        let row = RowError::new("bad_json", 1, "bad \u{202e}").at("a\x1b[2J\u{9b}31m\r", 2);
        let text = CliError::from_row(&row, "a\x1b]0;b").render(Style::plain());
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        let error =
            CliError::new(Exit::Refused, "input", "no file \x1b[31m").render(Style::plain());
        assert_eq!(error, "error[input]: no file ␛[31m");
    }

    #[test]
    fn engine_errors_have_their_exit_codes() {
        let code = |error: EngineError| CliError::from(error).exit.code();
        assert_eq!(code(EngineError::Config(String::new())), 2);
        assert_eq!(code(EngineError::Device(String::new())), 5);
        assert_eq!(code(EngineError::Machine(String::new())), 5);
        assert_eq!(code(EngineError::Model(String::new())), 7);
    }
}
