//! `CsvFormat`: rows out for CSV in.

use super::pooled::PooledForm;
use super::shown::Shown;
use super::{Asked, asks_for_more_than_text, kept_name, resolve};
use crate::input::fields::Passthrough;
use crate::input::reader;
use crate::input::row_error::RowError;
use vllm_batch_api::pooling::PoolingOutput;
use vllm_batch_api::request::{RequestOutput, SamplingParams};
use vllm_batch_text::AnswerParser;

/// Columns that follow the text.
const COLUMNS: [&str; 4] = ["finish_reason", "prompt_tokens", "completion_tokens", "error"];

/// Columns that follow what a text became.
const POOLED_COLUMNS: [&str; 2] = ["prompt_tokens", "error"];

/// Rows out for CSV in: all input columns, then the text, finish_reason, prompt_tokens,
/// completion_tokens, error; or what the text became, prompt_tokens, error.
#[derive(Clone, Debug)]
pub struct CsvFormat {
    /// The input's, or a tab.
    pub delimiter: u8,
    /// End lines with CRLF, because the input does.
    pub crlf: bool,
    /// Begin with the mark of UTF-8, because the input does.
    pub is_marked: bool,
    /// Name of the column with the text.
    pub out_field: String,
    /// Only the first completion is wanted, whatever else is asked for (`--output-format simple`).
    pub is_simple: bool,
    /// Splits the answers of chats: the text is what is not thinking.
    pub parser: AnswerParser,
    /// How rows show what their texts became; None: they are completed.
    pub pooled: Option<PooledForm>,
}

impl CsvFormat {
    /// Appends the header line, behind the mark of a file that has one.
    pub fn format_marked_header(&self, names: &[String], out: &mut Vec<u8>) {
        if self.is_marked {
            out.extend_from_slice(reader::UTF8_BOM);
        }
        self.format_header(names, out);
    }

    /// Appends the header line. It begins the file, so names are quoted if that would otherwise
    /// begin like something that is no CSV.
    pub fn format_header(&self, names: &[String], out: &mut Vec<u8>) {
        let is_taken = |wanted: &str| names.iter().any(|name| name == wanted);
        let input = names.iter().map(|name| match self.is_ours(name) {
            true => kept_name(name, is_taken),
            false => name.clone(),
        });
        let ours = self.columns().into_iter().map(str::to_owned);
        let (header, start) = (input.chain(ours), out.len());
        self.write(header.clone(), csv::QuoteStyle::Necessary, out);
        if reader::is_mark(&out[start..]) {
            out.truncate(start);
            self.write(header, csv::QuoteStyle::Always, out);
        }
    }

    /// Names of input columns that are also ours; they appear as `input_<name>`. Warn once about
    /// them.
    pub fn collisions(&self, names: &[String]) -> Vec<String> {
        names.iter().filter(|name| self.is_ours(name)).cloned().collect()
    }

    /// The parameter, if any, that asks for what a record has no room for.
    pub fn has_no_room_for(&self, params: &SamplingParams) -> Option<&'static str> {
        asks_for_more_than_text(params).filter(|_| !self.is_simple)
    }

    /// Appends one row: the text of its first completion. It is asked by a CSV row.
    pub fn format_row(
        &self,
        Asked { passthrough, form }: Asked<'_>,
        result: Result<&RequestOutput, &RowError>,
        out: &mut Vec<u8>,
    ) {
        let Passthrough::Cells { cells, .. } = passthrough else {
            unreachable!("only CSV rows are written as CSV");
        };
        let ours = match resolve(result) {
            Err(error) if self.pooled.is_some() => {
                let mut cells = vec![String::new(); self.columns().len()];
                cells.pop();
                cells.push(format!("{}: {}", error.code, error.message));
                cells
            }
            Ok(output) => {
                let first = output.outputs.first();
                let shown = first.map(|completion| Shown::new(completion, form, &self.parser));
                let text = shown.and_then(|shown| shown.content);
                vec![
                    text.unwrap_or_default().into_owned(),
                    first.map(|c| c.finish_reason.name().to_owned()).unwrap_or_default(),
                    output.prompt_token_ids.len().to_string(),
                    output.num_output_tokens().to_string(),
                    String::new(),
                ]
            }
            Err(error) => {
                let message = format!("{}: {}", error.code, error.message);
                vec![String::new(), "error".to_owned(), String::new(), String::new(), message]
            }
        };
        self.write(cells.iter().cloned().chain(ours), csv::QuoteStyle::Necessary, out);
    }

    /// The same with what its text became.
    pub(super) fn format_pooled(
        &self,
        passthrough: &Passthrough,
        output: &PoolingOutput,
        out: &mut Vec<u8>,
    ) {
        let (Passthrough::Cells { cells, .. }, Some(form), [text]) =
            (passthrough, &self.pooled, &output.texts[..])
        else {
            unreachable!("only CSV rows, of one text each, are written as CSV");
        };
        let after = [output.num_prompt_tokens.to_string(), String::new()];
        let ours = form.cells(text).into_iter().chain(after);
        self.write(cells.iter().cloned().chain(ours), csv::QuoteStyle::Necessary, out);
    }

    /// Whether a record begins with the cells of a row.
    pub fn answers(&self, passthrough: &Passthrough, record: &[u8]) -> bool {
        let Passthrough::Cells { cells, .. } = passthrough else { return false };
        let mut shown = Vec::new();
        // An empty cell behind them, which is nothing but its separator.
        let cells = cells.iter().cloned().chain([String::new()]);
        self.write(cells, csv::QuoteStyle::Necessary, &mut shown);
        shown.truncate(shown.len() - if self.crlf { 2 } else { 1 });
        record.starts_with(&shown)
    }

    /// A record with the line end of this format. Within a cell there are quotes around one.
    pub fn with_line_end(&self, mut record: Vec<u8>) -> Vec<u8> {
        let line_end: &[u8] = if self.crlf { b"\r\n" } else { b"\n" };
        let length = without_end(&record).len();
        record.truncate(length);
        record.extend_from_slice(line_end);
        record
    }

    /// Whether a header line is that of these columns, but for its mark and its line end: a
    /// spreadsheet changes them in whatever it saves.
    pub fn is_header(&self, names: &[String], line: &[u8]) -> bool {
        let mut header = Vec::new();
        self.format_header(names, &mut header);
        let line = line.strip_prefix(reader::UTF8_BOM).unwrap_or(line);
        without_end(line) == without_end(&header)
    }

    /// Names of our columns.
    fn columns(&self) -> Vec<&str> {
        let after = match &self.pooled {
            None => COLUMNS.to_vec(),
            Some(form) => [form.fields(), &POOLED_COLUMNS].concat(),
        };
        [&[self.out_field.as_str()], &after[..]].concat()
    }

    fn is_ours(&self, name: &str) -> bool {
        self.columns().contains(&name)
    }

    fn write(
        &self,
        cells: impl Iterator<Item = String>,
        quotes: csv::QuoteStyle,
        out: &mut Vec<u8>,
    ) {
        let terminator = match self.crlf {
            true => csv::Terminator::CRLF,
            false => csv::Terminator::Any(b'\n'),
        };
        let mut writer = csv::WriterBuilder::new()
            .delimiter(self.delimiter)
            .terminator(terminator)
            .quote_style(quotes)
            .flexible(true)
            .from_writer(out);
        writer.write_record(cells.map(String::into_bytes)).expect("writing into memory");
        writer.flush().expect("writing into memory");
    }
}

fn without_end(record: &[u8]) -> &[u8] {
    let line = record.strip_suffix(b"\n").unwrap_or(record);
    line.strip_suffix(b"\r").unwrap_or(line)
}
