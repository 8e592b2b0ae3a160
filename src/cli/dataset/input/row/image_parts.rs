//! Content parts of messages that are images, in the spellings of OpenAI, Anthropic, transformers
//! and vLLM. While a row is read such a part is an object of our own; the template sees
//! `{"type": "image"}`.

use serde_json::{Map, Value, json};

use crate::input::media::{Named, Reference, is_nothing};
use crate::input::row_error::code;

/// A code, and what is wrong with a part.
pub(super) type Fault = (&'static str, String);

/// Fields of a part that ask for what is not done.
const REFUSED: &[&str] =
    &["file_id", "max_pixels", "min_pixels", "resized_height", "resized_width", "total_pixels"];

/// Values of `detail`, which changes nothing, as in vLLM.
const DETAILS: &[&str] = &["auto", "low", "high", "original"];

/// Fields that say where an image is, of a part of the type `image`.
const OF_IMAGE: &[&str] = &["image", "url", "path", "base64", "source", "image_url"];

/// The kinds of references in parts of our own.
const TEXT: &str = "text";
const PATH: &str = "path";
const BASE64: &str = "base64";
const DOCUMENT: &str = "document";

/// Whether a part is an image, whatever is wrong with it.
pub(super) fn is_image(part: &Value) -> bool {
    match part["type"].as_str() {
        Some(kind) => matches!(kind, "image" | "image_url" | "input_image"),
        // As vLLM's shortest form has it.
        None => part["type"].is_null() && part.get("image_url").is_some(),
    }
}

/// Makes a part of our own of an image. `place` is what errors call its message.
pub(super) fn read(part: &mut Value, place: &str) -> Result<(), Fault> {
    let mut own = Map::new();
    own.insert("type".to_owned(), "image".into());
    if let Some(reference) = reference(part)? {
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

/// A part of our own with an image of a field.
pub(super) fn part(image: Named) -> Value {
    let Named { place, reference } = image;
    match reference {
        Reference::Text(text) => json!({"type": "image", "place": place, TEXT: text}),
        Reference::Path(text) => json!({"type": "image", "place": place, PATH: text}),
        Reference::Base64(text) => json!({"type": "image", "place": place, BASE64: text}),
        Reference::Document(text) => document(&place, &text),
    }
}

/// A part of our own with a document.
pub(super) fn document(place: &str, text: &str) -> Value {
    json!({"type": "image", "place": place, DOCUMENT: text})
}

/// Puts as many images in the place of each of a chat's as it is: a document is its pages.
pub(super) fn repeat(messages: &mut Value, counts: &[usize]) {
    if counts.iter().all(|count| *count == 1) {
        return;
    }
    let mut counts = counts.iter();
    for message in messages.as_array_mut().into_iter().flatten() {
        let Some(parts) = message["content"].as_array_mut() else { continue };
        let repeated = std::mem::take(parts).into_iter().flat_map(|part| {
            let count = match part["type"] == "image" {
                true => counts.next().copied().unwrap_or(1),
                false => 1,
            };
            std::iter::repeat_n(part, count)
        });
        *parts = repeated.collect();
    }
}

/// Whether a part of our own has no image, and is the place of one.
pub(super) fn is_place(part: &Value) -> bool {
    part["type"] == "image" && part["place"].is_null()
}

/// Takes the images out of messages that were read. What is left is what the template sees.
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
    for part in parts.iter_mut().filter(|part| part["type"] == "image") {
        let Some(Value::String(place)) = part.as_object_mut().and_then(|p| p.remove("place"))
        else {
            let what = "has a part of type 'image' without an image".to_owned();
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
        images.push(Named { place, reference });
        *part = json!({"type": "image"});
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
        ("image", value) => match Reference::of(value) {
            Ok(Some(reference)) => Ok(reference),
            Ok(None) => return Ok(None),
            Err(what) => Err(format!("`image`: {what}")),
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
