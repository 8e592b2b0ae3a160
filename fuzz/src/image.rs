//! Images of every format: what a header says is what pixels are, or the image is an error.

use vllm_batch::engine::media::{Limits, decode, probe};

const MAX_INPUT: usize = 64 << 10;

/// Small, so that an input costs little time whatever its header says.
const LIMITS: Limits =
    Limits { max_bytes: MAX_INPUT as u64, max_pixels: 1 << 16, max_side: 1 << 12, max_seconds: 1 };

/// The bytes are a file.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let (header, pixels) = (probe(data, &LIMITS), decode(data, &LIMITS));
    match (header, pixels) {
        (Ok(header), Ok(pixels)) => {
            let (width, height) = (pixels.width(), pixels.height());
            assert_eq!((header.width as usize, header.height as usize), (width, height));
            assert!(width as u64 * height as u64 <= LIMITS.max_pixels);
            assert_eq!(decode(data, &LIMITS), Ok(pixels));
        }
        (Err(error), pixels) => assert_eq!(pixels, Err(error)),
        (Ok(_), Err(error)) => assert!(error.code().starts_with("media_"), "{error}"),
    }
}
