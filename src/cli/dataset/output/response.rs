//! `Response`: what a server answers to a request, the body that a line of the batch API has.

use super::openai::status;
use super::{JsonFormat, RowWriter, Tokens};
use crate::input::batch_line::{BatchKind, BatchLine};
use crate::input::row_error::RowError;
use vllm_batch_api::answer::Answer;
use vllm_batch_text::AnswerForm;

/// An HTTP status and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP's status.
    pub status: u16,
    /// JSON.
    pub body: String,
}

impl JsonFormat {
    /// The response to a request that is answered, or why it is not: a function of what is given.
    /// `form`: that of a chat's answer.
    pub fn response(
        &self,
        line: &BatchLine,
        form: Option<&AnswerForm>,
        answer: Result<&Answer, &RowError>,
        tokens: &Tokens<'_>,
    ) -> Response {
        let error = answer.ok().and_then(|answer| RowError::from_answer(answer, 0));
        let options = self.options(tokens);
        let mut out = Vec::from(b"{");
        let mut row = RowWriter { out: &mut out, options: &options, form };
        let status = match error.as_ref().map_or(answer, Err) {
            Ok(answer) => {
                match answer {
                    Answer::Pooling(output) => row.pooled_body(line, output, &self.pooled),
                    Answer::Generate(output) if line.kind == BatchKind::Message => {
                        row.message(line, output);
                    }
                    Answer::Generate(output) => row.openai_answer(line, output),
                }
                200
            }
            Err(error) => {
                match line.kind {
                    BatchKind::Message => row.error_response(line, error),
                    kind => row.openai_error(kind, error),
                }
                status(error)
            }
        };
        out.push(b'}');
        Response { status, body: String::from_utf8(out).expect("JSON is text") }
    }
}
