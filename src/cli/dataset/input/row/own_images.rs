//! Images in fields of a row beside its prompt: which fields they are in, and their places in the
//! chat that is made of both.

use serde_json::{Value, json};

use super::{RowOptions, image_parts};
use crate::input::fields::JsonFields;
use crate::input::media::{EXPECTED, Named, Reference};
use crate::input::parts::PART;
use crate::input::path;
use crate::input::pictures::has_extension;
use crate::input::reader::Brought;
use crate::input::referred::Referred;
use crate::input::row_error::{RowError, code};

/// Fields that hold images where no flag names one.
pub(super) const KNOWN: &[&str] = &["image", "images"];

/// Fields that often hold images, and hold something else as often: a user names them.
const UNREAD: &[&str] = &[
    "image_path",
    "image_paths",
    "image_url",
    "image_urls",
    "image_file",
    "image_base64",
    "img",
    "imgs",
    "picture",
    "pictures",
    "photo",
    "photos",
];

/// What stands for an image in the texts of LLaVA's rows.
const MARK: &str = "<image>";

/// Which fields of rows hold images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ImageFields {
    /// None does.
    None,
    /// The one of `--image-column`.
    Named(String),
    /// Those of the known names.
    Known,
    /// Those that name files beside them, as Hugging Face's imagefolder has them.
    OfFiles,
    /// Those of members of an archive with the extension of an image.
    OfMembers,
    /// The part of a file that the row is.
    OfPart,
}

impl ImageFields {
    pub(super) fn of(options: &RowOptions) -> Self {
        match (options.image_column.as_deref(), options.name_files) {
            (Some(""), _) => ImageFields::None,
            (Some(name), _) => ImageFields::Named(name.to_owned()),
            (None, false) => ImageFields::Known,
            (None, true) => ImageFields::OfFiles,
        }
    }

    /// Goes on with rows that have such images with them.
    pub(super) fn begin_records(&mut self, brought: Brought) {
        if matches!(self, ImageFields::Known | ImageFields::OfMembers | ImageFields::OfPart) {
            *self = match brought {
                Brought::Nothing => ImageFields::Known,
                Brought::Members => ImageFields::OfMembers,
                Brought::Part => ImageFields::OfPart,
            };
        }
    }

    /// The one that the user named.
    pub(super) fn named(&self) -> Option<&str> {
        match self {
            ImageFields::Named(name) => Some(name),
            _ => None,
        }
    }

    /// Whether a table of these columns may have images. `is_prompt`: whether a column is a part
    /// of the prompt's text.
    pub(super) fn are_in(&self, columns: &[String], is_prompt: impl Fn(&str) -> bool) -> bool {
        match self {
            ImageFields::None => false,
            ImageFields::Named(_) => true,
            ImageFields::Known => {
                KNOWN.iter().any(|name| !is_prompt(name) && columns.iter().any(|c| c == name))
            }
            ImageFields::OfFiles => columns.iter().any(|name| names_files(name)),
            // No table is an archive or a part of a file.
            ImageFields::OfMembers | ImageFields::OfPart => false,
        }
    }

    /// A field that may hold images and is not read, where no flag says which fields do.
    pub(super) fn unread(&self, is_there: impl Fn(&str) -> bool) -> Option<&'static str> {
        let is_open = *self == ImageFields::Known;
        UNREAD.iter().copied().find(|name| is_open && is_there(name))
    }

    /// The images of a row.
    pub(super) fn images(
        &self,
        is_prompt: impl Fn(&str) -> bool,
        referred: Option<&Referred>,
        (fields, line): (&JsonFields, u64),
    ) -> Result<Vec<Named>, RowError> {
        match self {
            ImageFields::None => Ok(Vec::new()),
            ImageFields::Named(name) => match path::find(fields, name) {
                Ok(json) => of_field(name, json, referred, line),
                Err(_) => {
                    let message = format!("the row has no field '{name}' for --image-column");
                    Err(RowError::new(code::ROW_SHAPE, line, message))
                }
            },
            ImageFields::OfFiles => of_all(names_files, fields, line),
            ImageFields::OfMembers => of_all(has_extension, fields, line),
            ImageFields::OfPart => {
                let reference = Reference::Path(PART.to_owned());
                Ok(vec![Named { place: "its part of the file".to_owned(), reference }])
            }
            ImageFields::Known => of_known(is_prompt, referred, (fields, line)),
        }
    }
}

/// Whether a field of imagefolder names files: `file_name`, `front_file_name`, or lists of them.
fn names_files(field: &str) -> bool {
    let name = field.strip_suffix('s').unwrap_or(field);
    name == "file_name" || name.ends_with("_file_name")
}

/// The images of all fields of which a test says so, in their order.
fn of_all(
    holds_images: impl Fn(&str) -> bool,
    fields: &JsonFields,
    line: u64,
) -> Result<Vec<Named>, RowError> {
    let mut images = Vec::new();
    for field in fields.iter().filter(|field| holds_images(&field.name)) {
        images.extend(of_field(&field.name, field.value, None, line)?);
    }
    Ok(images)
}

/// The images of fields of known names.
fn of_known(
    is_prompt: impl Fn(&str) -> bool,
    referred: Option<&Referred>,
    (fields, line): (&JsonFields, u64),
) -> Result<Vec<Named>, RowError> {
    let known = KNOWN.iter().filter(|name| !is_prompt(name));
    let known = known.filter_map(|name| Some((*name, fields.get(name)?)));
    let mut images = Vec::new();
    // A number is the user's own: a count, or the name of an image.
    for (name, json) in known.filter(|(_, json)| json.starts_with(['"', '[', '{'])) {
        let found = of_field(name, json, referred, line)?;
        if !images.is_empty() && !found.is_empty() {
            let what = "the row has images in `image` and in `images`";
            return Err(RowError::new(code::INVALID_PROMPT, line, what)
                .with_help("name the field with --image-column"));
        }
        images.extend(found);
    }
    Ok(images)
}

/// The images of a field: one, or a list of them.
fn of_field(
    name: &str,
    json: &str,
    referred: Option<&Referred>,
    line: u64,
) -> Result<Vec<Named>, RowError> {
    let wrong = |what: String| {
        RowError::new(code::INVALID_PROMPT, line, format!("`{name}`: {what}"))
            .with_help("a field that holds no images is left alone with --image-column ''")
    };
    let value: Value =
        serde_json::from_str(json).map_err(|error| wrong(super::prompt::reason(&error)))?;
    let cell = value.as_str().and_then(|cell| referred?.cell(cell));
    let items = match cell.map_or(value, Value::String) {
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

/// The texts of a list that a table's cell holds, as JSON or as Python writes it.
fn listed(cell: &str) -> Option<Vec<Value>> {
    let cell = cell.trim();
    let is_list = cell.starts_with("[\"") || cell.starts_with("['");
    let json = || serde_json::from_str::<Vec<String>>(cell).ok();
    let items = is_list.then(|| json().or_else(|| python_list(cell))).flatten()?;
    Some(items.into_iter().map(Value::from).collect())
}

/// The texts of a list as Python's `repr` has it: `['a.png', "b's.png"]`.
fn python_list(cell: &str) -> Option<Vec<String>> {
    let mut rest = cell.strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut items = Vec::new();
    while let Some(quote) = rest.chars().next() {
        let text = rest.strip_prefix(['\'', '"'])?;
        let (mut item, mut escaped, mut end) = (String::new(), false, None);
        for (at, letter) in text.char_indices() {
            match letter {
                // Names and base64 have no others.
                '\\' | '\'' | '"' if escaped => item.push(letter),
                _ if escaped => return None,
                '\\' => {}
                letter if letter == quote => {
                    end = Some(at);
                    break;
                }
                letter => item.push(letter),
            }
            escaped = letter == '\\' && !escaped;
        }
        items.push(item);
        let after = text[end? + 1..].trim_start();
        rest = match after.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(items)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_in_cells_are_those_of_json_and_of_python() {
        let of = |cell: &str| {
            let items = listed(cell)?;
            Some(items.iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>().join("|"))
        };
        assert_eq!(of(r#"["a.png", "b"]"#).as_deref(), Some("a.png|b"));
        assert_eq!(of(" ['a.png', \"b's.png\",'c'] ").as_deref(), Some("a.png|b's.png|c"));
        assert_eq!(of(r"['a\'b\\']").as_deref(), Some(r"a'b\"));
        for wrong in ["['a'", "['a' 'b']", "['a', b]", r"['\x41']", "[a]", "['a]", "a"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
