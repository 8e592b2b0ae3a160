//! Answers in pieces: an event a write, `[DONE]` at the end of all.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream;

use crate::engine_thread::Answers;
use crate::errors::HttpError;
use crate::served::Served;
use crate::sse;
use vllm_batch_api::answer::Answer;
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::output::JsonFormat;
use vllm_batch_dataset::output::openai_chunks::{Chunks, Streamed};

/// An answer that goes on.
struct Stream {
    served: Arc<Served>,
    /// How it is written: all of its chunks were made at one time.
    format: JsonFormat,
    chunks: Chunks,
    /// Answers that come; None: all have.
    answers: Option<Answers>,
    /// The first of them, which came before the response began.
    first: Option<Answer>,
    /// Events that wait to be written.
    events: VecDeque<String>,
}

/// The response of a stream. `first`: no error.
pub(crate) fn response(
    served: Arc<Served>,
    streamed: Streamed,
    first: Answer,
    answers: Answers,
) -> Response<Body> {
    let mut chunks = Chunks::new(streamed);
    let format = served.format_now();
    let begun = served.with_tokens(|tokens| chunks.begin(&format, tokens));
    let events = begun.iter().map(|chunk| sse::event(chunk)).collect();
    let stream =
        Stream { served, format, chunks, answers: Some(answers), first: Some(first), events };
    let events = stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(event)), stream))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Stream {
    /// The next event.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let answers = self.answers.as_mut()?;
            let answer = match self.first.take() {
                Some(answer) => Some(answer),
                None => answers.next().await,
            };
            self.take_in(answer.as_ref());
        }
    }

    fn take_in(&mut self, answer: Option<&Answer>) {
        let Some(Answer::Generate(output)) = answer else {
            let error = HttpError::dead();
            return self.end(&[error_json(error.code, &error.message)]);
        };
        let Self { served, format, chunks, .. } = self;
        let mut new = served.with_tokens(|tokens| chunks.take_in(&output.deltas, format, tokens));
        if !output.finished {
            return self.events.extend(new.iter().map(|chunk| sse::event(chunk)));
        }
        match RowError::from_output(output, 0) {
            Some(error) => new.push(error_json(error.code, &error.message)),
            None => {
                new.extend(served.with_tokens(|tokens| chunks.finish(output, format, tokens)));
            }
        }
        self.end(&new);
    }

    fn end(&mut self, chunks: &[String]) {
        self.events.extend(chunks.iter().map(|chunk| sse::event(chunk)));
        self.events.push_back(sse::DONE.to_owned());
        self.answers = None;
    }
}

/// An error in the middle of a stream.
fn error_json(code: &str, message: &str) -> String {
    let error = serde_json::json!({
        "message": message, "type": "server_error", "param": null, "code": code,
    });
    serde_json::json!({ "error": error }).to_string()
}
