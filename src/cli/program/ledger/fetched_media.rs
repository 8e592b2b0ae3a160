//! What a journal has of a row's images at URLs: the hash of what was read of the row, and each
//! image. It stands before the row's own record, which makes it count.

use super::row_hash::ContentHash;
use vllm_batch_dataset::input::media::FetchedImage;

/// Bytes of the hash.
const HASH_LEN: usize = 16;

/// The bytes of a row's images; none where no image came from a URL. `text`: what was read of the
/// row, without its images.
pub fn encode(text: ContentHash, images: &[FetchedImage]) -> Vec<u8> {
    if images.is_empty() {
        return Vec::new();
    }
    let mut bytes = Vec::with_capacity(HASH_LEN + images.len() * FetchedImage::LEN);
    bytes.extend_from_slice(text.as_bytes());
    images.iter().for_each(|image| image.encode(&mut bytes));
    bytes
}

/// The row and its images; None if these are not the bytes of any.
pub fn decode(bytes: &[u8]) -> Option<(ContentHash, Vec<FetchedImage>)> {
    let (text, images) = bytes.split_first_chunk::<HASH_LEN>()?;
    let (images, rest) = images.as_chunks::<{ FetchedImage::LEN }>();
    let images: Option<Vec<_>> = images.iter().map(FetchedImage::decode).collect();
    Some((ContentHash::from_bytes(*text), images?)).filter(|_| rest.is_empty())
}
