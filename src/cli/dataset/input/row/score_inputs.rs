//! `ScoreInput` of a row: a text, a content of parts, or an object of a text and images.

use serde_json::{Map, Value, json};

use super::shape::kind_name;
use super::{image_parts, messages, prompt};
use crate::input::media::{Named, Reference};
use crate::input::row_error::{RowError, code};
use vllm_batch_api::compared::{ScoreContent, ScoreInput};
use vllm_batch_base::files::quoted;
use vllm_batch_media::MediaKind;

/// One of what is compared or several, and whether it was a list. Images go behind `images`.
pub(super) fn inputs(
    name: &'static str,
    json: &str,
    images: &mut Vec<Named>,
    line: u64,
) -> Result<(Vec<ScoreInput>, bool), RowError> {
    if json.starts_with('"') {
        let text = prompt::string(name, json, line).map_err(|error| error.of_param(name))?;
        return Ok((vec![ScoreInput::Text(text)], false));
    }
    let items: Value = serde_json::from_str(json).map_err(|error| {
        RowError::new(code::INVALID_PROMPT, line, format!("{name}: {}", prompt::reason(&error)))
            .of_param(name)
    })?;
    match items {
        Value::Array(items) => {
            let all = items.into_iter().enumerate().map(|(number, item)| {
                let place = format!("{name}: item {number}");
                input(item, &place, images, line).map_err(|error| error.of_param(name))
            });
            Ok((all.collect::<Result<_, _>>()?, true))
        }
        item => {
            let input = input(item, name, images, line).map_err(|error| error.of_param(name))?;
            Ok((vec![input], false))
        }
    }
}

/// A text, a content of parts as vLLM has it, or an object of a text and images, which stand before
/// it. `place` is what errors call it.
fn input(
    item: Value,
    place: &str,
    images: &mut Vec<Named>,
    line: u64,
) -> Result<ScoreInput, RowError> {
    let invalid = |what: String| RowError::new(code::INVALID_PROMPT, line, what);
    let mut fields = match item {
        Value::String(text) => return Ok(ScoreInput::Text(text)),
        Value::Object(fields) => fields,
        other => {
            let found = kind_name(&other.to_string());
            let what =
                format!("{place}: expected a text or an object with `content`, found {found}");
            return Err(invalid(what));
        }
    };
    let content = match fields.remove("content") {
        Some(content) if fields.is_empty() => content,
        None => parts(fields, place, line)?,
        Some(_) => {
            let (name, _) = fields.iter().next().expect("there is another field");
            let name = quoted(name);
            return Err(invalid(format!("{place}: a field {name} beside `content`")));
        }
    };
    let mut parts = match content {
        Value::String(text) => return Ok(ScoreInput::Text(text)),
        Value::Array(parts) => parts,
        _ => {
            let what = format!("{place}: `content` is neither a text nor a list of parts");
            return Err(invalid(what));
        }
    };
    let given = serde_json::to_string(&parts).expect("JSON is written");
    messages::check_parts(&mut parts, place, line)?;
    let named = image_parts::take_of(&mut parts);
    images.extend(
        named.map_err(|(code, what)| RowError::new(code, line, format!("{place} {what}")))?,
    );
    Ok(ScoreInput::Content(ScoreContent { parts, media: Vec::new(), given }))
}

/// The parts of an object of a text and images, as the models' own examples have it.
fn parts(fields: Map<String, Value>, place: &str, line: u64) -> Result<Value, RowError> {
    let mut parts = Vec::new();
    let mut text = None;
    for (name, value) in fields {
        match (&*name, value) {
            ("text", Value::String(given)) => text = Some(given),
            ("text", Value::Null) => {}
            ("image" | "images", Value::Array(items)) => parts.extend(items),
            ("image", value) => parts.push(value),
            (name, _) => {
                let name = quoted(name);
                let message = format!(
                    "{place}: field {name}; expected a text, or an object with `content`, or with \
                     `text` and `image`"
                );
                return Err(RowError::new(code::INVALID_PROMPT, line, message));
            }
        }
    }
    let mut all = Vec::new();
    for image in parts {
        match Reference::of(MediaKind::Image, &image) {
            Ok(Some(_)) => all.push(json!({"type": "image", "image": image})),
            Ok(None) => {}
            Err(what) => {
                let message = format!("{place}: `image`: {what}");
                return Err(RowError::new(code::INVALID_PROMPT, line, message));
            }
        }
    }
    all.extend(text.map(|text| json!({"type": "text", "text": text})));
    Ok(Value::Array(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs as a template sees them, and where their images are.
    fn read(json: &str) -> Result<(Vec<Value>, Vec<Named>), RowError> {
        let mut images = Vec::new();
        let (inputs, _) = inputs("documents", json, &mut images, 1)?;
        Ok((inputs.iter().map(ScoreInput::content).collect(), images))
    }

    #[test]
    fn contents_have_texts_and_images_in_their_places() {
        let (contents, images) = read(
            r#"["a", {"content": "b"},
                {"content": [{"type": "text", "text": "c"},
                             {"type": "image_url", "image_url": {"url": "d.png"}}]},
                {"text": "e", "image": "f.png"}, {"image": ["g.png", "h.png"]}, {"text": "i"}]"#,
        )
        .unwrap();
        let (image, text) =
            (json!({"type": "image"}), |text| json!({"type": "text", "text": text}));
        assert_eq!(contents[..2], ["a", "b"]);
        assert_eq!(contents[2], json!([text("c"), image]));
        assert_eq!(contents[3], json!([image, text("e")]));
        assert_eq!(contents[4..], [json!([image, image]), json!([text("i")])]);
        let named = |number: usize, path: &str| Named {
            kind: MediaKind::Image,
            place: format!("documents: item {number}"),
            reference: Reference::Text(path.to_owned()),
        };
        assert_eq!(
            images,
            [named(2, "d.png"), named(3, "f.png"), named(4, "g.png"), named(4, "h.png")]
        );
    }

    #[test]
    fn what_is_neither_is_refused_where_it_is() {
        for (json, code, what) in [
            ("[7]", "invalid_prompt", "documents: item 0: expected a text or an object"),
            (r#"{"content": 7}"#, "invalid_prompt", "documents: `content` is neither"),
            (r#"{"content": "a", "role": "user"}"#, "invalid_prompt", "field `role` beside"),
            (r#"["a", {"video": "b"}]"#, "invalid_prompt", "item 1: field `video`"),
            (r#"{"image": 7}"#, "invalid_prompt", "documents: `image`: expected a path"),
            (r#"{"content": [{"type": "image"}]}"#, "invalid_prompt", "without an image"),
            (
                r#"{"content": [{"type": "video_url", "video_url": {}}]}"#,
                "unsupported_field",
                "documents has a part of type 'video_url'",
            ),
        ] {
            let error = read(json).unwrap_err();
            assert_eq!(error.code, code, "{json}");
            assert!(error.message.contains(what), "{json}: {}", error.message);
        }
    }
}
