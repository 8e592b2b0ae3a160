//! Bodies of requests, within a size and a time.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt;

use crate::errors::HttpError;

/// Longest wait for more of a body.
const WAIT: Duration = Duration::from_secs(30);

/// Longest time of a whole body.
const WHOLE: Duration = Duration::from_secs(600);

/// Reads a body as text.
pub(crate) async fn text_of(body: Body, max_bytes: usize) -> Result<String, HttpError> {
    let bytes = tokio::time::timeout(WHOLE, bytes_of(body, max_bytes)).await;
    let bytes = bytes.map_err(|_| too_slow())??;
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        HttpError::bad("bad_utf8", format!("the body is not UTF-8: byte {place}"))
    })
}

async fn bytes_of(mut body: Body, max_bytes: usize) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    loop {
        let frame = tokio::time::timeout(WAIT, body.frame()).await.map_err(|_| too_slow())?;
        let Some(frame) = frame else { return Ok(bytes) };
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
        bytes.extend_from_slice(&data);
    }
}

fn too_slow() -> HttpError {
    HttpError::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come in time")
}
