//! What a row was asked, as hashes: by them rows of an unfinished run are found again, wherever
//! they stand in the input.

use super::RowHash;
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::RowKey;
use vllm_batch_dataset::input::reader::{Content, Record};
use vllm_batch_dataset::input::row_error::{RowError, code};

/// Hash of what was read of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentHash([u8; 16]);

impl ContentHash {
    /// One that was written down.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Of a record as it was read.
    pub fn of(record: &Record) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        };
        match &record.content {
            Content::Line(line) => text(line),
            // Its images count where they are asked about.
            Content::Sample(sample) => text(&sample.text),
            Content::Cells(cells) => cells.iter().for_each(|cell| text(cell)),
        }
        // A line that is not UTF-8 is shown like one that is.
        if let Some(error) = &record.error {
            text(error.code);
            text(&error.message);
        }
        Self(first_half(hasher))
    }

    /// The same with the bytes of the images of the row's prompt. A row without images is known by
    /// what was read of it alone.
    pub fn with_media(self, prompt: &Prompt) -> Self {
        let media = prompt.media().concat();
        if media.is_empty() {
            return self;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(b"media").update(&(media.len() as u64).to_le_bytes());
        for medium in &media {
            // Each is as long as the others.
            hasher.update(medium.id().as_bytes());
        }
        Self(first_half(hasher))
    }

    /// The same with why an image of the row cannot be used, if that is what is wrong with it: the
    /// row is another once its files are.
    pub fn with_fault(self, error: &RowError) -> Self {
        if !code::is_of_media(error.code) {
            return self;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(b"fault");
        for text in [error.code, &error.message] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
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

/// Rows with images that cannot be used, of which the numbers are kept. Of more, none are: then all
/// rows with images are computed again once one of the files is another.
const MAX_UNREAD: usize = 10_000;

/// Hash of the contents of rows in their order.
#[derive(Clone, Debug, Default)]
pub struct InputDigest {
    hasher: blake3::Hasher,
    /// Of what was read of the rows, without their images.
    texts: blake3::Hasher,
    /// Some rows have images at URLs.
    has_urls: bool,
    num_rows: u64,
    /// Numbers of rows with images that cannot be used.
    unread: Vec<u64>,
}

impl InputDigest {
    /// Takes the next row: what was read of it, and that with its images.
    pub fn add(&mut self, text: ContentHash, content: ContentHash) {
        self.texts.update(&text.0);
        self.hasher.update(&content.0);
        self.num_rows += 1;
    }

    /// Takes the next row, of which an image cannot be used. `text` is what was read of it.
    pub fn add_unread(&mut self, text: ContentHash, index: u64) {
        self.add(text, text);
        if self.unread.len() <= MAX_UNREAD {
            self.unread.push(index);
        }
    }

    /// Takes the numbers of rows with images that cannot be used.
    pub fn take_unread(&mut self) -> Vec<u64> {
        let unread = std::mem::take(&mut self.unread);
        if unread.len() > MAX_UNREAD { Vec::new() } else { unread }
    }

    /// Says that the last row has images at URLs.
    pub fn note_urls(&mut self) {
        self.has_urls = true;
    }

    /// The hash of what was read of the rows without their images, where some are at URLs: nobody
    /// else asks for it.
    pub fn of_texts(&self) -> Option<String> {
        self.has_urls.then(|| self.texts.finalize().to_hex()[..32].to_owned())
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
    use std::io::Cursor;

    use super::*;
    use vllm_batch_dataset::input::base64;
    use vllm_batch_dataset::input::reader::{InputFormat, Records};
    use vllm_batch_dataset::input::row::{RowOptions, RowParser};

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

    /// The prompt of a row.
    fn prompt(row: &str) -> Prompt {
        let input = Box::new(Cursor::new(row.to_owned()));
        let mut records = Records::open(input, InputFormat::Jsonl, 1 << 20).unwrap();
        let mut parser = RowParser::new(&mut records, &RowOptions::default()).unwrap();
        parser.parse(records.next().unwrap().unwrap()).unwrap().unwrap().prompt
    }

    #[test]
    fn a_row_with_images_is_known_by_their_bytes_in_their_order() {
        // Images of one pixel with a comment.
        let uri = |comment: &str| {
            let start = b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\0\0\xff!\xfe\x01";
            let end = b"\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
            let bytes = [&start[..], comment.as_bytes(), end].concat();
            format!("data:image/gif;base64,{}", base64::encode(&bytes))
        };
        let of = |images: &[&str]| {
            let images: Vec<String> = images.iter().map(|name| uri(name)).collect();
            prompt(&serde_json::json!({"prompt": "p", "images": images}).to_string())
        };
        let content = ContentHash::of(&line("a"));
        let all = [&["a"][..], &["b"], &["a", "b"], &["b", "a"], &["a", "a"]];
        let hashes: Vec<_> = all.iter().map(|images| content.with_media(&of(images)).0).collect();
        let distinct: std::collections::HashSet<_> = hashes.iter().chain([&content.0]).collect();
        assert_eq!(distinct.len(), all.len() + 1);
        assert_eq!(content.with_media(&of(&["a"])), content.with_media(&of(&["a"])));
        assert_eq!(content.with_media(&prompt(r#"{"prompt":"p"}"#)), content);
        let fault = |code, what: &str| content.with_fault(&RowError::new(code, 1, what));
        assert_eq!(fault("invalid_prompt", "a"), content);
        assert_ne!(fault("media_decode", "a"), content);
        assert_ne!(fault("media_decode", "a"), fault("media_decode", "b"));
        assert_ne!(fault("media_decode", "a"), fault("media_not_found", "a"));
    }

    #[test]
    fn rows_without_images_keep_their_hashes() {
        let hash = ContentHash::of(&line("{\"prompt\":\"2+3=\"}"));
        let text: String = hash.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "68d94269104f456201054a00557f0fea");
    }

    #[test]
    fn the_digest_of_an_input_is_that_of_its_rows_in_order() {
        let digest = |texts: &[&str]| {
            let mut digest = InputDigest::default();
            let hashes = texts.iter().map(|text| ContentHash::of(&line(text)));
            hashes.for_each(|hash| digest.add(hash, hash));
            digest.finish()
        };
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["b", "a"]));
        assert_ne!(digest(&["a"]), digest(&["a", "a"]));
    }
}
