//! Words that are cut here, for tokenizers that tokenizers 1.0.0-rc.3 refuses or reads wrongly:
//! a `Metaspace` or a `ByteLevel` among other pre-tokenizers, a suffix of words of one character,
//! and `single_word` tokens that begin with a character of several bytes. The crate's normalizers
//! and models run on them as always. From tokenizers 0.23.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tokenizers::pipeline::{
    Model, PipelineModelScratch, PipelinePatternMatcher, PipelinePreTokenizer, PipelineToken,
    PipelineTokenizer, PreTokenizer, PreTokenizerScratch, Segment, SpecialSegmentIterator,
    normalize_all,
};
use tokenizers::utils::byte_level::BYTES_CHAR_LOOKUP;

use super::split_regex;
use super::tokenizer_json::TokenizerJson;
use super::word_class::is_word;
use vllm_batch_base::files::quoted;

/// GPT-2's regex, which `ByteLevel` cuts by.
pub(super) const GPT_2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Cutting of texts into words.
pub(super) struct Words {
    steps: Vec<Step>,
    added: AddedTokens,
    /// Tokens of words of one character, if words have a suffix; `None`: there is none.
    of_one: HashMap<char, Option<u32>>,
    /// Buffers of the model, which are large.
    scratches: Mutex<Vec<PipelineModelScratch>>,
}

/// Step over each piece of a text, one after the other.
enum Step {
    /// It is cut.
    Cut(PipelinePreTokenizer),
    /// Spaces become this character, which begins words too.
    Metaspace { mark: char, prepends: Prepends, cuts: bool },
    /// A space is put before it, unless one is there.
    PrefixSpace,
    /// Its bytes become characters.
    Bytes,
}

/// Pieces that get a mark before them.
#[derive(Clone, Copy, PartialEq)]
enum Prepends {
    Always,
    First,
    Never,
}

/// A part of a text.
struct Piece {
    text: String,
    /// It begins the text.
    is_first: bool,
}

impl Words {
    /// Takes the pre-tokenizer out of a tokenizer that the crate does not cut as it says; None: the
    /// crate does.
    ///
    /// # Errors
    /// A pre-tokenizer is damaged, or of a kind that is not supported.
    pub(crate) fn take(tokenizer: &mut TokenizerJson<'_>) -> Result<Option<Self>, String> {
        let members = members(&tokenizer.value["pre_tokenizer"]);
        let suffix = tokenizer.value["model"]["end_of_word_suffix"].as_str().unwrap_or_default();
        let added = tokenizer.value["added_tokens"].as_array().into_iter().flatten();
        let is_long = |token: &Value| {
            let first = token["content"].as_str().and_then(|text| text.chars().next());
            token["single_word"] == true && first.is_some_and(|first| !first.is_ascii())
        };
        if !is_refused(&members) && suffix.is_empty() && !added.into_iter().any(is_long) {
            return Ok(None);
        }
        let mut steps = Vec::new();
        for member in &members {
            push_steps(member, &mut steps)?;
        }
        let added = AddedTokens::of(&tokenizer.value["added_tokens"]);
        let of_one = match suffix {
            "" => HashMap::new(),
            suffix => words_of_one(tokenizer, suffix),
        };
        tokenizer.value["pre_tokenizer"] = Value::Null;
        Ok(Some(Self { steps, added, of_one, scratches: Mutex::default() }))
    }

    /// Pre-tokenizers that the crate runs.
    pub(crate) fn cutters(&self) -> impl Iterator<Item = &PipelinePreTokenizer> {
        self.steps.iter().filter_map(|step| match step {
            Step::Cut(cutter) => Some(cutter),
            _ => None,
        })
    }

    /// The ids of a text, without tokens around it.
    ///
    /// # Errors
    /// The tokenizer cannot represent the text.
    pub(crate) fn encode(
        &self,
        text: &str,
        tokenizer: &PipelineTokenizer,
        as_text: bool,
    ) -> Result<Vec<u32>, String> {
        let pooled = self.scratches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = pooled.unwrap_or_else(|| tokenizer.get_model().init_scratch());
        let mut tokens = Vec::new();
        for segment in SpecialSegmentIterator::new(text, &self.added, false, as_text) {
            let (chunk, at) = match segment {
                Segment::SpecialToken(id) => {
                    tokens.push(PipelineToken::from(id));
                    continue;
                }
                Segment::Text { text, input_offset } => (text, input_offset),
            };
            let normalized = normalize_all(tokenizer.get_normalizers(), chunk, at);
            let normalized = normalized.map_err(|error| error.to_string())?;
            for segment in SpecialSegmentIterator::new(&normalized, &self.added, true, as_text) {
                match segment {
                    Segment::SpecialToken(id) => tokens.push(PipelineToken::from(id)),
                    Segment::Text { text, input_offset } => {
                        for word in self.cut(text, at + input_offset == 0)? {
                            self.push_word(&word, tokenizer, &mut scratch, &mut tokens)?;
                        }
                    }
                }
            }
        }
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        Ok(tokens.into_iter().map(PipelineToken::id).collect())
    }

    fn push_word(
        &self,
        word: &str,
        tokenizer: &PipelineTokenizer,
        scratch: &mut PipelineModelScratch,
        tokens: &mut Vec<PipelineToken>,
    ) -> Result<(), String> {
        let mut chars = word.chars();
        if let (Some(char), None) = (chars.next(), chars.next())
            && let Some(id) = self.of_one.get(&char)
        {
            tokens.extend(id.map(PipelineToken::from));
            return Ok(());
        }
        let tokenized = tokenizer.get_model().tokenize_pipeline(word, scratch, tokens);
        tokenized.map_err(|error| error.to_string())
    }

    /// The words of a normalized text.
    fn cut(&self, text: &str, is_first: bool) -> Result<Vec<String>, String> {
        let mut pieces = vec![Piece { text: text.to_owned(), is_first }];
        for step in &self.steps {
            let mut next = Vec::new();
            for piece in pieces {
                step.apply(piece, &mut next)?;
            }
            next.retain(|piece| !piece.text.is_empty());
            pieces = next;
        }
        Ok(pieces.into_iter().map(|piece| piece.text).collect())
    }
}

impl Step {
    fn apply(&self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), String> {
        let Piece { mut text, is_first } = piece;
        match self {
            Step::Cut(cutter) => {
                let (mut spans, scratch) = (Vec::new(), &mut PreTokenizerScratch::default());
                let cut = cutter.pre_tokenize(&text, scratch, &mut spans);
                cut.map_err(|error| error.to_string())?;
                out.extend(spans.into_iter().map(|span| {
                    let range = span.range();
                    Piece { is_first: is_first && range.start == 0, text: text[range].to_owned() }
                }));
            }
            Step::Metaspace { mark, prepends, cuts } => {
                text = text.replace(' ', &mark.to_string());
                let is_wanted =
                    *prepends == Prepends::Always || (*prepends == Prepends::First && is_first);
                if is_wanted && !text.starts_with(*mark) {
                    text.insert(0, *mark);
                }
                match cuts {
                    true => push_marked(&text, *mark, is_first, out),
                    false => out.push(Piece { text, is_first }),
                }
            }
            Step::PrefixSpace => {
                if !text.starts_with(' ') {
                    text.insert(0, ' ');
                }
                out.push(Piece { text, is_first });
            }
            Step::Bytes => {
                let chars = text.bytes().map(|byte| BYTES_CHAR_LOOKUP[usize::from(byte)]);
                out.push(Piece { text: chars.collect(), is_first });
            }
        }
        Ok(())
    }
}

/// Cuts before each mark.
fn push_marked(text: &str, mark: char, is_first: bool, out: &mut Vec<Piece>) {
    let starts = text.match_indices(mark).map(|(at, _)| at).filter(|at| *at > 0);
    let mut from = 0;
    for to in starts.chain([text.len()]) {
        out.push(Piece { text: text[from..to].to_owned(), is_first: is_first && from == 0 });
        from = to;
    }
}

/// The pre-tokenizers of a tokenizer, in their order.
fn members(pre_tokenizer: &Value) -> Vec<Value> {
    match (&pre_tokenizer["type"], &pre_tokenizer["pretokenizers"]) {
        (Value::Null, _) => Vec::new(),
        (kind, Value::Array(members)) if kind == "Sequence" => members.clone(),
        _ => vec![pre_tokenizer.clone()],
    }
}

/// Whether the crate does not read them.
fn is_refused(members: &[Value]) -> bool {
    let kind = |member: &Value| member["type"].as_str().unwrap_or_default().to_owned();
    let kinds: Vec<String> = members.iter().map(kind).collect();
    let has = |name: &str| kinds.iter().any(|kind| kind == name);
    if has("Metaspace") {
        let is_pair = kinds == ["WhitespaceSplit", "Metaspace"]
            && members[1]["prepend_scheme"].as_str().unwrap_or("always") == "always"
            && members[1]["split"] != false;
        return members.len() > 1 && !is_pair;
    }
    let is_last = kinds.iter().position(|kind| kind == "ByteLevel") == kinds.len().checked_sub(1);
    let has_prefix = members.iter().any(|member| member["add_prefix_space"] == true);
    has("ByteLevel") && members.len() > 1 && (!is_last || has_prefix)
}

fn push_steps(member: &Value, steps: &mut Vec<Step>) -> Result<(), String> {
    match member["type"].as_str().unwrap_or_default() {
        "Metaspace" => steps.push(metaspace(member)?),
        "ByteLevel" => {
            if member["add_prefix_space"].as_bool().unwrap_or(true) {
                steps.push(Step::PrefixSpace);
            }
            if member["use_regex"].as_bool().unwrap_or(true) {
                let split = json!({"type": "Split", "pattern": {"Regex": GPT_2},
                    "behavior": "Isolated", "invert": false});
                steps.push(Step::Cut(split_regex::cutter(&split)?));
            }
            steps.push(Step::Bytes);
        }
        _ => steps.push(Step::Cut(split_regex::cutter(member)?)),
    }
    Ok(())
}

fn metaspace(member: &Value) -> Result<Step, String> {
    let text = member["replacement"].as_str().unwrap_or_default();
    let mut chars = text.chars();
    let (Some(mark), None) = (chars.next(), chars.next()) else {
        return Err(format!("the replacement {} of a Metaspace is no character", quoted(text)));
    };
    let prepends = match member["prepend_scheme"].as_str() {
        None | Some("always") => Prepends::Always,
        Some("first") => Prepends::First,
        Some("never") => Prepends::Never,
        Some(other) => {
            let other = quoted(other);
            return Err(format!("the prepend_scheme {other} of a Metaspace is not supported"));
        }
    };
    if member["add_prefix_space"] == false && prepends != Prepends::Never {
        return Err("a Metaspace without `add_prefix_space` has a prepend_scheme".to_owned());
    }
    Ok(Step::Metaspace { mark, prepends, cuts: member["split"].as_bool().unwrap_or(true) })
}

/// Tokens of words of one character; without one of its own a character is the unknown token.
fn words_of_one(tokenizer: &TokenizerJson<'_>, suffix: &str) -> HashMap<char, Option<u32>> {
    let unk = tokenizer.value["model"]["unk_token"].as_str();
    let unk = unk.and_then(|unk| tokenizer.id_of(unk));
    let one = |text: &str| {
        let mut chars = text.chars();
        chars.next().filter(|_| chars.next().is_none())
    };
    let mut of_one = HashMap::new();
    tokenizer.each_model_token(|token, id| {
        if let Some(char) = token.strip_suffix(suffix).and_then(one) {
            of_one.insert(char, Some(id));
        } else if let Some(char) = one(token) {
            of_one.entry(char).or_insert(unk);
        }
    });
    of_one
}

/// Added tokens, found as tokenizers 0.23 finds them: the leftmost one, and of those the longest.
struct AddedTokens {
    /// The longest first.
    tokens: Vec<AddedToken>,
}

struct AddedToken {
    content: String,
    id: u32,
    is_normalized: bool,
    is_word: bool,
    strips_left: bool,
    strips_right: bool,
}

impl AddedTokens {
    fn of(tokens: &Value) -> Self {
        let read = |token: &Value| {
            let flag = |name: &str| token[name] == true;
            Some(AddedToken {
                content: token["content"].as_str().filter(|text| !text.is_empty())?.to_owned(),
                id: u32::try_from(token["id"].as_u64()?).ok()?,
                is_normalized: flag("normalized"),
                is_word: flag("single_word"),
                strips_left: flag("lstrip"),
                strips_right: flag("rstrip"),
            })
        };
        let mut tokens: Vec<_> = tokens.as_array().into_iter().flatten().filter_map(read).collect();
        tokens.sort_by_key(|token| std::cmp::Reverse(token.content.len()));
        Self { tokens }
    }
}

impl PipelinePatternMatcher for AddedTokens {
    fn extract_next(
        &self,
        full_input: &[u8],
        search_offset: usize,
        normalized: bool,
        encode_special_tokens: bool,
    ) -> Option<((usize, usize), u32)> {
        // All of them count as special ones here.
        let text = std::str::from_utf8(full_input).ok().filter(|_| !encode_special_tokens)?;
        let mut at = search_offset;
        while let Some(first) = text[at..].chars().next() {
            let of_kind = self.tokens.iter().filter(|token| token.is_normalized == normalized);
            let Some(token) = of_kind.into_iter().find(|t| text[at..].starts_with(&t.content))
            else {
                at += first.len_utf8();
                continue;
            };
            let end = at + token.content.len();
            let beside = [text[..at].chars().next_back(), text[end..].chars().next()];
            if token.is_word && beside.into_iter().flatten().any(is_word) {
                at = end;
                continue;
            }
            let start = match token.strips_left {
                true => text[..at].trim_end().len().max(search_offset),
                false => at,
            };
            let end = match token.strips_right {
                true => text.len() - text[end..].trim_start().len(),
                false => end,
            };
            return Some(((start, end), token.id));
        }
        None
    }
}

#[cfg(test)]
mod tests;
