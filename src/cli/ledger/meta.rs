//! `Meta`: what is said beside a complete output, in `FILE.meta.json`: what it was made of, and
//! what its bytes are. `merge --verify` proves with it that shards equal one run.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::files::side_file_of;
use super::fingerprint::Fingerprint;
use super::output::Facts;
use crate::cli::input::shard::Shard;
use crate::cli::output::FileFormat;

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
    /// What its bytes depend on besides the input.
    #[serde(with = "super::plain_values")]
    pub fingerprint: Fingerprint,
    /// Which rows of the input are in it.
    pub shard: Shard,
    /// `--limit`.
    pub limit: Option<u64>,
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
    /// What is said beside an output.
    ///
    /// # Errors
    /// Nothing is, or it cannot be read.
    pub fn beside(out: &Path) -> io::Result<Self> {
        let bytes = fs::read(side_file_of(out))?;
        serde_json::from_slice(&bytes).map_err(io::Error::other)
    }

    /// When the run began, where its rows show that.
    pub fn date(&self) -> Option<i64> {
        self.fingerprint.fields.get("date")?.parse().ok()
    }

    /// The side file's text.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values") + "\n"
    }
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
