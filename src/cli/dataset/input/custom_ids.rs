//! `CustomIds`: which `custom_id`s of batch requests were seen, and where. Their answers are told
//! apart by nothing else.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{BuildHasherDefault, Hasher};

use super::fields::{JsonFields, Passthrough};
use super::row::{BadRow, Row};
use super::row_error::RowError;

/// Stable word of a `custom_id` that an earlier row has.
pub const DUPLICATE_ID: &str = "duplicate_id";

/// Tables that grow one by one: only a small part of the ids is ever held twice.
const NUM_TABLES: usize = 64;

/// 128 bits of hash, so that no two of even 10^12 ids are alike by chance.
type Hash = [u8; 16];

/// A line number in five bytes: up to 10^12.
type Line = [u8; 5];

/// The ids seen so far, by their hashes: 22 bytes a slot, of which 7/16 to 7/8 are taken. So 25 to
/// 50 bytes an id, however long it is.
pub struct CustomIds {
    tables: Vec<HashMap<Hash, Line, BuildHasherDefault<FirstBytes>>>,
}

impl Default for CustomIds {
    fn default() -> Self {
        Self { tables: (0..NUM_TABLES).map(|_| HashMap::default()).collect() }
    }
}

impl CustomIds {
    /// Remembers an id.
    ///
    /// # Errors
    /// It was seen before: on this line.
    pub fn insert(&mut self, id: &str, line: u64) -> Result<(), u64> {
        let hash = hash(id);
        let table = &mut self.tables[usize::from(hash[15]) % NUM_TABLES];
        match table.entry(hash) {
            Entry::Vacant(entry) => {
                entry.insert(packed(line));
                Ok(())
            }
            Entry::Occupied(entry) => Err(unpacked(*entry.get())),
        }
    }

    /// The same for a row as read, bad ones too: the error if its `custom_id` was seen before.
    /// Rows that are no batch requests may share ids. `said` is how a message names a line.
    pub fn check(
        &mut self,
        row: &Result<Row, BadRow>,
        said: &dyn Fn(u64) -> String,
    ) -> Option<RowError> {
        let (passthrough, line) = match row {
            Ok(row) => (&row.passthrough, row.line),
            Err(bad) => (&bad.passthrough, bad.error.line),
        };
        self.check_shown(passthrough, line, said)
    }

    /// The same for what an output shows of a row.
    fn check_shown(
        &mut self,
        passthrough: &Passthrough,
        line: u64,
        said: &dyn Fn(u64) -> String,
    ) -> Option<RowError> {
        let id = match passthrough {
            Passthrough::Batch(line) => line.custom_id.clone()?,
            Passthrough::Json(fields) => batch_id(fields)?,
            Passthrough::Cells { .. } => return None,
        };
        let first = self.insert(&id, line).err()?;
        let shown: String = id.chars().take(100).collect();
        let message = format!("custom_id {shown:?} is that of {} too", said(first));
        let error = RowError::new(DUPLICATE_ID, line, message);
        Some(error.with_help("give each request a custom_id of its own"))
    }
}

/// The `custom_id` of an OpenAI or Anthropic batch request.
fn batch_id(fields: &JsonFields) -> Option<String> {
    let has = |name| fields.get(name).is_some();
    let is_request = has("params") || (has("url") && has("body"));
    let id = fields.get("custom_id").filter(|_| is_request)?;
    serde_json::from_str(id).ok()
}

/// Two SipHashes of different beginnings. They need not be the same in the next release: none is
/// kept beyond a run.
fn hash(id: &str) -> Hash {
    let half = |kind: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(kind);
        hasher.write(id.as_bytes());
        hasher.finish().to_le_bytes()
    };
    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&half(0));
    hash[8..].copy_from_slice(&half(1));
    hash
}

fn packed(line: u64) -> Line {
    let mut packed = Line::default();
    // A line beyond is named as the last there can be.
    let line = line.min((1 << 40) - 1).to_le_bytes();
    packed.copy_from_slice(&line[..5]);
    packed
}

fn unpacked(line: Line) -> u64 {
    line.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The hasher of hashes: their first bytes.
#[derive(Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn write(&mut self, bytes: &[u8]) {
        // The length of an array comes first, in a call of its own that changes nothing here.
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_repeated_id_is_known() {
        let mut ids = CustomIds::default();
        assert_eq!(ids.insert("a", 1), Ok(()));
        assert_eq!(ids.insert("b", 2), Ok(()));
        assert_eq!(ids.insert("", (1 << 40) - 1), Ok(()));
        assert_eq!(ids.insert("a", 3), Err(1));
        assert_eq!(ids.insert("a", 4), Err(1), "the first one stays the first");
        assert_eq!(ids.insert("", 5), Err((1 << 40) - 1));
    }

    #[test]
    fn one_of_a_million_ids_is_found_in_little_memory() {
        let mut ids = CustomIds::default();
        for line in 1..=1_000_000 {
            assert_eq!(ids.insert(&format!("request-{line}"), line), Ok(()));
        }
        assert_eq!(ids.insert("request-777777", 1_000_001), Err(777_777));
        assert_eq!(size_of::<(Hash, Line)>(), 21, "and one byte of the table");
        let slots: usize = ids.tables.iter().map(HashMap::capacity).sum();
        assert!(slots < 2_100_000, "{slots} slots");
        assert!(ids.tables.iter().all(|table| table.len() > 10_000), "evenly divided");
    }

    #[test]
    fn only_batch_requests_need_ids_of_their_own() {
        let mut ids = CustomIds::default();
        let mut check = |row: &str, line| {
            let fields = JsonFields::parse(row.to_owned(), line).unwrap();
            ids.check_shown(&Passthrough::Json(fields), line, &|line| format!("line {line}"))
        };
        let openai = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{}}"#;
        assert_eq!(check(openai, 1), None);
        assert_eq!(check(r#"{"custom_id":"a","prompt":"x"}"#, 2), None);
        assert_eq!(check(r#"{"url":"u","body":{}}"#, 3), None);
        assert_eq!(check(r#"{"custom_id":5,"params":{}}"#, 4), None, "no id, another error");
        let error = check(r#"{"custom_id":"\u0061","params":{}}"#, 5).unwrap();
        assert_eq!((error.code, error.line), ("duplicate_id", 5));
        assert_eq!(error.message, "custom_id \"a\" is that of line 1 too");
    }
}
