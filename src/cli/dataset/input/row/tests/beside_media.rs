//! Rows beside media of their folder, for the tests of either kind.

use std::fs;

use super::*;
use crate::input::media::Place;
use vllm_batch_media::MediaId;

/// Valid images of one pixel, told apart by a comment.
pub(super) fn gif(name: &str) -> Vec<u8> {
    let start = b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\0\0\xff!\xfe";
    let end = b"\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
    [&start[..], &[name.len() as u8], name.as_bytes(), end].concat()
}

/// A valid recording, told apart by its samples.
pub(super) fn wav(name: &str) -> Vec<u8> {
    let samples: Vec<u8> = name.bytes().cycle().take(64).collect();
    let format = b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\x80\x3e\0\0\x01\0\x08\0";
    [&b"RIFF\x64\0\0\0"[..], format, b"data@\0\0\0", &samples].concat()
}

/// The last row of an input beside `a.gif`, `b.gif`, `c.gif`, `a.wav`, `b.wav` and `c.wav`.
pub(super) fn row_of(
    format: InputFormat,
    input: &str,
    options: &RowOptions,
) -> Result<Row, RowError> {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(format!("{name}.gif")), gif(name)).expect("a file");
        fs::write(folder.path().join(format!("{name}.wav")), wav(name)).expect("a file");
    }
    let input = Box::new(Cursor::new(input.to_owned()));
    let mut records = Records::open(input, format, 1 << 20).expect("text");
    let mut parser = RowParser::new(&mut records, options).unwrap_or_else(|e| panic!("{e}"));
    parser.begin(Place::Folder(folder.path()));
    let rows = records.map(|record| {
        let row = parser.parse(record.expect("text")).expect("a shape");
        row.map_err(|bad| bad.error)
    });
    rows.last().expect("a row")
}

pub(super) fn row(input: &Value, options: &RowOptions) -> Result<Row, RowError> {
    row_of(InputFormat::Jsonl, &input.to_string(), options)
}

/// The messages of a row and its media.
pub(super) fn seen(row: Result<Row, RowError>) -> (Value, Vec<MediaId>) {
    match row.unwrap_or_else(|error| panic!("{error:?}")).prompt {
        Prompt::WithMedia(asked) => {
            (asked.chat.messages, asked.media.iter().map(|medium| medium.id()).collect())
        }
        Prompt::Messages(chat) => (chat.messages, Vec::new()),
        other => panic!("{other:?}"),
    }
}

pub(super) fn asked(input: &Value) -> (Value, Vec<MediaId>) {
    seen(row(input, &options()))
}

pub(super) fn fault(input: &Value) -> (&'static str, String) {
    let error = row(input, &options()).expect_err(&input.to_string());
    (error.code, error.message)
}

pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(super) fn chat_of(parts: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": parts}]})
}
