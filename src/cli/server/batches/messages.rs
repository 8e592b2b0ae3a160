//! Endpoints of Anthropic's batches of messages.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path as FilePath;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query as Queried, Request, State};
use axum::http::{HeaderMap, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::content;
use super::lists::{PageForm, Query, page};
use super::record::{Api, BatchRecord, Counts, Status};
use super::routes::{Answered, Held, Shared, new_batch, no, refused};
use super::upload::of_disk;
use super::worker::OUTPUT;
use crate::errors::HttpError;
use crate::routes::{json_of, on_thread, or_error};
use vllm_batch_base::run_date::RunDate;
use vllm_batch_dataset::input::custom_ids::CustomIds;

const PATH: &str = "/v1/messages/batches";

/// What a batch's name is that of.
const KIND: &str = "message batch";

const BATCHES: PageForm =
    PageForm { after: "after_id", before: Some("before_id"), max_limit: 1000, default_limit: 20 };

/// Requests of a batch.
const MAX_REQUESTS: usize = 100_000;

/// Seconds until a batch's time is over.
const WINDOW: i64 = 86_400;

/// The endpoints.
pub(crate) fn router(held: Arc<Held>) -> Router {
    Router::new()
        .route("/v1/messages/batches", post(create).get(list))
        .route("/v1/messages/batches/{id}", get(batch).delete(delete))
        .route("/v1/messages/batches/{id}/cancel", post(cancel))
        .route("/v1/messages/batches/{id}/results", get(results))
        .with_state(held)
}

#[derive(Deserialize)]
struct Create<'a> {
    #[serde(borrow)]
    requests: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    custom_id: String,
    #[serde(borrow)]
    params: &'a RawValue,
}

async fn create(State(held): Shared, request: Request) -> Response<Body> {
    let created = async {
        let body = held.bodies.text(request.into_body()).await?;
        on_thread(move || created(&body.text, &held)).await
    };
    shown(created.await)
}

fn created(body: &str, held: &Held) -> Result<BatchRecord, HttpError> {
    let Create { requests } = serde_json::from_str(body)
        .map_err(|error| HttpError::bad("bad_json", format!("the body is no batch: {error}")))?;
    if requests.is_empty() || requests.len() > MAX_REQUESTS {
        return Err(HttpError::expected("requests", &format!("1 to {MAX_REQUESTS} requests")));
    }
    let mut ids = CustomIds::default();
    for (place, item) in requests.iter().enumerate() {
        if !item.params.get().starts_with('{') {
            return Err(HttpError::expected("params", &format!("an object in requests.{place}")));
        }
        if let Err(first) = ids.insert(&item.custom_id, place as u64) {
            let what = format!("another one in requests.{place}: it is that of requests.{first}");
            return Err(HttpError::expected("custom_id", &what));
        }
    }
    let mut batch = new_batch(Api::Anthropic, held.names[0].clone(), WINDOW);
    batch.endpoint = "/v1/messages".to_owned();
    batch.counts.total = requests.len() as u64;
    let folder = held.batches.store.work_folder(&batch.id);
    let written = write_lines(&folder, &requests);
    let added = written.and_then(|()| held.batches.store.add_batch(batch));
    added.map_err(|error| {
        let _ = fs::remove_dir_all(&folder);
        of_disk(&error)
    })
}

/// The requests as lines of a file, in the folder of their batch.
fn write_lines(folder: &FilePath, requests: &[Item<'_>]) -> io::Result<()> {
    fs::create_dir(folder)?;
    let mut lines = BufWriter::new(File::create(folder.join("requests.jsonl"))?);
    for Item { custom_id, params } in requests {
        let params = params.get();
        let on_one_line = match params.contains(['\n', '\r']) {
            true => serde_json::from_str::<Value>(params)?.to_string(),
            false => params.to_owned(),
        };
        let custom_id = serde_json::to_string(custom_id)?;
        writeln!(lines, "{{\"custom_id\":{custom_id},\"params\":{on_one_line}}}")?;
    }
    lines.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    File::open(folder)?.sync_all()
}

async fn list(State(held): Shared, Queried(query): Queried<Query>) -> Response<Body> {
    let mut batches = held.batches.store.batches(Api::Anthropic);
    batches.reverse();
    let listed = page(batches, |batch| &batch.id, &query, &BATCHES).map(|(batches, has_more)| {
        json_of(&json!({
            "data": batches.iter().map(of_anthropic).collect::<Vec<_>>(),
            "has_more": has_more,
            "first_id": batches.first().map(|batch| &batch.id),
            "last_id": batches.last().map(|batch| &batch.id),
        }))
    });
    or_error(PATH, listed)
}

async fn batch(State(held): Shared, Path(id): Path<String>) -> Response<Body> {
    shown(held.batches.store.batch(Api::Anthropic, &id).ok_or_else(|| no(KIND, &id)))
}

async fn cancel(State(held): Shared, Path(id): Path<String>) -> Response<Body> {
    let cancelled = on_thread(move || {
        held.batches
            .store
            .cancel(Api::Anthropic, &id)
            .map_err(|refusal| refused(refusal, KIND, &id))
    });
    shown(cancelled.await)
}

async fn delete(State(held): Shared, Path(id): Path<String>) -> Response<Body> {
    let deleted = on_thread(move || match held.batches.store.delete_batch(Api::Anthropic, &id) {
        Ok(()) => Ok(json_of(&json!({ "id": id, "type": "message_batch_deleted" }))),
        Err(refusal) => Err(refused(refusal, KIND, &id)),
    });
    or_error(PATH, deleted.await)
}

async fn results(
    State(held): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response<Body> {
    or_error(PATH, results_of(&held, &id, &headers))
}

fn results_of(held: &Held, id: &str, headers: &HeaderMap) -> Answered {
    let batch = held.batches.store.batch(Api::Anthropic, id).ok_or_else(|| no(KIND, id))?;
    if !has_results(&batch) {
        let message = format!("the batch has no results: it is {}", batch.status.name());
        return Err(HttpError::bad("no_results", message));
    }
    let path = held.batches.store.work_folder(&batch.id).join(format!("{OUTPUT}.jsonl"));
    content::response(path, &batch.id, "application/x-jsonl", headers)
}

fn has_results(batch: &BatchRecord) -> bool {
    batch.is_run && batch.status.has_ended()
}

fn shown(batch: Result<BatchRecord, HttpError>) -> Response<Body> {
    or_error(PATH, batch.map(|batch| json_of(&of_anthropic(&batch))))
}

/// As Anthropic's `message_batch`: until it has ended, all of its requests are being processed.
fn of_anthropic(batch: &BatchRecord) -> Value {
    let at = |seconds: Option<i64>| {
        seconds.map(|seconds| RunDate::from_unix(seconds).strftime("%Y-%m-%dT%H:%M:%SZ"))
    };
    let Counts { total, completed, failed, cancelled, expired } = batch.counts;
    let has_ended = batch.status.has_ended();
    let counts = match (has_ended, batch.status) {
        (false, _) => [total, 0, 0, 0, 0],
        (true, Status::Failed) => [0, 0, total, 0, 0],
        // It was cancelled before it began.
        (true, Status::Cancelled) if !batch.is_run => [0, 0, 0, total, 0],
        (true, _) => [0, completed, failed, cancelled, expired],
    };
    let [processing, succeeded, errored, canceled, expired] = counts;
    let status = match batch.status {
        Status::Cancelling => "canceling",
        _ if has_ended => "ended",
        _ => "in_progress",
    };
    json!({
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": processing,
            "succeeded": succeeded,
            "errored": errored,
            "canceled": canceled,
            "expired": expired,
        },
        "created_at": at(Some(batch.created_at)),
        "expires_at": at(Some(batch.expires_at)),
        "ended_at": at(batch.ended_at()),
        "cancel_initiated_at": at(batch.cancelling_at),
        "archived_at": null,
        "results_url": has_results(batch).then(|| format!("{PATH}/{}/results", batch.id)),
    })
}
