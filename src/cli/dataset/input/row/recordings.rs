//! Rows of OpenAI's batch API for recordings, as vLLM's run-batch has them: `file_url` is heard.
//! What they ask is told as a chat of one turn with a recording.

use serde_json::{Value, json};
use vllm_batch_media::MediaKind;

use super::asked::Asked;
use super::chat::{ChatDefaults, Origin, invalid, value};
use super::endpoint::Endpoint;
use super::unsupported::{self, Place};
use super::{image_parts, prompt};
use crate::input::batch_line::{Echo, Recording};
use crate::input::fields::JsonFields;
use crate::input::media::{Named, Reference};
use crate::input::overrides::{DefaultLength, Overrides};
use crate::input::row_error::{RowError, code};

const FILE_URL: &str = "body.file_url";

/// What is written of a recording (`task`): the url says it, whatever flags do.
fn task_of(endpoint: Option<Endpoint>) -> &'static str {
    match endpoint {
        Some(Endpoint::Translations) => "translate",
        _ => "transcribe",
    }
}

/// Reads a request.
pub(super) fn read(
    endpoint: Endpoint,
    body: &JsonFields,
    chats: &ChatDefaults,
    line: u64,
) -> Result<Asked, RowError> {
    unsupported::check(body, Place::Recordings, line)?;
    let url = match body.get("file_url") {
        Some(json) if json.starts_with('"') => prompt::string(FILE_URL, json, line)?,
        found => {
            let what = match found {
                None | Some("null") => "missing",
                Some(_) => "expected a URL, a data: URI or a path",
            };
            let error = RowError::new(code::INVALID_PROMPT, line, format!("{FILE_URL}: {what}"));
            return Err(error.of_param("file_url"));
        }
    };
    let (kind, place) = (MediaKind::Sound, FILE_URL.to_owned());
    let mut parts = vec![image_parts::part(Named { kind, place, reference: Reference::Text(url) })];
    if let Some(text) = text(body, "prompt", line)? {
        parts.push(json!({"type": "text", "text": text}));
    }
    let messages = vec![json!({"role": "user", "content": parts})];
    let nothing = JsonFields::from_pairs(&[]);
    let made = chats.chat(messages, &nothing, Origin::OpenAi, (FILE_URL, line))?;
    let is_verbose = is_verbose(body, line)?;
    let task = json!(task_of(Some(endpoint))).to_string();
    let language = text(body, "language", line)?.map(|name| json!(name).to_string());
    let overrides = Overrides::collect(body)
        .with("response_format", None)
        .with("language", language)
        .with("task", Some(task))
        .with("return_timestamps", is_verbose.then(|| "true".to_owned()))
        .with_default_length(DefaultLength::Context);
    Ok(Asked::of_chat(made, overrides))
}

/// A text that is not empty.
fn text(body: &JsonFields, name: &'static str, line: u64) -> Result<Option<String>, RowError> {
    match value(body, name, line)? {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(invalid(name, "expected a text", line)),
    }
}

/// Whether the answer says where its pieces are.
fn is_verbose(body: &JsonFields, line: u64) -> Result<bool, RowError> {
    let is_verbose = match text(body, "response_format", line)?.as_deref() {
        None | Some("json") => false,
        Some("verbose_json") => true,
        Some("text" | "srt" | "vtt") => {
            let error = unsupported::error("response_format", line);
            return Err(error.with_help("ask for json or verbose_json, which has `segments`"));
        }
        Some(_) => return Err(invalid("response_format", "expected json or verbose_json", line)),
    };
    let granularities = value(body, "timestamp_granularities", line)?.unwrap_or_default();
    let granularities = granularities.as_array().map_or(&[][..], Vec::as_slice);
    let name = "timestamp_granularities";
    if granularities.iter().any(|granularity| granularity != "segment") {
        return Err(unsupported::error(name, line).with_help("`segment` is the only one"));
    }
    if !granularities.is_empty() && !is_verbose {
        return Err(invalid(name, "is for the response_format verbose_json", line));
    }
    Ok(is_verbose)
}

/// What the answer to a request says again of it.
pub(super) fn echo(fields: &JsonFields, asked: Option<&Asked>) -> Option<Echo> {
    let media = asked?.prompt.media();
    let medium = media.into_iter().flatten().next()?;
    let header = medium.header().sound()?;
    let body = JsonFields::parse(fields.get("body")?.to_owned(), 1).ok()?;
    Some(Echo::Recording(Recording {
        num_samples: header.num_samples,
        sample_rate: header.sample_rate,
        task: task_of(Endpoint::of_line(fields)),
        is_verbose: is_verbose(&body, 1).ok()?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::row::{RequestApi, Row, RowOptions, RowParser};
    use vllm_batch_api::request::{SamplingParams, SpeechTask};

    fn read(url: &str, body: &str) -> Result<Row, RowError> {
        let line = format!(
            r#"{{"custom_id":"a","method":"POST","url":"/v1/audio/{url}","body":{{{body}}}}}"#
        );
        let row = RowParser::request(&RowOptions::default(), RequestApi::OpenAi, line);
        row.unwrap().row.map_err(|bad| bad.error)
    }

    /// A WAV of so many samples at 8 kHz.
    fn wav(num_samples: usize) -> String {
        let samples = vllm_batch_media::Samples::new(8000, vec![0.25; num_samples]);
        crate::input::base64::encode(&samples.to_wav().unwrap())
    }

    fn file(more: &str) -> String {
        format!(r#""file_url":"data:audio/wav;base64,{}"{more}"#, wav(12_000))
    }

    #[test]
    fn a_recording_is_asked_for_with_its_parameters() {
        let body = file(r#","language":"German","prompt":"Frau Ö","temperature":0.5,"model":"m""#);
        let row = read("transcriptions", &body).unwrap();
        let params = row.overrides.apply(&SamplingParams::default()).unwrap();
        let speech = &params.speech;
        assert_eq!((speech.language.as_deref(), params.temperature), (Some("German"), 0.5));
        assert_eq!((speech.task, speech.return_timestamps), (SpeechTask::Transcribe, false));
        let chat = row.prompt.chat().unwrap();
        assert_eq!(chat.messages[0]["content"][1]["text"], "Frau Ö");
        assert_eq!(row.prompt.media().into_iter().flatten().count(), 1);
        let row = read("translations", &file(r#","response_format":"verbose_json""#)).unwrap();
        let speech = row.overrides.apply(&SamplingParams::default()).unwrap().speech;
        assert_eq!((speech.task, speech.return_timestamps), (SpeechTask::Translate, true));
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (more, param) in [
            (r#","response_format":"srt""#, "response_format"),
            (r#","response_format":"xml""#, "response_format"),
            (r#","timestamp_granularities":["word"]"#, "timestamp_granularities"),
            (r#","timestamp_granularities":["segment"]"#, "timestamp_granularities"),
            (r#","stream":true"#, "stream"),
            (r#","n":2"#, "n"),
            (r#","include":["logprobs"]"#, "include"),
            (r#","known_speaker_names":["a"]"#, "known_speaker_names"),
            (r#","language":7"#, "language"),
            (r#","file":"YQ==""#, "file"),
        ] {
            let error = read("transcriptions", &file(more)).unwrap_err();
            assert_eq!(error.param, Some(param), "{more}: {}", error.message);
        }
        for body in ["", r#""file_url":7"#, r#""file_url":null"#] {
            let error = read("transcriptions", body).unwrap_err();
            assert_eq!((error.code, error.param), (code::INVALID_PROMPT, Some("file_url")));
        }
        let error = read("transcriptions", r#""file_url":"data:audio/wav;base64,AAAA""#);
        assert_eq!(error.unwrap_err().code, "media_decode");
    }
}
