//! CSV and TSV: a header, quotes, embedded newlines, with physical line numbers.
//!
//! The csv crate parses the cells. Where a record ends is found here, because the crate's line
//! numbers are off after blank and CRLF lines, and it would read a file with one open quote into
//! memory whole.

use std::io;
use std::sync::Arc;

use super::lines::Lines;
use super::{Content, InputError, Record, decode, too_long};
use crate::cli::input::row_error::{RowError, code};

/// Bytes read at once of a record.
const PIECE: usize = 64 << 10;

/// Columns of a table: each takes memory in every row, even where it is empty.
const MAX_COLUMNS: usize = 1 << 16;

/// Cells beyond the header's that are looked at: more than is ever shown.
const MAX_SURPLUS: usize = 64;

/// What a CSV input is, after its header.
pub(super) struct CsvRecords {
    delimiter: u8,
    pub(super) names: Arc<[String]>,
    pub(super) crlf: bool,
    pub(super) blank_before_header: u64,
}

/// Where in a record a byte is, as the csv crate sees it: a quote opens a cell only at its start,
/// and after the closing quote the rest of the cell is plain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    CellStart,
    Plain,
    Quoted,
    /// After a quote in a quoted cell: its end, or the first of a doubled quote.
    QuoteInQuoted,
}

impl Place {
    fn after(self, byte: u8, delimiter: u8) -> Self {
        match (self, byte) {
            (Place::Quoted, b'"') => Place::QuoteInQuoted,
            (Place::Quoted, _) | (Place::CellStart | Place::QuoteInQuoted, b'"') => Place::Quoted,
            (_, byte) if byte == delimiter => Place::CellStart,
            _ => Place::Plain,
        }
    }
}

/// The bytes of one record, line end removed.
struct RawRecord {
    line: u64,
    bytes: Vec<u8>,
    /// Longer than `bytes` if the record is over the limit.
    length: u64,
    open_quote: bool,
    crlf: bool,
    /// Cells, and where those end that are looked at.
    cells: u64,
    cells_end: Option<usize>,
}

impl CsvRecords {
    /// Reads the header.
    pub(super) fn open(lines: &mut Lines, delimiter: u8) -> Result<Self, InputError> {
        let mut blank_before_header = 0;
        let table = (delimiter, MAX_COLUMNS);
        let Some(header) = read_record(lines, table, &mut blank_before_header)? else {
            return Ok(Self { delimiter, names: Arc::new([]), crlf: false, blank_before_header });
        };
        let refused = |message: String| {
            let message = format!("line {}: the CSV header {message}", header.line);
            InputError::refused(message, "the first line must name the columns")
        };
        if header.open_quote {
            return Err(refused("has a quote that is never closed".to_owned()));
        }
        if header.length > lines.max_line as u64 {
            return Err(refused(format!("has {} bytes", header.length)));
        }
        if header.cells > MAX_COLUMNS as u64 {
            return Err(refused(format!("has {} cells, the limit is {MAX_COLUMNS}", header.cells)));
        }
        let crlf = header.crlf;
        let (text, error) = decode(header.bytes.clone(), header.line, usize::MAX);
        if let Some(error) = error {
            return Err(refused(format!("is not UTF-8: {}", error.message)));
        }
        let names = split_cells(&text, delimiter).into();
        Ok(Self { delimiter, names, crlf, blank_before_header })
    }

    /// The next record, with as many cells as the header has.
    pub(super) fn next_record(
        &self,
        lines: &mut Lines,
        blank_lines: &mut u64,
    ) -> io::Result<Option<Record>> {
        let table = (self.delimiter, self.names.len() + MAX_SURPLUS);
        let Some(mut raw) = read_record(lines, table, blank_lines)? else {
            return Ok(None);
        };
        let line = raw.line;
        if raw.length > lines.max_line as u64 {
            let limit = lines.max_line;
            let (text, error) = too_long("record", line, &raw.bytes, raw.length, limit);
            let cells = self.fit(vec![text]);
            return Ok(Some(Record { line, content: Content::Cells(cells), error: Some(error) }));
        }
        raw.bytes.truncate(raw.cells_end.unwrap_or(usize::MAX));
        let (text, mut error) = decode(raw.bytes, line, usize::MAX);
        let cells = split_cells(&text, self.delimiter);
        let num_cells = raw.cells_end.map_or(cells.len() as u64, |_| raw.cells);
        if raw.open_quote {
            let message = "a quote opened in this record is never closed";
            error = Some(RowError::new(code::BAD_CSV, line, message));
        } else if cells.len() != self.names.len() {
            error = error.or(Some(self.ragged(&cells, num_cells, line)));
        }
        Ok(Some(Record { line, content: Content::Cells(self.fit(cells)), error }))
    }

    fn ragged(&self, cells: &[String], num_cells: u64, line: u64) -> RowError {
        let mut message =
            format!("the row has {num_cells} cells, the header has {}", self.names.len());
        if let Some(surplus) = cells.get(self.names.len()..).filter(|s| !s.is_empty()) {
            // The output has no column for them, so they are kept here.
            let surplus: String = format!("{surplus:?}").chars().take(200).collect();
            message.push_str(&format!("; surplus: {surplus}"));
        }
        RowError::new(code::BAD_CSV, line, message)
            .with_help("put cells that contain the separator or newlines in quotes")
    }

    fn fit(&self, mut cells: Vec<String>) -> Vec<String> {
        cells.resize(self.names.len(), String::new());
        cells
    }
}

/// Reads one record, skipping blank lines before it. Over the limit it is read to its end but not
/// kept.
///
/// `max_cells`: cells that are looked at.
fn read_record(
    lines: &mut Lines,
    (delimiter, max_cells): (u8, usize),
    blank_lines: &mut u64,
) -> io::Result<Option<RawRecord>> {
    let mut record = RawRecord {
        line: lines.number,
        bytes: Vec::new(),
        length: 0,
        open_quote: false,
        crlf: false,
        cells: 1,
        cells_end: None,
    };
    let (mut place, mut previous, mut piece) = (Place::CellStart, 0, Vec::new());
    loop {
        piece.clear();
        let count = lines.read_piece(&mut piece, PIECE)?;
        if count == 0 && record.length == 0 {
            return Ok(None);
        }
        // Only spaces are blank: tabs are the empty cells of a TSV.
        let is_line = piece.last() == Some(&b'\n') || count < PIECE;
        if record.length == 0 && is_line && piece.iter().all(|b| b" \r\n".contains(b)) {
            *blank_lines += 1;
            record.line = lines.number;
            continue;
        }
        for (index, &byte) in piece.iter().enumerate() {
            if byte == b'\n' && place != Place::Quoted {
                record.crlf = previous == b'\r';
            }
            place = place.after(byte, delimiter);
            previous = byte;
            if place == Place::CellStart {
                record.cells += 1;
                if record.cells == max_cells as u64 + 1 {
                    record.cells_end = Some(record.bytes.len() + index);
                }
            }
        }
        let room = lines.max_line.saturating_add(2).saturating_sub(record.bytes.len());
        record.bytes.extend_from_slice(&piece[..count.min(room)]);
        record.length += count as u64;
        record.open_quote = place == Place::Quoted;
        if count == 0 || is_line && !record.open_quote {
            record.length -= match previous {
                _ if record.open_quote => 0,
                b'\n' => 1 + u64::from(record.crlf),
                b'\r' => 1,
                _ => 0,
            };
            // A record over the limit was cut before its end.
            record.bytes.truncate(usize::try_from(record.length).unwrap_or(usize::MAX));
            return Ok(Some(record));
        }
    }
}

/// The cells of one record. Quotes are always understood, so any text has cells.
fn split_cells(text: &str, delimiter: u8) -> Vec<String> {
    if !text.contains('"') {
        // Most records, and the csv crate makes its tables anew for each.
        return text.split(char::from(delimiter)).map(str::to_owned).collect();
    }
    // The crate takes a BOM away, and this is the middle of a file: there it is data.
    let doubled = text.starts_with('\u{feff}').then(|| format!("\u{feff}{text}"));
    let text = doubled.as_deref().unwrap_or(text);
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(delimiter)
        // A `\r` inside a record is data.
        .terminator(csv::Terminator::Any(b'\n'))
        .buffer_capacity(text.len().max(1))
        .from_reader(text.as_bytes());
    let mut record = csv::StringRecord::new();
    let found = reader.read_record(&mut record).expect("valid UTF-8 in memory is always a record");
    match found {
        true => record.iter().map(str::to_owned).collect(),
        false => vec![text.to_owned()],
    }
}
