//! Files of every format against Pillow, and broken ones.

use serde_json::Value;

use super::*;
use crate::goldens::{file, hash, lines, number};
use crate::{Limits, decode as decode_media, probe};

fn name(line: &Value) -> &str {
    line["file"].as_str().expect("a name")
}

#[test]
fn pixels_are_pillows() {
    let mut differing = Vec::new();
    let limits = Limits::default();
    for line in lines("decoded.jsonl") {
        let (name, bytes) = (name(&line), file(name(&line)));
        let size = (number(&line["width"]), number(&line["height"]));
        let header = probe(&bytes, &limits).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((header.width as usize, header.height as usize), size, "{name}");
        let format = header.format.to_string().to_uppercase();
        assert_eq!(line["format"], format, "{name}");
        match decode_media(&bytes, &limits) {
            Ok(pixels) => {
                assert_eq!((pixels.width(), pixels.height()), size, "{name}");
                if line["blake3"] != hash(pixels.pixels()) {
                    differing.push(name.to_owned());
                }
            }
            Err(error) => differing.push(format!("{name}: {error}")),
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Numbers that look random, always the same (SplitMix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % count as u64) as usize
    }
}

/// Some bytes changed, dropped, doubled, or the end cut off.
fn broken(bytes: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    // Most of what steers a decoder stands at the beginning.
    let place = |len: usize, draws: &mut Draws| match draws.below(2) {
        0 => draws.below(len.min(80)),
        _ => draws.below(len),
    };
    for _ in 0..1 + draws.below(4) {
        let at = place(bytes.len(), draws);
        match draws.below(5) {
            0 => bytes[at] = draws.below(256) as u8,
            1 => bytes[at] ^= 1 << draws.below(8),
            2 => bytes[at] = [0, 0xff][draws.below(2)],
            3 => drop(bytes.drain(at..(at + 1 + draws.below(9)).min(bytes.len()))),
            _ => bytes.truncate(at.max(1)),
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
    bytes
}

#[test]
fn broken_files_are_errors_or_images() {
    // Small, so that a size that was changed is refused and not drawn.
    let limits = Limits { max_pixels: 1 << 16, ..Limits::default() };
    for (seed, line) in lines("decoded.jsonl").iter().enumerate() {
        let (bytes, mut draws) = (file(name(line)), Draws(seed as u64));
        for _ in 0..60 {
            let bytes = broken(&bytes, &mut draws);
            let header = probe(&bytes, &limits);
            match (header, decode_media(&bytes, &limits)) {
                (Ok(header), Ok(pixels)) => {
                    let size = (header.width as usize, header.height as usize);
                    assert_eq!((pixels.width(), pixels.height()), size, "{line}");
                }
                (Err(error), decoded) => assert_eq!(decoded.err(), Some(error), "{line}"),
                (Ok(_), Err(_)) => (),
            }
        }
    }
}

/// Pillow refuses them too. Of an animation the first frame may be whole.
#[test]
fn files_that_are_cut_in_their_pixels_are_damaged() {
    let is_still = |line: &&Value| !name(line).contains("animated") && number(&line["width"]) > 5;
    let lines = lines("decoded.jsonl");
    for name in lines.iter().filter(is_still).map(name) {
        let bytes = file(name);
        for share in [40, 60, 75] {
            let cut = &bytes[..bytes.len() * share / 100];
            let error = decode_media(cut, &Limits::default()).expect_err(name);
            assert_eq!(error.code(), "media_decode", "{name}: {error}");
        }
    }
}

#[test]
fn limits_are_asked_before_pixels() {
    let bytes = file("rgb.png");
    let code = |limits: Limits| {
        let code = |error: MediaError| error.code();
        let (probed, decoded) = (probe(&bytes, &limits), decode_media(&bytes, &limits));
        assert_eq!(probed.clone().map_err(code).err(), decoded.map_err(code).err());
        probed.map_err(code).err()
    };
    let limits = Limits::default();
    assert_eq!(code(Limits { max_pixels: 23 * 17, max_side: 23, ..limits }), None);
    assert_eq!(code(Limits { max_pixels: 23 * 17 - 1, ..limits }), Some("media_too_large"));
    assert_eq!(code(Limits { max_side: 22, ..limits }), Some("media_too_large"));
    assert_eq!(code(Limits { max_bytes: 60, ..limits }), Some("media_too_large"));
    // A bomb: a header of four gigapixels with a handful of bytes.
    let mut bomb = bytes.clone();
    bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0, 0, 0, 0xff, 0]);
    assert_eq!(probe(&bomb, &limits).expect_err("a bomb").code(), "media_too_large");
}

#[test]
fn what_is_no_image_says_so() {
    let code = |bytes: &[u8]| probe(bytes, &Limits::default()).expect_err("no image").code();
    assert_eq!(code(b""), "media_decode");
    assert_eq!(code(b"hello"), "media_decode");
    assert_eq!(code(b"%PDF-1.7"), "media_unsupported");
    assert_eq!(code(b"\0\0\0\x20ftypavif\0\0"), "media_unsupported");
    assert_eq!(code(b"\x89PNG\r\n\x1a\n"), "media_decode");
}
