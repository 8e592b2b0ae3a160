//! What the goldens of `testdata/media` do not say.

use super::idct::{idct, idct_flat};
use super::*;
use crate::goldens::file;

#[test]
fn a_flat_block_is_what_the_transform_makes_of_it() {
    let mut quantization = [1; 64];
    for value in (-2000..2000).step_by(7) {
        for factor in [1, 3, 16, 255] {
            quantization[0] = factor;
            let mut block = [0; 64];
            block[0] = value;
            assert_eq!(idct(&block, &quantization), [idct_flat(value, factor); 64]);
        }
    }
}

fn first_jpeg() -> Vec<u8> {
    file("exif2.jpg")
}

/// Where the first frame's marker is.
fn frame_at(bytes: &[u8]) -> usize {
    bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a baseline frame")
}

#[test]
fn frames_that_are_not_read_are_named() {
    let code = |change: &dyn Fn(&mut Vec<u8>, usize)| {
        let mut bytes = first_jpeg();
        let at = frame_at(&bytes);
        change(&mut bytes, at);
        let error = decode(&bytes).expect_err("not read");
        assert_eq!(header(&bytes).err().map(|error| error.code()), Some(error.code()));
        error.code()
    };
    for marker in [0xc3, 0xc5, 0xc9, 0xca, 0xcb] {
        assert_eq!(code(&|bytes, at| bytes[at + 1] = marker), "media_unsupported");
    }
    assert_eq!(code(&|bytes, at| bytes[at + 4] = 12), "media_unsupported");
    assert_eq!(code(&|bytes, at| bytes[at + 5..at + 7].fill(0)), "media_unsupported");
    assert_eq!(code(&|bytes, at| bytes[at + 7..at + 9].fill(0)), "media_decode");
}

#[test]
fn a_frame_that_its_bytes_cannot_hold_allocates_nothing() {
    let mut bytes = first_jpeg();
    let at = frame_at(&bytes);
    bytes[at + 5..at + 9].fill(0xf0);
    let error = decode(&bytes).expect_err("3.7 gigapixels in a kilobyte");
    assert!(error.to_string().contains("than its bytes can hold"), "{error}");
}

/// Pillow too refuses what ends before its last marker; libjpeg alone would fill it with grey.
#[test]
fn a_cut_image_is_damaged_wherever_it_is_cut() {
    for name in ["exif2.jpg", "coarse.jpg", "xmp.jpg"] {
        let bytes = file(name);
        decode(&bytes).expect("whole");
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]).expect_err(name).code(), "media_decode", "{len}");
        }
        let mut with_more = bytes.clone();
        with_more.extend(b"more");
        assert_eq!(decode(&with_more), decode(&bytes));
    }
}
