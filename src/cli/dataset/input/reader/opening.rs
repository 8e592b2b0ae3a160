//! From the first bytes of an input to its records: what compresses it, its encoding, its line ends
//! and its format.

use std::io::{self, Cursor, Read};

use encoding_rs::UTF_8;

use super::csv::CsvRecords;
use super::decompress::{self, Codec, Decoder};
use super::encoding::{self, Transcoder};
use super::layout::{Layout, Reading};
use super::line_ends::{self, LineEnds};
use super::lines::Lines;
use super::table::{self, Kind};
use super::{Body, InputError, InputFormat, Records, foreign, sniff};
use crate::input::tar::{self, TarRows};

/// Bytes read at once.
const PIECE: usize = 64 << 10;

/// No header is looked for further than this.
const MAX_HEADER: usize = 64 << 10;

/// Bytes of a file that are checked for another encoding; a first line ends within them.
pub(super) const FIRST_PART: usize = 1 << 20;

/// Lines of JSON that must be in another encoding before the file is: one may be damaged.
const LINES_OF_JSON: usize = 2;

/// The first bytes of an input, and what follows.
struct Beginning {
    head: Vec<u8>,
    rest: Box<dyn Read + Send>,
    piece: Vec<u8>,
}

/// An input that cannot be read further.
struct Broken(Option<io::Error>);

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

impl Beginning {
    fn new(rest: Box<dyn Read + Send>) -> Self {
        Self { head: Vec::new(), rest, piece: vec![0; PIECE] }
    }

    fn into_reader(self) -> Box<dyn Read + Send> {
        Box::new(Cursor::new(self.head).chain(self.rest))
    }

    /// Reads what is there; false at the end.
    fn read_more(&mut self) -> io::Result<bool> {
        loop {
            match self.rest.read(&mut self.piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.head.extend_from_slice(&self.piece[..count]);
                    return Ok(count > 0);
                }
            }
        }
    }

    /// Reads until there are four bytes and one that is not blank.
    fn fill_magic(&mut self) -> io::Result<()> {
        let is_enough = |head: &[u8]| {
            head.len() >= 4 && (sniff::first_byte(head).is_some() || head.len() >= MAX_HEADER)
        };
        while !is_enough(&self.head) && self.read_more()? {}
        Ok(())
    }

    /// Reads until the first line that is not blank is there, and until there are `reach` bytes. An
    /// error waits for whoever reads up to it.
    fn fill_line(&mut self, reach: usize) {
        let (mut scanned, mut has_text, mut has_line) = (0, false, false);
        loop {
            for byte in &self.head[scanned..] {
                has_line |= has_text && *byte == b'\n';
                has_text |= !byte.is_ascii_whitespace();
            }
            scanned = self.head.len();
            if scanned >= reach && (has_line || scanned >= FIRST_PART) {
                return;
            }
            match self.read_more() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.rest = Box::new(Broken(Some(error)));
                    return;
                }
            }
        }
    }

    /// Without what compresses it.
    fn decompressed(mut self) -> Result<Self, InputError> {
        self.fill_magic()?;
        let codec = Codec::of(&self.head);
        if let Some(codec) = codec {
            self = Self::new(Box::new(Decoder::new(codec, self.into_reader())?));
            self.fill_magic().map_err(decompress::refusal)?;
        }
        sniff::refuse_unsupported(&self.head, codec)?;
        Ok(self)
    }

    /// Whether it is a tar archive. Text is waited for no longer than its first line.
    fn is_tar(&mut self) -> io::Result<bool> {
        let may_be = |head: &[u8]| head.contains(&0) && !head.contains(&b'\n');
        while self.head.len() < tar::BLOCK && may_be(&self.head) && self.read_more()? {}
        Ok(tar::begins_tar(&self.head))
    }

    /// The first line that is not blank.
    fn first_line(&self) -> String {
        let head = &self.head[..self.head.len().min(MAX_HEADER)];
        let mut lines = head.split(|byte| *byte == b'\n');
        let line = lines.find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
        String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
    }
}

/// Whether the lines of an input that begins so are JSON.
fn is_json(head: &[u8], line: &str, format: InputFormat) -> bool {
    match (format, sniff::first_byte(head)) {
        (InputFormat::Jsonl, _) | (InputFormat::Auto, Some(b'{' | b'[')) => true,
        (InputFormat::Auto, Some(b'"')) => {
            serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok()
        }
        _ => false,
    }
}

/// The format of an input, and what a user may want to know of it.
fn format(
    (head, line): (&[u8], &str),
    reading: &Reading<'_>,
) -> (InputFormat, Option<u8>, Option<String>) {
    let layout = &reading.layout;
    let guesses = layout.format == InputFormat::Auto;
    let is_named_text = layout.format == InputFormat::Txt && !layout.is_told;
    if guesses && is_json(head, line, layout.format) {
        return (InputFormat::Jsonl, None, None);
    }
    let Some(names) = reading.names.filter(|_| guesses || is_named_text) else {
        let format = if guesses { sniff::format(head) } else { layout.format };
        return (format, None, None);
    };
    match (table::kind(line, names), guesses) {
        (Kind::Table { delimiter }, true) => {
            let format = if delimiter == b'\t' { InputFormat::Tsv } else { InputFormat::Csv };
            let note = format!(
                "read as a table with {} between its cells, as its first line names columns; \
                 --format txt reads lines of text",
                table::shown(delimiter)
            );
            (format, Some(delimiter), Some(note))
        }
        (Kind::Table { delimiter }, false) => {
            let format = if delimiter == b'\t' { "tsv" } else { "csv" };
            let note = format!(
                "its name says text, and its first line names columns; --format {format} reads a \
                 table"
            );
            (layout.format, None, Some(note))
        }
        (Kind::Lines { doubt }, true) => (sniff::format(head), None, doubt),
        (Kind::Lines { doubt }, false) => (layout.format, None, doubt),
    }
}

/// The records of an input. `reach`: so much of it is looked at before, at least.
pub(super) fn records(
    input: Box<dyn Read + Send>,
    reading: &Reading<'_>,
    (max_line, reach): (usize, usize),
) -> Result<Records, InputError> {
    let layout = &reading.layout;
    let mut start = Beginning::new(input).decompressed()?;
    if start.is_tar()? {
        return of_tar(start, layout);
    }
    start.fill_line(reach);
    let mut notes = Vec::new();
    let encoding::Found { encoding, mark, note } = encoding::find(&start.head, layout.encoding);
    notes.extend(note);
    start.head.drain(..mark);
    if encoding != UTF_8 {
        start = Beginning::new(Box::new(Transcoder::new(encoding, start.into_reader())));
        start.fill_line(reach);
    }
    foreign::refuse_binary(&start.head, layout.format)?;
    if layout.format == InputFormat::Parquet {
        let message = "the input is no Parquet file: it does not begin and end with PAR1";
        return Err(InputError::refused(message, "leave --format out, or rename the file"));
    }
    if line_ends::are_cr(&start.head) {
        notes.push("its lines end with CR alone; each is read as a line".to_owned());
        start = Beginning::new(Box::new(LineEnds::new(start.into_reader())));
        start.fill_line(reach);
    }
    let line = start.first_line();
    if layout.encoding == encoding::TextEncoding::Auto && encoding == UTF_8 {
        let is_json = is_json(&start.head, &line, layout.format);
        let num_lines = if is_json { LINES_OF_JSON } else { 1 };
        encoding::refuse_other_than_utf8(&start.head, num_lines)?;
    }
    let (format, delimiter, note) = format((&start.head, &line), reading);
    notes.extend(note);
    let lines = Lines::new(start.into_reader(), (max_line, encoding.name()));
    match format.delimiter() {
        None => {
            if let Some(flag) = layout.flag_of_tables() {
                notes.push(format!("{flag}: it is no table, and has no use for it"));
            }
            Ok(Records { notes, ..Records::new(format, Body::Lines(lines)) })
        }
        Some(usual) => {
            let delimiter = delimiter.unwrap_or_else(|| {
                let delimiter =
                    table::delimiter(&line, &Layout { format, ..*layout }, reading.names);
                if layout.delimiter.is_none() && delimiter != usual {
                    let shown = table::shown(delimiter);
                    notes.push(format!(
                        "{shown} is between its cells; --delimiter says another separator"
                    ));
                }
                delimiter
            });
            let is_marked = mark > 0 || encoding != UTF_8;
            let records = of_table(lines, (&line, delimiter), reading, (format, notes))?;
            Ok(Records { is_marked, ..records })
        }
    }
}

/// The rows of an archive.
fn of_tar(start: Beginning, layout: &Layout) -> Result<Records, InputError> {
    let flags = [
        (layout.format != InputFormat::Auto).then_some("--format"),
        (layout.encoding != encoding::TextEncoding::Auto).then_some("--encoding"),
        layout.flag_of_tables(),
    ];
    match flags.into_iter().flatten().next() {
        Some(flag) => {
            let message = format!("{flag}: the input is a tar archive, whose members are rows");
            Err(InputError::refused(message, format!("leave {flag} out, or rename the file")))
        }
        None => {
            let rows = Box::new(TarRows::new(start.into_reader()));
            Ok(Records::new(InputFormat::Jsonl, Body::Tar(rows)))
        }
    }
}

/// The records of a table.
fn of_table(
    mut lines: Lines,
    (line, delimiter): (&str, u8),
    reading: &Reading<'_>,
    (format, mut notes): (InputFormat, Vec<String>),
) -> Result<Records, InputError> {
    let mut blank_lines = 0;
    if table::separator_line(line).is_some() {
        blank_lines = lines.skip_first()?;
    }
    let has_header = !reading.layout.no_header;
    let opened = CsvRecords::open(&mut lines, delimiter, has_header)?;
    notes.extend(opened.note);
    // Output follows the separator, not the name.
    let format = match format {
        InputFormat::Tsv if delimiter != b'\t' => InputFormat::Csv,
        format => format,
    };
    let (crlf, blank_lines) = (opened.crlf, blank_lines + opened.blank_lines);
    let given_back = opened.first.into_iter().collect();
    let body = Body::Csv(opened.records, lines);
    Ok(Records { crlf, blank_lines, given_back, notes, ..Records::new(format, body) })
}
