//! The pages of one column of one row group, in bounded memory: what a page asks for is looked at
//! before it is read. The parquet crate's own reader of pages decompresses what comes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{CompressionCodec, Encoding, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};

use super::intake::Intake;
use super::thrift::{Compact, Field, kind};
use super::{codec, delta};

/// Bytes that a page may hold. Most hold one MiB.
const MAX_PAGE: usize = 256 << 20;

/// Bytes of a page's header that are looked at first, and at most: it may have statistics.
const HEADER: (usize, usize) = (1 << 10, 16 << 20);

/// Where a column's pages are.
pub(super) struct ColumnChunk {
    pub file: Arc<File>,
    /// First byte, and the one behind the last.
    pub range: std::ops::Range<u64>,
    pub codec: CompressionCodec,
    pub num_values: u64,
    /// The highest repetition and definition levels.
    pub levels: (i16, i16),
    /// Physical type of its values, and bytes of one of fixed length.
    pub physical: (Physical, i32),
}

/// The pages, one after the other.
pub(super) struct Pages {
    chunk: ColumnChunk,
    intake: Arc<Intake>,
    at: u64,
    num_values_left: u64,
    next: Option<Header>,
}

/// Header of a page.
#[derive(Clone, Debug, Default)]
struct Header {
    /// Bytes of the header.
    length: u64,
    page_kind: i64,
    size: usize,
    stored: usize,
    crc: Option<u32>,
    num_values: u32,
    num_nulls: u32,
    num_rows: u32,
    encoding: i64,
    def_encoding: i64,
    rep_encoding: i64,
    def_bytes: u32,
    rep_bytes: u32,
    is_compressed: bool,
}

const DATA: i64 = 0;
const INDEX: i64 = 1;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

/// The encoding of levels in the oldest files.
const BIT_PACKED: i64 = 4;

/// DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY.
const DELTA_LENGTHS: i64 = 6;
const DELTA_PREFIXES: i64 = 7;

fn damaged(what: impl Into<String>) -> ParquetError {
    ParquetError::General(what.into())
}

impl Pages {
    /// `intake` counts what is in memory.
    pub(super) fn new(chunk: ColumnChunk, intake: Arc<Intake>) -> Self {
        let (at, num_values_left) = (chunk.range.start, chunk.num_values);
        Self { chunk, intake, at, num_values_left, next: None }
    }

    /// The header of the next page; it stays the next one.
    fn peek(&mut self) -> Result<Option<&Header>> {
        while self.next.is_none() {
            if self.num_values_left == 0 || self.at >= self.chunk.range.end {
                return Ok(None);
            }
            let header = self.read_header()?;
            let is_empty = header.num_values == 0 && header.page_kind != DICTIONARY;
            if header.page_kind == INDEX || is_empty {
                self.at += header.length + header.stored as u64;
                continue;
            }
            self.next = Some(header);
        }
        Ok(self.next.as_ref())
    }

    fn read_header(&self) -> Result<Header> {
        let left = self.chunk.range.end - self.at;
        let (mut length, max) = HEADER;
        loop {
            let mut bytes = vec![0; usize::try_from(left).unwrap_or(max).min(length)];
            self.chunk.file.read_exact_at(&mut bytes, self.at)?;
            if let Some(header) = Header::read(&bytes) {
                let end = left.checked_sub(header.length);
                if end.is_none_or(|left| left < header.stored as u64) {
                    return Err(damaged("a page is longer than its column"));
                }
                return Ok(header);
            }
            if bytes.len() as u64 == left || length >= max {
                return Err(damaged("a page has a header that cannot be read"));
            }
            length = (length * 16).min(max);
        }
    }

    /// Counts a page against what may be in memory.
    fn take_room(&mut self, header: &Header) -> Result<()> {
        let size = header.size.max(header.stored);
        if size > MAX_PAGE {
            return Err(too_large(size));
        }
        if header.page_kind == DICTIONARY {
            let bytes = self.bytes_of_dictionary(header)?;
            return self.intake.add_dictionary(bytes).map_err(damaged);
        }
        let left = self.num_values_left.checked_sub(u64::from(header.num_values));
        self.num_values_left =
            left.ok_or_else(|| damaged("its pages have more values than the footer says"))?;
        self.intake.add_page(header.size, header.num_values as usize).map_err(damaged)
    }

    /// Bytes that the values of a dictionary take. There is room for as many as it says before one
    /// of them is read.
    fn bytes_of_dictionary(&self, header: &Header) -> Result<usize> {
        let (physical, length) = self.chunk.physical;
        let (stored, beside) = match physical {
            Physical::BOOLEAN => (1, 0),
            Physical::INT32 | Physical::FLOAT => (4, 0),
            Physical::INT64 | Physical::DOUBLE => (8, 0),
            Physical::INT96 => (12, 0),
            Physical::BYTE_ARRAY => (4, size_of::<ByteArray>()),
            Physical::FIXED_LEN_BYTE_ARRAY => (length.max(1) as usize, size_of::<ByteArray>()),
        };
        let num_values = header.num_values as usize;
        if num_values.saturating_mul(stored) > header.size {
            return Err(damaged("a dictionary is shorter than it says"));
        }
        let bytes = header.size.saturating_mul(2).saturating_add(num_values * beside);
        if bytes > MAX_PAGE * 2 { Err(too_large(bytes)) } else { Ok(bytes) }
    }

    /// Counts what values take beside their page, where they are stored as what they share.
    fn count_values(&self, header: &Header, page: &[u8]) -> Result<()> {
        let beside = match header.encoding {
            DELTA_LENGTHS => delta::beside_lengths,
            DELTA_PREFIXES => delta::beside_prefixes,
            _ => return Ok(()),
        };
        if header.page_kind == DICTIONARY {
            return Ok(());
        }
        let values = self.values_of(header, page);
        let most = u64::from(header.num_values).min(MAX_PAGE as u64 / 4);
        let bytes = values.filter(|values| !values.is_empty()).map(|values| beside(values, most));
        match bytes {
            // It has levels alone.
            None => Ok(()),
            Some(None) => Err(damaged("a page has lengths that cannot be read")),
            Some(Some(bytes)) if bytes > MAX_PAGE as u64 => Err(too_large(bytes as usize)),
            Some(Some(bytes)) => self.intake.add_to_page(bytes as usize).map_err(damaged),
        }
    }

    /// The values of a page, behind its levels.
    fn values_of<'a>(&self, header: &Header, page: &'a [u8]) -> Option<&'a [u8]> {
        if header.page_kind == DATA_V2 {
            return page.get((header.rep_bytes as usize).checked_add(header.def_bytes as usize)?..);
        }
        let (rep, def) = self.chunk.levels;
        let mut at = 0usize;
        for (max, encoding) in [(rep, header.rep_encoding), (def, header.def_encoding)] {
            if max == 0 {
                continue;
            }
            at = at.checked_add(match encoding {
                BIT_PACKED => packed_levels(max, header.num_values) as usize,
                _ => {
                    let length = page.get(at..)?.first_chunk::<4>()?;
                    4 + u32::from_le_bytes(*length) as usize
                }
            })?;
        }
        page.get(at..)
    }

    fn read_page(&mut self) -> Result<Option<Page>> {
        self.peek()?;
        let is_data = |header: &Header| header.page_kind != DICTIONARY;
        if self.next.as_ref().is_some_and(|next| is_data(next) && !self.intake.has_room(next.size))
        {
            // It comes when the rows that are there are taken.
            return Ok(None);
        }
        let Some(header) = self.next.take() else { return Ok(None) };
        self.take_room(&header)?;
        let mut stored = vec![0; header.stored];
        self.at += header.length;
        self.chunk.file.read_exact_at(&mut stored, self.at)?;
        self.at += header.stored as u64;
        if header.crc.is_some_and(|crc| crc != checksum(&stored)) {
            return Err(damaged("a page has another checksum than its header says"));
        }
        let bytes = self.contents(&header, stored)?;
        self.check_packed_levels(&header, bytes.len())?;
        self.count_values(&header, &bytes)?;
        header.page(Bytes::from(bytes)).map(Some)
    }

    /// Levels of the oldest files have no length of their own; the parquet crate takes it for
    /// granted that they are there.
    fn check_packed_levels(&self, header: &Header, length: usize) -> Result<()> {
        if header.page_kind != DATA {
            return Ok(());
        }
        let (rep, def) = self.chunk.levels;
        let mut needed = 0;
        for (max, encoding) in [(rep, header.rep_encoding), (def, header.def_encoding)] {
            if max > 0 && encoding == BIT_PACKED {
                needed += packed_levels(max, header.num_values);
            } else if max > 0 && needed > 0 {
                return Err(damaged("a page has levels of two encodings"));
            }
        }
        match needed <= length as u64 {
            true => Ok(()),
            false => Err(damaged("a page is shorter than its levels")),
        }
    }

    /// Content of a page: in version 2 levels are never compressed.
    fn contents(&self, header: &Header, stored: Vec<u8>) -> Result<Vec<u8>> {
        let plain = header.def_bytes as usize + header.rep_bytes as usize;
        if plain > stored.len() || plain > header.size {
            return Err(damaged("a page is shorter than its levels"));
        }
        if !header.is_compressed || self.chunk.codec == CompressionCodec::UNCOMPRESSED {
            return match stored.len() == header.size {
                true => Ok(stored),
                false => Err(damaged("a page has another length than its header says")),
            };
        }
        let values = codec::decompress(self.chunk.codec, &stored[plain..], header.size - plain);
        let values = values.map_err(|what| damaged(format!("a page {what}")))?;
        Ok(match plain {
            0 => values,
            _ => [&stored[..plain], &values].concat(),
        })
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.read_page()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let header = self.peek()?;
        Ok(header.map(|header| PageMetadata {
            num_rows: (header.page_kind == DATA_V2).then_some(header.num_rows as usize),
            num_levels: (header.page_kind != DICTIONARY).then_some(header.num_values as usize),
            is_dict: header.page_kind == DICTIONARY,
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.read_page().map(drop)
    }
}

fn too_large(bytes: usize) -> ParquetError {
    let (size, max) = (bytes >> 20, MAX_PAGE >> 20);
    damaged(format!("a page of {size} MiB, the limit is {max} MiB"))
}

/// Bytes of levels of the oldest files.
fn packed_levels(max: i16, num_values: u32) -> u64 {
    let bits = u64::from(u16::BITS - (max as u16).leading_zeros());
    (u64::from(num_values) * bits).div_ceil(8)
}

/// CRC-32 as in gzip.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

impl Header {
    /// The header at the beginning of these bytes; None if they do not hold one whole.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut header = Self { is_compressed: true, page_kind: -1, ..Self::default() };
        let mut compact = Compact::new(bytes);
        let mut of_page = None;
        compact.fields(|compact, field| {
            match field.id {
                1 => header.page_kind = compact.int()?,
                2 => header.size = usize::try_from(i32::try_from(compact.int()?).ok()?).ok()?,
                3 => header.stored = usize::try_from(i32::try_from(compact.int()?).ok()?).ok()?,
                4 => header.crc = Some(compact.int()? as u32),
                5 | 7 | 8 if field.kind == kind::STRUCT => {
                    of_page = Some(field.id);
                    compact.fields(|compact, inner| header.take(field.id, compact, inner))?;
                }
                _ => return Some(false),
            }
            Some(true)
        })?;
        header.length = compact.position() as u64;
        let wanted = match header.page_kind {
            DATA => Some(5),
            DICTIONARY => Some(7),
            DATA_V2 => Some(8),
            INDEX => of_page,
            _ => return None,
        };
        (of_page == wanted).then_some(header)
    }

    /// A field of what the header says of a page of its kind.
    fn take(&mut self, page: i16, compact: &mut Compact<'_>, field: Field) -> Option<bool> {
        let mut number = || u32::try_from(compact.int()?).ok();
        match (page, field.id) {
            (_, 1) => self.num_values = number()?,
            (5 | 7, 2) | (8, 4) => self.encoding = compact.int()?,
            (5, 3) => self.def_encoding = compact.int()?,
            (5, 4) => self.rep_encoding = compact.int()?,
            (8, 2) => self.num_nulls = number()?,
            (8, 3) => self.num_rows = number()?,
            (8, 5) => self.def_bytes = number()?,
            (8, 6) => self.rep_bytes = number()?,
            (8, 7) => self.is_compressed = field.kind == kind::TRUE,
            _ => return Some(false),
        }
        Some(true)
    }

    fn page(self, buf: Bytes) -> Result<Page> {
        let (num_values, encoding) = (self.num_values, encoding(self.encoding)?);
        Ok(match self.page_kind {
            DICTIONARY => Page::DictionaryPage { buf, num_values, encoding, is_sorted: false },
            DATA => Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding: self::encoding(self.def_encoding)?,
                rep_level_encoding: self::encoding(self.rep_encoding)?,
                statistics: None,
            },
            _ => Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls: self.num_nulls,
                num_rows: self.num_rows,
                def_levels_byte_len: self.def_bytes,
                rep_levels_byte_len: self.rep_bytes,
                is_compressed: false,
                statistics: None,
            },
        })
    }
}

#[expect(deprecated, reason = "old files have it")]
fn encoding(number: i64) -> Result<Encoding> {
    Ok(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return Err(damaged(format!("its pages have the encoding {number}, not known here"))),
    })
}
