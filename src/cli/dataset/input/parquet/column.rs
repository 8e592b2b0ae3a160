//! `Column`: the values of one column for some rows, with the levels that say which of them are
//! there and which begin a row.

use std::sync::Arc;

use half::f16;
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::ColumnDescPtr;

use super::intake::Intake;
use super::pages::Pages;
use super::schema::{Clock, Leaf, Meaning};
use super::text;
use super::values::Values;
use crate::input::base64;
use crate::input::reader::MAX_LINE;
use vllm_batch_base::contained::contain;

/// Nanoseconds, on no clock in particular: what INT96 counts.
pub const NANOSECONDS: Clock = Clock { per_second: 1_000_000_000, is_utc: false };

/// The day of 1970 as INT96 counts days.
pub const JULIAN_DAY_OF_1970: i64 = 2_440_588;

/// Bytes of the longest decimal.
const MAX_DECIMAL: usize = 64;

/// One column of a row group.
pub(super) struct Column {
    reader: ColumnReader,
    /// Bytes of the column in memory.
    intake: Arc<Intake>,
    values: Values,
    defs: Vec<i16>,
    reps: Vec<i16>,
    max_def: i16,
    num_levels: usize,
    /// The level and the value that come next.
    at: (usize, usize),
    /// Whole rows that were read and are not taken.
    num_rows: usize,
    /// Rows of the group that began before what comes next.
    rows_begun: u64,
}

impl Column {
    pub(super) fn new(descriptor: ColumnDescPtr, pages: Pages, intake: Arc<Intake>) -> Self {
        let max_def = descriptor.max_def_level();
        let values = Values::new(descriptor.physical_type());
        let reader = get_column_reader(descriptor, Box::new(pages));
        let (defs, reps) = (Vec::new(), Vec::new());
        let (num_levels, num_rows, rows_begun) = (0, 0, 0);
        let at = (0, 0);
        Self { reader, intake, values, defs, reps, max_def, num_levels, at, num_rows, rows_begun }
    }

    /// Reads rows where none is left: `most` at most, fewer where their pages are large.
    ///
    /// # Errors
    /// There is none, or the file is damaged.
    pub(super) fn fill(&mut self, most: usize) -> Result<()> {
        if self.num_rows > 0 {
            return Ok(());
        }
        self.drop_taken();
        while self.num_rows == 0 {
            self.intake.begin_call();
            let read = contain(|| self.read_records(most));
            let panicked = || ParquetError::General("its pages are damaged".to_owned());
            let (num_rows, num_levels) = read.ok_or_else(panicked)??;
            if num_rows == 0 && num_levels == 0 {
                let text = "it has fewer rows than the footer says";
                return Err(ParquetError::General(text.to_owned()));
            }
            self.num_rows += num_rows;
            self.num_levels += num_levels;
        }
        Ok(())
    }

    /// A row was taken.
    pub(super) fn take_row(&mut self) {
        self.num_rows -= 1;
    }

    /// Keeps only what is of a row that is not whole.
    fn drop_taken(&mut self) {
        let (level, value) = self.at;
        self.values.drop_first(value);
        self.defs.drain(..level.min(self.defs.len()));
        self.reps.drain(..level.min(self.reps.len()));
        self.num_levels -= level;
        self.at = (0, 0);
        self.intake.rows_are_taken(self.num_levels);
    }

    fn read_records(&mut self, count: usize) -> Result<(usize, usize)> {
        let levels = (Some(&mut self.defs), Some(&mut self.reps));
        macro_rules! read {
            ($reader:expr, $values:expr) => {
                $reader.read_records(count, levels.0, levels.1, $values)
            };
        }
        let (records, _, levels) = match (&mut self.reader, &mut self.values) {
            (ColumnReader::BoolColumnReader(reader), Values::Bool(values)) => read!(reader, values),
            (ColumnReader::Int32ColumnReader(reader), Values::Int32(values)) => {
                read!(reader, values)
            }
            (ColumnReader::Int64ColumnReader(reader), Values::Int64(values)) => {
                read!(reader, values)
            }
            (ColumnReader::Int96ColumnReader(reader), Values::Int96(values)) => {
                read!(reader, values)
            }
            (ColumnReader::FloatColumnReader(reader), Values::Float(values)) => {
                read!(reader, values)
            }
            (ColumnReader::DoubleColumnReader(reader), Values::Double(values)) => {
                read!(reader, values)
            }
            (ColumnReader::ByteArrayColumnReader(reader), Values::Bytes(values)) => {
                read!(reader, values)
            }
            (ColumnReader::FixedLenByteArrayColumnReader(reader), Values::Fixed(values)) => {
                read!(reader, values)
            }
            _ => unreachable!("values are made for their reader"),
        }?;
        Ok((records, levels))
    }

    /// The definition level of what comes next; None at the end of what was read.
    pub(super) fn def(&self) -> Option<i16> {
        match self.max_def {
            0 => (self.at.0 < self.num_levels).then_some(0),
            _ => self.defs.get(self.at.0).copied(),
        }
    }

    /// The repetition level of what comes next; 0 at the end: a row would begin there.
    pub(super) fn rep(&self) -> i16 {
        self.reps.get(self.at.0).copied().unwrap_or(0)
    }

    /// Whether so many rows of the group are taken, and nothing of another.
    pub(super) fn is_after(&self, num_rows: u64) -> bool {
        self.rows_begun == num_rows && self.rep() == 0
    }

    /// Goes on behind what comes next.
    pub(super) fn advance(&mut self) {
        self.rows_begun += u64::from(self.rep() == 0);
        if self.def() == Some(self.max_def) {
            self.at.1 += 1;
        }
        self.at.0 += 1;
    }

    /// The bytes of the value that comes next, where it is of bytes.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.values.bytes(self.at.1)
    }

    /// Appends the value that comes next as JSON, and what is wrong with it. A text ends where the
    /// row is too long.
    pub(super) fn write(&self, leaf: &Leaf, out: &mut Vec<u8>) -> std::result::Result<(), String> {
        let at = self.at.1;
        let damaged = || "has fewer values than it says".to_owned();
        match &self.values {
            Values::Bool(values) => json(values.get(at).ok_or_else(damaged)?, out),
            Values::Int32(values) => {
                let value = *values.get(at).ok_or_else(damaged)?;
                match leaf.meaning {
                    Meaning::Unsigned => json(&(value as u32), out),
                    _ => return integer(i64::from(value), leaf, out),
                }
            }
            Values::Int64(values) => {
                return integer(*values.get(at).ok_or_else(damaged)?, leaf, out);
            }
            Values::Int96(values) => {
                let words = values.get(at).ok_or_else(damaged)?.data();
                let nanos = i64::from(words[0]) | i64::from(words[1]) << 32;
                let days = i64::from(words[2]) - JULIAN_DAY_OF_1970;
                let time = text::time(nanos, NANOSECONDS);
                let time = time.ok_or_else(|| format!("has a time of {nanos} ns in a day"))?;
                json(&format!("{}T{time}", text::date(days)), out);
            }
            Values::Float(values) => {
                let value = *values.get(at).ok_or_else(damaged)?;
                match value.is_finite() {
                    true => json(&value, out),
                    false => json(not_finite(f64::from(value)), out),
                }
            }
            Values::Double(values) => double(*values.get(at).ok_or_else(damaged)?, out),
            Values::Bytes(values) => {
                return bytes(values.get(at).ok_or_else(damaged)?.data(), leaf, out);
            }
            Values::Fixed(values) => {
                return bytes(values.get(at).ok_or_else(damaged)?.data(), leaf, out);
            }
        }
        Ok(())
    }
}

/// Bytes of a text that become JSON before the length of the row is looked at.
const PIECE: usize = 1 << 20;

/// A text as JSON, until the row is too long: escapes take six times its bytes.
fn json_text(text: &str, out: &mut Vec<u8>) {
    if text.len() <= PIECE {
        return json(text, out);
    }
    let mut rest = text;
    out.push(b'"');
    while !rest.is_empty() && out.len() <= MAX_LINE {
        let mut end = PIECE.min(rest.len());
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, after) = rest.split_at(end);
        let start = out.len();
        json(piece, out);
        // Without its quotes.
        out.remove(start);
        out.pop();
        rest = after;
    }
    out.push(b'"');
}

fn json<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("plain values into memory");
}

fn double(value: f64, out: &mut Vec<u8>) {
    match value.is_finite() {
        true => json(&value, out),
        false => json(not_finite(value), out),
    }
}

/// JSON has no such numbers.
fn not_finite(value: f64) -> &'static str {
    match value {
        _ if value.is_nan() => "NaN",
        _ if value > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

fn integer(value: i64, leaf: &Leaf, out: &mut Vec<u8>) -> Result<(), String> {
    match leaf.meaning {
        Meaning::Unsigned => json(&(value as u64), out),
        Meaning::Decimal(scale) => json(&text::decimal(&value.to_be_bytes(), scale), out),
        Meaning::Date => json(&text::date(value), out),
        Meaning::Timestamp(clock) => json(&text::timestamp(value, clock), out),
        Meaning::Time(clock) => {
            let time = text::time(value, clock);
            json(&time.ok_or_else(|| format!("has {value}, which is no time of day"))?, out);
        }
        _ => json(&value, out),
    }
    Ok(())
}

fn bytes(value: &[u8], leaf: &Leaf, out: &mut Vec<u8>) -> Result<(), String> {
    match leaf.meaning {
        Meaning::Text => json_text(utf8(value)?, out),
        Meaning::Json => {
            let text = utf8(value)?;
            match serde_json::from_str::<&serde_json::value::RawValue>(text) {
                // A row is a line: what is white between values may not end it.
                Ok(raw) => out.extend(raw.get().bytes().map(|byte| match byte {
                    b'\n' | b'\r' => b' ',
                    byte => byte,
                })),
                Err(_) => json_text(text, out),
            }
        }
        Meaning::Uuid | Meaning::Interval if value.len() != leaf.length as usize => {
            return Err(format!("has a value of {} bytes", value.len()));
        }
        Meaning::Decimal(_) if value.len() > MAX_DECIMAL => {
            return Err(format!("has a decimal of {} bytes", value.len()));
        }
        Meaning::Decimal(scale) => json(&text::decimal(value, scale), out),
        Meaning::Uuid => json(&text::uuid(value), out),
        Meaning::Interval => json(&text::interval(value), out),
        Meaning::Float16 => {
            let bits = <[u8; 2]>::try_from(value).map_err(|_| "has a float of another length")?;
            double(f64::from(f16::from_le_bytes(bits)), out);
        }
        _ => json(&base64::encode(value), out),
    }
    Ok(())
}

fn utf8(value: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(value).map_err(|error| {
        let at = error.valid_up_to();
        format!("has text that is not UTF-8: byte {:#04x} at offset {}", value[at], at + 1)
    })
}
