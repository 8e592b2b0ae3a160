//! What ends a run, and how it is shown: `error[code]: file:line:column: message`, an excerpt, one `help:` line.

use std::fmt::Write;

use super::exit::Exit;
use super::style::Style;
use crate::engine::EngineError;

/// Widest excerpt of an input line, in characters.
const EXCERPT_WIDTH: usize = 76;

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
    pub location: Option<Location>,
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
    /// The line's text.
    pub excerpt: Option<String>,
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

    /// Adds where in the input.
    pub fn at(mut self, location: Location) -> Self {
        self.location = Some(location);
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
        if let Some(location) = &self.location {
            text += &excerpt(location);
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
        }
    }
}

/// The line with a caret under the column; of a long line the part around it.
fn excerpt(location: &Location) -> String {
    let Some(line) = &location.excerpt else { return String::new() };
    let column = location.column.unwrap_or(1).max(1) as usize - 1;
    // The column counts bytes, the caret stands under a character.
    let caret = line.char_indices().take_while(|(at, _)| *at < column).count();
    let length = line.chars().count();
    let start = match length > EXCERPT_WIDTH {
        true => caret.saturating_sub(EXCERPT_WIDTH / 2).min(length - EXCERPT_WIDTH),
        false => 0,
    };
    let part: String = line.chars().skip(start).take(EXCERPT_WIDTH).map(printable).collect();
    let before = if start > 0 { "..." } else { "" };
    let after = if start + EXCERPT_WIDTH < length { "..." } else { "" };
    let number = location.line.to_string();
    let margin = " ".repeat(number.len());
    let mut text = format!("\n{number} | {before}{part}{after}");
    if location.column.is_some() {
        let _ = write!(text, "\n{margin} | {}^", " ".repeat(before.len() + caret - start));
    }
    text
}

/// Text of the user's files without anything a terminal would obey, each character in one column.
pub fn sanitized(text: &str) -> String {
    text.chars().map(printable).collect()
}

/// The same, line breaks kept: our own messages may have several lines.
fn sanitized_lines(text: &str) -> String {
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

    fn bad_json(line: &str, column: u64) -> CliError {
        CliError::new(Exit::Refused, "bad_json", "expected ',' or '}'")
            .at(Location {
                file: "prompts.jsonl".into(),
                line: 26,
                column: Some(column),
                excerpt: Some(line.into()),
            })
            .help("check the file")
    }

    #[test]
    fn place_excerpt_caret_and_help() {
        let text = bad_json(r#"{"id":26,"prompt":"a" 1}"#, 23).render(Style::plain());
        assert_eq!(
            text,
            "error[bad_json]: prompts.jsonl:26:23: expected ',' or '}'\n\
             26 | {\"id\":26,\"prompt\":\"a\" 1}\n   |                       ^\n\
             help: check the file"
        );
    }

    #[test]
    fn the_caret_counts_characters_though_the_column_counts_bytes() {
        let text = bad_json("é€x", 6).render(Style::plain());
        assert!(text.contains("26 | é€x\n   |   ^"), "{text}");
    }

    #[test]
    fn long_lines_are_cut_around_the_column() {
        let line = format!("{}!{}", "a".repeat(500), "b".repeat(500));
        let text = bad_json(&line, 501).render(Style::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].len() < 100 && lines[1].starts_with("26 | ...a") && lines[1].ends_with("b..."));
        assert_eq!(lines[1].find('!'), lines[2].find('^'));
    }

    #[test]
    fn nothing_in_a_file_reaches_the_terminal_as_a_command() {
        let text = bad_json("a\x1b[2J\u{9b}31m\r\u{202e}", 2).render(Style::plain());
        assert!(text.contains("26 | a␛[2J\u{fffd}31m␍\u{fffd}\n"), "{text}");
        let error = CliError::new(Exit::Refused, "input", "no file \x1b[31m").render(Style::plain());
        assert_eq!(error, "error[input]: no file ␛[31m");
    }

    #[test]
    fn engine_errors_have_their_exit_codes() {
        let code = |error: EngineError| CliError::from(error).exit.code();
        assert_eq!(code(EngineError::Config(String::new())), 2);
        assert_eq!(code(EngineError::Device(String::new())), 5);
        assert_eq!(code(EngineError::Model(String::new())), 7);
    }
}
