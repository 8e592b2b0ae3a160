//! Endpoints: from a request to its response.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::batches::{self, Held};
use crate::body::{Bodies, Text};
use crate::engine_thread::{Answers, Asker};
use crate::errors::{HttpError, json_response};
use crate::guard::{self, Guard};
use crate::request::{Endpoint, Request, check_name, may_fetch, no_model, priority_of};
use crate::served::{AskedRow, Refused, RequestLine, Served};
use crate::{recordings, streams, texts};
use vllm_batch_api::request::RequestOutputKind;
use vllm_batch_dataset::input::batch_line::BatchLine;
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::output::openai_chunks::{StreamOptions, Streamed};
use vllm_batch_dataset::output::response::Response as Answered;
use vllm_batch_dataset::output::row_format::grows_by_tokens;
use vllm_batch_engine::serve::runner::Work;
use vllm_batch_text::AnswerForm;

/// The header that says the seed of an answer.
const SEED: &str = "x-vllm-batch-seed";

/// Bytes of what the router says.
const MAX_SAID: usize = 1 << 10;

/// What all endpoints share.
pub(crate) struct App {
    pub(crate) served: Arc<Served>,
    pub(crate) asker: Asker,
    pub(crate) guard: Guard,
    pub(crate) bodies: Arc<Bodies>,
    /// Requests that may be unanswered at a time; None: any number.
    pub(crate) max_num_queued_reqs: Option<usize>,
    /// Threads that may fetch images.
    pub(crate) fetching: Arc<Semaphore>,
}

type Shared = State<Arc<App>>;
type Result<T> = std::result::Result<T, HttpError>;

/// All endpoints.
pub(crate) fn router(app: Arc<App>, held: Option<Arc<Held>>) -> Router {
    let mut router = Router::new()
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/v1/messages/count_tokens", post(count_tokens));
    let rows = [
        ("/v1/chat/completions", Endpoint::Chat),
        ("/v1/completions", Endpoint::Completions),
        ("/v1/responses", Endpoint::Responses),
        ("/v1/embeddings", Endpoint::Other("/v1/embeddings")),
        ("/classify", Endpoint::Other("/classify")),
        ("/score", Endpoint::Other("/v1/score")),
        ("/v1/score", Endpoint::Other("/v1/score")),
        ("/rerank", Endpoint::Other("/v1/rerank")),
        ("/v1/rerank", Endpoint::Other("/v1/rerank")),
        ("/v2/rerank", Endpoint::Other("/v2/rerank")),
        ("/v1/messages", Endpoint::Messages),
    ];
    for (path, endpoint) in rows {
        let handler = move |State(app): Shared, request: HttpRequest| async move {
            or_error(path, answer(app, endpoint, request).await)
        };
        router = router.route(path, post(handler));
    }
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        let handler = move |State(app): Shared, request: HttpRequest| async move {
            or_error(path, recordings::answer(app, path, request).await)
        };
        router = router.route(path, post(handler));
    }
    let mut router = router.with_state(Arc::clone(&app));
    if let Some(held) = held {
        router = router.merge(batches::router(Arc::clone(&held)));
        if held.batches.takes_messages {
            router = router.merge(batches::messages_router(held));
        }
    }
    router
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(app, admitted))
}

/// Lets nobody in who may not ask, and names the request in its response.
async fn admitted(State(app): Shared, mut request: HttpRequest, next: Next) -> Response<Body> {
    let id = guard::request_id(request.headers());
    let path = request.uri().path().to_owned();
    let mut response = match app.guard.check(request.uri(), request.headers()) {
        Err(error) => error.response(&path),
        Ok(()) => {
            request.extensions_mut().insert(RequestId(id.clone()));
            in_form(&path, next.run(request).await).await
        }
    };
    let id = HeaderValue::from_str(&id).expect("it is plain");
    if guard::is_anthropics(&path) {
        // Its SDKs read this name alone.
        response.headers_mut().insert("request-id", id.clone());
    }
    response.headers_mut().insert("x-request-id", id);
    response
}

/// What the router itself refuses, of paths and queries that are no text, in the form of the API.
async fn in_form(path: &str, response: Response<Body>) -> Response<Body> {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_plain = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if response.status() != StatusCode::BAD_REQUEST || !is_plain {
        return response;
    }
    let said = axum::body::to_bytes(response.into_body(), MAX_SAID).await.unwrap_or_default();
    HttpError::bad("invalid_url", String::from_utf8_lossy(&said)).response(path)
}

/// The name of a request.
#[derive(Clone)]
struct RequestId(String);

pub(crate) fn or_error(path: &str, result: Result<Response<Body>>) -> Response<Body> {
    result.unwrap_or_else(|error| error.response(path))
}

pub(crate) fn json_of(value: &Value) -> Response<Body> {
    json_response(StatusCode::OK, value.to_string())
}

async fn no_path(request: HttpRequest) -> Response<Body> {
    let path = request.uri().path();
    let mut message = format!("no such path: {} {path}", request.method());
    let has_batches = |prefix| path.starts_with(prefix);
    if ["/v1/files", "/v1/batches", "/v1/messages/batches"].into_iter().any(has_batches) {
        message.push_str("; files and batches are there with --batch-dir DIR of the server");
    }
    HttpError::new(StatusCode::NOT_FOUND, "not_found", message).response(path)
}

async fn no_method(request: HttpRequest) -> Response<Body> {
    let path = request.uri().path();
    let message = format!("{path} takes no {}", request.method());
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).response(path)
}

async fn health(State(app): Shared) -> StatusCode {
    match app.asker.has_failed() {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::OK,
    }
}

async fn version() -> Response<Body> {
    json_of(&json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn metrics(State(app): Shared) -> Response<Body> {
    let stats = app.asker.stats();
    let text = app.asker.with_metrics(|metrics| metrics.text(&stats, &app.served.names[0]));
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn model_of(served: &Served, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "vllm-batch",
        "max_model_len": served.processor.max_model_len(),
    })
}

async fn models(State(app): Shared) -> Response<Body> {
    let models: Vec<_> = app.served.names.iter().map(|name| model_of(&app.served, name)).collect();
    json_of(&json!({ "object": "list", "data": models }))
}

async fn model(State(app): Shared, Path(name): Path<String>) -> Response<Body> {
    match app.served.names.contains(&name) {
        true => json_of(&model_of(&app.served, &name)),
        false => no_model(&name).response("/v1/models"),
    }
}

async fn tokenizer_info(State(app): Shared) -> Response<Body> {
    json_of(&texts::tokenizer_info(&app.served))
}

async fn tokenize(State(app): Shared, request: HttpRequest) -> Response<Body> {
    or_error("/tokenize", with_text(app, request, texts::tokenize).await)
}

async fn detokenize(State(app): Shared, request: HttpRequest) -> Response<Body> {
    or_error("/detokenize", with_text(app, request, texts::detokenize).await)
}

async fn count_tokens(State(app): Shared, request: HttpRequest) -> Response<Body> {
    let counted = with_text(app, request, |served, body| {
        let mut fields = texts::object(body)?;
        check_name(&fields["model"], &served.names)?;
        if let Some(fields) = fields.as_object_mut() {
            fields.entry("max_tokens").or_insert(json!(1));
        }
        let ids = texts::num_tokens_of(served, Endpoint::Messages, &fields.to_string())?;
        Ok(json!({ "input_tokens": ids.len() }))
    });
    or_error("/v1/messages/count_tokens", counted.await)
}

/// A response that a thread makes of a body.
async fn with_text(
    app: Arc<App>,
    request: HttpRequest,
    make: fn(&Served, &str) -> Result<Value>,
) -> Result<Response<Body>> {
    let body = app.bodies.text(request.into_body()).await?;
    Ok(json_of(&on_thread(move || make(&app.served, &body.text)).await?))
}

/// Work that may take its time.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(HttpError::dead()))
}

/// A row that is under way.
struct UnderWay {
    line: BatchLine,
    form: Option<AnswerForm>,
    answers: Answers,
    num_choices: u32,
    num_prompt_tokens: usize,
}

/// Answers a request whose body becomes rows.
async fn answer(app: Arc<App>, endpoint: Endpoint, request: HttpRequest) -> Result<Response<Body>> {
    let asking = asking(&request)?;
    let text = app.bodies.text(request.into_body()).await?;
    answer_body(app, endpoint, asking, text).await
}

/// What the head of a request says: its name and its priority.
pub(crate) fn asking(request: &HttpRequest) -> Result<(String, Option<i64>)> {
    let id = request.extensions().get::<RequestId>().expect("it was named").0.clone();
    Ok((id, priority_of(request.headers())?))
}

/// The same of a body that was read.
pub(crate) async fn answer_body(
    app: Arc<App>,
    endpoint: Endpoint,
    (id, priority): (String, Option<i64>),
    Text { text: body, large }: Text,
) -> Result<Response<Body>> {
    // A large body takes its time to read.
    let served = Arc::clone(&app.served);
    let request = on_thread(move || Request::read(endpoint, body, &served.names, (&id, priority)));
    let request = request.await?;
    admit(&app, request.lines.len())?;
    let Request { lines, stream, seed } = request;
    // Those that fetch nothing have threads of their own.
    let fetching = match lines.iter().any(|line| may_fetch(line)) {
        true => Arc::clone(&app.fetching).acquire_owned().await.ok(),
        false => None,
    };
    let rows = {
        let app = Arc::clone(&app);
        on_thread(move || {
            // The thread's, also where the client has gone away.
            let _fetching = fetching;
            let ask = |line| ask(&app, endpoint, line, stream.is_some());
            Ok(lines.into_iter().map(ask).collect::<std::result::Result<Vec<_>, _>>())
        })
    };
    let rows = rows.await?;
    drop(large);
    let mut rows = match rows {
        Ok(rows) => rows,
        Err(refused) => {
            let Answered { status, body } =
                app.served.respond(&refused.line, None, Err(&refused.error));
            return Ok(with_seed(answered(status, body), seed));
        }
    };
    if let Some(options) = stream {
        let row = rows.pop().expect("there is one");
        return Ok(with_seed(streamed(&app, row, options).await?, seed));
    }
    let mut bodies = Vec::with_capacity(rows.len());
    for row in rows {
        let Answered { status, body } = finished(&app.served, row).await?;
        if status != 200 {
            return Ok(with_seed(answered(status, body), seed));
        }
        bodies.push(body);
    }
    let body = match bodies.len() {
        1 => bodies.pop().expect("there is one"),
        _ => joined(&bodies),
    };
    Ok(with_seed(answered(200, seeded(body, seed)), seed))
}

/// Refuses requests where too many wait.
fn admit(app: &App, count: usize) -> Result<()> {
    if app.asker.has_failed() {
        return Err(HttpError::dead());
    }
    match app.max_num_queued_reqs {
        Some(most) if app.asker.num_unfinished() + count > most => {
            app.asker.with_metrics(|metrics| metrics.num_rejections += 1);
            let message =
                format!("the server has {most} requests that are not answered; try later");
            Err(HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "queue_full", message))
        }
        _ => Ok(()),
    }
}

fn ask(
    app: &App,
    endpoint: Endpoint,
    line: String,
    is_streamed: bool,
) -> std::result::Result<UnderWay, Box<Refused>> {
    let request_id = app.asker.next_id();
    let AskedRow { mut work, line, form } =
        (app.served.ask)(RequestLine { api: endpoint.api(), line, request_id })?;
    let mut num_choices = 1;
    let num_prompt_tokens = work.prompts().iter().map(|prompt| prompt.len()).sum();
    if let Work::Generate(request) = &mut work {
        num_choices = request.params.n;
        if is_streamed && grows_by_tokens(&request.params) {
            Arc::make_mut(&mut request.params).output_kind = RequestOutputKind::Delta;
        }
    }
    let answers = app.asker.ask(request_id, work);
    Ok(UnderWay { line, form, answers, num_choices, num_prompt_tokens })
}

/// The whole answer to a row.
async fn finished(served: &Served, row: UnderWay) -> Result<Answered> {
    let UnderWay { line, form, mut answers, .. } = row;
    loop {
        let answer = answers.next().await.ok_or_else(HttpError::dead)?;
        if answer.is_finished() {
            return Ok(served.respond(&line, form.as_ref(), Ok(&answer)));
        }
    }
}

/// An answer in pieces. What is wrong before the first of them has a status of its own.
async fn streamed(app: &App, row: UnderWay, options: StreamOptions) -> Result<Response<Body>> {
    let UnderWay { line, form, mut answers, num_choices, num_prompt_tokens } = row;
    let first = answers.next().await.ok_or_else(HttpError::dead)?;
    if let (true, Some(error)) = (first.is_finished(), RowError::from_answer(&first, 0)) {
        let Answered { status, body } = app.served.respond(&line, form.as_ref(), Err(&error));
        return Ok(answered(status, body));
    }
    let streamed = Streamed { line, form, options, num_choices, num_prompt_tokens };
    Ok(streams::response(Arc::clone(&app.served), streamed, first, answers))
}

fn answered(status: u16, body: String) -> Response<Body> {
    json_response(StatusCode::from_u16(status).expect("a status of HTTP"), body)
}

fn with_seed(mut response: Response<Body>, seed: Option<i64>) -> Response<Body> {
    if let Some(seed) = seed {
        response.headers_mut().insert(SEED, HeaderValue::from(seed));
    }
    response
}

/// A body that says its seed.
fn seeded(mut body: String, seed: Option<i64>) -> String {
    if let Some(seed) = seed {
        body.truncate(body.len() - 1);
        body.push_str(&format!(",\"seed\":{seed}}}"));
    }
    body
}

/// One body of the answers to several prompts: choices one after the other, and the sum of usages.
fn joined(bodies: &[String]) -> String {
    let parsed = bodies.iter().map(|body| serde_json::from_str(body).expect("our own JSON"));
    let mut parsed = parsed.collect::<Vec<Value>>().into_iter();
    let mut whole = parsed.next().expect("there are several");
    for mut body in parsed {
        let choices = whole["choices"].as_array_mut().expect("our own form");
        for mut choice in std::mem::take(body["choices"].as_array_mut().expect("our own form")) {
            choice["index"] = choices.len().into();
            choices.push(choice);
        }
        for (name, count) in whole["usage"].as_object_mut().expect("our own form") {
            if let (Some(a), Some(b)) = (count.as_u64(), body["usage"][name.as_str()].as_u64()) {
                *count = (a + b).into();
            }
        }
    }
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_several_prompts_are_one() {
        let body = |text: &str| {
            format!(
                r#"{{"id":"a","choices":[{{"index":0,"text":"{text}"}}],"usage":{{"prompt_tokens":2,"total_tokens":3}}}}"#
            )
        };
        let whole: Value = serde_json::from_str(&joined(&[body("x"), body("y")])).unwrap();
        assert_eq!(whole["choices"], json!([{"index":0,"text":"x"},{"index":1,"text":"y"}]));
        assert_eq!(whole["usage"], json!({"prompt_tokens":4,"total_tokens":6}));
        assert_eq!(seeded("{\"a\":1}".to_owned(), Some(5)), r#"{"a":1,"seed":5}"#);
    }
}
