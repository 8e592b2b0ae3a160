//! `TarRows`: the rows of a WebDataset, which is a tar archive. Members that follow each other and
//! have one name up to the first dot are a row, and what is behind the dot is a field. The archive
//! is read once, from its beginning to its end; nothing of it is written to a disk.

mod entries;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::sync::Arc;

pub(super) use self::entries::begins_tar;
use self::entries::{Entries, Entry, Kind};
use super::fields::{JsonFields, json_string};
use super::media::kind_of_name;
use super::reader::{Content, MAX_LINE, Member, Record, Sample};
use super::row_error::{RowError, code};
use vllm_batch_base::files::quoted;
use vllm_batch_media::{Limits, MediaError};

/// Bytes of the first block, by which an archive is known.
pub(super) const BLOCK: usize = 512;

/// The field with the name that the members of a row have in common.
const KEY: &str = "__key__";

/// What is behind the last dot of members that are texts, as in the library `webdataset`.
const TEXTS: &[&str] = &["text", "transcript", "txt"];

/// The same of JSON.
const JSON: &[&str] = &["jsn", "json"];

/// The same of integers.
const INTEGERS: &[&str] = &["class", "cls", "cls2", "count", "id", "index", "inx"];

/// The rows of an archive, one after the other.
pub(super) struct TarRows {
    entries: Entries,
    /// The first member of the row that comes next.
    ahead: Option<Entry>,
    /// Why there is none, behind a row that is whole.
    failed: Option<io::Error>,
    num_rows: u64,
}

impl TarRows {
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        Self { entries: Entries::new(input), ahead: None, failed: None, num_rows: 0 }
    }

    /// The number of the row that would come next, from 1.
    pub(super) fn next_number(&self) -> u64 {
        self.num_rows + 1
    }

    /// # Errors
    /// The archive is damaged, or cannot be read.
    pub(super) fn next_row(&mut self) -> io::Result<Option<Record>> {
        let Some(first) = self.next_entry()? else { return Ok(None) };
        let (key, _) = named(&first.name).expect("others are passed over");
        self.num_rows += 1;
        let mut row = Row::new(key, self.num_rows);
        row.add(&first, &mut self.entries)?;
        loop {
            match self.next_entry() {
                Ok(Some(entry)) if named(&entry.name).is_some_and(|(found, _)| found == key) => {
                    row.add(&entry, &mut self.entries)?;
                }
                Ok(entry) => {
                    self.ahead = entry;
                    break;
                }
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        Ok(Some(row.into_record()))
    }

    /// The next member that belongs to a row. Folders, and names without what says a field, do not.
    fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if let Some(entry) = self.ahead.take() {
            return Ok(Some(entry));
        }
        while let Some(entry) = self.entries.next()? {
            if entry.kind != Kind::Folder && named(&entry.name).is_some() {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// The row that a member belongs to, and its field there.
fn named(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    let (key, field) = (&name[..dot], &name[dot + 1..]);
    (dot > base && !field.is_empty()).then_some((key, field))
}

/// A row that is read.
struct Row {
    number: u64,
    /// Names of fields, and the JSON of their values.
    fields: Vec<(String, String)>,
    sample: Sample,
    /// Bytes of texts, and of images.
    sizes: (u64, u64),
    error: Option<RowError>,
}

impl Row {
    fn new(key: &str, number: u64) -> Self {
        let fields = vec![(KEY.to_owned(), json_string(key))];
        Self { number, fields, sample: Sample::default(), sizes: (0, 0), error: None }
    }

    /// Takes a member. The bytes of one that is not read are passed over with the next.
    fn add(&mut self, entry: &Entry, entries: &mut Entries) -> io::Result<()> {
        let (_, field) = named(&entry.name).expect("others are passed over");
        let field = field.to_ascii_lowercase();
        if self.error.is_some() {
            return Ok(());
        }
        if let Some((code, what)) = self.fault(&field, entry) {
            self.fail(code, entry, &what);
            return Ok(());
        }
        let kind = kind_of(&field);
        let value = if is_text(kind) {
            let bytes = entries.read(entry)?;
            match of_text(kind, bytes) {
                Ok(value) => value,
                Err((code, what)) => {
                    self.fail(code, entry, &what);
                    return Ok(());
                }
            }
        } else {
            if kind_of_name(&field).is_some() {
                let bytes = entries.read(entry)?;
                let member = Member::Bytes(Arc::new(bytes));
                self.sample.members.push((entry.name.clone(), member));
            }
            json_string(&entry.name)
        };
        self.fields.push((field, value));
        Ok(())
    }

    /// Why a member cannot be read, by its header alone.
    fn fault(&mut self, field: &str, entry: &Entry) -> Option<(&'static str, String)> {
        if self.fields.iter().any(|(name, _)| name == field) {
            return Some((code::BAD_VALUE, "the row has two members of this name".to_owned()));
        }
        if entry.kind != Kind::File {
            let what = "it is a link or no plain file, and is not followed".to_owned();
            return Some((code::BAD_VALUE, what));
        }
        let (texts, images) = &mut self.sizes;
        let limits = Limits::default();
        if kind_of_name(field).is_some() {
            *images = images.saturating_add(entry.size);
            let most = limits.max_bytes;
            let what = format!(
                "the images and recordings of the row have {images} bytes, and {most} are the most"
            );
            (*images > most).then(|| (MediaError::TooLarge(String::new()).code(), what))
        } else {
            let size = if is_text(kind_of(field)) { entry.size } else { 0 };
            *texts = texts.saturating_add(size);
            let what = format!("the texts of the row have {texts} bytes, the limit is {MAX_LINE}");
            (*texts > MAX_LINE as u64).then_some((code::LINE_TOO_LONG, what))
        }
    }

    fn fail(&mut self, code: &'static str, entry: &Entry, what: &str) {
        let message = format!("member {}: {what}", quoted(&entry.name));
        self.error = Some(RowError::new(code, self.number, message));
    }

    fn into_record(self) -> Record {
        let Self { number, fields, mut sample, error, .. } = self;
        let pairs: Vec<(&str, &str)> =
            fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        sample.text = JsonFields::from_pairs(&pairs).into_text();
        Record { line: number, content: Content::Sample(sample), error }
    }
}

/// What is behind the last dot of a field.
fn kind_of(field: &str) -> &str {
    field.rsplit('.').next().unwrap_or_default()
}

/// Whether the bytes of a member are its field's value.
fn is_text(kind: &str) -> bool {
    [TEXTS, JSON, INTEGERS].iter().any(|kinds| kinds.contains(&kind))
}

/// The JSON of a member that is text, by what kind it is.
fn of_text(kind: &str, bytes: Vec<u8>) -> Result<String, (&'static str, String)> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to() + 1;
        (code::BAD_UTF8, format!("the byte at offset {place} is not UTF-8"))
    })?;
    if TEXTS.contains(&kind) {
        return Ok(json_string(&text));
    }
    if JSON.contains(&kind) {
        return match serde_json::from_str::<serde::de::IgnoredAny>(&text) {
            // Line breaks of valid JSON are between its values.
            Ok(_) => Ok(text.replace(['\n', '\r'], " ").trim().to_owned()),
            Err(error) => Err((code::BAD_JSON, format!("no valid JSON: {error}"))),
        };
    }
    let number = text.trim().parse::<i64>();
    number.map(|number| number.to_string()).map_err(|_| {
        let what = format!("{} is no integer", quoted(text.trim()));
        (code::BAD_VALUE, what)
    })
}
