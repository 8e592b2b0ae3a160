//! What a row was asked, as hashes: by them rows of an unfinished run are found again, wherever
//! they stand in the input.

use super::RowHash;
use vllm_batch_api::request::RowKey;
use vllm_batch_dataset::input::reader::{Content, Record};

/// Hash of what was read of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHash([u8; 16]);

impl ContentHash {
    /// Of a record as it was read.
    pub fn of(record: &Record) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        };
        match &record.content {
            Content::Line(line) => text(line),
            Content::Cells(cells) => cells.iter().for_each(|cell| text(cell)),
        }
        // A line that is not UTF-8 is shown like one that is.
        if let Some(error) = &record.error {
            text(error.code);
            text(&error.message);
        }
        Self(first_half(hasher))
    }

    /// Of a row that can be asked. `shape` is how rows become prompts. `key` keys its random
    /// numbers; None where it draws none.
    pub fn of_row(self, shape: &str, key: Option<RowKey>) -> RowHash {
        let mut hasher = self.hasher(shape);
        match key {
            None => hasher.update(b"greedy"),
            Some(key) => hasher.update(b"sampled").update(&key.0.to_le_bytes()),
        };
        RowHash(first_half(hasher))
    }

    /// Of a row that cannot be asked: its output may say where it is.
    pub fn of_bad_row(self, shape: &str, index: u64, line: u64) -> RowHash {
        let mut hasher = self.hasher(shape);
        hasher.update(b"bad").update(&index.to_le_bytes()).update(&line.to_le_bytes());
        RowHash(first_half(hasher))
    }

    fn hasher(self, shape: &str) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(&(shape.len() as u64).to_le_bytes());
        hasher.update(shape.as_bytes());
        hasher
    }
}

/// Hash of the contents of rows in their order.
#[derive(Clone, Debug, Default)]
pub struct InputDigest {
    hasher: blake3::Hasher,
    num_rows: u64,
}

impl InputDigest {
    /// Takes the next row.
    pub fn add(&mut self, content: ContentHash) {
        self.hasher.update(&content.0);
        self.num_rows += 1;
    }

    /// Rows taken.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// 32 hexadecimal digits.
    pub fn finish(self) -> String {
        self.hasher.finalize().to_hex()[..32].to_owned()
    }
}

fn first_half(hasher: blake3::Hasher) -> [u8; 16] {
    hasher.finalize().as_bytes()[..16].try_into().expect("16 of 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_dataset::input::row_error::RowError;

    fn line(text: &str) -> Record {
        Record { line: 1, content: Content::Line(text.to_owned()), error: None }
    }

    fn cells(texts: &[&str]) -> Record {
        let cells = texts.iter().map(|text| (*text).to_owned()).collect();
        Record { line: 1, content: Content::Cells(cells), error: None }
    }

    #[test]
    fn contents_are_told_apart_and_places_are_not() {
        let hash = ContentHash::of;
        assert_eq!(hash(&line("a")), hash(&Record { line: 9, ..line("a") }));
        assert_ne!(hash(&cells(&["a", "bc"])), hash(&cells(&["ab", "c"])));
        let error = Some(RowError::new("bad_utf8", 1, "byte 0xff"));
        assert_ne!(hash(&line("a")), hash(&Record { error, ..line("a") }));
    }

    #[test]
    fn a_sampled_row_is_known_by_its_key_and_a_bad_one_by_its_line() {
        let content = ContentHash::of(&line("a"));
        let all = [
            content.of_row("s", None),
            content.of_row("s", Some(RowKey(1))),
            content.of_row("s", Some(RowKey(2))),
            content.of_row("t", None),
            content.of_bad_row("s", 0, 1),
            content.of_bad_row("s", 0, 2),
            content.of_bad_row("s", 1, 2),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn the_digest_of_an_input_is_that_of_its_rows_in_order() {
        let digest = |texts: &[&str]| {
            let mut digest = InputDigest::default();
            texts.iter().for_each(|text| digest.add(ContentHash::of(&line(text))));
            digest.finish()
        };
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["b", "a"]));
        assert_ne!(digest(&["a"]), digest(&["a", "a"]));
    }
}
