//! Rows with vectors: ours, and lines of OpenAI's batch output.

use super::{OutputOptions, RowWriter};
use crate::cli::input::batch_line::BatchLine;
use crate::cli::input::fields::Passthrough;
use crate::engine::pooling::{EncodingFormat, PoolingOutput};

/// Appends one JSON row with vectors, newline included.
pub(super) fn format_vectors(
    passthrough: &Passthrough,
    output: &PoolingOutput,
    options: &OutputOptions<'_>,
    out: &mut Vec<u8>,
) {
    let mut row = RowWriter { out, options, form: None };
    row.out.push(b'{');
    match passthrough {
        Passthrough::Batch(line) => row.openai_vectors(line, output),
        _ => {
            row.input(passthrough);
            row.key(options.out_field);
            let encoding = output.params.encoding_format;
            match &output.vectors[..] {
                [vector] => row.vector(vector, encoding),
                vectors => row.list(vectors, |row, vector| row.vector(vector, encoding)),
            }
            row.usage_of_vectors(output);
        }
    }
    row.out.extend_from_slice(b"}\n");
}

impl RowWriter<'_> {
    fn openai_vectors(&mut self, line: &BatchLine, output: &PoolingOutput) {
        let encoding = output.params.encoding_format;
        self.field("id", &line.digest.id("batch_req_"));
        self.field("custom_id", &line.custom_id);
        self.object("response", |row| {
            row.field("status_code", &200);
            row.field("request_id", &line.digest.id("req_"));
            row.object("body", |row| {
                row.field("id", &line.digest.id("embd-"));
                row.field("object", "list");
                row.field("created", &row.options.facts.created);
                row.field("model", &row.options.facts.model);
                row.key("data");
                let vectors: Vec<_> = output.vectors.iter().enumerate().collect();
                row.list(&vectors, |row, (index, vector)| {
                    row.out.push(b'{');
                    row.field("index", index);
                    row.field("object", "embedding");
                    row.key("embedding");
                    row.vector(vector, encoding);
                    row.out.push(b'}');
                });
                row.usage_of_vectors(output);
            });
        });
        self.field("error", &());
    }

    /// Numbers are the shortest that give the same f32 again.
    fn vector(&mut self, vector: &[f32], encoding: EncodingFormat) {
        match encoding {
            EncodingFormat::Float => self.value(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                self.value(&base64(&bytes));
            }
        }
    }

    fn usage_of_vectors(&mut self, output: &PoolingOutput) {
        self.object("usage", |row| {
            row.field("prompt_tokens", &output.num_prompt_tokens);
            row.field("total_tokens", &output.num_prompt_tokens);
        });
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            let is_padding = digit > group.len() as u32;
            text.push(if is_padding { '=' } else { char::from(DIGITS[value as usize]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
        assert_eq!(base64(&1.0f32.to_le_bytes()), "AACAPw==");
    }
}
