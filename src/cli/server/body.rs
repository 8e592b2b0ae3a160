//! Bodies of requests, within a size and a time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::HttpError;

/// Longest wait for more of a body.
const WAIT: Duration = Duration::from_secs(30);

/// Longest time of a whole body.
const WHOLE: Duration = Duration::from_secs(600);

/// Bytes beyond which a body is a large one.
const LARGE: usize = 8 << 20;

/// Large bodies that are read at a time: JSON in memory is ten times its text.
const MAX_LARGE: usize = 4;

/// Reads bodies: large ones a few at a time, so that many take no more memory.
pub(crate) struct Bodies {
    max_bytes: usize,
    large: Arc<Semaphore>,
}

/// A body as text. Where it is a large one, others wait until it is dropped.
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) large: Option<OwnedSemaphorePermit>,
}

/// The same as bytes.
pub(crate) struct Bytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) large: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// `max_bytes`: of one.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, large: Arc::new(Semaphore::new(MAX_LARGE)) }
    }

    /// Reads a body.
    pub(crate) async fn bytes(&self, body: Body) -> Result<Bytes, HttpError> {
        let bytes = tokio::time::timeout(WHOLE, bytes_of(body, self)).await;
        let (bytes, large) = bytes.map_err(|_| too_slow("body"))??;
        Ok(Bytes { bytes, large })
    }

    /// Reads a body as text.
    pub(crate) async fn text(&self, body: Body) -> Result<Text, HttpError> {
        let Bytes { bytes, large } = self.bytes(body).await?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let place = error.utf8_error().valid_up_to();
            HttpError::bad("bad_utf8", format!("the body is not UTF-8: byte {place}"))
        })?;
        Ok(Text { text, large })
    }
}

async fn bytes_of(
    mut body: Body,
    bodies: &Bodies,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), HttpError> {
    let (mut bytes, mut large, max_bytes) = (Vec::new(), None, bodies.max_bytes);
    loop {
        let frame = in_time("body", body.frame()).await?;
        let Some(frame) = frame else { return Ok((bytes, large)) };
        let frame = frame.map_err(|error| {
            HttpError::bad("bad_body", format!("the body cannot be read: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > max_bytes {
            let message = format!(
                "the body has more than {max_bytes} bytes; --max-body-bytes of the server says how many it may"
            );
            return Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        if bytes.len() + data.len() > LARGE && large.is_none() {
            let permit = Arc::clone(&bodies.large).acquire_owned().await;
            large = Some(permit.expect("nobody closes it"));
        }
        bytes.extend_from_slice(&data);
    }
}

/// The next of what comes of a body, in time. `what`: its name for people.
pub(crate) async fn in_time<T>(what: &str, next: impl Future<Output = T>) -> Result<T, HttpError> {
    tokio::time::timeout(WAIT, next).await.map_err(|_| too_slow(what))
}

fn too_slow(what: &str) -> HttpError {
    let message = format!("the {what} did not come in time");
    HttpError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_are_read_a_few_at_a_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let bodies = Bodies::new(2 * LARGE);
            let text = |length: usize| bodies.text(Body::from(vec![b'a'; length]));
            let mut held = Vec::new();
            for _ in 0..MAX_LARGE {
                held.push(text(LARGE + 1).await.ok().unwrap());
            }
            let mut next = std::pin::pin!(text(LARGE + 1));
            let waits = tokio::time::timeout(Duration::from_millis(20), &mut next).await;
            assert!(waits.is_err(), "it waits for one of the others");
            assert!(text(LARGE).await.is_ok(), "small ones do not");
            held.pop();
            assert_eq!(next.await.ok().unwrap().text.len(), LARGE + 1);
            let error = text(2 * LARGE + 1).await.err().unwrap();
            assert_eq!(error.code, "body_too_large");
        });
    }
}
