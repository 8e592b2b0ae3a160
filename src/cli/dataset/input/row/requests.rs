//! Requests that come one by one, as to a server: each is read as a line of a batch API, so that
//! it is answered as `run` answers that line.

use super::prompt::PromptBuilder;
use super::shape::RowShape;
use super::{BadRow, Row, RowOptions, RowParser};
use crate::input::reader::{Content, InputError, InputFormat, Record};

/// The API that a request is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestApi {
    /// Lines with `custom_id`, `url` and `body`.
    OpenAi,
    /// Lines with `custom_id` and `params`.
    Anthropic,
}

/// A request that was read.
pub struct ReadRequest {
    /// The row, or why it cannot be asked.
    pub row: Result<Row, BadRow>,
    /// Surprises in it, for people to read.
    pub remarks: Vec<String>,
}

impl RowParser {
    /// Reads one request, written as a line of its batch API.
    ///
    /// # Errors
    /// The options do not fit each other, or the machine lacks what an image needs.
    pub fn request(
        options: &RowOptions,
        api: RequestApi,
        line: String,
    ) -> Result<ReadRequest, InputError> {
        let mut parser = Self::undecided(PromptBuilder::new(options)?, options, InputFormat::Jsonl);
        parser.shape = Some(match api {
            RequestApi::OpenAi => RowShape::OpenAiBatch,
            RequestApi::Anthropic => RowShape::AnthropicBatch,
        });
        let row = parser.parse(Record { line: 1, content: Content::Line(line), error: None })?;
        let remarks = parser.take_remarks().into_iter();
        let plain =
            |text: String| text.strip_prefix("line 1: ").map_or(text.clone(), str::to_owned);
        Ok(ReadRequest { row, remarks: remarks.map(plain).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::fields::Passthrough;
    use crate::input::row_error::code;
    use vllm_batch_api::prompt::Prompt;

    fn request(api: RequestApi, line: &str) -> Result<Row, Box<BadRow>> {
        let row = RowParser::request(&RowOptions::default(), api, line.to_owned());
        row.unwrap().row.map_err(Box::new)
    }

    #[test]
    fn fields_that_change_nothing_are_remarked_on() {
        let line = r#"{"custom_id":"a","url":"/v1/completions","body":{"prompt":"p","colour":1}}"#;
        let read = RowParser::request(&RowOptions::default(), RequestApi::OpenAi, line.to_owned());
        assert_eq!(
            read.unwrap().remarks,
            ["`colour` of the request changes nothing in its answer"]
        );
    }

    #[test]
    fn a_request_is_the_line_of_its_api_whatever_its_fields_are() {
        let row = request(
            RequestApi::OpenAi,
            r#"{"custom_id":"a","url":"/v1/completions","body":{"prompt":"p","messages":[]}}"#,
        );
        assert!(matches!(row.unwrap().prompt, Prompt::Text(text) if text == "p"));
        let row = request(
            RequestApi::Anthropic,
            r#"{"custom_id":"a","params":{"max_tokens":4,"messages":[{"role":"user","content":"x"}]}}"#,
        );
        assert!(row.unwrap().prompt.chat().is_some());
        let bad = request(RequestApi::OpenAi, r#"{"custom_id":"a","url":"/v1/images","body":{}}"#);
        let bad = bad.unwrap_err();
        assert_eq!(bad.error.code, code::UNSUPPORTED_URL);
        assert!(matches!(bad.passthrough, Passthrough::Batch(_)));
    }
}
