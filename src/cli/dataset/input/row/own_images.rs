//! Media in fields of a row beside its prompt: which fields they are in, and their places in the
//! chat that is made of both.

use serde_json::{Value, json};

use super::{RowOptions, image_parts};
use crate::input::fields::JsonFields;
use crate::input::media::{EXPECTED, Named, Reference, kind_of_name, nouns};
use crate::input::parts::PART;
use crate::input::path;
use crate::input::reader::Brought;
use crate::input::referred::Referred;
use crate::input::row_error::{RowError, code};
use vllm_batch_media::MediaKind;

/// Fields that hold images where no flag names one.
pub(super) const KNOWN: &[&str] = &["image", "images"];

/// The same of recordings.
const KNOWN_SOUNDS: &[&str] = &["audio", "audios"];

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

/// The same of recordings.
const UNREAD_SOUNDS: &[&str] = &[
    "audio_path",
    "audio_paths",
    "audio_filepath",
    "audio_url",
    "audio_urls",
    "audio_file",
    "audio_base64",
    "recording",
    "recordings",
    "sound",
    "wav",
];

/// Which fields of rows hold media of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fields {
    /// None does.
    None,
    /// The one of `--image-column` or `--audio-column`.
    Named(String),
    /// Those of the known names.
    Known,
    /// Those that name files beside them, as Hugging Face's imagefolder and audiofolder have them.
    OfFiles,
    /// Those of members of an archive with an extension of the kind.
    OfMembers,
    /// The part of a file that the row is, which is such a medium.
    OfPart(MediaKind),
}

/// Which fields of rows hold media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MediaFields {
    images: Fields,
    sounds: Fields,
}

/// The flag that names the field of a kind.
pub(super) fn flag(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "--image-column",
        MediaKind::Sound => "--audio-column",
    }
}

/// Fields that hold media of a kind where no flag names one.
pub(super) fn known(kind: MediaKind) -> &'static [&'static str] {
    match kind {
        MediaKind::Image => KNOWN,
        MediaKind::Sound => KNOWN_SOUNDS,
    }
}

/// The kinds, in the order in which they stand before a prompt.
pub(super) const KINDS: [MediaKind; 2] = [MediaKind::Image, MediaKind::Sound];

impl MediaFields {
    pub(super) fn of(options: &RowOptions) -> Self {
        let of = |column: Option<&str>| match (column, options.name_files) {
            (Some(""), _) => Fields::None,
            (Some(name), _) => Fields::Named(name.to_owned()),
            (None, false) => Fields::Known,
            (None, true) => Fields::OfFiles,
        };
        let (images, sounds) = (options.image_column.as_deref(), options.audio_column.as_deref());
        MediaFields { images: of(images), sounds: of(sounds) }
    }

    /// Goes on with rows that have such media with them.
    pub(super) fn begin_records(&mut self, brought: Brought) {
        for fields in [&mut self.images, &mut self.sounds] {
            if matches!(fields, Fields::Known | Fields::OfMembers | Fields::OfPart(_)) {
                *fields = match brought {
                    Brought::Nothing => Fields::Known,
                    Brought::Members => Fields::OfMembers,
                    Brought::Part(medium) => Fields::OfPart(medium),
                };
            }
        }
    }

    fn fields(&self, kind: MediaKind) -> &Fields {
        match kind {
            MediaKind::Image => &self.images,
            MediaKind::Sound => &self.sounds,
        }
    }

    /// Those that the user named, and by which flags.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        KINDS.into_iter().filter_map(|kind| Some((flag(kind), self.named_of(kind)?)))
    }

    /// The one of a kind that the user named.
    pub(super) fn named_of(&self, kind: MediaKind) -> Option<&str> {
        match self.fields(kind) {
            Fields::Named(name) => Some(name),
            _ => None,
        }
    }

    /// Whether a table of these columns may have media of a kind. `is_prompt`: whether a column is
    /// a part of the prompt's text.
    pub(super) fn are_in(
        &self,
        kind: MediaKind,
        columns: &[String],
        is_prompt: impl Fn(&str) -> bool,
    ) -> bool {
        match self.fields(kind) {
            Fields::None => false,
            Fields::Named(_) => true,
            Fields::Known => {
                let mut known = known(kind).iter();
                known.any(|name| !is_prompt(name) && columns.iter().any(|c| c == name))
            }
            Fields::OfFiles => columns.iter().any(|name| names_files(name)),
            // No table is an archive or a part of a file.
            Fields::OfMembers | Fields::OfPart(_) => false,
        }
    }

    /// A field that may hold media and is not read, where no flag says which fields do.
    pub(super) fn unread(
        &self,
        is_there: impl Fn(&str) -> bool,
    ) -> Option<(MediaKind, &'static str)> {
        let of_kind = |kind, unread: &[&'static str]| {
            let is_open = *self.fields(kind) == Fields::Known;
            let name = unread.iter().copied().find(|name| is_open && is_there(name));
            name.map(|name| (kind, name))
        };
        of_kind(MediaKind::Image, UNREAD).or_else(|| of_kind(MediaKind::Sound, UNREAD_SOUNDS))
    }

    /// The media of a row: its images, then its recordings.
    pub(super) fn media(
        &self,
        is_prompt: impl Fn(&str) -> bool,
        referred: Option<&Referred>,
        row: (&JsonFields, u64),
    ) -> Result<Vec<Named>, RowError> {
        let mut media = Vec::new();
        for kind in KINDS {
            media.extend(self.of_kind(kind, &is_prompt, referred, row)?);
        }
        Ok(media)
    }

    /// Those of one kind.
    pub(super) fn of_kind(
        &self,
        kind: MediaKind,
        is_prompt: &impl Fn(&str) -> bool,
        referred: Option<&Referred>,
        (fields, line): (&JsonFields, u64),
    ) -> Result<Vec<Named>, RowError> {
        let referred = referred.filter(|_| kind == MediaKind::Image);
        match self.fields(kind) {
            Fields::None => Ok(Vec::new()),
            Fields::Named(name) => match path::find(fields, name) {
                Ok(json) => of_field((kind, name), json, referred, line),
                Err(_) => {
                    let flag = flag(kind);
                    let message = format!("the row has no field '{name}' for {flag}");
                    Err(RowError::new(code::ROW_SHAPE, line, message))
                }
            },
            Fields::OfFiles => {
                let mut media = of_all(kind, names_files, fields, line)?;
                media.retain(|medium| kind_of_file(medium) == kind);
                Ok(media)
            }
            Fields::OfMembers => {
                of_all(kind, |name| kind_of_name(name) == Some(kind), fields, line)
            }
            Fields::OfPart(medium) if kind == *medium => {
                let place = "its part of the file".to_owned();
                Ok(vec![Named { kind, place, reference: Reference::Path(PART.to_owned()) }])
            }
            Fields::OfPart(_) => Ok(Vec::new()),
            Fields::Known => of_known(kind, is_prompt, referred, (fields, line)),
        }
    }
}

/// The kind of a file by its name: what is no recording is an image, or a fault of one.
fn kind_of_file(medium: &Named) -> MediaKind {
    medium.file_name().and_then(kind_of_name).unwrap_or(MediaKind::Image)
}

/// Whether a field of imagefolder names files: `file_name`, `front_file_name`, or lists of them.
fn names_files(field: &str) -> bool {
    let name = field.strip_suffix('s').unwrap_or(field);
    name == "file_name" || name.ends_with("_file_name")
}

/// The media of all fields of which a test says so, in their order.
fn of_all(
    kind: MediaKind,
    holds_media: impl Fn(&str) -> bool,
    fields: &JsonFields,
    line: u64,
) -> Result<Vec<Named>, RowError> {
    let mut images = Vec::new();
    for field in fields.iter().filter(|field| holds_media(&field.name)) {
        images.extend(of_field((kind, &field.name), field.value, None, line)?);
    }
    Ok(images)
}

/// The media of fields of known names.
fn of_known(
    kind: MediaKind,
    is_prompt: impl Fn(&str) -> bool,
    referred: Option<&Referred>,
    (fields, line): (&JsonFields, u64),
) -> Result<Vec<Named>, RowError> {
    let known = known(kind).iter().filter(|name| !is_prompt(name));
    let known = known.filter_map(|name| Some((*name, fields.get(name)?)));
    let mut images = Vec::new();
    // A number is the user's own: a count, or the name of an image.
    for (name, json) in known.filter(|(_, json)| json.starts_with(['"', '[', '{'])) {
        let found = of_field((kind, name), json, referred, line)?;
        if !images.is_empty() && !found.is_empty() {
            let (nouns, name, flag) = (nouns(kind), kind.name(), flag(kind));
            let what = format!("the row has {nouns} in `{name}` and in `{name}s`");
            return Err(RowError::new(code::INVALID_PROMPT, line, what)
                .with_help(format!("name the field with {flag}")));
        }
        images.extend(found);
    }
    Ok(images)
}

/// The media of a field: one, or a list of them.
fn of_field(
    (kind, name): (MediaKind, &str),
    json: &str,
    referred: Option<&Referred>,
    line: u64,
) -> Result<Vec<Named>, RowError> {
    let wrong = |what: String| {
        RowError::new(code::INVALID_PROMPT, line, format!("`{name}`: {what}")).with_help(format!(
            "a field that holds no {} is left alone with {} ''",
            nouns(kind),
            flag(kind)
        ))
    };
    let value: Value =
        serde_json::from_str(json).map_err(|error| wrong(super::prompt::reason(&error)))?;
    // How an answer should sound, as OpenAI has it: refused by its name.
    if value.get("voice").is_some_and(|voice| !voice.is_null()) {
        return Ok(Vec::new());
    }
    let cell = value.as_str().and_then(|cell| referred?.cell(cell));
    let items = match cell.map_or(value, Value::String) {
        Value::Array(items) => items,
        value => match value.as_str().and_then(listed) {
            Some(items) => items,
            None => {
                let reference = Reference::of(kind, &value).map_err(wrong)?;
                let named = |reference| Named { kind, place: format!("`{name}`"), reference };
                return Ok(reference.map(named).into_iter().collect());
            }
        },
    };
    let mut images = Vec::new();
    let noun = nouns(kind).trim_end_matches('s');
    for (number, item) in items.iter().enumerate() {
        let reference = Reference::of(kind, item)
            .and_then(|reference| reference.ok_or_else(|| format!("expected {EXPECTED}")))
            .map_err(|what| wrong(format!("{noun} {number}: {what}")))?;
        images.push(Named { kind, place: format!("`{name}`: {noun} {number}"), reference });
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

/// What stands for a medium in the texts of LLaVA's rows, and of those like them.
fn mark(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "<image>",
        MediaKind::Sound => "<audio>",
    }
}

/// Puts the media of a row into its messages: where parts or marks stand for them, else before the
/// first text of the user.
pub(super) fn place(messages: &mut [Value], media: Vec<Named>, line: u64) -> Result<(), RowError> {
    // Those that are placed last are first.
    for kind in KINDS.into_iter().rev() {
        let of_kind = media.iter().filter(|medium| medium.kind == kind).cloned().collect();
        place_of(kind, messages, of_kind, line)?;
    }
    Ok(())
}

fn place_of(
    kind: MediaKind,
    messages: &mut [Value],
    media: Vec<Named>,
    line: u64,
) -> Result<(), RowError> {
    if media.is_empty() {
        return Ok(());
    }
    let (count, nouns, mark) = (media.len(), nouns(kind), mark(kind));
    let wrong = |what: String| RowError::new(code::MEDIA_COUNT, line, what);
    let parts = || messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let is_place = |part: &Value| image_parts::is_place(kind, part);
    if parts().any(|part| part["type"] == kind.name() && !is_place(part)) {
        let what =
            format!("the messages have {nouns} of their own, and the row has some beside them");
        return Err(wrong(what));
    }
    let num_places = parts().filter(|part| is_place(part)).count();
    let num_marks: usize = messages.iter().map(|message| num_marks(message, mark)).sum();
    let mut media = media.into_iter().map(image_parts::part);
    match (num_places, num_marks) {
        (0, 0) => put_first(kind, messages, media, line),
        (0, marks) if marks == count => {
            for message in messages.iter_mut().filter(|message| is_of_user(message)) {
                fill_marks(&mut message["content"], mark, &mut media);
            }
            Ok(())
        }
        (0, marks) => {
            let noun = nouns.trim_end_matches('s');
            Err(wrong(format!(
                "marks `{mark}` in the prompt: {marks}, {nouns} of the row: {count}; \
                 help: write one mark for each {noun}, or none"
            )))
        }
        (places, _) if places == count => {
            let contents = messages.iter_mut().filter_map(|m| m["content"].as_array_mut());
            for part in contents.flatten().filter(|part| is_place(part)) {
                *part = media.next().expect("as many as places");
            }
            Ok(())
        }
        (places, _) => {
            let (name, noun) = (kind.name(), nouns.trim_end_matches('s'));
            let nothing = if kind == MediaKind::Image { "an image" } else { "a recording" };
            Err(wrong(format!(
                "parts of type '{name}' without {nothing}: {places}, {nouns} of the row: {count}; \
                 help: write one part for each {noun}, or none"
            )))
        }
    }
}

/// Puts media before the first text of the user, as vLLM does.
fn put_first(
    kind: MediaKind,
    messages: &mut [Value],
    media: impl Iterator<Item = Value>,
    line: u64,
) -> Result<(), RowError> {
    let Some(message) = messages.iter_mut().find(|message| is_of_user(message)) else {
        let nouns = nouns(kind);
        let what = format!("the row has {nouns}, and no message of the user that they could be in");
        return Err(RowError::new(code::INVALID_PROMPT, line, what));
    };
    let content = &mut message["content"];
    let parts = match content.take() {
        Value::Array(parts) => parts,
        Value::String(text) => text_part(&text).into_iter().collect(),
        _ => Vec::new(),
    };
    *content = Value::Array(media.chain(parts).collect());
    Ok(())
}

fn is_of_user(message: &Value) -> bool {
    message["role"] == "user"
}

/// The marks in the texts of a message.
fn num_marks(message: &Value, mark: &str) -> usize {
    let marks = |text: &str| text.matches(mark).count();
    match &message["content"] {
        _ if !is_of_user(message) => 0,
        Value::String(text) => marks(text),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).map(marks).sum()
        }
        _ => 0,
    }
}

/// Puts a medium in the place of each mark. The text beside it stays as it is.
fn fill_marks(content: &mut Value, mark: &str, media: &mut impl Iterator<Item = Value>) {
    let mut filled = Vec::new();
    match content.take() {
        Value::String(text) => fill_text((&text, mark), media, &mut filled),
        Value::Array(parts) => {
            for part in parts {
                match part["text"].as_str() {
                    Some(text) if text.contains(mark) => {
                        fill_text((text, mark), media, &mut filled);
                    }
                    _ => filled.push(part),
                }
            }
        }
        _ => {}
    }
    *content = Value::Array(filled);
}

fn fill_text(
    (text, mark): (&str, &str),
    media: &mut impl Iterator<Item = Value>,
    parts: &mut Vec<Value>,
) {
    for (number, piece) in text.split(mark).enumerate() {
        if number > 0 {
            parts.push(media.next().expect("as many as marks"));
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
