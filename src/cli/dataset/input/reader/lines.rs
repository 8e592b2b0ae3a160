//! `Lines`: physical lines, split on `\n` only, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

use super::{Content, Record, decode, too_long};

/// Read at once: large enough that system calls do not count.
const BUFFER: usize = 256 << 10;

/// Bytes kept of a line after the first that is not UTF-8: more than is ever shown. In text each of
/// them may take three, and 64 MiB of them would take 192.
const KEPT_AFTER_BAD_BYTE: usize = 64 << 10;

/// Reads pieces of lines and counts lines. `str::lines` and Python's `splitlines` would also split
/// on `\r` or U+2028, which are data here.
pub(super) struct Lines {
    input: BufReader<Box<dyn Read + Send>>,
    /// Number of the line that the next byte belongs to, from 1.
    pub(super) number: u64,
    pub(super) max_line: usize,
    /// Encoding of the bytes that text was decoded from.
    pub(super) encoding: &'static str,
}

impl Lines {
    pub(super) fn new(
        input: Box<dyn Read + Send>,
        (max_line, encoding): (usize, &'static str),
    ) -> Self {
        let input = BufReader::with_capacity(BUFFER, input);
        Self { input, number: 1, max_line, encoding }
    }

    /// Skips the first line that is not blank, which is short; returns how many blank ones were
    /// before it.
    pub(super) fn skip_first(&mut self) -> io::Result<u64> {
        let (mut piece, mut blank_lines) = (Vec::new(), 0);
        while self.read_piece(&mut piece, BUFFER)? > 0 && piece.trim_ascii().is_empty() {
            blank_lines += 1;
            piece.clear();
        }
        Ok(blank_lines)
    }

    /// Appends bytes up to and including the next `\n`, at most `limit`. 0 is the end of the input.
    pub(super) fn read_piece(&mut self, bytes: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        let count = (&mut self.input).take(limit as u64).read_until(b'\n', bytes);
        let count = count.map_err(|error| placed(self.number, &error))?;
        self.number += u64::from(count > 0 && bytes.last() == Some(&b'\n'));
        Ok(count)
    }

    /// Skips the rest of the line; returns its length without the end.
    fn skip_line(&mut self) -> io::Result<u64> {
        let mut length = 0;
        loop {
            let buffer = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(placed(self.number, &error)),
                Ok(buffer) => buffer,
            };
            let newline = buffer.iter().position(|&b| b == b'\n');
            let count = newline.unwrap_or(buffer.len());
            let at_end = buffer.is_empty() || newline.is_some();
            self.input.consume(count + usize::from(newline.is_some()));
            length += count as u64;
            if at_end {
                self.number += u64::from(newline.is_some());
                return Ok(length);
            }
        }
    }

    /// The next line as a record, blank ones included.
    pub(super) fn next_line(&mut self) -> io::Result<Option<Record>> {
        let line = self.number;
        let mut bytes = Vec::new();
        // Two more bytes, for CRLF.
        if self.read_piece(&mut bytes, self.max_line.saturating_add(2))? == 0 {
            return Ok(None);
        }
        let ended = strip_line_end(&mut bytes);
        if bytes.len() > self.max_line {
            let length = bytes.len() as u64 + if ended { 0 } else { self.skip_line()? };
            let (text, error) = too_long("line", line, &bytes, length, self.max_line);
            return Ok(Some(Record { line, content: Content::Line(text), error: Some(error) }));
        }
        let (text, error) = decode(bytes, (line, self.encoding), KEPT_AFTER_BAD_BYTE);
        Ok(Some(Record { line, content: Content::Line(text), error }))
    }
}

/// An error of the input, with the last line that could be read.
fn placed(number: u64, error: &io::Error) -> io::Error {
    let place = match number {
        1 => "in line 1".to_owned(),
        _ => format!("after line {}", number - 1),
    };
    io::Error::new(error.kind(), format!("{error}, {place}"))
}

/// Removes `\n` or `\r\n`, and a lone `\r` at the end of the input. Tells whether there was a `\n`.
fn strip_line_end(bytes: &mut Vec<u8>) -> bool {
    let ended = bytes.pop_if(|b| *b == b'\n').is_some();
    bytes.pop_if(|b| *b == b'\r');
    ended
}
