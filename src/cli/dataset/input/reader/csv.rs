//! CSV and TSV: a header, quotes, embedded newlines, with physical line numbers.
//!
//! The csv crate parses the cells. Where a record ends is found here, because the crate's line
//! numbers are off after blank and CRLF lines, and it would read a file with one open quote into
//! memory whole.

use std::io;
use std::sync::Arc;

use super::lines::Lines;
use super::table::{doubled, name_unnamed};
use super::{Content, InputError, Record, decode, too_long};
use crate::input::row_error::{RowError, code};

/// Bytes read at once of a record.
const PIECE: usize = 64 << 10;

/// Columns of a table: each takes memory in every row, even where it is empty.
const MAX_COLUMNS: usize = 1 << 16;

/// Cells beyond the header's that are looked at: more than is ever shown.
const MAX_SURPLUS: usize = 64;

/// Records of a CSV input, after its header.
pub(super) struct CsvRecords {
    pub(super) delimiter: u8,
    pub(super) names: Arc<[String]>,
}

/// A CSV input whose first line is read.
pub(super) struct OpenedCsv {
    pub(super) records: CsvRecords,
    /// Lines end with CRLF.
    pub(super) crlf: bool,
    /// Before the first line.
    pub(super) blank_lines: u64,
    /// The first row, where there is no header.
    pub(super) first: Option<Record>,
    /// Note about the names for a user.
    pub(super) note: Option<String>,
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
    /// Reads the header, or the first row of a table without one, whose columns are called by their
    /// places.
    pub(super) fn open(
        lines: &mut Lines,
        delimiter: u8,
        has_header: bool,
    ) -> Result<OpenedCsv, InputError> {
        let mut blank_lines = 0;
        let table = (delimiter, MAX_COLUMNS);
        let Some(first) = read_record(lines, table, &mut blank_lines)? else {
            let records = Self { delimiter, names: Arc::new([]) };
            return Ok(OpenedCsv { records, crlf: false, blank_lines, first: None, note: None });
        };
        let (line, crlf) = (first.line, first.crlf);
        let mut names = header(&first, lines, delimiter)?;
        if !has_header {
            names.iter_mut().for_each(String::clear);
        }
        let note = name_unnamed(&mut names).filter(|_| has_header);
        if let Some((name, one, other)) = doubled(&names) {
            let message =
                format!("line {line}: columns {one} and {other} are both called '{name}'");
            let help = "rename one of them: a row's cells are known by the names of their columns";
            return Err(InputError::refused(message, help));
        }
        let records = Self { delimiter, names: names.into() };
        let first = (!has_header).then(|| records.record(first, lines));
        Ok(OpenedCsv { records, crlf, blank_lines, first, note })
    }

    /// The next record, with as many cells as the header has.
    pub(super) fn next_record(
        &self,
        lines: &mut Lines,
        blank_lines: &mut u64,
    ) -> io::Result<Option<Record>> {
        let table = (self.delimiter, self.names.len() + MAX_SURPLUS);
        let raw = read_record(lines, table, blank_lines)?;
        Ok(raw.map(|raw| self.record(raw, lines)))
    }

    fn record(&self, mut raw: RawRecord, lines: &Lines) -> Record {
        let line = raw.line;
        if raw.length > lines.max_line as u64 {
            let limit = lines.max_line;
            let (text, error) = too_long("record", line, &raw.bytes, raw.length, limit);
            let cells = self.fit(vec![text]);
            return Record { line, content: Content::Cells(cells), error: Some(error) };
        }
        raw.bytes.truncate(raw.cells_end.unwrap_or(usize::MAX));
        let (text, mut error) = decode(raw.bytes, (line, lines.encoding), usize::MAX);
        let cells = split_cells(&text, self.delimiter);
        let num_cells = raw.cells_end.map_or(cells.len() as u64, |_| raw.cells);
        if raw.open_quote {
            let message = "a quote opened in this record is never closed";
            error = Some(RowError::new(code::BAD_CSV, line, message));
        } else if cells.len() != self.names.len() {
            error = error.or(Some(self.ragged(&cells, num_cells, line)));
        }
        Record { line, content: Content::Cells(self.fit(cells)), error }
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

/// The cells of a first line.
fn header(first: &RawRecord, lines: &Lines, delimiter: u8) -> Result<Vec<String>, InputError> {
    let refused = |message: String| {
        let message = format!("line {}: the CSV header {message}", first.line);
        InputError::refused(message, "the first line must name the columns")
    };
    if first.open_quote {
        return Err(refused("has a quote that is never closed".to_owned()));
    }
    if first.length > lines.max_line as u64 {
        return Err(refused(format!("has {} bytes", first.length)));
    }
    if first.cells > MAX_COLUMNS as u64 {
        return Err(refused(format!("has {} cells, the limit is {MAX_COLUMNS}", first.cells)));
    }
    let (text, error) = decode(first.bytes.clone(), (first.line, lines.encoding), usize::MAX);
    match error {
        None => Ok(split_cells(&text, delimiter)),
        Some(error) => {
            let message = format!("line {}: the CSV header: {}", first.line, error.message);
            Err(InputError::refused(message, error.help.unwrap_or_default()))
        }
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
pub(super) fn split_cells(text: &str, delimiter: u8) -> Vec<String> {
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
