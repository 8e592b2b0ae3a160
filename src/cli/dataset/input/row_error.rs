//! `RowError`: why one row cannot be answered. Data, not a failure of the run: it becomes the row's
//! output.

use crate::terminal::error::{CliError, Excerpt, Location};
use crate::terminal::exit::Exit;
use crate::terminal::flags::with_flags;
use vllm_batch_api::answer::Answer;
use vllm_batch_api::request::{FinishReason, RequestError, RequestOutput};

/// The stable words of row errors found before a row reaches the engine. The engine adds its own
/// (`context_length`, ...) through [`RequestError`].
pub mod code {
    /// The line is not JSON, or is nested too deeply.
    pub const BAD_JSON: &str = "bad_json";
    /// The CSV record has another number of fields than the header, or an open quote.
    pub const BAD_CSV: &str = "bad_csv";
    /// The line has bytes that are not UTF-8.
    pub const BAD_UTF8: &str = "bad_utf8";
    /// A value of a column is none of the column's type.
    pub const BAD_VALUE: &str = "bad_value";
    /// The line is longer than any may be.
    pub const LINE_TOO_LONG: &str = "line_too_long";
    /// The row has another shape than the first one.
    pub const ROW_SHAPE: &str = "row_shape";
    /// The prompt has the right place but not the right content.
    pub const INVALID_PROMPT: &str = "invalid_prompt";
    /// The prompt has no text.
    pub const EMPTY_PROMPT: &str = "empty_prompt";
    /// A sampling field of the row has the wrong type or value.
    pub const INVALID_PARAMETER: &str = "invalid_parameter";
    /// The last message is already an answer.
    pub const LAST_ASSISTANT: &str = "last_assistant";
    /// `--template` names a field that the row does not have.
    pub const TEMPLATE: &str = "template";
    /// A batch request has no `custom_id` that is a string.
    pub const CUSTOM_ID: &str = "custom_id";
    /// The row has no name, and its answer is matched by it.
    pub const MISSING_ID: &str = "missing_id";
    /// A batch request to an endpoint that is not served.
    pub const UNSUPPORTED_URL: &str = "unsupported_url";
    /// A batch request for something else than those before it, as vectors among completions.
    pub const OTHER_TASK: &str = "other_task";
    /// A batch request that is no POST.
    pub const UNSUPPORTED_METHOD: &str = "unsupported_method";
    /// A field asks for what would change the answer and is not supported.
    pub const UNSUPPORTED_FIELD: &str = "unsupported_field";
    /// The row names an adapter, or who answers it, and nobody has the name.
    pub const MODEL_NOT_FOUND: &str = "model_not_found";
    /// A batch request with more than one prompt.
    pub const SEVERAL_PROMPTS: &str = "several_prompts";
    /// The row has another number of images than it may, or than its text has places for.
    pub const MEDIA_COUNT: &str = "media_count";
    /// What should be an image is no `data:` URI, no base64 and no path.
    pub const MEDIA_FORMAT: &str = "media_format";
    /// An image that may not be read.
    pub const MEDIA_FORBIDDEN: &str = "media_forbidden";
    /// A document of a kind that is not read.
    pub const MEDIA_UNSUPPORTED: &str = "media_unsupported";
    /// There is no image at a URL.
    pub const MEDIA_NOT_FOUND: &str = "media_not_found";
    /// The server of a URL did not answer in time.
    pub const MEDIA_TIMEOUT: &str = "media_timeout";
    /// The server of a URL cannot be reached, or answers something else.
    pub const MEDIA_UNAVAILABLE: &str = "media_unavailable";
    /// The row does not say what `eval` needs to judge its answer.
    pub const NOT_JUDGED: &str = "not_judged";
    /// The engine failed without saying why.
    pub const ENGINE: &str = "engine";
    /// The batch was cancelled before the row was answered.
    pub const BATCH_CANCELLED: &str = "batch_cancelled";
    /// The time of the batch was over before the row was answered.
    pub const BATCH_EXPIRED: &str = "batch_expired";

    /// Whether an image of the row cannot be used.
    pub fn is_of_media(code: &str) -> bool {
        code.starts_with("media_")
    }
}

/// Why rows of a batch are given up that nothing is wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// Somebody cancelled the batch.
    Cancelled,
    /// Its time is over.
    Expired,
}

impl NotRun {
    /// What a row at a line has in place of its answer.
    pub fn error(self, line: u64) -> RowError {
        let (code, why) = match self {
            NotRun::Cancelled => (code::BATCH_CANCELLED, "the batch was cancelled"),
            NotRun::Expired => (code::BATCH_EXPIRED, "the time of the batch was over"),
        };
        RowError::new(code, line, format!("{why} before this request was answered"))
    }

    /// Why the row of an error was given up; None: it was not.
    pub fn of_code(code: &str) -> Option<Self> {
        match code {
            code::BATCH_CANCELLED => Some(NotRun::Cancelled),
            code::BATCH_EXPIRED => Some(NotRun::Expired),
            _ => None,
        }
    }
}

/// Why a row cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// Stable word, see [`code`].
    pub code: &'static str,
    /// Message of the error.
    pub message: String,
    /// The field of a batch request that is wrong, where it is known.
    pub param: Option<&'static str>,
    /// Physical line of the input where the row starts, from 1.
    pub line: u64,
    /// Byte column in that line, from 1, where one is known.
    pub column: Option<u64>,
    /// The place in the line; boxed, since most errors have none and results are moved around.
    pub excerpt: Option<Box<Excerpt>>,
    /// Advice for the user.
    pub help: Option<String>,
}

impl RowError {
    /// An error of a whole row.
    pub fn new(code: &'static str, line: u64, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message, param: None, line, column: None, excerpt: None, help: None }
    }

    /// Adds the field of a batch request that is wrong.
    pub fn of_param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// Adds what to do about it.
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds the place: a byte offset into the text of the line.
    pub fn at(mut self, text: &str, byte: usize) -> Self {
        self.column = Some(byte as u64 + 1);
        self.excerpt = Some(Box::new(Excerpt::around(text, byte)));
        self
    }

    /// Error of serde_json for a line.
    pub fn bad_json(error: &serde_json::Error, text: &str, line: u64) -> Self {
        let message = json_message(error);
        // serde_json's column is the number of bytes up to and including the offending one; but in
        // front of a control character, and of the end.
        let column = error.column().saturating_sub(1);
        let byte = match () {
            () if error.is_eof() => text.len(),
            () if message.starts_with("control character") => {
                let rest = text.bytes().skip(column);
                column + rest.take_while(|byte| !byte.is_ascii_control()).count()
            }
            () => column,
        };
        Self::new(code::BAD_JSON, line, message).at(text, byte)
    }

    /// Error of the engine's input processor for the row at `line`.
    pub fn from_request(error: &RequestError, line: u64) -> Self {
        Self::new(error.code, line, with_flags(&error.message))
    }

    /// The error of an answer, if it has one.
    pub fn from_answer(answer: &Answer, line: u64) -> Option<Self> {
        match answer {
            Answer::Generate(output) => Self::from_output(output, line),
            Answer::Pooling(output) => output.error().map(|error| Self::from_request(&error, line)),
        }
    }

    /// The error of a finished request, if any of its completions has one: a row with a part
    /// missing is not an answer.
    pub fn from_output(output: &RequestOutput, line: u64) -> Option<Self> {
        let failed = output.outputs.iter().find(|completion| {
            completion.error.is_some() || completion.finish_reason == FinishReason::Error
        })?;
        Some(match &failed.error {
            Some(error) => Self::from_request(error, line),
            None => {
                Self::new(code::ENGINE, line, "the engine gave up on this row without a reason")
            }
        })
    }
}

impl CliError {
    /// A bad row that ends the run (`--on-bad-row fail`).
    pub fn from_row(error: &RowError, file: &str) -> Self {
        let location = Location::of(error, file);
        let help = error.help.clone();
        Self { help, ..Self::new(Exit::Refused, error.code, error.message.as_str()) }.at(location)
    }
}

impl Location {
    /// Where a bad row is.
    pub fn of(error: &RowError, file: &str) -> Self {
        let (line, column, excerpt) = (error.line, error.column, error.excerpt.as_deref().cloned());
        Self { file: file.to_owned(), line, column, excerpt }
    }
}

/// serde_json's text without its position, in the words of the other errors.
pub fn json_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    text.replace("EOF while parsing", "the line ends inside").replace('`', "'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::style::Style;

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
}
