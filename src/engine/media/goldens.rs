//! What `testdata/generate_media.py` wrote, and the noise that it takes.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::rgb::Rgb8;

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/media")).join(name)
}

/// A file of the folder.
pub(crate) fn file(name: &str) -> Vec<u8> {
    fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Lines of a description, without the one of versions.
pub(crate) fn lines(name: &str) -> Vec<Value> {
    let text = String::from_utf8(file(name)).expect("text");
    let lines: Vec<Value> =
        text.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() > 10, "{name}");
    lines
}

/// A whole number of a line.
pub(crate) fn number(line: &Value) -> usize {
    line.as_u64().expect("a number") as usize
}

/// The noise of a line: of its size `from` and its `seed`.
pub(crate) fn noise(line: &Value) -> Rgb8 {
    let (width, height) = (number(&line["from"][0]), number(&line["from"][1]));
    let mut state = number(&line["seed"]) as u32;
    let pixels = (0..width * height * 3).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    Rgb8::new(width, height, pixels.collect())
}

/// The hash of bytes, as lines have it.
pub(crate) fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_string()
}
