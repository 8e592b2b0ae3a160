//! The journal's bytes: a header that says which run this is, then records. Each record carries its
//! own checksums, so what is whole can be told from what a power cut left.
//!
//! A record is 64 bytes, little-endian, then the payload: the word of an error, and the row.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 4 | crc32c of bytes 8..64 |
//! | 8 | 4 | crc32c of the payload |
//! | 12 | 4 + 4 | tokens in, tokens out |
//! | 20 | 1 + 1 | kind, length of the word |
//! | 24 | 8 | length of the payload |
//! | 32 | 8 | position of the row in the output |
//! | 40 | 8 | bytes of the journal that were synced when it was written |
//! | 48 | 16 | hash of the row that was asked |

use serde::{Deserialize, Serialize};

use super::RowHash;
use super::fingerprint::Fingerprint;

/// Bytes of a record before its payload.
pub const RECORD_LEN: usize = 64;

/// First bytes of every record.
pub const RECORD_MAGIC: [u8; 4] = *b"\xb5VBr";

/// First bytes of a journal: the last one is the version of its layout.
const JOURNAL_MAGIC: [u8; 8] = *b"\xb5VBjrnl\x01";

/// Bytes before the text of a journal's header: magic, length, checksum.
const JOURNAL_PREFIX: usize = 16;

/// No header's text is longer: a longer one is damage.
const MAX_HEADER_LEN: usize = 1 << 20;

/// Which run a journal belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// When it began, in seconds since 1970. Chat templates and `created` of a continued run see
    /// this time again.
    pub started: i64,
    /// It may replace an output that exists (`--overwrite`, or it goes on from it).
    pub replaces: bool,
    /// It takes the answers of the output that it replaces.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps: bool,
    /// What its bytes depend on.
    pub fingerprint: Fingerprint,
}

impl Header {
    /// Bytes that hold any header.
    pub const MAX_LEN: usize = JOURNAL_PREFIX + MAX_HEADER_LEN;

    /// Whether a file may begin so whose first write did not become durable whole. Another file
    /// that someone named as a journal by mistake does not.
    pub fn may_be_torn(prefix: &[u8]) -> bool {
        let head = &prefix[..prefix.len().min(JOURNAL_MAGIC.len())];
        JOURNAL_MAGIC.starts_with(head) || head.iter().all(|byte| *byte == 0)
    }

    /// Whether a file begins as a journal of any layout, or would if it were longer.
    pub fn is_begun(prefix: &[u8]) -> bool {
        let name = &JOURNAL_MAGIC[..JOURNAL_MAGIC.len() - 1];
        name.starts_with(&prefix[..prefix.len().min(name.len())])
    }

    /// The first bytes of a journal.
    pub fn encode(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).expect("plain values");
        let mut bytes = JOURNAL_MAGIC.to_vec();
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&text).to_le_bytes());
        bytes.extend_from_slice(&text);
        bytes
    }

    /// How many bytes hold the header that begins so; None if these are not its first bytes.
    pub fn encoded_len(prefix: &[u8]) -> Option<usize> {
        let prefix = prefix.get(..JOURNAL_PREFIX)?;
        let length = u32_at(prefix, 8) as usize;
        let is_one = prefix.starts_with(&JOURNAL_MAGIC) && length <= MAX_HEADER_LEN;
        is_one.then_some(JOURNAL_PREFIX + length)
    }

    /// The header at the beginning of a journal; None if it is not whole.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = bytes.get(JOURNAL_PREFIX..Self::encoded_len(bytes)?)?;
        let is_whole = crc32c::crc32c(text) == u32_at(bytes, 12);
        is_whole.then(|| serde_json::from_slice(text).ok()).flatten()
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A row with an answer.
    Answer = 1,
    /// A row with an error.
    Error = 2,
    /// The run was continued here.
    Resumed = 3,
    /// All rows are in the output; the payload is the side file's text.
    End = 4,
    /// The header line of a CSV: rows behind it have these columns.
    Columns = 5,
    /// Images at URLs of the row whose record is next: `fetched_media`.
    Media = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Kind::Answer, Kind::Error, Kind::Resumed, Kind::End, Kind::Columns, Kind::Media]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A record without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// What it says.
    pub kind: Kind,
    /// Of the row: 0, 1, 2, ...
    pub position: u64,
    /// Of what was asked.
    pub hash: RowHash,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
    /// Bytes of the journal that were durable when this was written.
    pub synced: u64,
    code_len: u8,
    payload_len: u64,
    payload_crc: u32,
}

impl RecordHead {
    /// Appends a record. `code` is the word of an error row, at most 255 bytes.
    pub fn encode(record: &Record<'_>, synced: u64, out: &mut Vec<u8>) {
        let code = record.code.as_bytes();
        assert!(code.len() <= usize::from(u8::MAX), "a code is a word");
        let crc = crc32c::crc32c_append(crc32c::crc32c(code), record.row);
        let start = out.len();
        out.extend_from_slice(&RECORD_MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&record.input_tokens.to_le_bytes());
        out.extend_from_slice(&record.output_tokens.to_le_bytes());
        out.extend_from_slice(&[record.kind as u8, code.len() as u8, 0, 0]);
        let payload_len = (code.len() + record.row.len()) as u64;
        for number in [payload_len, record.position, synced] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&record.hash.0);
        let crc = crc32c::crc32c(&out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(code);
        out.extend_from_slice(record.row);
    }

    /// The head in these bytes; None if they are none.
    pub fn decode(bytes: &[u8; RECORD_LEN]) -> Option<Self> {
        let is_whole =
            bytes.starts_with(&RECORD_MAGIC) && crc32c::crc32c(&bytes[8..]) == u32_at(bytes, 4);
        let payload_len = u64_at(bytes, 24);
        if !is_whole || payload_len < u64::from(bytes[21]) {
            return None;
        }
        Some(Self {
            kind: Kind::of(bytes[20])?,
            position: u64_at(bytes, 32),
            hash: RowHash(bytes[48..64].try_into().expect("16 bytes")),
            input_tokens: u32_at(bytes, 12),
            output_tokens: u32_at(bytes, 16),
            synced: u64_at(bytes, 40),
            code_len: bytes[21],
            payload_len,
            payload_crc: u32_at(bytes, 8),
        })
    }

    /// Bytes after the head.
    pub fn payload_len(&self) -> u64 {
        self.payload_len
    }

    /// Bytes of an error's word, at the beginning of the payload.
    pub fn code_len(&self) -> usize {
        usize::from(self.code_len)
    }

    /// Checksum of the payload.
    pub fn payload_crc(&self) -> u32 {
        self.payload_crc
    }
}

/// What is written of a row.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What it says.
    pub kind: Kind,
    /// Of the row in the output: 0, 1, 2, ...
    pub position: u64,
    /// Of what was asked.
    pub hash: RowHash,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
    /// The word of an error; else empty.
    pub code: &'a str,
    /// The output's bytes, newline included.
    pub row: &'a [u8],
}

impl<'a> Record<'a> {
    /// A record that is of no row.
    pub fn mark(kind: Kind, text: &'a [u8]) -> Self {
        let (position, hash) = (0, RowHash::default());
        Self { kind, position, hash, input_tokens: 0, output_tokens: 0, code: "", row: text }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
