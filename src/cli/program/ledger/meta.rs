//! `Meta`: what is said beside a complete output, in `FILE.meta.json`: what it was made of, and
//! what its bytes are. `merge --verify` proves with it that shards equal one run.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::side_file_of;
use super::fingerprint::Fingerprint;
use super::output::Facts;
use vllm_batch_base::files::read as read_file;
use vllm_batch_dataset::input::sample::Sampled;
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::output::FileFormat;

/// No side file is longer: what is belongs to something else.
const MAX_BYTES: u64 = 16 << 20;

/// The last field of a side file: blake3 of all bytes before it.
const CHECKSUM: &str = ",\n  \"checksum\": \"";

/// What follows the checksum.
const END: &str = "\"\n}\n";

/// Digits of a checksum.
const DIGITS: usize = 64;

/// The version of the side file's fields. They are only added to.
pub const SCHEMA: u32 = 1;

/// The side file of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `vllm-batch`.
    pub tool: String,
    /// Of the program that finished the output.
    pub version: String,
    /// When the run began, in UTC.
    pub started: String,
    /// When it was complete.
    pub finished: String,
    /// How often it was continued.
    pub resumes: u64,
    /// Rows of this output.
    pub rows: RowCounts,
    /// Tokens of this output.
    pub tokens: TokenCounts,
    /// What was read.
    pub input: InputFacts,
    /// The output's file.
    pub output: FileFacts,
    /// The file of `--errors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<NamedFile>,
    /// How rows are written.
    pub format: FileFormat,
    /// `none`, `gzip` or `zstd`.
    pub compression: String,
    /// `--model`, as it was typed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What its bytes depend on besides the input.
    #[serde(with = "super::plain_values")]
    pub fingerprint: Fingerprint,
    /// Which rows of the input are in it.
    pub shard: Shard,
    /// `--limit`.
    pub limit: Option<u64>,
    /// `--sample`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sampled>,
}

/// Rows by their fate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounts {
    /// All.
    pub total: u64,
    /// Answered.
    pub ok: u64,
    /// Error rows.
    pub failed: u64,
    /// Error rows by their word.
    pub by_code: std::collections::BTreeMap<String, u64>,
}

/// Tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Of prompts.
    pub input: u64,
    /// Generated.
    pub output: u64,
}

/// The rows of the input, those of other shards too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFacts {
    /// As typed.
    pub path: String,
    /// How many.
    pub rows: u64,
    /// Hash of their contents in their order, as 32 hexadecimal digits.
    pub digest: String,
    /// Numbers of rows whose images could not be used: the hash has what was read of them alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_images: Vec<u64>,
    /// Hash of the rows without their images, where some of these are at URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<String>,
}

/// A file of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Rows in it.
    pub rows: u64,
    /// Its length.
    pub bytes: u64,
    /// Of its bytes.
    pub blake3: String,
}

/// A file of rows that has its own name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// As typed.
    pub path: String,
    /// What is in it.
    #[serde(flatten)]
    pub facts: FileFacts,
}

impl Meta {
    /// How the text of every side file begins.
    pub const BEGIN: &[u8] = b"{\n  \"schema\": ";

    /// What is said beside an output.
    ///
    /// # Errors
    /// Nothing is, it cannot be read, or it is damaged.
    pub fn beside(out: &Path) -> io::Result<Self> {
        let bytes = read_file(&side_file_of(out), MAX_BYTES)?;
        let text = String::from_utf8(bytes).map_err(io::Error::other)?;
        Self::parse(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// What a side file's text says. One of an older version has no checksum.
    ///
    /// # Errors
    /// It is none, or not as its run wrote it.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::check(text)?;
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Looks at a text's checksum, if it has one.
    ///
    /// # Errors
    /// The text is not as its run wrote it.
    pub fn check(text: &str) -> Result<(), String> {
        let is_whole = || {
            let rest = text.strip_suffix(END)?;
            let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
            Some(checksum_of(rest.strip_suffix(CHECKSUM)?) == digits)
        };
        match Self::has_checksum(text) && is_whole() != Some(true) {
            true => Err("its checksum is not that of its bytes".to_owned()),
            false => Ok(()),
        }
    }

    /// Whether a text has a checksum, by its name or by its digits at the end: a byte that is not
    /// as it was leaves one of them.
    pub fn has_checksum(text: &str) -> bool {
        let is_digits =
            |value: &str| value.len() == DIGITS && value.bytes().all(|c| c.is_ascii_hexdigit());
        let last = text.strip_suffix(END).and_then(|rest| rest.rsplit('"').next());
        text.contains("\"checksum\"") || last.is_some_and(is_digits)
    }

    /// When the run began, where its rows show that.
    pub fn date(&self) -> Option<i64> {
        self.fingerprint.fields.get("date")?.parse().ok()
    }

    /// The side file's text.
    pub fn text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("plain values");
        let content = text.strip_suffix("\n}").expect("an object");
        format!("{content}{CHECKSUM}{}{END}", checksum_of(content))
    }
}

fn checksum_of(content: &str) -> String {
    blake3::hash(content.as_bytes()).to_hex().to_string()
}

impl From<Facts> for FileFacts {
    fn from(facts: Facts) -> Self {
        Self { rows: facts.num_rows, bytes: facts.bytes, blake3: facts.blake3 }
    }
}

impl FileFacts {
    /// The same, as the ledger counts it.
    pub fn facts(&self) -> Facts {
        Facts { num_rows: self.rows, bytes: self.bytes, blake3: self.blake3.clone() }
    }
}

impl NamedFile {
    /// The same, as the ledger counts it.
    pub fn facts(&self) -> Facts {
        self.facts.facts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        Meta {
            schema: SCHEMA,
            tool: "vllm-batch".to_owned(),
            version: "0.1.0".to_owned(),
            started: "2026-11-20T10:00:00Z".to_owned(),
            finished: "2026-11-20T10:05:00Z".to_owned(),
            resumes: 0,
            rows: RowCounts { total: 3, ok: 3, ..RowCounts::default() },
            tokens: TokenCounts { input: 30, output: 20 },
            input: InputFacts { path: "\"checksum\".jsonl".to_owned(), ..InputFacts::default() },
            output: FileFacts { rows: 3, bytes: 70, blake3: "ab".repeat(32) },
            errors: None,
            format: FileFormat::Jsonl,
            compression: "none".to_owned(),
            model: None,
            fingerprint: Fingerprint::new([("dtype".to_owned(), "float32".to_owned())].into()),
            shard: Shard::default(),
            limit: None,
            sample: None,
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let text = meta().text();
        assert_eq!(Meta::parse(&text).as_ref(), Ok(&meta()));
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let damaged = String::from_utf8_lossy(&bytes);
                assert!(Meta::parse(&damaged).is_err(), "byte {at}, bit {bit}: {damaged}");
            }
            assert!(Meta::parse(&text[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_side_file_of_an_older_version_has_no_checksum() {
        let text = serde_json::to_string_pretty(&meta()).expect("plain values") + "\n";
        assert_eq!(Meta::parse(&text), Ok(meta()));
        assert!(!Meta::has_checksum(&text));
    }
}
