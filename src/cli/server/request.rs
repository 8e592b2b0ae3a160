//! `Request`: a body as lines of a batch API, and what of it is the server's own to do: the
//! stream, the seed, several prompts.

use axum::http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::errors::HttpError;
use crate::guard;
use vllm_batch_dataset::input::fields::{JsonFields, json_string};
use vllm_batch_dataset::input::row::RequestApi;
use vllm_batch_dataset::output::openai_chunks::StreamOptions;

/// Prompts of one request, as in vLLM.
const MAX_PROMPTS: usize = 1024;

/// Seeds of our own: JavaScript reads such integers as they are.
const SEED_BITS: u32 = 53;

/// An endpoint whose requests become rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Responses,
    /// Of OpenAI's API, by its path in batch lines.
    Other(&'static str),
    Messages,
}

impl Endpoint {
    /// The path that lines of the batch API have.
    fn url(self) -> &'static str {
        match self {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
            Endpoint::Responses => "/v1/responses",
            Endpoint::Other(url) => url,
            Endpoint::Messages => "/v1/messages",
        }
    }

    /// The API that it is of.
    pub(crate) fn api(self) -> RequestApi {
        match self {
            Endpoint::Messages => RequestApi::Anthropic,
            _ => RequestApi::OpenAi,
        }
    }

    /// Whether it answers in pieces. The rows of others refuse `stream` by name.
    fn has_pieces(self) -> bool {
        !matches!(self, Endpoint::Other(_))
    }

    /// Whether a request's head may say its priority, as in vLLM.
    fn has_priority(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Completions | Endpoint::Responses)
    }

    /// Whether its requests have seeds.
    fn has_seed(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Completions)
    }
}

/// A request that was looked at.
#[derive(Debug)]
pub(crate) struct Request {
    /// A line for each prompt.
    pub(crate) lines: Vec<String>,
    /// The answer is asked for in pieces.
    pub(crate) stream: Option<StreamOptions>,
    /// What its random numbers are made of: the request's own, or ours.
    pub(crate) seed: Option<i64>,
}

impl Request {
    /// Looks at a body. `names`: those of the model; `priority`: that of the request's head.
    pub(crate) fn read(
        endpoint: Endpoint,
        body: String,
        names: &[String],
        (custom_id, priority): (&str, Option<i64>),
    ) -> Result<Self, HttpError> {
        let mut fields = fields_of(body)?;
        check_model(&fields, names)?;
        if let Some(priority) = priority.filter(|_| endpoint.has_priority()) {
            let is_its = |name: &str| name == "priority";
            fields = fields_of(body_with(&fields, is_its, &[("priority", priority.to_string())]))?;
        }
        if !endpoint.has_pieces() {
            let lines = vec![line(endpoint, custom_id, fields.text())];
            return Ok(Self { lines, stream: None, seed: None });
        }
        let stream = stream_options(&fields)?;
        let prompts = match endpoint {
            Endpoint::Completions => prompts(&fields)?,
            _ => None,
        };
        if let (Some(why), true) = (why_whole(&fields, prompts.is_some()), stream.is_some()) {
            let message = format!("stream: not supported with {why}");
            return Err(HttpError::bad("unsupported_field", message).of_param("stream"));
        }
        let seed = endpoint.has_seed().then(|| seed(&fields)).flatten();
        let lines = match prompts {
            None => vec![body_of(&fields, None, seed)],
            Some(prompts) => prompts
                .iter()
                .enumerate()
                // Equal prompts of one request have answers of their own.
                .map(|(at, prompt)| {
                    let seed = seed.map(|seed| seed.wrapping_add(at as i64));
                    body_of(&fields, Some(prompt), seed)
                })
                .collect(),
        };
        let lines = lines.iter().map(|body| line(endpoint, custom_id, body)).collect();
        Ok(Self { lines, stream, seed })
    }
}

/// `X-Vllm-Priority`, which is over the body's `priority`.
pub(crate) fn priority_of(headers: &HeaderMap) -> Result<Option<i64>, HttpError> {
    let Some(value) = headers.get("x-vllm-priority") else { return Ok(None) };
    let priority = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    let wrong = || {
        let message = "X-Vllm-Priority: expected an integer";
        HttpError::bad("invalid_parameter", message).of_param("priority")
    };
    priority.map(Some).ok_or_else(wrong)
}

fn fields_of(body: String) -> Result<JsonFields, HttpError> {
    JsonFields::parse(body, 1).map_err(|bad| HttpError::bad(bad.1.code, bad.1.message.clone()))
}

/// A name that nobody has is never the model in silence.
fn check_model(fields: &JsonFields, names: &[String]) -> Result<(), HttpError> {
    let name = fields.get("model").map(|json| serde_json::from_str(json).unwrap_or_default());
    check_name(&name.unwrap_or_default(), names)
}

/// The same of the value of a request's `model`.
pub(crate) fn check_name(name: &Value, names: &[String]) -> Result<(), HttpError> {
    match name {
        Value::Null => Ok(()),
        Value::String(name) if names.contains(name) => Ok(()),
        Value::String(name) => Err(no_model(name)),
        _ => Err(HttpError::expected("model", "a name")),
    }
}

/// In vLLM's words.
pub(crate) fn no_model(name: &str) -> HttpError {
    let name: String = name.chars().take(200).collect();
    let message = format!("The model `{name}` does not exist.");
    HttpError::new(StatusCode::NOT_FOUND, "model_not_found", message).of_param("model")
}

fn stream_options(fields: &JsonFields) -> Result<Option<StreamOptions>, HttpError> {
    let streams = match fields.get("stream") {
        None | Some("null" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(HttpError::expected("stream", "true or false")),
    };
    let options: Value = match fields.get("stream_options") {
        None => Value::Null,
        Some(json) => serde_json::from_str(json).unwrap_or(Value::Bool(false)),
    };
    let flag = |name: &str| match options.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => value
            .as_bool()
            .ok_or_else(|| HttpError::expected("stream_options", "an object with true or false")),
    };
    match options {
        Value::Null | Value::Object(_) if !streams => Ok(None),
        Value::Null => Ok(Some(StreamOptions::default())),
        Value::Object(_) => Ok(Some(StreamOptions {
            include_usage: flag("include_usage")?,
            continuous_usage_stats: flag("continuous_usage_stats")?,
        })),
        _ => Err(HttpError::expected("stream_options", "an object")),
    }
}

/// The prompts of a list of several; None: there is one, or what is there is wrong.
fn prompts(fields: &JsonFields) -> Result<Option<Vec<Value>>, HttpError> {
    let Some(json) = fields.get("prompt").filter(|json| json.starts_with('[')) else {
        return Ok(None);
    };
    let Ok(Value::Array(items)) = serde_json::from_str(json) else { return Ok(None) };
    if items.len() > MAX_PROMPTS && !items[0].is_number() {
        let message = format!("prompt: a list of more than {MAX_PROMPTS} prompts");
        return Err(HttpError::bad("several_prompts", message).of_param("prompt"));
    }
    let are_prompts = items.iter().all(|item| item.is_string() || item.is_array());
    Ok(Some(items).filter(|items| items.len() > 1 && are_prompts))
}

/// What pieces of an answer cannot show.
fn why_whole(fields: &JsonFields, has_several_prompts: bool) -> Option<&'static str> {
    if has_several_prompts {
        return Some("several prompts: ask for each alone");
    }
    let is_asked = |name: &str| !matches!(fields.get(name), None | Some("null" | "false"));
    ["echo", "prompt_logprobs"].into_iter().find(|name| is_asked(name))
}

/// Whether media of other hosts may be in a line: none is where this says no, however its letters
/// are written.
pub(crate) fn may_fetch(line: &str) -> bool {
    let has_url = || line.contains("://") || line.contains("\\/");
    let has_media = || MEDIA_WORDS.iter().any(|word| line.contains(word));
    line.contains("\\u00") || (has_media() && has_url())
}

/// Each part of a medium has one of them in its type or a key.
const MEDIA_WORDS: [&str; 4] = ["image", "audio", "document", "file"];

/// The seed; None: it is wrong, which the row says.
fn seed(fields: &JsonFields) -> Option<i64> {
    match fields.get("seed") {
        None | Some("null") => Some((guard::random() >> (u64::BITS - SEED_BITS)) as i64),
        Some(json) => json.parse().ok(),
    }
}

/// The body of a line: without what is the server's, with this prompt and this seed.
fn body_of(fields: &JsonFields, prompt: Option<&Value>, seed: Option<i64>) -> String {
    let is_ours = |name: &str| {
        matches!(name, "stream" | "stream_options")
            || name == "seed" && seed.is_some()
            || name == "prompt" && prompt.is_some()
    };
    let prompt = prompt.map(|prompt| ("prompt", prompt.to_string()));
    let seed = seed.map(|seed| ("seed", seed.to_string()));
    let ours: Vec<_> = prompt.into_iter().chain(seed).collect();
    body_with(fields, is_ours, &ours)
}

/// An object without some fields, and with these at its end.
fn body_with(
    fields: &JsonFields,
    is_left_out: impl Fn(&str) -> bool,
    more: &[(&str, String)],
) -> String {
    let kept = fields.iter().filter(|field| !is_left_out(&field.name));
    let kept = kept.map(|field| format!("{}:{}", field.raw_name, field.value));
    let more = more.iter().map(|(name, value)| format!("{}:{value}", json_string(name)));
    format!("{{{}}}", kept.chain(more).collect::<Vec<_>>().join(","))
}

/// A line of the endpoint's batch API.
pub(crate) fn line(endpoint: Endpoint, custom_id: &str, body: &str) -> String {
    let id = json_string(custom_id);
    match endpoint.api() {
        RequestApi::Anthropic => format!("{{\"custom_id\":{id},\"params\":{body}}}"),
        RequestApi::OpenAi => {
            let url = json_string(endpoint.url());
            format!("{{\"custom_id\":{id},\"method\":\"POST\",\"url\":{url},\"body\":{body}}}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(endpoint: Endpoint, body: &str) -> Result<Request, HttpError> {
        Request::read(endpoint, body.to_owned(), &["m".to_owned()], ("r", None))
    }

    #[test]
    fn a_body_is_a_line_without_what_is_the_servers() {
        let body = r#"{"model":"m","prompt":"a","stream":true,"seed":7,"stop":[ "x" ]}"#;
        let request = read(Endpoint::Completions, body).unwrap();
        assert_eq!(
            request.lines,
            [
                r#"{"custom_id":"r","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"a","stop":[ "x" ],"seed":7}}"#
            ]
        );
        assert_eq!((request.seed, request.stream), (Some(7), Some(StreamOptions::default())));
        let request = read(Endpoint::Messages, r#"{"stream":true,"system":"s"}"#).unwrap();
        assert_eq!(request.lines, [r#"{"custom_id":"r","params":{"system":"s"}}"#]);
        assert!(request.stream.is_some() && request.seed.is_none());
        let request = read(Endpoint::Responses, r#"{"stream":true,"input":"a"}"#).unwrap();
        assert!(request.lines[0].ends_with(r#""body":{"input":"a"}}"#), "{request:?}");
        assert!(request.stream.is_some() && request.seed.is_none());
        let request = read(Endpoint::Other("/v1/embeddings"), r#"{"stream":true}"#).unwrap();
        assert!(request.lines[0].ends_with(r#""body":{"stream":true}}"#), "{request:?}");
    }

    #[test]
    fn the_priority_of_a_head_is_over_that_of_a_body() {
        let read = |endpoint, body: &str| {
            let asked = ("r", Some(-3));
            Request::read(endpoint, body.to_owned(), &["m".to_owned()], asked).unwrap().lines
        };
        let lines = read(Endpoint::Responses, r#"{"priority":1,"input":"a"}"#);
        assert!(lines[0].ends_with(r#""body":{"input":"a","priority":-3}}"#), "{lines:?}");
        let lines = read(Endpoint::Completions, r#"{"prompt":["a","b"],"seed":1}"#);
        assert!(lines.iter().all(|line| line.contains(r#""priority":-3"#)), "{lines:?}");
        let lines = read(Endpoint::Messages, r#"{"system":"s"}"#);
        assert!(!lines[0].contains("priority"), "{lines:?}");
    }

    #[test]
    fn what_may_fetch_media_is_told_from_its_text() {
        for line in [
            r#"{"type":"image_url","image_url":{"url":"https://a/b.png"}}"#,
            r#"{"type":"image_url","image_url":{"url":"https:\/\/a\/b.png"}}"#,
            r#"{"type":"im\u0061ge_url","image_url":{"url":"https://a/b.png"}}"#,
            r#"{"type":"audio_url","audio_url":{"url":"https://a/b.wav"}}"#,
            r#"{"type":"document","source":{"type":"url","url":"https://a/b.pdf"}}"#,
            r#"{"type":"input_file","file_url":"https://a/b.pdf"}"#,
            r#"{"type":"file","file":{"file_data":"https://a/b.pdf"}}"#,
        ] {
            assert!(may_fetch(line), "{line}");
        }
        assert!(!may_fetch(r#"{"content":"see https://a/b"}"#));
        assert!(!may_fetch(r#"{"image_url":{"url":"data:image/png;base64,AAAA"}}"#));
    }

    #[test]
    fn requests_without_a_seed_have_different_ones() {
        let seed = || read(Endpoint::Chat, "{}").unwrap().seed.unwrap();
        let (a, b) = (seed(), seed());
        assert!(a != b && (0..1 << SEED_BITS).contains(&a), "{a} {b}");
        assert_eq!(read(Endpoint::Chat, r#"{"seed":"x"}"#).unwrap().seed, None);
    }

    #[test]
    fn several_prompts_are_lines_with_seeds_of_their_own() {
        let request = read(Endpoint::Completions, r#"{"prompt":["a","a"],"seed":1}"#).unwrap();
        let bodies = [r#""body":{"prompt":"a","seed":1}"#, r#""body":{"prompt":"a","seed":2}"#];
        assert!(request.lines.iter().zip(bodies).all(|(line, body)| line.contains(body)));
        for one in [r#"["a"]"#, "[1,2]", "[[1,2]]", r#"["a",1]"#, "[]", "7"] {
            let request = read(Endpoint::Completions, &format!("{{\"prompt\":{one}}}")).unwrap();
            assert_eq!(request.lines.len(), 1, "{one}");
        }
    }

    #[test]
    fn what_pieces_cannot_show_is_not_streamed() {
        for more in [r#""prompt":["a","b"]"#, r#""echo":true"#, r#""prompt_logprobs":0"#] {
            let body = format!("{{{more},\"stream\":true}}");
            assert_eq!(read(Endpoint::Completions, &body).unwrap_err().param, Some("stream"));
        }
        let body = r#"{"echo":false,"prompt_logprobs":null,"stream":true}"#;
        assert!(read(Endpoint::Completions, body).is_ok());
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (body, status, param) in [
            ("[]", 400, None),
            ("{", 400, None),
            (r#"{"model":"x"}"#, 404, Some("model")),
            (r#"{"model":7}"#, 400, Some("model")),
            (r#"{"stream":"yes"}"#, 400, Some("stream")),
            (r#"{"stream":true,"stream_options":7}"#, 400, Some("stream_options")),
            (
                r#"{"stream":true,"stream_options":{"include_usage":1}}"#,
                400,
                Some("stream_options"),
            ),
        ] {
            let error = read(Endpoint::Chat, body).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param), (status, param), "{body}");
        }
    }
}
