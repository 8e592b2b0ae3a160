//! `Response`: what a server answers to a request, the body that a line of the batch API has.

use super::openai::status;
use super::{Asked, RowFormat, RowWriter, Tokens, resolve};
use crate::input::batch_line::{BatchKind, BatchLine};
use crate::input::fields::Passthrough;
use crate::input::row_error::RowError;
use vllm_batch_api::answer::Answer;

/// An HTTP status and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP's status.
    pub status: u16,
    /// JSON.
    pub body: String,
}

impl RowFormat {
    /// The response to a request that is answered, or why it is not: a function of what is given.
    ///
    /// # Panics
    /// The row is no request of a batch API, or rows are not JSON.
    pub fn response(
        &self,
        asked: Asked<'_>,
        answer: Result<&Answer, &RowError>,
        tokens: &Tokens<'_>,
    ) -> Response {
        let Passthrough::Batch(line) = asked.passthrough else { panic!("it is no request") };
        let RowFormat::Json(json) = self else { panic!("responses are JSON") };
        let options = json.options(tokens);
        let mut out = Vec::from(b"{");
        let mut row = RowWriter { out: &mut out, options: &options, form: asked.form };
        let status = match answer {
            Ok(Answer::Pooling(output)) => {
                row.pooled_body(line, output, &json.pooled);
                200
            }
            Ok(Answer::Generate(output)) => match resolve(Ok(output)) {
                Ok(output) if line.kind == BatchKind::Message => {
                    row.message(line, output);
                    200
                }
                Ok(output) => {
                    row.openai_answer(line, output);
                    200
                }
                Err(error) => row.error_of(line, &error),
            },
            Err(error) => row.error_of(line, error),
        };
        out.push(b'}');
        Response { status, body: String::from_utf8(out).expect("JSON is text") }
    }
}

impl RowWriter<'_> {
    /// The body of an error, in the form of the request's API; returns its status.
    fn error_of(&mut self, line: &BatchLine, error: &RowError) -> u16 {
        match line.kind {
            BatchKind::Message => self.error_response(line, error),
            kind => self.openai_error(kind, error),
        }
        status(error)
    }
}
