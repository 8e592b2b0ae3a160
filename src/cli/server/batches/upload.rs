//! A file that is sent as a form: to the disk as it comes, and a file only when its last byte is
//! durable there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode, header};
use multer::{Constraints, Field, Multipart, SizeLimit};

use super::record::FileRecord;
use super::store::Store;
use crate::body;
use crate::errors::HttpError;

/// Bytes of a field that is not the file.
const MAX_FIELD: u64 = 4096;

/// Letters of a name that are kept.
const MAX_NAME: usize = 255;

/// What files may be for, as OpenAI's API has it.
const PURPOSES: [&str; 6] = ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"];

/// Seconds that a file may be kept, if it says so.
pub(super) const KEPT: std::ops::RangeInclusive<i64> = 3600..=2_592_000;

/// A place of a file that is not there to its end: removed with this, unless it became a file.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What a form says beside its file.
#[derive(Default)]
struct Form {
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
    filename: Option<String>,
}

/// Takes a file.
pub(super) async fn take(
    store: &Arc<Store>,
    request: Request<Body>,
    max_bytes: u64,
) -> Result<FileRecord, HttpError> {
    let mut parts = parts(request)?;
    let (id, path) = store.begin_file();
    let unfinished = Unfinished(path.clone());
    let mut form = Form::default();
    while let Some(mut field) = timely(parts.next_field()).await? {
        match field.name().unwrap_or_default() {
            "file" if form.filename.is_some() => {
                return Err(HttpError::expected("file", "one file"));
            }
            "file" => {
                let name = field.file_name().unwrap_or("upload");
                form.filename = Some(name.chars().take(MAX_NAME).collect());
                written(&mut field, path.clone(), max_bytes).await?;
            }
            "purpose" => form.purpose = Some(text(field).await?),
            "expires_after[anchor]" => form.anchor = Some(text(field).await?),
            "expires_after[seconds]" => form.seconds = Some(text(field).await?),
            // As of other requests, what is not known is passed over.
            _ => drop(text(field).await?),
        }
    }
    let filename = form.filename.take().ok_or_else(|| HttpError::expected("file", "a file"))?;
    let expires_after = form.expires_after()?;
    let purpose = form.purpose.filter(|purpose| PURPOSES.contains(&&**purpose));
    let purpose = purpose.ok_or_else(|| {
        HttpError::expected("purpose", &format!("one of {}", PURPOSES.join(", ")))
    })?;
    let store = Arc::clone(store);
    let finished = tokio::task::spawn_blocking(move || {
        store.finish_file((&id, &unfinished.0), (filename, purpose), expires_after)
    });
    finished.await.map_err(|_| HttpError::dead())?.map_err(|error| of_disk(&error))
}

impl Form {
    fn expires_after(&self) -> Result<Option<i64>, HttpError> {
        if self.anchor.as_deref().is_some_and(|anchor| anchor != "created_at") {
            return Err(HttpError::expected("expires_after", "the anchor 'created_at'"));
        }
        let Some(seconds) = &self.seconds else {
            return match self.anchor {
                None => Ok(None),
                Some(_) => Err(HttpError::expected("expires_after", "seconds with the anchor")),
            };
        };
        let seconds = seconds.parse().ok().filter(|seconds| KEPT.contains(seconds));
        let what = format!("seconds from {} to {}", KEPT.start(), KEPT.end());
        seconds.map(Some).ok_or_else(|| HttpError::expected("expires_after", &what))
    }
}

fn parts(request: Request<Body>) -> Result<Multipart<'static>, HttpError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|_| {
        let message = "expected a form: Content-Type multipart/form-data with its boundary";
        HttpError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    })?;
    let limits = SizeLimit::new().per_field(MAX_FIELD).for_field("file", u64::MAX);
    let limits = Constraints::new().size_limit(limits);
    let stream = request.into_body().into_data_stream();
    Ok(Multipart::with_constraints(stream, boundary, limits))
}

/// What comes of a form, in time.
async fn timely<T>(part: impl Future<Output = multer::Result<T>>) -> Result<T, HttpError> {
    let part = body::in_time("form", part).await?;
    part.map_err(|error| HttpError::bad("bad_body", format!("the form cannot be read: {error}")))
}

async fn text(field: Field<'static>) -> Result<String, HttpError> {
    timely(field.text()).await
}

/// Writes a file as it comes, and makes it durable.
async fn written(
    field: &mut Field<'static>,
    path: PathBuf,
    max_bytes: u64,
) -> Result<(), HttpError> {
    let mut file = on_disk(move || File::create_new(path)).await?;
    let mut num_bytes = 0;
    while let Some(bytes) = timely(field.chunk()).await? {
        num_bytes += bytes.len() as u64;
        if num_bytes > max_bytes {
            let message = format!(
                "the file has more than {max_bytes} bytes; --max-file-bytes of the server says how many it may"
            );
            return Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "file_too_large", message));
        }
        file = on_disk(move || append(file, &bytes)).await?;
    }
    on_disk(move || file.sync_all()).await
}

fn append(mut file: File, bytes: &Bytes) -> io::Result<File> {
    file.write_all(bytes)?;
    Ok(file)
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, HttpError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| HttpError::dead())?;
    done.map_err(|error| of_disk(&error))
}

/// The folder does not take it.
pub(super) fn of_disk(error: &io::Error) -> HttpError {
    let status = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            StatusCode::INSUFFICIENT_STORAGE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    HttpError::new(status, "files", format!("the server cannot write to its folder: {error}"))
}
