//! What `testdata/generate_media.py` and `generate_sound.py` wrote, and the noise that it takes.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::rgb::Rgb8;

fn read(folder: &str, name: &str) -> Vec<u8> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata"));
    fs::read(path.join(folder).join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A file of the folder.
pub(crate) fn file(name: &str) -> Vec<u8> {
    read("media", name)
}

/// Lines of a description, without the one of versions.
pub(crate) fn lines(name: &str) -> Vec<Value> {
    described(file(name))
}

fn described(bytes: Vec<u8>) -> Vec<Value> {
    let text = String::from_utf8(bytes).expect("text");
    let lines = text.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    assert!(lines.len() > 5, "of a file");
    lines
}

/// The same of recordings.
pub(crate) mod sounds {
    use super::Value;

    pub(crate) fn file(name: &str) -> Vec<u8> {
        super::read("sound", name)
    }

    pub(crate) fn lines(name: &str) -> Vec<Value> {
        super::described(file(name))
    }
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
