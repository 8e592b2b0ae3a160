//! Control tokens that users type are text, those that the chat template writes are control tokens.
//!
//! As transformers' `apply_chat_template(sanitize_control_tokens=True)`: before rendering, control
//! tokens inside messages, tools and documents are put between two private-use characters; after
//! rendering, what is between them is encoded without added tokens. Templates can
//! still look at the content (`'</think>' in content`), since only the markers are new.

use serde_json::Value;

use super::python::is_space;
use super::{TextError, Tokenizer};

const START: char = '\u{F0000}';
const END: char = '\u{F0001}';
/// Stands for an image where a template is given texts alone.
pub(super) const IMAGE: &str = "\u{F0002}";
/// The same for a recording.
pub(super) const SOUND: &str = "\u{F0003}";

/// What a rendered chat shows for media of one kind, and what its prompt has there.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShownMedia<'a> {
    /// What the template writes for each; empty: nothing.
    pub placeholder: &'a str,
    /// What comes in the place of each, in their order.
    pub texts: &'a [String],
}

/// The number of images and of recordings that a template shows, where the messages have others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumShown {
    /// Images.
    pub images: usize,
    /// Recordings.
    pub sounds: usize,
}

/// A rendered conversation, which remembers what users typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    text: String,
    marked: bool,
}

impl RenderedChat {
    pub(super) fn new(text: String, marked: bool) -> Self {
        Self { text, marked }
    }

    /// Whether a text is in it, as a user wrote it.
    pub(super) fn shows(&self, text: &str) -> bool {
        let unmarked = |text: &str| text.replace([START, END], "");
        unmarked(&self.text).contains(&unmarked(text))
    }

    /// What is before the last `tag`. If the space at the tag's end was trimmed, so were messages.
    pub(super) fn cut_before(mut self, tag: &str) -> Option<Self> {
        let place = self.text.rfind(tag.trim_end())?;
        let is_trimmed = !self.text[place..].starts_with(tag);
        self.text.truncate(place);
        if is_trimmed {
            self.text.truncate(self.text.trim_end().len());
        }
        Some(self)
    }

    /// Cuts the white space at its end off.
    pub fn without_trailing_space(mut self) -> (Self, String) {
        let space = self.text.split_off(self.text.trim_end_matches(is_space).len());
        (self, space)
    }

    /// The same with a text behind it.
    pub fn followed_by(&self, ending: &str) -> Self {
        // Markers that users typed could forge a marked token.
        let ending = ending.replace([START, END], "");
        Self { text: format!("{}{ending}", self.text), marked: self.marked }
    }

    /// The same with texts in the places of images and recordings, which are where a placeholder
    /// is that no user typed; and of each in its turn whether it is a recording.
    ///
    /// # Errors
    /// The template shows other numbers of them.
    pub fn with_media(
        self,
        images: ShownMedia<'_>,
        sounds: ShownMedia<'_>,
    ) -> Result<(Self, Vec<bool>), NumShown> {
        let kinds = [images, sounds];
        let text = self.text.replace(IMAGE, images.placeholder).replace(SOUND, sounds.placeholder);
        let (mut out, mut rest) = (String::with_capacity(text.len()), &*text);
        let (mut num_shown, mut are_sounds) = ([0; 2], Vec::new());
        let next = |rest: &str, kind: usize| {
            let wanted = kinds[kind].placeholder;
            (!wanted.is_empty()).then(|| rest.find(wanted)).flatten().map(|at| (at, kind))
        };
        while let Some((at, kind)) = (0..2).filter_map(|kind| next(rest, kind)).min() {
            let ShownMedia { placeholder, texts } = kinds[kind];
            let end = at + placeholder.len();
            out.push_str(&rest[..at]);
            let is_typed = out.ends_with(START) && rest[end..].starts_with(END);
            if is_typed {
                out.push_str(placeholder);
            } else {
                out.push_str(texts.get(num_shown[kind]).map_or("", |text| text));
                num_shown[kind] += 1;
                are_sounds.push(kind == 1);
            }
            rest = &rest[end..];
        }
        out.push_str(rest);
        match num_shown == kinds.map(|kind| kind.texts.len()) {
            true => Ok((Self { text: out, marked: self.marked }, are_sounds)),
            false => Err(NumShown { images: num_shown[0], sounds: num_shown[1] }),
        }
    }

    /// The text, as it would be without the distinction.
    pub fn text(&self) -> String {
        if self.marked { self.text.replace([START, END], "") } else { self.text.clone() }
    }
}

/// The tokens that users cannot write: all special tokens, and those added tokens that occur in the
/// source of the template (turn markers of Gemma 2 and DeepSeek are not declared special), unless
/// they are white space.
pub(super) struct ControlTokens {
    /// Longest first, so that a token wins over those it contains.
    tokens: Vec<String>,
    /// Bytes that begin one, for a quick look at text that has none.
    first_bytes: [bool; 256],
}

impl ControlTokens {
    pub(crate) fn new(tokenizer: &Tokenizer, template_source: &str) -> Self {
        let is_control = |text: &str, id: u32| {
            tokenizer.is_special(id)
                || (template_source.contains(text) && !text.chars().all(char::is_whitespace))
        };
        let mut tokens: Vec<String> = tokenizer
            .added_tokens()
            .iter()
            .filter(|&(text, &id)| !text.is_empty() && is_control(text, id))
            .map(|(text, _)| text.clone())
            .collect();
        tokens.sort_by_key(|token| std::cmp::Reverse(token.len()));
        Self::of(tokens)
    }

    /// These tokens alone.
    pub(crate) fn only(tokens: &[String]) -> Self {
        Self::of(tokens.to_vec())
    }

    fn of(tokens: Vec<String>) -> Self {
        let mut first_bytes = [false; 256];
        for token in &tokens {
            first_bytes[usize::from(token.as_bytes()[0])] = true;
        }
        Self { tokens, first_bytes }
    }

    /// The control token at the beginning of a text.
    fn at(&self, text: &str) -> Option<&str> {
        let first = *text.as_bytes().first()?;
        let tokens = self.first_bytes[usize::from(first)].then_some(&self.tokens)?;
        tokens.iter().map(String::as_str).find(|token| text.starts_with(token))
    }

    fn occur_in(&self, text: &str) -> bool {
        let mut places = text.char_indices().map(|(at, _)| at);
        places.any(|at| self.at(&text[at..]).is_some())
    }

    /// Whether a string anywhere in a value has a control token.
    pub(crate) fn occur_in_value(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.occur_in(text),
            Value::Array(items) => items.iter().any(|item| self.occur_in_value(item)),
            Value::Object(items) => items.iter().any(|(key, item)| {
                !is_identifier(key) && self.occur_in(key) || self.occur_in_value(item)
            }),
            _ => false,
        }
    }

    /// The value with its control tokens between markers.
    pub(crate) fn mark(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.mark_text(text)),
            Value::Array(items) => items.iter().map(|item| self.mark(item)).collect(),
            Value::Object(items) => {
                items.iter().map(|(key, item)| (self.mark_key(key), self.mark(item))).collect()
            }
            other => other.clone(),
        }
    }

    /// Arguments of calls and schemas of tools have keys that users chose. Those that a template
    /// looks for are identifiers.
    fn mark_key(&self, key: &str) -> String {
        if is_identifier(key) { key.to_owned() } else { self.mark_text(key) }
    }

    fn mark_text(&self, text: &str) -> String {
        // Markers that users typed could forge a marked token.
        let text = text.replace([START, END], "");
        let mut out = String::with_capacity(text.len() + 8);
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            let len = match self.at(rest) {
                Some(token) => {
                    out.extend([START]);
                    out.push_str(token);
                    out.extend([END]);
                    token.len()
                }
                None => {
                    out.push(c);
                    c.len_utf8()
                }
            };
            rest = &rest[len..];
        }
        out
    }
}

fn is_identifier(key: &str) -> bool {
    key.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}

/// A part of a marked text.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// Encoded as usual.
    Template(&'a str),
    /// A control token that a user typed.
    Typed(&'a str),
}

/// Cuts at markers. String methods of templates can separate a pair: a lone marker disappears but
/// still cuts, so that the text around it cannot join into a control token.
fn pieces<'a>(text: &'a str, tokenizer: &Tokenizer) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find([START, END]) {
        pieces.push(Piece::Template(&rest[..at]));
        let marker = if rest[at..].starts_with(START) { START } else { END };
        rest = &rest[at + marker.len_utf8()..];
        if marker == START
            && let Some(end) = rest.find([START, END])
            && rest[end..].starts_with(END)
            && tokenizer.added_token_id(&rest[..end]).is_some()
        {
            pieces.push(Piece::Typed(&rest[..end]));
            rest = &rest[end + END.len_utf8()..];
        }
    }
    pieces.push(Piece::Template(rest));
    pieces.retain(|piece| !matches!(piece, Piece::Template("")));
    pieces
}

pub(super) fn encode_chat(
    tokenizer: &Tokenizer,
    chat: &RenderedChat,
) -> Result<Vec<u32>, TextError> {
    if !chat.marked {
        return tokenizer.encode(&chat.text, false);
    }
    let mut ids = Vec::new();
    for (index, piece) in pieces(&chat.text, tokenizer).into_iter().enumerate() {
        match piece {
            Piece::Template(text) if index == 0 => ids.extend(tokenizer.encode(text, false)?),
            Piece::Template(text) => ids.extend(encode_inside(tokenizer, text, false)?),
            Piece::Typed(token) => ids.extend(encode_typed(tokenizer, token)?),
        }
    }
    Ok(ids)
}

/// Encodes a piece from the middle of a text. SentencePiece tokenizers put a space before whatever
/// they encode: a newline in front takes it, and its ids are removed.
pub(super) fn encode_inside(
    tokenizer: &Tokenizer,
    text: &str,
    typed: bool,
) -> Result<Vec<u32>, TextError> {
    let encode = |text: &str| match typed {
        true => tokenizer.encode_as_text(text),
        false => tokenizer.encode(text, false),
    };
    let mut ids = encode(&format!("\n{text}"))?;
    let newline = tokenizer.newline_ids();
    if !ids.starts_with(newline) {
        return encode(text);
    }
    ids.drain(..newline.len());
    Ok(ids)
}

fn encode_typed(tokenizer: &Tokenizer, token: &str) -> Result<Vec<u32>, TextError> {
    let id = tokenizer.added_token_id(token);
    let is_text = |ids: &[u32]| ids.iter().all(|part| Some(*part) != id);
    let ids = encode_inside(tokenizer, token, true)?;
    if is_text(&ids) {
        return Ok(ids);
    }
    // The model of the tokenizer itself knows the token (Unigram vocabularies list `<s>`): cut it.
    let cut = token.chars().next().map_or(0, char::len_utf8);
    let mut ids = encode_inside(tokenizer, &token[..cut], true)?;
    ids.extend(encode_inside(tokenizer, &token[cut..], true)?);
    if is_text(&ids) {
        return Ok(ids);
    }
    Err(TextError::tokenize(format!(
        "{token:?} cannot be encoded as text, only as a control token (`settings.allow_special` accepts it)"
    )))
}
