//! `BatchLine`: what a line of OpenAI's or Anthropic's batch output shows of its row: its
//! `custom_id`, and ids that are a function of its content.

use std::sync::Arc;

/// Rows that become lines of a batch API (`--output-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchLines {
    /// Batch requests, in the form of the API that they were written for.
    #[default]
    Own,
    /// Every row, in OpenAI's form.
    OpenAi,
    /// No row.
    Never,
}

/// Kind of answer that a line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// OpenAI's `chat.completion`.
    Chat,
    /// OpenAI's `text_completion`.
    Completions,
    /// OpenAI's `response`.
    Response,
    /// OpenAI's `text` of a recording.
    Transcription,
    /// OpenAI's list of `embedding`s.
    Embeddings,
    /// vLLM's list of `score`s.
    Score,
    /// vLLM's `results`, the best first.
    Rerank,
    /// vLLM's list of `label`s with their numbers.
    Classify,
    /// Anthropic's `message`.
    Message,
}

/// Fields of a row that its batch line shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLine {
    /// Kind of the answer.
    pub kind: BatchKind,
    /// The user's name of the row; None where it has none, or none that can be read.
    pub custom_id: Option<String>,
    /// Ids of the line.
    pub digest: RowDigest,
    /// The adapter that answers; None: the model.
    pub lora: Option<Arc<str>>,
    /// What the answer says again of its request.
    pub echo: Option<Echo>,
}

/// What an answer says again of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Echo {
    /// Of a `response`: its parameters, as fields of a JSON object.
    Fields(String),
    /// Of a completion (`echo`): its prompt before the text. None: the prompt was token ids.
    Prompt(Option<String>),
    /// Of a transcript: what it is of.
    Recording(Recording),
}

/// A recording that a request names, and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Samples of a channel.
    pub num_samples: u64,
    /// Samples of a second.
    pub sample_rate: u32,
    /// `transcribe` or `translate`.
    pub task: &'static str,
    /// Whether the answer has `segments` (`verbose_json`).
    pub is_verbose: bool,
}

impl Recording {
    /// How long it is.
    pub fn seconds(&self) -> f64 {
        self.num_samples as f64 / f64::from(self.sample_rate)
    }
}

/// 64 bits of a hash of a row's `custom_id` and text: equal rows have equal ids, whenever and
/// wherever in a file they are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowDigest(u64);

impl BatchLine {
    /// The line of the row that was read as `text`. White space around the text does not count, so
    /// that line ends do not.
    pub fn new(kind: BatchKind, custom_id: Option<String>, text: &str) -> Self {
        let digest = RowDigest::new(custom_id.as_deref().unwrap_or_default(), text);
        Self { kind, custom_id, digest, lora: None, echo: None }
    }

    /// The same of a row that an adapter answers.
    pub fn answered_by(self, lora: Option<Arc<str>>) -> Self {
        Self { lora, ..self }
    }

    /// The same with what the answer says again of its request.
    pub fn with_echo(self, echo: Echo) -> Self {
        self.with_echo_of(Some(echo))
    }

    /// The same where it may say nothing again.
    pub fn with_echo_of(self, echo: Option<Echo>) -> Self {
        Self { echo, ..self }
    }

    /// The same with another name, if it has none. Its ids stay as they are.
    pub fn or_named(mut self, name: impl FnOnce() -> String) -> Self {
        self.custom_id.get_or_insert_with(name);
        self
    }
}

impl RowDigest {
    /// The length stands before the name, so that no text can be taken for a part of it.
    fn new(name: &str, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(text.trim_ascii().as_bytes());
        Self::of_hash(&hasher.finalize())
    }

    /// The same of a row without a name.
    pub fn of_text(text: &str) -> Self {
        Self::new("", text)
    }

    /// That of a call in one of the row's answers: a function of the row and of both numbers.
    pub fn call(self, sample_index: u32, call_index: usize) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0.to_le_bytes());
        hasher.update(&u64::from(sample_index).to_le_bytes());
        hasher.update(&(call_index as u64).to_le_bytes());
        Self::of_hash(&hasher.finalize())
    }

    /// Nine letters or digits alone, the form of an id that Mistral's chat templates take.
    pub fn short_id(self) -> String {
        format!("{:016x}", self.0)[..9].to_owned()
    }

    fn of_hash(hash: &blake3::Hash) -> Self {
        let (head, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        Self(u64::from_be_bytes(*head))
    }

    /// An id: what it is of, then 16 hexadecimal digits.
    pub fn id(self, prefix: &str) -> String {
        format!("{prefix}{:016x}", self.0)
    }
}

/// The `custom_id` of a line that is no JSON: the first field of that name with a whole value.
/// Inside a string its quotes would be escaped, so nothing else is taken for it.
pub fn recovered_custom_id(text: &str) -> Option<String> {
    const KEY: &str = "\"custom_id\"";
    let (_, rest) = text.split_once(KEY)?;
    let rest = rest.trim_ascii_start().strip_prefix(':')?.trim_ascii_start();
    match rest.as_bytes().first()? {
        b'"' => serde_json::Deserializer::from_str(rest).into_iter().next()?.ok(),
        _ => {
            let end = rest.find([',', '}', ' '])?;
            rest[..end].parse::<serde_json::Number>().ok().map(|_| rest[..end].to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(custom_id: Option<&str>, text: &str) -> String {
        let custom_id = custom_id.map(str::to_owned);
        BatchLine::new(BatchKind::Chat, custom_id, text).digest.id("x-")
    }

    #[test]
    fn ids_are_a_function_of_name_and_text() {
        // By the Python package `blake3`: eight zero bytes, then `{}`.
        assert_eq!(id(None, "{}"), "x-6f5469db4375af4a");
        assert_eq!(id(Some("a"), "{}"), id(Some("a"), " {}\r"));
        let all = [id(Some("a"), "{}"), id(Some("b"), "{}"), id(Some("a"), "{ }"), id(None, "a{}")];
        assert!((0..4).all(|i| (0..i).all(|j| all[i] != all[j])), "{all:?}");
        let line = BatchLine::new(BatchKind::Chat, None, "{}");
        let named = line.clone().or_named(|| "row-3".to_owned());
        assert_eq!((named.custom_id.as_deref(), named.digest), (Some("row-3"), line.digest));
        assert_eq!(named.clone().or_named(|| "other".to_owned()), named);
    }

    #[test]
    fn ids_of_calls_differ_within_a_row_and_between_rows() {
        let id = |text, sample, call| RowDigest::of_text(text).call(sample, call).id("");
        let all = [id("a", 0, 0), id("a", 0, 1), id("a", 1, 0), id("b", 0, 0)];
        assert!((0..4).all(|i| (0..i).all(|j| all[i] != all[j])), "{all:?}");
        assert_eq!(all[1], id(" a\r", 0, 1));
    }

    #[test]
    fn a_name_is_recovered_where_it_is_whole() {
        let cases = [
            (r#"{"custom_id":"a","body":{"#, Some("a")),
            (r#"{"custom_id" : "a\u00e9\"","body":{"#, Some("a\u{e9}\"")),
            (r#"{"custom_id":7,"body":"#, Some("7")),
            (r#"{"custom_id":"a"#, None),
            (r#"{"custom_id":7"#, None),
            (r#"{"custom_id":null,"#, None),
            (r#"{"custom_id"}"#, None),
            (r#"{"body":"\"custom_id\":\"a\""}"#, None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(recovered_custom_id(text).as_deref(), expected, "{text}");
        }
    }
}
