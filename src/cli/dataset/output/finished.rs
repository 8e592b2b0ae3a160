//! `FinishedRows`: the rows of a complete output in their order, each with the bytes that a run
//! writes of it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use super::{FileFormat, npy};
use crate::input::parquet::{ParquetFile, ParquetRows};
use crate::input::reader::{Codec, Content, Decoder, InputError};

/// Read at once.
const BUFFER: usize = 256 << 10;

/// A row of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedRow {
    /// As a run writes it, line end included: of a Parquet file the JSON line, of a matrix the
    /// numbers.
    pub bytes: Vec<u8>,
    /// Tokens of its prompt and of its answer, 0 where the row does not say; None of an error row.
    pub tokens: Option<(u32, u32)>,
}

/// The rows of an output, one after the other.
pub struct FinishedRows {
    /// The header line of a CSV, else empty.
    header: Vec<u8>,
    body: Body,
}

enum Body {
    Lines(BufReader<Box<dyn Read + Send>>),
    Csv(BufReader<Box<dyn Read + Send>>, Cells),
    /// With the bytes of a row.
    Matrix(BufReader<Box<dyn Read + Send>>, usize),
    Table(Box<ParquetRows>),
}

/// Where a record of CSV says what it is.
struct Cells {
    delimiter: u8,
    num_columns: usize,
    /// It has the tokens of an answer.
    has_completion: bool,
}

impl FinishedRows {
    /// Opens an output.
    ///
    /// # Errors
    /// It cannot be read, or has another form.
    pub fn open(path: &Path, format: FileFormat) -> Result<Self, InputError> {
        let file = File::open(path)?;
        if format == FileFormat::Parquet {
            let rows = Box::new(ParquetRows::new(ParquetFile::open(file)?));
            return Ok(Self { header: Vec::new(), body: Body::Table(rows) });
        }
        let mut input = BufReader::with_capacity(BUFFER, file);
        let input: Box<dyn Read + Send> = match Codec::of(input.fill_buf()?) {
            Some(codec) => Box::new(Decoder::new(codec, Box::new(input))?),
            None => Box::new(input),
        };
        let mut input = BufReader::with_capacity(BUFFER, input);
        let mut header = Vec::new();
        let body = match format {
            FileFormat::Jsonl => Body::Lines(input),
            FileFormat::Csv | FileFormat::Tsv => {
                header = read_record(&mut input)?;
                let cells = Cells::of(&header);
                Body::Csv(input, cells)
            }
            FileFormat::Npy => {
                let mut bytes = [0; npy::HEADER_BYTES];
                input.read_exact(&mut bytes)?;
                let damaged = || io::Error::other("its first bytes are no header of a matrix");
                let (_, width) = npy::shape(&bytes).ok_or_else(damaged)?;
                Body::Matrix(input, width * size_of::<f32>())
            }
            FileFormat::Parquet => unreachable!("opened above"),
        };
        Ok(Self { header, body })
    }

    /// The header line of a CSV; else nothing.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The next row.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_row(&mut self) -> io::Result<Option<FinishedRow>> {
        let (bytes, tokens) = match &mut self.body {
            Body::Lines(input) => {
                let mut line = Vec::new();
                input.read_until(b'\n', &mut line)?;
                let tokens = tokens_of_line(&line);
                (line, tokens)
            }
            Body::Csv(input, cells) => {
                let record = read_record(input)?;
                let tokens = cells.tokens(&record);
                (record, tokens)
            }
            Body::Matrix(input, width) => {
                let mut row = Vec::new();
                input.take(*width as u64).read_to_end(&mut row)?;
                let tokens = (!npy::is_hole(&row)).then_some((0, 0));
                (row, tokens)
            }
            Body::Table(rows) => match rows.next_row()? {
                None => (Vec::new(), None),
                Some(record) => {
                    let Content::Line(line) = record.content else { unreachable!("rows are JSON") };
                    let tokens = tokens_of_line(line.as_bytes());
                    ((line + "\n").into_bytes(), tokens)
                }
            },
        };
        Ok((!bytes.is_empty()).then_some(FinishedRow { bytes, tokens }))
    }
}

/// A record of CSV with its line end.
fn read_record(input: &mut BufReader<Box<dyn Read + Send>>) -> io::Result<Vec<u8>> {
    let (mut record, mut in_quotes) = (Vec::new(), false);
    loop {
        let buffer = input.fill_buf()?;
        let end = csv_record_end(buffer, &mut in_quotes);
        let count = end.unwrap_or(buffer.len());
        record.extend_from_slice(&buffer[..count]);
        input.consume(count);
        if end.is_some() || count == 0 {
            return Ok(record);
        }
    }
}

/// Bytes up to the end of the record, line end included. Whoever writes CSV puts a cell with a
/// quote in it between quotes and doubles it, so a line end inside of a cell comes after an odd
/// number of quotes.
pub fn csv_record_end(bytes: &[u8], in_quotes: &mut bool) -> Option<usize> {
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => *in_quotes = !*in_quotes,
            b'\n' if !*in_quotes => return Some(at + 1),
            _ => {}
        }
    }
    None
}

impl Cells {
    /// Of a header, whose last column is `error`.
    fn of(header: &[u8]) -> Self {
        let line = header.trim_ascii_end();
        let before = line.strip_suffix(b"\"error\"").or_else(|| line.strip_suffix(b"error"));
        let delimiter = before.and_then(<[u8]>::last).copied().unwrap_or(b',');
        let names = cells(header, delimiter);
        let before_last = names.len().checked_sub(2).map(|index| names[index].as_str());
        let has_completion = before_last == Some("completion_tokens");
        Self { delimiter, num_columns: names.len(), has_completion }
    }

    /// The last column is the error, and the tokens are before it.
    fn tokens(&self, record: &[u8]) -> Option<(u32, u32)> {
        let cells = cells(record, self.delimiter);
        let [.., before, last, error] = &cells[..] else { return None };
        if cells.len() != self.num_columns || !error.is_empty() {
            return None;
        }
        match self.has_completion {
            true => Some((before.parse().ok()?, last.parse().ok()?)),
            false => Some((last.parse().ok()?, 0)),
        }
    }
}

fn cells(record: &[u8], delimiter: u8) -> Vec<String> {
    let mut reader =
        csv::ReaderBuilder::new().delimiter(delimiter).has_headers(false).from_reader(record);
    let record = reader.records().next().and_then(Result::ok);
    record.map(|record| record.iter().map(str::to_owned).collect()).unwrap_or_default()
}

/// Tokens in and out of a row with an answer: ours, OpenAI's or Anthropic's. None of an error row.
fn tokens_of_line(line: &[u8]) -> Option<(u32, u32)> {
    let row: Value = serde_json::from_slice(line).ok()?;
    let number = |usage: &Value, name: &str| u32::try_from(usage.get(name)?.as_u64()?).ok();
    // Vectors have no tokens of an answer.
    let generated = |usage: &Value| match usage.get("completion_tokens") {
        Some(_) => number(usage, "completion_tokens"),
        None => Some(0),
    };
    if let Some(response) = row.get("response").filter(|value| value.is_object()) {
        let usage = response.get("body")?.get("usage")?;
        if usage.get("input_tokens").is_some() {
            return Some((number(usage, "input_tokens")?, number(usage, "output_tokens")?));
        }
        return Some((number(usage, "prompt_tokens")?, generated(usage)?));
    }
    if let Some(message) = row.get("result").and_then(|result| result.get("message")) {
        let usage = message.get("usage")?;
        return Some((number(usage, "input_tokens")?, number(usage, "output_tokens")?));
    }
    let usage = row.get("usage").filter(|_| row.get("error").is_none_or(|e| !e.is_object()))?;
    Some((number(usage, "prompt_tokens")?, generated(usage)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_errors_in_every_form() {
        let own = r#"{"id":1,"response":"a","finish_reason":"stop","usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let openai = r#"{"id":"x","response":{"status_code":200,"body":{"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}},"error":null}"#;
        let anthropic = r#"{"custom_id":"a","result":{"type":"succeeded","message":{"usage":{"input_tokens":3,"output_tokens":2}}}}"#;
        let vector = r#"{"id":1,"embedding":[1.0],"usage":{"prompt_tokens":3,"total_tokens":3}}"#;
        let table = r#"{"id":1,"response":"a","usage":{"prompt_tokens":3,"completion_tokens":2},"error":null}"#;
        assert_eq!(tokens_of_line(vector.as_bytes()), Some((3, 0)));
        let of_responses =
            r#"{"response":{"body":{"usage":{"input_tokens":3,"output_tokens":2}}}}"#;
        for good in [own, openai, of_responses, anthropic, table] {
            assert_eq!(tokens_of_line(good.as_bytes()), Some((3, 2)), "{good}");
        }
        for bad in [
            r#"{"id":1,"response":null,"finish_reason":"error","error":{"code":"a","message":"b"}}"#,
            r#"{"usage":{"prompt_tokens":3,"completion_tokens":2},"error":{"code":"a"}}"#,
            r#"{"response":{"status_code":400,"body":{"error":{"message":"m"}}},"error":null}"#,
            r#"{"custom_id":"a","result":{"type":"errored","error":{}}}"#,
            "no JSON",
        ] {
            assert_eq!(tokens_of_line(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn records_of_csv_say_their_tokens_in_the_last_columns() {
        let of =
            |header: &str, record: &str| Cells::of(header.as_bytes()).tokens(record.as_bytes());
        let run = "id,response,finish_reason,prompt_tokens,completion_tokens,error\n";
        assert_eq!(of(run, "1,\"a\n,\"\"\",stop,3,2,\n"), Some((3, 2)));
        assert_eq!(of(run, "1,,error,,,bad_json: no\n"), None);
        let semicolons = "id;response;finish_reason;prompt_tokens;completion_tokens;error\r\n";
        assert_eq!(of(semicolons, "1;a,b;stop;3;2;\r\n"), Some((3, 2)));
        let quoted = "\"GIF8\"\t\"label\"\t\"prompt_tokens\"\t\"error\"\n";
        assert_eq!(of(quoted, "1\ta\t3\t\n"), Some((3, 0)));
        let pooled = "id,label,probs,prompt_tokens,error\n";
        assert_eq!(of(pooled, "1,a,[1],3,\n"), Some((3, 0)));
        assert_eq!(of(pooled, "1,,,,bad_csv: no\n"), None);
    }

    #[test]
    fn csv_records_end_outside_of_quotes_however_they_are_divided() {
        let text = b"a,\"x\ny\"\"\n\"\"\"\r\nb,c\n\"\"\n,\n";
        let records: [&[u8]; 4] = [b"a,\"x\ny\"\"\n\"\"\"\r\n", b"b,c\n", b"\"\"\n", b",\n"];
        for piece in 1..=text.len() {
            let (mut found, mut record, mut in_quotes) = (Vec::new(), Vec::new(), false);
            for mut bytes in text.chunks(piece) {
                while let Some(end) = csv_record_end(bytes, &mut in_quotes) {
                    record.extend_from_slice(&bytes[..end]);
                    found.push(std::mem::take(&mut record));
                    bytes = &bytes[end..];
                }
                record.extend_from_slice(bytes);
            }
            assert_eq!(found, records, "in pieces of {piece}");
            assert!(record.is_empty());
        }
    }
}
