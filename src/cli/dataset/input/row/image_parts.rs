//! Content parts of messages that are images or recordings, in the spellings of OpenAI, Anthropic,
//! transformers and vLLM. While a row is read such a part is an object of our own; the template
//! sees `{"type": "image"}` or `{"type": "audio"}`.

use serde_json::{Map, Value, json};

use crate::input::media::{Named, Reference, is_nothing};
use crate::input::row_error::code;
use vllm_batch_media::MediaKind;

/// A code, and what is wrong with a part.
pub(super) type Fault = (&'static str, String);

/// Fields of a part that ask for what is not done.
const REFUSED: &[&str] =
    &["file_id", "max_pixels", "min_pixels", "resized_height", "resized_width", "total_pixels"];

/// Values of `detail`, which changes nothing, as in vLLM.
const DETAILS: &[&str] = &["auto", "low", "high", "original"];

/// Fields that say where an image is, of a part of the type `image`.
const OF_IMAGE: &[&str] = &["image", "url", "path", "base64", "source", "image_url"];

/// The same of the type `audio`.
const OF_SOUND: &[&str] = &["audio", "url", "path", "base64", "audio_url"];

/// The kinds of references in parts of our own.
const TEXT: &str = "text";
const PATH: &str = "path";
const BASE64: &str = "base64";
const DOCUMENT: &str = "document";

/// What a part is, whatever is wrong with it. None: no medium.
pub(super) fn kind_of(part: &Value) -> Option<MediaKind> {
    match part["type"].as_str() {
        Some("image" | "image_url" | "input_image") => Some(MediaKind::Image),
        Some("audio" | "audio_url" | "input_audio") => Some(MediaKind::Sound),
        Some(_) => None,
        // As vLLM's shortest form has it.
        None if !part["type"].is_null() => None,
        None if part.get("image_url").is_some() => Some(MediaKind::Image),
        None => ["audio_url", "input_audio"]
            .iter()
            .any(|name| part.get(name).is_some())
            .then_some(MediaKind::Sound),
    }
}

/// Makes a part of our own of a medium. `place` is what errors call its message.
pub(super) fn read(kind: MediaKind, part: &mut Value, place: &str) -> Result<(), Fault> {
    let mut own = Map::new();
    own.insert("type".to_owned(), kind.name().into());
    let found = match kind {
        MediaKind::Image => reference(part)?,
        MediaKind::Sound => of_sound(part)?,
    };
    if let Some(reference) = found {
        let (kind, text) = match reference {
            Reference::Text(text) => (TEXT, text),
            Reference::Path(text) => (PATH, text),
            Reference::Base64(text) => (BASE64, text),
            Reference::Document(text) => (DOCUMENT, text),
        };
        own.insert("place".to_owned(), place.into());
        own.insert(kind.to_owned(), text.into());
    }
    *part = Value::Object(own);
    Ok(())
}

/// A part of our own with a medium of a field.
pub(super) fn part(medium: Named) -> Value {
    let Named { kind, place, reference } = medium;
    let name = kind.name();
    match reference {
        Reference::Text(text) => json!({"type": name, "place": place, TEXT: text}),
        Reference::Path(text) => json!({"type": name, "place": place, PATH: text}),
        Reference::Base64(text) => json!({"type": name, "place": place, BASE64: text}),
        Reference::Document(text) => document(&place, &text),
    }
}

/// A part of our own with a document.
pub(super) fn document(place: &str, text: &str) -> Value {
    json!({"type": "image", "place": place, DOCUMENT: text})
}

/// Puts as many media in the place of each of a chat's as it is: a document is its pages.
pub(super) fn repeat(messages: &mut Value, counts: &[usize]) {
    if counts.iter().all(|count| *count == 1) {
        return;
    }
    let mut counts = counts.iter();
    for message in messages.as_array_mut().into_iter().flatten() {
        let Some(parts) = message["content"].as_array_mut() else { continue };
        let repeated = std::mem::take(parts).into_iter().flat_map(|part| {
            let count = match kind_of_own(&part).is_some() {
                true => counts.next().copied().unwrap_or(1),
                false => 1,
            };
            std::iter::repeat_n(part, count)
        });
        *parts = repeated.collect();
    }
}

/// Whether a part of our own has no medium, and is the place of one of this kind.
pub(super) fn is_place(kind: MediaKind, part: &Value) -> bool {
    part["type"] == kind.name() && part["place"].is_null()
}

/// The kind of a part of our own.
fn kind_of_own(part: &Value) -> Option<MediaKind> {
    let kinds = [MediaKind::Image, MediaKind::Sound];
    kinds.into_iter().find(|kind| part["type"] == kind.name())
}

/// Takes the media out of messages that were read. What is left is what the template sees.
pub(super) fn take(messages: &mut [Value]) -> Result<Vec<Named>, Fault> {
    let mut images = Vec::new();
    for (number, message) in messages.iter_mut().enumerate() {
        if let Some(parts) = message["content"].as_array_mut() {
            let named = |(code, what)| (code, format!("message {number} {what}"));
            images.append(&mut take_of(parts).map_err(named)?);
        }
    }
    Ok(images)
}

/// The same of the parts of one content.
pub(super) fn take_of(parts: &mut [Value]) -> Result<Vec<Named>, Fault> {
    let mut images = Vec::new();
    for part in parts.iter_mut() {
        let Some(kind) = kind_of_own(part) else { continue };
        let name = kind.name();
        let Some(Value::String(place)) = part.as_object_mut().and_then(|p| p.remove("place"))
        else {
            let nothing = match kind {
                MediaKind::Image => "an image",
                MediaKind::Sound => "a recording",
            };
            let what = format!("has a part of type '{name}' without {nothing}");
            return Err((code::INVALID_PROMPT, what));
        };
        let mut taken = |kind: &str| match part[kind].take() {
            Value::String(text) => Some(text),
            _ => None,
        };
        let reference = match (taken(TEXT), taken(PATH), taken(BASE64), taken(DOCUMENT)) {
            (Some(text), ..) => Reference::Text(text),
            (None, Some(text), ..) => Reference::Path(text),
            (None, None, Some(text), _) => Reference::Base64(text),
            (None, None, None, text) => Reference::Document(text.expect("one of the four")),
        };
        images.push(Named { kind, place, reference });
        *part = json!({"type": name});
    }
    Ok(images)
}

/// What a part says of its image. None: it is the place of one that the row has.
fn reference(part: &Value) -> Result<Option<Reference>, Fault> {
    let kind = part["type"].as_str().unwrap_or("image_url");
    let unsupported = |name: &str| {
        let what = format!("has a part of type '{kind}' with `{name}`: not supported");
        Err((code::UNSUPPORTED_FIELD, what))
    };
    let given = |value: &Value, name: &str| value.get(name).is_some_and(|v| !is_nothing(v));
    if let Some(name) = REFUSED.iter().find(|name| given(part, name)) {
        return unsupported(name);
    }
    for around in [part, &part["image_url"]] {
        match &around["detail"] {
            Value::Null => {}
            Value::String(detail) if DETAILS.contains(&detail.as_str()) => {}
            _ => return unsupported("detail"),
        }
    }
    let invalid =
        |what: String| (code::INVALID_PROMPT, format!("has a part of type '{kind}' whose {what}"));
    let names = if kind == "image" { OF_IMAGE } else { &["image_url"][..] };
    let mut names = names.iter().filter(|name| given(part, name));
    let name = match (names.next(), names.next()) {
        (Some(name), None) => *name,
        (Some(first), Some(second)) => {
            return Err(invalid(format!("image is in `{first}` and in `{second}`")));
        }
        (None, _) if kind == "image" => return Ok(None),
        (None, _) => {
            let what = format!("has a part of type '{kind}' without `image_url`");
            return Err((code::INVALID_PROMPT, what));
        }
    };
    let value = &part[name];
    let found = match (name, value) {
        ("source", source) => return of_source(source),
        ("image_url", Value::Object(fields)) => {
            let url = fields.get("url").and_then(Value::as_str);
            url.map(|url| Reference::Text(url.to_owned())).ok_or("`url` is no text".to_owned())
        }
        ("image_url" | "url", Value::String(text)) => Ok(Reference::Text(text.clone())),
        ("path", Value::String(text)) => Ok(Reference::Path(text.clone())),
        ("base64", Value::String(text)) if text.starts_with("data:") => {
            Ok(Reference::Text(text.clone()))
        }
        ("base64", Value::String(text)) => Ok(Reference::Base64(text.clone())),
        ("image", value) => match Reference::of(MediaKind::Image, value) {
            Ok(Some(reference)) => Ok(reference),
            Ok(None) => return Ok(None),
            Err(what) => Err(format!("`image`: {what}")),
        },
        (name, _) => Err(format!("`{name}` is no text")),
    };
    found.map(Some).map_err(invalid)
}

/// The same of a recording.
fn of_sound(part: &Value) -> Result<Option<Reference>, Fault> {
    let kind = part["type"].as_str();
    let known = |name: &&str| part.get(name).is_some();
    let kind = kind.or_else(|| ["audio_url", "input_audio"].into_iter().find(known));
    let kind = kind.unwrap_or("audio");
    let given = |name: &str| part.get(name).is_some_and(|value| !is_nothing(value));
    if given("file_id") || part["input_audio"].get("file_id").is_some_and(|id| !is_nothing(id)) {
        let what = format!("has a part of type '{kind}' with `file_id`: not supported");
        return Err((code::UNSUPPORTED_FIELD, what));
    }
    let invalid =
        |what: String| (code::INVALID_PROMPT, format!("has a part of type '{kind}' whose {what}"));
    let names = if kind == "audio" { OF_SOUND } else { &[kind][..] };
    let mut names = names.iter().copied().filter(|name| given(name));
    let name = match (names.next(), names.next()) {
        (Some(name), None) => name,
        (Some(first), Some(second)) => {
            return Err(invalid(format!("recording is in `{first}` and in `{second}`")));
        }
        (None, _) if kind == "audio" => return Ok(None),
        (None, _) => {
            let what = format!("has a part of type '{kind}' without `{kind}`");
            return Err((code::INVALID_PROMPT, what));
        }
    };
    let base64 = |text: &str| match text.starts_with("data:") {
        true => Reference::Text(text.to_owned()),
        false => Reference::Base64(text.to_owned()),
    };
    let found = match (name, &part[name]) {
        // What the bytes are, they say themselves.
        ("input_audio", Value::Object(fields)) => {
            match fields.get("data").and_then(Value::as_str) {
                Some(data) => Ok(base64(data)),
                None => Err("`data` is no text".to_owned()),
            }
        }
        ("audio_url", Value::Object(fields)) => {
            let url = fields.get("url").and_then(Value::as_str);
            url.map(|url| Reference::Text(url.to_owned())).ok_or("`url` is no text".to_owned())
        }
        ("audio_url" | "url", Value::String(text)) => Ok(Reference::Text(text.clone())),
        ("path", Value::String(text)) => Ok(Reference::Path(text.clone())),
        ("base64", Value::String(text)) => Ok(base64(text)),
        ("audio", value) => match Reference::of(MediaKind::Sound, value) {
            Ok(Some(reference)) => Ok(reference),
            Ok(None) => return Ok(None),
            Err(what) => Err(format!("`audio`: {what}")),
        },
        (name, _) => Err(format!("`{name}` is no text")),
    };
    found.map(Some).map_err(invalid)
}

/// The `source` of Anthropic's.
fn of_source(source: &Value) -> Result<Option<Reference>, Fault> {
    let text = |name: &str| match source[name].as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let what = format!("has an image whose `source` has no `{name}` that is a text");
            Err((code::INVALID_PROMPT, what))
        }
    };
    match source["type"].as_str() {
        Some("base64") => {
            // What the bytes are, they say themselves.
            let media_type = text("media_type")?;
            let data = text("data")?;
            match media_type.starts_with("image/") {
                true => Ok(Some(Reference::Base64(data))),
                false => {
                    let what = "has an image whose `source` has a `media_type` that is no image";
                    Err((code::INVALID_PROMPT, what.to_owned()))
                }
            }
        }
        Some("url") => text("url").map(|url| Some(Reference::Text(url))),
        Some(kind) => {
            let kind = vllm_batch_base::files::quoted(kind);
            let what = format!("has an image whose `source` has the type {kind}: not supported");
            Err((code::UNSUPPORTED_FIELD, what))
        }
        None => {
            let what = "has an image whose `source` has no `type`".to_owned();
            Err((code::INVALID_PROMPT, what))
        }
    }
}
