//! What is wrong with the lines of a batch before any is asked, as OpenAI's API checks them: a
//! wrong line fails the batch, and each is named. What a line asks for is looked at when it is run.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::record::LineError;
use vllm_batch_dataset::input::custom_ids::CustomIds;
use vllm_batch_dataset::input::row_error::json_message;

/// Errors that are listed: a file may have millions of wrong lines.
const MAX_ERRORS: usize = 1000;

/// Lines between two looks at whether the batch was cancelled.
const LOOK: u64 = 4096;

/// What lines must have.
pub(super) struct Expected<'a> {
    /// The path that they ask.
    pub(super) endpoint: &'a str,
    /// Names of the model.
    pub(super) names: &'a [String],
    /// Whether nobody waits for it any more.
    pub(super) is_over: &'a dyn Fn() -> bool,
}

/// What was found.
pub(super) struct Checked {
    pub(super) num_lines: u64,
    /// The model that the first line names.
    pub(super) model: Option<String>,
    pub(super) errors: Vec<LineError>,
}

#[derive(Deserialize)]
struct Line {
    custom_id: Option<Value>,
    method: Option<Value>,
    url: Option<Value>,
    body: Option<Body>,
}

#[derive(Deserialize)]
struct Body {
    model: Option<Value>,
}

/// Reads all lines; None: it is over.
pub(super) fn check(path: &Path, expected: &Expected<'_>) -> io::Result<Option<Checked>> {
    let mut lines = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut line, mut number, mut ids) = (Vec::new(), 0, CustomIds::default());
    let mut checked = Checked { num_lines: 0, model: None, errors: Vec::new() };
    let mut num_errors = 0u64;
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        number += 1;
        if number % LOOK == 0 && (expected.is_over)() {
            return Ok(None);
        }
        let marked = line.strip_prefix(b"\xEF\xBB\xBF").filter(|_| number == 1);
        let text = marked.unwrap_or(&line).trim_ascii();
        if text.is_empty() {
            continue;
        }
        checked.num_lines += 1;
        let errors = match serde_json::from_slice(text) {
            Ok(line) => {
                let line: Line = line;
                let model = line.body.as_ref().and_then(|body| body.model.as_ref());
                if checked.num_lines == 1 {
                    checked.model = model.and_then(Value::as_str).map(str::to_owned);
                }
                errors_of(&line, expected, |id| ids.insert(id, number))
            }
            Err(error) => {
                let what = json_message(&error);
                let message = format!("This line is not a valid request in JSON: {what}.");
                vec![("invalid_json_line", message, None)]
            }
        };
        num_errors += errors.len() as u64;
        for (code, message, param) in errors {
            if checked.errors.len() < MAX_ERRORS {
                checked.errors.push(error(code, message, param, Some(number)));
            }
        }
    }
    if checked.num_lines == 0 {
        let message = "The file has no requests.".to_owned();
        checked.errors.push(error("empty_file", message, None, None));
    }
    if num_errors > MAX_ERRORS as u64 {
        let message = format!("{} more errors are not listed.", num_errors - MAX_ERRORS as u64);
        checked.errors.push(error("too_many_errors", message, None, None));
    }
    Ok(Some(checked))
}

type Found = (&'static str, String, Option<&'static str>);

fn errors_of(
    line: &Line,
    expected: &Expected<'_>,
    seen: impl FnOnce(&str) -> Result<(), u64>,
) -> Vec<Found> {
    let mut errors = Vec::new();
    let mut add = |code, message: String, param| errors.push((code, message, Some(param)));
    let text = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
    match text(&line.custom_id) {
        None => {
            let message = "Missing required parameter: 'custom_id', a text.".to_owned();
            add("missing_required_parameter", message, "custom_id");
        }
        Some(id) => {
            if let Err(first) = seen(&id) {
                let message = format!("The custom_id is that of line {first} too.");
                add("duplicate_custom_id", message, "custom_id");
            }
        }
    }
    if text(&line.method).as_deref() != Some("POST") {
        add("invalid_method", "The method must be 'POST'.".to_owned(), "method");
    }
    if text(&line.url).as_deref() != Some(expected.endpoint) {
        let message = format!("The url must be the batch's endpoint, '{}'.", expected.endpoint);
        add("url_mismatch", message, "url");
    }
    match &line.body {
        None => {
            let message = "Missing required parameter: 'body', an object.".to_owned();
            add("missing_required_parameter", message, "body");
        }
        Some(Body { model }) => {
            let is_known = match model {
                None | Some(Value::Null) => true,
                Some(Value::String(name)) => expected.names.contains(name),
                Some(_) => false,
            };
            if !is_known {
                let names = expected.names.join(", ");
                let message = format!("The model must be one of: {names}.");
                add("model_mismatch", message, "body.model");
            }
        }
    }
    errors
}

fn error(code: &str, message: String, param: Option<&str>, line: Option<u64>) -> LineError {
    LineError { code: code.to_owned(), message, param: param.map(str::to_owned), line }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> Vec<(String, Option<u64>)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input");
        std::fs::write(&path, text).unwrap();
        let names = ["m".to_owned()];
        let endpoint = "/v1/completions";
        let expected = Expected { endpoint, names: &names, is_over: &|| false };
        let checked = check(&path, &expected).unwrap().unwrap();
        checked.errors.into_iter().map(|error| (error.code, error.line)).collect()
    }

    fn line(id: &str, url: &str, model: &str) -> String {
        format!(
            "{{\"custom_id\":{id},\"method\":\"POST\",\"url\":\"{url}\",\"body\":{{\"model\":{model}}}}}"
        )
    }

    #[test]
    fn every_wrong_line_is_named() {
        let good = |id: &str| line(&format!("\"{id}\""), "/v1/completions", "\"m\"");
        assert_eq!(codes(&format!("\u{feff}{}\r\n\n{}", good("a"), good("b"))), []);
        assert_eq!(codes(&line("\"a\"", "/v1/completions", "null")), []);
        let one = |text: &str, code: &str| {
            let text = format!("{}\n\n{text}\n{}", good("first"), good("last"));
            assert_eq!(codes(&text), [(code.to_owned(), Some(3))], "{text}");
        };
        one(&good("first"), "duplicate_custom_id");
        one(&line("7", "/v1/completions", "\"m\""), "missing_required_parameter");
        one(&line("\"b\"", "/v1/embeddings", "\"m\""), "url_mismatch");
        one(&line("\"b\"", "/v1/completions", "\"n\""), "model_mismatch");
        one(&line("\"b\"", "/v1/completions", "5"), "model_mismatch");
        one(&good("b").replace("POST", "GET"), "invalid_method");
        one("{\"custom_id\":\"b\"", "invalid_json_line");
        one("[]", "invalid_json_line");
        one("\u{0}", "invalid_json_line");
        for empty in ["", "\n\r\n", "\u{feff}"] {
            assert_eq!(codes(empty), [("empty_file".to_owned(), None)], "{empty:?}");
        }
    }

    #[test]
    fn errors_are_listed_up_to_a_number() {
        let errors = codes(&"x\n".repeat(MAX_ERRORS + 5));
        assert_eq!(errors.len(), MAX_ERRORS + 1);
        assert_eq!(errors[MAX_ERRORS], ("too_many_errors".to_owned(), None));
    }
}
