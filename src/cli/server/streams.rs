//! Answers in pieces: an event a write, and OpenAI's `[DONE]` at the end of all.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream;
use serde_json::Value;

use crate::engine_thread::Answers;
use crate::errors::HttpError;
use crate::served::Served;
use crate::sse;
use vllm_batch_api::answer::Answer;
use vllm_batch_api::request::{CompletionDelta, RequestOutput};
use vllm_batch_dataset::input::batch_line::BatchKind;
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::output::anthropic_events::MessageEvents;
use vllm_batch_dataset::output::openai_chunks::{Chunks, Streamed};
use vllm_batch_dataset::output::response_events::ResponseEvents;
use vllm_batch_dataset::output::{JsonFormat, Tokens};

/// What events are made of an answer.
enum Written {
    OpenAi(Chunks),
    Response(ResponseEvents),
    Anthropic(MessageEvents),
}

impl Written {
    fn new(streamed: Streamed) -> Self {
        match streamed.line.kind {
            BatchKind::Message => Written::Anthropic(MessageEvents::new(streamed)),
            BatchKind::Response => Written::Response(ResponseEvents::new(streamed)),
            _ => Written::OpenAi(Chunks::new(streamed)),
        }
    }

    fn begin(&mut self, format: &JsonFormat, tokens: &Tokens<'_>) -> Vec<String> {
        match self {
            Written::OpenAi(chunks) => plain(&chunks.begin(format, tokens)),
            Written::Response(events) => named(&events.begin(format, tokens)),
            Written::Anthropic(events) => named(&events.begin(format)),
        }
    }

    fn take_in(
        &mut self,
        deltas: &[CompletionDelta],
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<String> {
        match self {
            Written::OpenAi(chunks) => plain(&chunks.take_in(deltas, format, tokens)),
            Written::Response(events) => named(&events.take_in(deltas, format, tokens)),
            Written::Anthropic(events) => named(&events.take_in(deltas, format)),
        }
    }

    fn finish(
        &mut self,
        output: &RequestOutput,
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<String> {
        match self {
            Written::OpenAi(chunks) => plain(&chunks.finish(output, format, tokens)),
            Written::Response(events) => named(&events.finish(output, format, tokens)),
            Written::Anthropic(events) => named(&events.finish(output, format, tokens)),
        }
    }

    /// An error in the middle of a stream.
    fn error(&mut self, error: &HttpError) -> String {
        match self {
            Written::OpenAi(_) => sse::event(&error.body(false).to_string()),
            Written::Response(events) => {
                named(&[events.error(error.code, &error.message)]).concat()
            }
            Written::Anthropic(_) => named(&[error.body(true)]).concat(),
        }
    }

    /// What ends a stream, after errors too.
    fn last(&self) -> Option<String> {
        matches!(self, Written::OpenAi(_)).then(|| sse::DONE.to_owned())
    }
}

fn plain(chunks: &[String]) -> Vec<String> {
    chunks.iter().map(|chunk| sse::event(chunk)).collect()
}

fn named(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| sse::named(event["type"].as_str(), &event.to_string())).collect()
}

/// An answer that goes on.
struct Stream {
    served: Arc<Served>,
    /// How it is written: all of its chunks were made at one time.
    format: JsonFormat,
    written: Written,
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
    let mut written = Written::new(streamed);
    let format = served.format_now();
    let events = served.with_tokens(|tokens| written.begin(&format, tokens)).into();
    let stream =
        Stream { served, format, written, answers: Some(answers), first: Some(first), events };
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
            self.events.push_back(self.written.error(&HttpError::dead()));
            return self.end();
        };
        let Self { served, format, written, events, .. } = self;
        let deltas = &output.deltas;
        events.extend(served.with_tokens(|tokens| written.take_in(deltas, format, tokens)));
        if !output.finished {
            return;
        }
        match RowError::from_output(output, 0) {
            Some(error) => {
                events.push_back(written.error(&HttpError::of_engine(error.code, error.message)));
            }
            None => {
                events.extend(served.with_tokens(|tokens| written.finish(output, format, tokens)));
            }
        }
        self.end();
    }

    fn end(&mut self) {
        self.events.extend(self.written.last());
        self.answers = None;
    }
}
