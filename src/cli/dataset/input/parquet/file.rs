//! `ParquetFile`: the footer of a file, which says what is in it and where. It is not trusted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};

use parquet::schema::types::Type;

use super::schema::{self, Field};
use super::{codec, footer};
use crate::input::reader::InputError;
use crate::object_store::Object;
use vllm_batch_base::contained::contain;

/// First and last bytes of a file.
pub const MAGIC: &[u8; 4] = b"PAR1";

/// The last bytes of one whose footer is encrypted.
const ENCRYPTED: &[u8; 4] = b"PARE";

/// Bytes before the footer, and after it: its length and the magic bytes.
const FRAME: (u64, u64) = (4, 8);

/// Bytes of a footer that is read. What is made of it is counted by `footer`.
const MAX_FOOTER: u64 = 64 << 20;

/// A file that is open, and what its footer says.
pub struct ParquetFile {
    /// Read at offsets.
    pub(super) file: Arc<File>,
    /// The footer.
    pub(super) metadata: ParquetMetaData,
    /// The columns in their order.
    pub columns: Vec<Field>,
    /// Bytes before the footer.
    pub(super) data_end: u64,
}

/// Bytes by which a file may be one.
pub const MAGIC_LEN: usize = MAGIC.len();

/// Whether a file that begins so may be Parquet.
pub fn may_be_parquet(head: &[u8]) -> bool {
    head == MAGIC || head == ENCRYPTED
}

/// A Parquet object's footer, in a file that is as long as the object and has nothing else. None:
/// the object is no Parquet file.
///
/// # Errors
/// It cannot be read.
pub fn footer_of(object: &Object) -> io::Result<Option<File>> {
    let length = object.facts()?.size;
    let Some(tail_at) = length.checked_sub(FRAME.1).filter(|at| *at >= FRAME.0) else {
        return Ok(None);
    };
    let (head, tail) = (object.range(0, FRAME.0)?, object.range(tail_at, FRAME.1)?);
    let footer_len = tail.first_chunk().map_or(u64::MAX, |len| u64::from(u32::from_le_bytes(*len)));
    let start = tail_at.checked_sub(footer_len).filter(|_| footer_len <= MAX_FOOTER);
    let Some(start) = start.filter(|_| may_be_parquet(&head)) else { return Ok(None) };
    let file = tempfile::tempfile()?;
    file.set_len(length)?;
    file.write_all_at(&head, 0)?;
    file.write_all_at(&object.range(start, length - start)?, start)?;
    Ok(is_parquet(&file)?.then_some(file))
}

/// Whether a file begins and ends as Parquet does, whatever its name.
///
/// # Errors
/// It cannot be read.
pub fn is_parquet(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let length = metadata.len();
    if !metadata.is_file() || length < FRAME.0 + FRAME.1 {
        return Ok(false);
    }
    let (mut head, mut tail) = ([0; 4], [0; FRAME.1 as usize]);
    file.read_exact_at(&mut head, 0)?;
    file.read_exact_at(&mut tail, length - FRAME.1)?;
    let (footer_len, magic) = tail.split_first_chunk::<4>().expect("8 bytes");
    // A text may begin and end so too; then these are letters, a number that no file is as long as.
    let fits = u64::from(u32::from_le_bytes(*footer_len)) <= length - FRAME.0 - FRAME.1;
    Ok(match (&head, fits) {
        (MAGIC, true) => magic == MAGIC || magic == ENCRYPTED,
        (ENCRYPTED, true) => magic == ENCRYPTED,
        _ => false,
    })
}

fn damaged(what: &str) -> InputError {
    let message = format!("the Parquet file is damaged: {what}");
    InputError::refused(message, "copy the file again, or write it again")
}

impl ParquetFile {
    /// Reads the footer.
    ///
    /// # Errors
    /// It cannot be read, or holds what this program does not read.
    pub fn open(file: File) -> Result<Self, InputError> {
        let length = file.metadata()?.len();
        let mut tail = [0; FRAME.1 as usize];
        let tail_at = length.checked_sub(FRAME.1).ok_or_else(|| damaged("it is cut off"))?;
        file.read_exact_at(&mut tail, tail_at)?;
        if &tail[4..] == ENCRYPTED {
            let help = "decrypt it: this program has no keys";
            return Err(InputError::refused("the Parquet file is encrypted", help));
        }
        if &tail[4..] != MAGIC {
            return Err(damaged("it does not end with PAR1: it may be cut off"));
        }
        let footer_len = u64::from(u32::from_le_bytes(tail[..4].try_into().expect("4 bytes")));
        let data_end = tail_at.checked_sub(footer_len).filter(|end| *end >= FRAME.0);
        let data_end = data_end.ok_or_else(|| damaged("its footer is longer than the file"))?;
        if footer_len > MAX_FOOTER {
            let (size, max) = (footer_len >> 20, MAX_FOOTER >> 20);
            let message = format!("its footer has {size} MiB, the limit is {max} MiB");
            return Err(InputError::refused(message, "write it again with larger row groups"));
        }
        let mut bytes = vec![0; footer_len as usize];
        file.read_exact_at(&mut bytes, data_end)?;
        footer::check(&bytes).map_err(|unread| {
            let (message, help) = unread.text();
            InputError::refused(message, help)
        })?;
        let metadata = contain(|| decode(&bytes))
            .ok_or_else(|| damaged("its footer cannot be read"))?
            .map_err(|error| damaged(&error.to_string()))?;
        let columns = schema::columns(metadata.file_metadata().schema());
        let columns = columns
            .map_err(|what| InputError::refused(what, "write the file again without the column"))?;
        if columns.is_empty() {
            return Err(InputError::refused("the Parquet file has no columns", "give another"));
        }
        let file = Self { file: Arc::new(file), metadata, columns, data_end };
        file.check_groups()?;
        Ok(file)
    }

    /// Columns, as the parquet crate has them.
    pub fn schema(&self) -> &Type {
        self.metadata.file_metadata().schema()
    }

    /// Note of the writer under a key.
    pub fn key_value(&self, key: &str) -> Option<&str> {
        let notes = self.metadata.file_metadata().key_value_metadata()?;
        notes.iter().find(|note| note.key == key)?.value.as_deref()
    }

    /// Rows of all row groups.
    pub fn num_rows(&self) -> u64 {
        let groups = self.metadata.row_groups().iter();
        groups.fold(0, |sum, group| sum.saturating_add(group.num_rows() as u64))
    }

    /// Refuses what would be found in the middle of a run.
    fn check_groups(&self) -> Result<(), InputError> {
        let num_columns = self.metadata.file_metadata().schema_descr().num_columns();
        for group in self.metadata.row_groups() {
            if group.num_rows() < 0 || group.num_columns() != num_columns {
                return Err(damaged("a row group is not what the footer says"));
            }
            // What has no rows is not read, wherever it says that it is.
            for column in group.columns().iter().filter(|_| group.num_rows() > 0) {
                codec::check(column.compression_codec())?;
                if column.file_path().is_some() {
                    let help = "give the files that it names";
                    return Err(InputError::refused("its rows are in other files", help));
                }
                self.range(column).ok_or_else(|| damaged("a column is not in the file"))?;
            }
        }
        Ok(())
    }

    /// The bytes of a column of a row group.
    pub(super) fn range(&self, column: &ColumnChunkMetaData) -> Option<std::ops::Range<u64>> {
        let data = u64::try_from(column.data_page_offset()).ok()?;
        let dictionary = column.dictionary_page_offset().and_then(|at| u64::try_from(at).ok());
        // Some writers leave 0 for none.
        let start = dictionary.filter(|at| *at > 0).map_or(data, |at| at.min(data));
        let end = start.checked_add(u64::try_from(column.compressed_size()).ok()?)?;
        let is_inside = start >= FRAME.0 && end <= self.data_end;
        let has_values = u64::try_from(column.num_values()).is_ok();
        (is_inside && has_values).then_some(start..end)
    }
}

fn decode(footer: &[u8]) -> parquet::errors::Result<ParquetMetaData> {
    // Only where rows are is asked for.
    let skip = || ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(skip())
        .with_encoding_stats_policy(skip())
        .with_size_stats_policy(skip());
    ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options))
}
