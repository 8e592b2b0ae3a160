//! Images in fields of a row beside its prompt: which fields they are in, and their places in the
//! chat that is made of both.

use serde_json::{Value, json};

use super::image_parts;
use crate::input::fields::JsonFields;
use crate::input::media::{EXPECTED, Named, Reference};
use crate::input::path;
use crate::input::row_error::{RowError, code};

/// Fields that hold images where no flag names one.
pub(super) const KNOWN: &[&str] = &["image", "images"];

/// What stands for an image in the texts of LLaVA's rows.
const MARK: &str = "<image>";

/// The images of a row. `column`: `--image-column`; an empty one says that there are none.
/// `is_prompt`: whether a field is a part of the prompt's text.
pub(super) fn of_row(
    column: Option<&str>,
    is_prompt: impl Fn(&str) -> bool,
    fields: &JsonFields,
    line: u64,
) -> Result<Vec<Named>, RowError> {
    match column {
        Some("") => Ok(Vec::new()),
        Some(name) => match path::find(fields, name) {
            Ok(json) => of_field(name, json, line),
            Err(_) => {
                let message = format!("the row has no field '{name}' for --image-column");
                Err(RowError::new(code::ROW_SHAPE, line, message))
            }
        },
        None => {
            let known = KNOWN.iter().filter(|name| !is_prompt(name));
            let known = known.filter_map(|name| Some((*name, fields.get(name)?)));
            let mut images = Vec::new();
            // A number is the user's own: a count, or the name of an image.
            for (name, json) in known.filter(|(_, json)| json.starts_with(['"', '[', '{'])) {
                let found = of_field(name, json, line)?;
                if !images.is_empty() && !found.is_empty() {
                    let what = "the row has images in `image` and in `images`";
                    return Err(RowError::new(code::INVALID_PROMPT, line, what)
                        .with_help("name the field with --image-column"));
                }
                images.extend(found);
            }
            Ok(images)
        }
    }
}

/// The images of a field: one, or a list of them.
fn of_field(name: &str, json: &str, line: u64) -> Result<Vec<Named>, RowError> {
    let wrong = |what: String| {
        RowError::new(code::INVALID_PROMPT, line, format!("`{name}`: {what}"))
            .with_help("a field that holds no images is left alone with --image-column ''")
    };
    let value: Value =
        serde_json::from_str(json).map_err(|error| wrong(super::prompt::reason(&error)))?;
    let items = match value {
        Value::Array(items) => items,
        value => match value.as_str().and_then(listed) {
            Some(items) => items,
            None => {
                let reference = Reference::of(&value).map_err(wrong)?;
                let named = |reference| Named { place: format!("`{name}`"), reference };
                return Ok(reference.map(named).into_iter().collect());
            }
        },
    };
    let mut images = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let reference = Reference::of(item)
            .and_then(|reference| reference.ok_or_else(|| format!("expected {EXPECTED}")))
            .map_err(|what| wrong(format!("image {number}: {what}")))?;
        images.push(Named { place: format!("`{name}`: image {number}"), reference });
    }
    Ok(images)
}

/// The texts of a list that a table's cell holds.
fn listed(cell: &str) -> Option<Vec<Value>> {
    let is_list = cell.trim_start().starts_with("[\"");
    let items: Vec<String> = is_list.then(|| serde_json::from_str(cell).ok()).flatten()?;
    Some(items.into_iter().map(Value::from).collect())
}

/// Puts the images of a row into its messages: where parts or marks stand for them, else before the
/// first text of the user.
pub(super) fn place(messages: &mut [Value], images: Vec<Named>, line: u64) -> Result<(), RowError> {
    if images.is_empty() {
        return Ok(());
    }
    let count = images.len();
    let wrong = |what: String| RowError::new(code::MEDIA_COUNT, line, what);
    let parts = || messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let is_own = |part: &&Value| part["type"] == "image" && !image_parts::is_place(part);
    if parts().any(|part| is_own(&part)) {
        let what = "the messages have images of their own, and the row has some beside them";
        return Err(wrong(what.to_owned()));
    }
    let num_places = parts().filter(|part| image_parts::is_place(part)).count();
    let num_marks: usize = messages.iter().map(num_marks).sum();
    let mut images = images.into_iter().map(image_parts::part);
    match (num_places, num_marks) {
        (0, 0) => put_first(messages, images, line),
        (0, marks) if marks == count => {
            for message in messages.iter_mut().filter(|message| is_of_user(message)) {
                fill_marks(&mut message["content"], &mut images);
            }
            Ok(())
        }
        (0, marks) => Err(wrong(format!(
            "marks `{MARK}` in the prompt: {marks}, images of the row: {count}; \
             help: write one mark for each image, or none"
        ))),
        (places, _) if places == count => {
            let contents = messages.iter_mut().filter_map(|m| m["content"].as_array_mut());
            for part in contents.flatten().filter(|part| image_parts::is_place(part)) {
                *part = images.next().expect("as many as places");
            }
            Ok(())
        }
        (places, _) => Err(wrong(format!(
            "parts of type 'image' without an image: {places}, images of the row: {count}; \
             help: write one part for each image, or none"
        ))),
    }
}

/// Puts images before the first text of the user, as vLLM does.
fn put_first(
    messages: &mut [Value],
    images: impl Iterator<Item = Value>,
    line: u64,
) -> Result<(), RowError> {
    let Some(message) = messages.iter_mut().find(|message| is_of_user(message)) else {
        let what = "the row has images, and no message of the user that they could be in";
        return Err(RowError::new(code::INVALID_PROMPT, line, what));
    };
    let content = &mut message["content"];
    let parts = match content.take() {
        Value::Array(parts) => parts,
        Value::String(text) => text_part(&text).into_iter().collect(),
        _ => Vec::new(),
    };
    *content = Value::Array(images.chain(parts).collect());
    Ok(())
}

fn is_of_user(message: &Value) -> bool {
    message["role"] == "user"
}

/// The marks in the texts of a message.
fn num_marks(message: &Value) -> usize {
    let marks = |text: &str| text.matches(MARK).count();
    match &message["content"] {
        _ if !is_of_user(message) => 0,
        Value::String(text) => marks(text),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).map(marks).sum()
        }
        _ => 0,
    }
}

/// Puts an image in the place of each mark. The text beside it stays as it is.
fn fill_marks(content: &mut Value, images: &mut impl Iterator<Item = Value>) {
    let mut filled = Vec::new();
    match content.take() {
        Value::String(text) => fill_text(&text, images, &mut filled),
        Value::Array(parts) => {
            for part in parts {
                match part["text"].as_str() {
                    Some(text) if text.contains(MARK) => fill_text(text, images, &mut filled),
                    _ => filled.push(part),
                }
            }
        }
        _ => {}
    }
    *content = Value::Array(filled);
}

fn fill_text(text: &str, images: &mut impl Iterator<Item = Value>, parts: &mut Vec<Value>) {
    for (number, piece) in text.split(MARK).enumerate() {
        if number > 0 {
            parts.push(images.next().expect("as many as marks"));
        }
        parts.extend(text_part(piece));
    }
}

fn text_part(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| json!({"type": "text", "text": text}))
}
