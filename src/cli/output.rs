//! Rows out: the input's fields in their order, then the answer or the error.

use super::fields::Passthrough;
use super::row_error::RowError;
use crate::engine::request::RequestOutput;

/// What an output row shows.
pub struct OutputOptions<'a> {
    /// Name of the field with the text (`--out-field`).
    pub out_field: &'a str,
    /// Write `outputs` and `prompt_token_ids` for every row (`--output-format full`).
    pub full: bool,
    /// Write `usage.cached_tokens`, which depends on scheduling (`--usage-cached`).
    pub usage_cached: bool,
    /// Text of a token, for logprobs.
    pub token_text: &'a dyn Fn(u32) -> String,
}

/// Appends one JSON row, newline included. A request whose completions carry an error is an error row.
pub fn format_row(
    passthrough: &Passthrough,
    result: Result<&RequestOutput, &RowError>,
    options: &OutputOptions<'_>,
    out: &mut Vec<u8>,
) {
    let _ = (passthrough, result, options, out);
    unimplemented!()
}

/// Names of input fields that are also ours; they appear as `input_<name>`. Warn once about them.
pub fn collisions(passthrough: &Passthrough, out_field: &str) -> Vec<String> {
    let _ = (passthrough, out_field);
    unimplemented!()
}

/// Rows out for CSV in: all input columns, then the text, finish_reason, prompt_tokens,
/// completion_tokens, error.
#[derive(Clone, Debug)]
pub struct CsvFormat {
    /// `,` or tab.
    pub delimiter: u8,
    /// End lines with CRLF, because the input does.
    pub crlf: bool,
    /// Name of the column with the text.
    pub out_field: String,
}

impl CsvFormat {
    /// Appends the header line.
    pub fn format_header(&self, names: &[String], out: &mut Vec<u8>) {
        let _ = (names, out);
        unimplemented!()
    }

    /// Appends one row (the first completion of it).
    pub fn format_row(
        &self,
        passthrough: &Passthrough,
        result: Result<&RequestOutput, &RowError>,
        out: &mut Vec<u8>,
    ) {
        let _ = (passthrough, result, out);
        unimplemented!()
    }
}
