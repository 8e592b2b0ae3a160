//! `Column`: the values of one column for some rows, with the levels that say which of them are
//! there and which begin a row.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use half::f16;
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::ColumnDescPtr;

use super::pages::Pages;
use super::schema::{Clock, Leaf, Meaning};
use super::text;
use super::values::Values;
use crate::engine::text::contain;

/// Nanoseconds, on no clock in particular: what INT96 counts.
pub const NANOSECONDS: Clock = Clock { per_second: 1_000_000_000, is_utc: false };

/// The day of 1970 as INT96 counts days.
pub const JULIAN_DAY_OF_1970: i64 = 2_440_588;

/// Bytes of the longest decimal.
const MAX_DECIMAL: usize = 64;

/// One column of a row group.
pub(super) struct Column {
    reader: ColumnReader,
    /// Levels of its values since the batch began.
    num_in_batch: Arc<AtomicUsize>,
    values: Values,
    defs: Vec<i16>,
    reps: Vec<i16>,
    max_def: i16,
    num_levels: usize,
    /// The level and the value that come next.
    at: (usize, usize),
    /// Rows of the batch that began before what comes next.
    rows_begun: u64,
}

impl Column {
    pub fn new(descriptor: ColumnDescPtr, pages: Pages, num_in_batch: Arc<AtomicUsize>) -> Self {
        let max_def = descriptor.max_def_level();
        let values = Values::new(descriptor.physical_type());
        let reader = get_column_reader(descriptor, Box::new(pages));
        let (defs, reps) = (Vec::new(), Vec::new());
        let (at, rows_begun) = ((0, 0), 0);
        Self { reader, num_in_batch, values, defs, reps, max_def, num_levels: 0, at, rows_begun }
    }

    /// Reads so many rows in place of those before.
    ///
    /// # Errors
    /// There are fewer, or the file is damaged.
    pub fn read(&mut self, num_rows: usize) -> Result<()> {
        self.num_in_batch.store(0, Relaxed);
        self.defs.clear();
        self.reps.clear();
        (self.at, self.rows_begun) = ((0, 0), 0);
        let read = contain(|| self.read_records(num_rows));
        let panicked = || ParquetError::General("its pages are damaged".to_owned());
        let (records, levels) = read.ok_or_else(panicked)??;
        if records != num_rows {
            return Err(ParquetError::General("it has fewer rows than the footer says".to_owned()));
        }
        self.num_levels = levels;
        Ok(())
    }

    fn read_records(&mut self, count: usize) -> Result<(usize, usize)> {
        let levels = (Some(&mut self.defs), Some(&mut self.reps));
        macro_rules! read {
            ($reader:expr, $values:expr) => {{
                $values.clear();
                $reader.read_records(count, levels.0, levels.1, $values)
            }};
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
    pub fn def(&self) -> Option<i16> {
        match self.max_def {
            0 => (self.at.0 < self.num_levels).then_some(0),
            _ => self.defs.get(self.at.0).copied(),
        }
    }

    /// The repetition level of what comes next; 0 at the end: a row would begin there.
    pub fn rep(&self) -> i16 {
        self.reps.get(self.at.0).copied().unwrap_or(0)
    }

    /// Whether so many rows of the batch are taken, and nothing of another.
    pub fn is_after(&self, num_rows: u64) -> bool {
        self.rows_begun == num_rows && self.rep() == 0
    }

    /// Goes on behind what comes next.
    pub fn advance(&mut self) {
        self.rows_begun += u64::from(self.rep() == 0);
        if self.def() == Some(self.max_def) {
            self.at.1 += 1;
        }
        self.at.0 += 1;
    }

    /// Appends the value that comes next as JSON, and what is wrong with it.
    pub fn write(&self, leaf: &Leaf, out: &mut Vec<u8>) -> std::result::Result<(), String> {
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
        Meaning::Text => json(utf8(value)?, out),
        Meaning::Json => {
            let text = utf8(value)?;
            match serde_json::from_str::<&serde_json::value::RawValue>(text) {
                // A row is a line: what is white between values may not end it.
                Ok(raw) => out.extend(raw.get().bytes().map(|byte| match byte {
                    b'\n' | b'\r' => b' ',
                    byte => byte,
                })),
                Err(_) => json(text, out),
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
        _ => json(&text::base64(value), out),
    }
    Ok(())
}

fn utf8(value: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(value).map_err(|error| {
        let at = error.valid_up_to();
        format!("has text that is not UTF-8: byte {:#04x} at offset {}", value[at], at + 1)
    })
}
