//! Errors that end a run, and their text: `error[code]: file:line:column: message`, an excerpt, one
//! `help:` line.

use std::fmt::Write;
use std::io;

use serde_json::{Value, json};

use super::exit::Exit;
use super::flags::{flag, with_flags};
use super::remedy;
use super::style::Style;
use vllm_batch_base::EngineError;
use vllm_batch_base::machine::error_number;

/// The remedy where the machine refuses memory, a thread or an open file.
pub const MACHINE_HELP: &str = "the same command continues when the machine has room: see ulimit -a, the container's limits, \
     and what else runs";

/// Why the run ends early. Bad rows are not errors of this kind: they are rows of the output.
#[derive(Clone, Debug)]
pub struct CliError {
    /// Exit of the process.
    pub exit: Exit,
    /// Stable word.
    pub code: &'static str,
    /// Message of the error.
    pub message: String,
    /// Advice for the user.
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

/// Characters of a line shown on each side of an error.
const EXCERPT_REACH: usize = 36;

/// A piece of the offending line, safe to print: control characters are escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The text, `...` where it was cut.
    pub text: String,
    /// Characters before the offending one.
    pub caret: usize,
}

impl Excerpt {
    /// The surroundings of a byte of a line.
    pub fn around(line: &str, byte: usize) -> Self {
        let byte = byte.min(line.len());
        let at = (0..=byte).rev().find(|&i| line.is_char_boundary(i)).unwrap_or(0);
        let before = line[..at].char_indices().rev().take(EXCERPT_REACH).last();
        let start = before.map_or(at, |(index, _)| index);
        let mut text = String::from(if start > 0 { "..." } else { "" });
        push_escaped(&mut text, line[start..at].chars());
        let caret = text.chars().count();
        push_escaped(&mut text, line[at..].chars().take(EXCERPT_REACH));
        if line[at..].chars().nth(EXCERPT_REACH).is_some() {
            text.push_str("...");
        }
        Self { text, caret }
    }
}

/// Control characters could drive the user's terminal, so they are spelled out.
fn push_escaped(text: &mut String, chars: impl Iterator<Item = char>) {
    for c in chars {
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        self.column.map_or(Ok(()), |column| write!(f, ":{column}"))
    }
}

impl CliError {
    /// An error without help and place. Settings of the engine become flags here and in `help`: an
    /// error of a row, a model or an engine may end a run.
    pub fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Self {
        let message = with_flags(&message.into());
        Self { exit, code, message, help: None, location: None }
    }

    /// Adds what to do about it.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(with_flags(&help.into()));
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

    /// The same for a machine.
    pub fn json(&self) -> Value {
        let place = self.location.as_ref().map(|place| place.to_string());
        json!({ "code": self.code, "message": self.message, "help": self.help, "place": place })
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
            EngineError::Setting { setting, text, help } => {
                let message = format!("{}: {text}", flag(setting));
                CliError::new(Exit::Refused, "config", message).help(help)
            }
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
        Self::new(Exit::Stopped, "machine", text).help(MACHINE_HELP)
    }

    /// The same; or a lack of the machine, where that is what the system said: whichever file it
    /// was met at is not to blame, and the same command may succeed later. Errors of files come as
    /// texts from many places, and the system's own words end with their number. A flag that asks
    /// for more than there is stays what is to blame.
    pub fn or_of_machine(self) -> Self {
        match self.code != "config" && is_lack(&self.message) {
            true => Self { location: self.location, ..Self::from_machine(self.message) },
            false if self.help.is_none() => {
                let is_missing = error_number(&self.message) == Some(libc::ENOENT);
                let help = remedy::of(&self.message).or(is_missing.then_some("check its name"));
                Self { help: help.map(str::to_owned), ..self }
            }
            false => self,
        }
    }

    /// Adds what to do about a file that cannot be read: `missing` where there may be none of that
    /// name, and else what helps against the system's refusal.
    pub fn help_of_file(self, missing: &str) -> Self {
        let help = remedy::of(&self.message).unwrap_or(missing);
        self.help(help)
    }

    /// Standard output does not take what it is given.
    pub fn from_stdout(error: &io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::BrokenPipe => Exit::BrokenPipe,
            _ => Exit::Stopped,
        };
        Self::new(exit, "output", format!("cannot write to standard output: {error}"))
    }
}

/// Whether a text ends with what the system says of a lack of descriptors or memory.
pub fn is_lack(text: &str) -> bool {
    error_number(text)
        .is_some_and(|number| [libc::EMFILE, libc::ENFILE, libc::ENOMEM].contains(&number))
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
    use vllm_batch_base::Setting;

    #[test]
    fn engine_errors_have_their_exit_codes() {
        let code = |error: EngineError| CliError::from(error).exit.code();
        assert_eq!(code(EngineError::Config(String::new())), 2);
        assert_eq!(code(EngineError::Device(String::new())), 5);
        assert_eq!(code(EngineError::Machine(String::new())), 5);
        assert_eq!(code(EngineError::Model(String::new())), 7);
        let error = EngineError::setting(
            Setting::MaxModelLen,
            format!("9 with {} float32", Setting::Dtype),
            format!("give {} 8", Setting::MaxModelLen),
        );
        let error = CliError::from(error);
        assert_eq!((error.exit, error.code), (Exit::Refused, "config"));
        assert_eq!(error.message, "--max-model-len: 9 with --dtype float32");
        assert_eq!(error.help.as_deref(), Some("give --max-model-len 8"));
    }

    #[test]
    fn every_error_that_ends_a_run_shows_flags() {
        let text = format!("name it with {}", Setting::ReasoningParser);
        let error = CliError::refused("invalid_parameter", text.as_str()).help(text);
        assert_eq!(error.message, "name it with --reasoning-parser");
        assert_eq!(error.help.as_deref(), Some("name it with --reasoning-parser"));
    }

    #[test]
    fn a_lack_of_the_machine_is_no_fault_of_a_file() {
        for (number, expected) in [(libc::EMFILE, 5), (libc::ENFILE, 5), (libc::ENOENT, 2)] {
            let error = io::Error::from_raw_os_error(number);
            let error = CliError::refused("input", format!("cannot read a.jsonl: {error}"));
            let error = error.help("check its name").or_of_machine();
            assert_eq!(error.exit.code(), expected, "{}", error.message);
            let help = error.help.expect("a remedy");
            assert_eq!(help.contains("the same command continues"), expected == 5, "{help}");
        }
    }
}
