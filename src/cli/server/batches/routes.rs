//! Endpoints of OpenAI's files and batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query as Queried, Request, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::lists::{PageForm, Query, page};
use super::record::{Api, BatchRecord, Counts, Status, Usage};
use super::store::{Refusal, Store};
use super::upload;
use super::{Batches, content};
use crate::body::Bodies;
use crate::errors::HttpError;
use crate::routes::{json_of, on_thread, or_error};
use vllm_batch_dataset::terminal::clock::now;

/// Pairs of `metadata`, and letters of their names and values.
const MAX_PAIRS: usize = 16;
const MAX_LETTERS: [usize; 2] = [64, 512];

const FILES: PageForm =
    PageForm { after: "after", before: None, max_limit: 10_000, default_limit: 10_000 };
const BATCHES: PageForm =
    PageForm { after: "after", before: None, max_limit: 100, default_limit: 20 };

/// What endpoints of files and batches share.
pub(crate) struct Held {
    pub(crate) batches: Arc<Batches>,
    /// Names of the model.
    pub(crate) names: Vec<String>,
    pub(crate) bodies: Arc<Bodies>,
}

pub(super) type Shared = State<Arc<Held>>;
pub(super) type Answered = Result<Response<Body>, HttpError>;

/// The endpoints.
pub(crate) fn router(held: Arc<Held>) -> Router {
    Router::new()
        .route("/v1/files", post(upload_file).get(list_files))
        .route("/v1/files/{id}", get(file).delete(delete_file))
        .route("/v1/files/{id}/content", get(file_content))
        .route("/v1/batches", post(create).get(list))
        .route("/v1/batches/{id}", get(batch))
        .route("/v1/batches/{id}/cancel", post(cancel))
        .with_state(held)
}

async fn upload_file(State(held): Shared, request: Request) -> Response<Body> {
    let file = upload::take(&held.batches.store, request, held.batches.max_file_bytes).await;
    shown(file.map(|file| file.shown()))
}

async fn list_files(State(held): Shared, Queried(query): Queried<Query>) -> Response<Body> {
    shown(files_of(&held.batches.store, &query))
}

fn files_of(store: &Store, query: &Query) -> Result<Value, HttpError> {
    let mut files = store.files();
    match query.get("order").map(String::as_str) {
        None | Some("desc") => files.reverse(),
        Some("asc") => {}
        Some(_) => return Err(HttpError::expected("order", "asc or desc")),
    }
    if let Some(purpose) = query.get("purpose") {
        files.retain(|file| file.purpose == *purpose);
    }
    let (files, has_more) = page(files, |file| &file.id, query, &FILES)?;
    Ok(listed(files.iter().map(|file| (&*file.id, file.shown())), has_more))
}

async fn file(State(held): Shared, Path(id): Path<String>) -> Response<Body> {
    shown(held.batches.store.file(&id).map(|file| file.shown()).ok_or_else(|| no("File", &id)))
}

async fn delete_file(State(held): Shared, Path(id): Path<String>) -> Response<Body> {
    let deleted = on_thread(move || match held.batches.store.delete_file(&id) {
        Ok(()) => Ok(json!({ "id": id, "object": "file", "deleted": true })),
        Err(refusal) => Err(refused(refusal, "File", &id)),
    });
    shown(deleted.await)
}

async fn file_content(
    State(held): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response<Body> {
    let content = || {
        let file = held.batches.store.file(&id).ok_or_else(|| no("File", &id))?;
        let path = held.batches.store.content(&file.id);
        content::response(path, &file.id, "application/octet-stream", &headers)
    };
    or_error("/v1/files", content())
}

async fn create(State(held): Shared, request: Request) -> Response<Body> {
    let created = async {
        let body = held.bodies.text(request.into_body()).await?;
        on_thread(move || {
            let batch = batch_of(&body.text, &held)?;
            let added = held.batches.store.add_batch(batch);
            added.map(|batch| batch.shown()).map_err(|error| upload::of_disk(&error))
        })
        .await
    };
    shown(created.await)
}

/// A batch that a body asks for.
fn batch_of(body: &str, held: &Held) -> Result<BatchRecord, HttpError> {
    let fields: Value = serde_json::from_str(body)
        .map_err(|error| HttpError::bad("bad_json", format!("the body is no JSON: {error}")))?;
    if !fields.is_object() {
        return Err(HttpError::bad("bad_json", "the body is no JSON object"));
    }
    let text = |name: &'static str| {
        let text = fields[name].as_str().map(str::to_owned);
        text.ok_or_else(|| HttpError::expected(name, "a text"))
    };
    let input_file_id = text("input_file_id")?;
    let file = held.batches.store.file(&input_file_id).ok_or_else(|| no("File", &input_file_id))?;
    if file.purpose != "batch" {
        let what = format!("a file whose purpose is batch, not {}", file.purpose);
        return Err(HttpError::expected("input_file_id", &what));
    }
    let endpoint = text("endpoint")?;
    if !held.batches.endpoints.contains(&&*endpoint) {
        let what = format!("one of {} with this model", held.batches.endpoints.join(", "));
        return Err(HttpError::expected("endpoint", &what));
    }
    let completion_window = text("completion_window")?;
    let seconds = seconds_of(&completion_window)
        .ok_or_else(|| HttpError::expected("completion_window", "hours or days, as 24h or 7d"))?;
    let mut batch = new_batch(Api::OpenAi, held.names[0].clone(), seconds);
    batch.metadata = metadata(&fields["metadata"])?;
    batch.output_expires_after = output_expires_after(&fields["output_expires_after"])?;
    Ok(BatchRecord { input_file_id, endpoint, completion_window, ..batch })
}

/// A batch of an API that begins now.
pub(super) fn new_batch(api: Api, model: String, seconds: i64) -> BatchRecord {
    let created_at = now();
    BatchRecord {
        id: Store::new_batch_id(api),
        number: 0,
        api,
        status: Status::Validating,
        endpoint: String::new(),
        model,
        input_file_id: String::new(),
        completion_window: "24h".to_owned(),
        metadata: None,
        output_expires_after: None,
        errors: Vec::new(),
        counts: Counts::default(),
        usage: Usage::default(),
        output_file_id: None,
        error_file_id: None,
        is_run: false,
        created_at,
        expires_at: created_at.saturating_add(seconds),
        in_progress_at: None,
        finalizing_at: None,
        completed_at: None,
        failed_at: None,
        expired_at: None,
        cancelling_at: None,
        cancelled_at: None,
    }
}

/// The seconds of a window.
fn seconds_of(window: &str) -> Option<i64> {
    let unit = match window.as_bytes().last()? {
        b'h' => 3600,
        b'd' => 86_400,
        _ => return None,
    };
    let number = &window[..window.len() - 1];
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: i64 = number.parse().ok().filter(|number| is_plain && *number > 0)?;
    number.checked_mul(unit).filter(|seconds| *seconds < 1 << 40)
}

fn metadata(value: &Value) -> Result<Option<BTreeMap<String, String>>, HttpError> {
    let Value::Object(pairs) = value else {
        return match value {
            Value::Null => Ok(None),
            _ => Err(HttpError::expected("metadata", "an object of texts")),
        };
    };
    let [max_name, max_value] = MAX_LETTERS;
    let fits = |text: &str, max: usize| text.chars().count() <= max;
    let pairs: Option<BTreeMap<_, _>> = pairs
        .iter()
        .map(|(name, value)| {
            let value = value.as_str().filter(|value| fits(value, max_value))?;
            fits(name, max_name).then(|| (name.clone(), value.to_owned()))
        })
        .collect();
    let what =
        format!("at most {MAX_PAIRS} pairs of texts, of up to {max_name} and {max_value} letters");
    pairs
        .filter(|pairs| pairs.len() <= MAX_PAIRS)
        .map(Some)
        .ok_or_else(|| HttpError::expected("metadata", &what))
}

fn output_expires_after(value: &Value) -> Result<Option<i64>, HttpError> {
    if value.is_null() {
        return Ok(None);
    }
    let seconds = value["seconds"].as_i64().filter(|seconds| upload::KEPT.contains(seconds));
    let is_anchored = value["anchor"] == "created_at";
    let what = format!(
        "the anchor 'created_at' and seconds from {} to {}",
        upload::KEPT.start(),
        upload::KEPT.end()
    );
    let seconds = seconds.filter(|_| is_anchored);
    seconds.map(Some).ok_or_else(|| HttpError::expected("output_expires_after", &what))
}

async fn list(State(held): Shared, Queried(query): Queried<Query>) -> Response<Body> {
    let mut batches = held.batches.store.batches(Api::OpenAi);
    batches.reverse();
    let page = page(batches, |batch| &batch.id, &query, &BATCHES);
    shown(page.map(|(batches, has_more)| {
        listed(batches.iter().map(|batch| (&*batch.id, batch.shown())), has_more)
    }))
}

async fn batch(State(held): Shared, Path(id): Path<String>) -> Response<Body> {
    let batch = held.batches.store.batch(Api::OpenAi, &id);
    shown(batch.map(|batch| batch.shown()).ok_or_else(|| no("Batch", &id)))
}

async fn cancel(State(held): Shared, Path(id): Path<String>) -> Response<Body> {
    let cancelled = on_thread(move || {
        let cancelled = held.batches.store.cancel(Api::OpenAi, &id);
        cancelled.map(|batch| batch.shown()).map_err(|refusal| refused(refusal, "Batch", &id))
    });
    shown(cancelled.await)
}

fn shown(value: Result<Value, HttpError>) -> Response<Body> {
    or_error("/v1/batches", value.map(|value| json_of(&value)))
}

/// A list of records with their ids.
fn listed<'a>(records: impl Iterator<Item = (&'a str, Value)>, has_more: bool) -> Value {
    let (ids, data): (Vec<_>, Vec<_>) = records.unzip();
    json!({
        "object": "list",
        "data": data,
        "first_id": ids.first(),
        "last_id": ids.last(),
        "has_more": has_more,
    })
}

/// There is no record of this name.
pub(super) fn no(what: &str, id: &str) -> HttpError {
    let id: String = id.chars().take(200).collect();
    HttpError::new(StatusCode::NOT_FOUND, "not_found", format!("No such {what} object: {id}"))
        .of_param("id")
}

/// What the store refused.
pub(super) fn refused(refusal: Refusal, what: &str, id: &str) -> HttpError {
    match refusal {
        Refusal::Unknown => no(what, id),
        Refusal::Conflict(message) => HttpError::new(StatusCode::CONFLICT, "conflict", message),
        Refusal::Failed(error) => upload::of_disk(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_hours_or_days() {
        assert_eq!(seconds_of("24h"), Some(86_400));
        assert_eq!(seconds_of("7d"), Some(7 * 86_400));
        for bad in ["", "h", "24", "-1h", "+1h", "0h", "1.5h", "24 h", "99999999999999999d", "é"] {
            assert_eq!(seconds_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn metadata_is_a_few_short_texts() {
        let is_ok = |value: Value| metadata(&value).is_ok();
        assert!(is_ok(json!(null)) && is_ok(json!({})) && is_ok(json!({"a": "b"})));
        assert!(!is_ok(json!({"a": 1})) && !is_ok(json!([])) && !is_ok(json!("a")));
        assert!(is_ok(json!({"é".repeat(64): "é".repeat(512)})));
        assert!(!is_ok(json!({"e".repeat(65): ""})) && !is_ok(json!({"e": "e".repeat(513)})));
        let pairs = |number: usize| {
            Value::Object((0..number).map(|i| (i.to_string(), json!(""))).collect())
        };
        assert!(is_ok(pairs(16)) && !is_ok(pairs(17)));
    }
}
