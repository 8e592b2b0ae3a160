//! Bytes of a file as a response: whole, or a range of them, so that a download that broke off goes
//! on. A file does not change while it has its id, which is its strong ETag.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use futures_util::stream;

use crate::errors::HttpError;

/// Bytes that are read at a time.
const PIECE: u64 = 256 << 10;

/// Answers with a file, or with the range of it that is asked for.
pub(super) fn response(
    path: PathBuf,
    id: &str,
    kind: &'static str,
    headers: &HeaderMap,
) -> Result<Response<Body>, HttpError> {
    let gone = |error: io::Error| HttpError::of_engine("files", format!("{id}: {error}"));
    let file = File::open(path).map_err(gone)?;
    let length = file.metadata().map_err(gone)?.len();
    let tag = format!("\"{id}\"");
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::IF_NONE_MATCH).is_some_and(|known| known == tag || known == "*") {
        return Ok(with(Response::new(Body::empty()), StatusCode::NOT_MODIFIED, &tag, kind));
    }
    let is_current = text(header::IF_RANGE).is_none_or(|known| known == tag);
    let range = match text(header::RANGE).filter(|_| is_current) {
        None => Asked::Whole,
        Some(range) => asked(range, length),
    };
    let (status, range) = match range {
        Asked::Whole => (StatusCode::OK, 0..length),
        Asked::Part(first, last) => (StatusCode::PARTIAL_CONTENT, first..last + 1),
        Asked::Nothing => {
            let empty = Response::new(Body::empty());
            let mut response = with(empty, StatusCode::RANGE_NOT_SATISFIABLE, &tag, kind);
            insert(&mut response, header::CONTENT_RANGE, &format!("bytes */{length}"));
            return Ok(response);
        }
    };
    let (first, num_bytes) = (range.start, range.end - range.start);
    let mut response = with(Response::new(pieces(file, range)), status, &tag, kind);
    insert(&mut response, header::CONTENT_LENGTH, &num_bytes.to_string());
    if status == StatusCode::PARTIAL_CONTENT {
        let last = first + num_bytes - 1;
        insert(&mut response, header::CONTENT_RANGE, &format!("bytes {first}-{last}/{length}"));
    }
    Ok(response)
}

/// What a `Range` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Whole,
    /// From a byte to another, that one too.
    Part(u64, u64),
    /// There is no such byte.
    Nothing,
}

/// Several ranges at a time are answered with the whole, as HTTP allows.
fn asked(range: &str, length: u64) -> Asked {
    let Ok(parsed) = http_range_header::parse_range_header(range) else { return Asked::Whole };
    if parsed.ranges.len() != 1 {
        return Asked::Whole;
    }
    if length == 0 {
        return Asked::Nothing;
    }
    match parsed.validate(length).as_deref() {
        Ok([range]) => Asked::Part(*range.start(), *range.end()),
        _ => Asked::Nothing,
    }
}

/// A body that is read as fast as it is taken.
fn pieces(file: File, range: std::ops::Range<u64>) -> Body {
    let file = Arc::new(file);
    Body::from_stream(stream::try_unfold(range, move |range| {
        let file = Arc::clone(&file);
        async move {
            if range.is_empty() {
                return Ok(None);
            }
            let end = range.end.min(range.start + PIECE);
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; (end - range.start) as usize];
                file.read_exact_at(&mut piece, range.start).map(|()| piece)
            });
            let piece = read.await.map_err(io::Error::other)??;
            Ok::<_, io::Error>(Some((Bytes::from(piece), end..range.end)))
        }
    }))
}

fn with(
    mut response: Response<Body>,
    status: StatusCode,
    tag: &str,
    kind: &'static str,
) -> Response<Body> {
    *response.status_mut() = status;
    insert(&mut response, header::ETAG, tag);
    insert(&mut response, header::CONTENT_TYPE, kind);
    insert(&mut response, header::ACCEPT_RANGES, "bytes");
    response
}

fn insert(response: &mut Response<Body>, name: HeaderName, value: &str) {
    response.headers_mut().insert(name, HeaderValue::from_str(value).expect("it is plain"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_a_part_and_others_are_the_whole() {
        for (range, expected) in [
            ("bytes=0-", Asked::Part(0, 9)),
            ("bytes=3-5", Asked::Part(3, 5)),
            ("bytes=-4", Asked::Part(6, 9)),
            ("bytes=9-", Asked::Part(9, 9)),
            ("bytes=10-", Asked::Nothing),
            ("bytes=5-3", Asked::Nothing),
            ("bytes=0-1,3-4", Asked::Whole),
            ("lines=0-1", Asked::Whole),
            ("", Asked::Whole),
        ] {
            assert_eq!(asked(range, 10), expected, "{range}");
        }
        assert_eq!(asked("bytes=0-", 0), Asked::Nothing);
    }
}
