//! Forms of OpenAI's audio endpoints: a file and fields become the body that a line of the batch
//! API has, with the file as a `data:` URI.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use futures_util::stream;
use multer::{Constraints, Multipart, SizeLimit};
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::body::{Bodies, Bytes, Text};
use crate::errors::HttpError;
use crate::request::Endpoint;
use crate::routes::{self, App};
use vllm_batch_dataset::input::base64;

/// Bytes of a field that is not the file: a text before a transcript is the longest.
const MAX_FIELD: u64 = 64 << 10;

/// Fields whose values are text, whatever they look like.
const TEXTS: [&str; 6] =
    ["file_url", "language", "model", "prompt", "response_format", "to_language"];

/// Answers a request for what is said in a recording.
pub(crate) async fn answer(
    app: Arc<App>,
    url: &'static str,
    request: Request<Body>,
) -> Result<Response<Body>, HttpError> {
    let asking = routes::asking(&request)?;
    let (head, body) = request.into_parts();
    // What is large takes its time to write again.
    let (text, is_plain, large) = match is_form(&head.headers) {
        true => {
            let (form, large) = Form::read(&app.bodies, &head.headers, body).await?;
            let (text, is_plain) = routes::on_thread(move || Ok(form.into_text())).await?;
            (text, is_plain, large)
        }
        false => {
            let Text { text, large } = app.bodies.text(body).await?;
            let (text, is_plain) = routes::on_thread(move || Ok(without_plain(text))).await?;
            (text, is_plain, large)
        }
    };
    let text = Text { text, large };
    let response = routes::answer_body(app, Endpoint::Other(url), asking, text).await?;
    match is_plain && response.status() == StatusCode::OK {
        true => plain(response).await,
        false => Ok(response),
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"multipart/form-data"))
}

/// A form that was read, with a file or where one is.
struct Form {
    file: Option<Vec<u8>>,
    fields: Map<String, Value>,
}

impl Form {
    /// Reads a form.
    async fn read(
        bodies: &Bodies,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Self, Option<OwnedSemaphorePermit>), HttpError> {
        let unread = |error: multer::Error| {
            HttpError::bad("bad_body", format!("the form cannot be read: {error}"))
        };
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(unread)?;
        let Bytes { bytes, large } = bodies.bytes(body).await?;
        let limits = SizeLimit::new().per_field(MAX_FIELD).for_field("file", u64::MAX);
        let constraints = Constraints::new().size_limit(limits);
        let bytes = stream::iter([Ok::<_, std::io::Error>(bytes)]);
        let mut parts = Multipart::with_constraints(bytes, boundary, constraints);
        let (mut file, mut fields) = (None, Map::new());
        while let Some(field) = parts.next_field().await.map_err(unread)? {
            let name = field.name().unwrap_or_default().to_owned();
            if name == "file" {
                file = Some(field.bytes().await.map_err(unread)?.to_vec());
            } else {
                add(&mut fields, &name, field.text().await.map_err(unread)?);
            }
        }
        if file.is_none() && !fields.contains_key("file_url") {
            return Err(HttpError::expected("file", "a recording"));
        }
        Ok((Self { file, fields }, large))
    }

    /// The body that a line has, and whether the text alone is asked for.
    fn into_text(mut self) -> (String, bool) {
        if let Some(file) = self.file {
            // The bytes say what they are.
            let uri = format!("data:audio/wav;base64,{}", base64::encode(&file));
            self.fields.insert("file_url".to_owned(), uri.into());
        }
        let is_plain = take_plain(&mut self.fields);
        (Value::Object(self.fields).to_string(), is_plain)
    }
}

/// Adds a field of a form. A name with brackets is that of a list.
fn add(fields: &mut Map<String, Value>, name: &str, text: String) {
    if let Some(name) = name.strip_suffix("[]") {
        let list = fields.entry(name).or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.push(text.into());
        }
        return;
    }
    let value = match TEXTS.contains(&name) {
        true => text.into(),
        false => serde_json::from_str(&text).unwrap_or_else(|_| text.into()),
    };
    fields.insert(name.to_owned(), value);
}

/// The body, and whether it asks for the text alone.
fn without_plain(text: String) -> (String, bool) {
    if !text.contains("response_format") {
        return (text, false);
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_str(&text) else { return (text, false) };
    match take_plain(&mut fields) {
        true => (Value::Object(fields).to_string(), true),
        false => (text, false),
    }
}

/// Has JSON asked for where it is the text alone, which no line of a batch asks for.
fn take_plain(fields: &mut Map<String, Value>) -> bool {
    let is_plain = fields.get("response_format").is_some_and(|format| format == "text");
    if is_plain {
        fields.insert("response_format".to_owned(), "json".into());
    }
    is_plain
}

/// The text of an answer.
async fn plain(response: Response<Body>) -> Result<Response<Body>, HttpError> {
    let (mut head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.map_err(|_| HttpError::dead())?;
    let answer: Value = serde_json::from_slice(&body).map_err(|_| HttpError::dead())?;
    let text = answer["text"].as_str().unwrap_or_default().to_owned() + "\n";
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    head.headers.insert(header::CONTENT_TYPE, kind);
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::from(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Value, HttpError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let kind = HeaderValue::from_static("multipart/form-data; boundary=b");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]);
        assert!(is_form(&headers));
        let body = Body::from(body.replace('\n', "\r\n"));
        let (form, _) = runtime.block_on(Form::read(&Bodies::new(1 << 20), &headers, body))?;
        Ok(serde_json::from_str(&form.into_text().0).unwrap())
    }

    fn part(name: &str, more: &str, value: &str) -> String {
        format!("--b\nContent-Disposition: form-data; name=\"{name}\"{more}\n\n{value}\n")
    }

    #[test]
    fn a_form_is_the_body_of_a_line() {
        let file = part("file", "; filename=\"a.wav\"\nContent-Type: audio/wav", "RIFF");
        let fields = [
            ("model", "7"),
            ("temperature", "0.5"),
            ("stream", "false"),
            ("timestamp_granularities[]", "segment"),
            ("timestamp_granularities[]", "word"),
            ("other", "{a"),
        ];
        let fields = fields.map(|(name, value)| part(name, "", value)).concat();
        assert_eq!(
            read(&format!("{file}{fields}--b--\n")).unwrap(),
            json!({
                "file_url": "data:audio/wav;base64,UklGRg==", "model": "7", "temperature": 0.5,
                "stream": false, "timestamp_granularities": ["segment", "word"], "other": "{a",
            })
        );
        assert_eq!(read(&format!("{fields}--b--\n")).unwrap_err().param, Some("file"));
        assert_eq!(read("--b\n").unwrap_err().code, "bad_body");
        let long = part("prompt", "", &"a".repeat(MAX_FIELD as usize + 1));
        assert_eq!(read(&format!("{file}{long}--b--\n")).unwrap_err().code, "bad_body");
    }

    #[test]
    fn text_alone_is_asked_for_as_json() {
        let (body, is_plain) = without_plain(r#"{"response_format":"text"}"#.to_owned());
        assert!(is_plain && body == r#"{"response_format":"json"}"#, "{body}");
        for body in [r#"{"response_format":"json"}"#, "{}", "[", "7"] {
            assert_eq!(without_plain(body.to_owned()), (body.to_owned(), false));
        }
    }
}
