//! What a run and a process that draws send each other: a kind, a length, and so many bytes.

use std::io::{self, Read, Write};

use super::PageSize;

/// The bytes of a file: answered by [`SIZES`].
pub(super) const LOAD: u8 = 1;
/// A page of it, [`page`]: answered by [`PIXELS`].
pub(super) const DRAW: u8 = 2;
/// Width and height of each page, in f32.
pub(super) const SIZES: u8 = 3;
/// Rows of a bitmap of 24 bits, from above.
pub(super) const PIXELS: u8 = 4;
/// What is wrong with the file: damaged, or [`UNREAD`].
pub(super) const DAMAGED: u8 = 5;
/// The file is of a kind that is not read.
pub(super) const UNREAD: u8 = 6;
/// It is too large.
pub(super) const LARGE: u8 = 7;

/// Bytes of the largest file.
pub(super) const MAX_FILE: u64 = 512 << 20;
/// Pages of a file.
pub(super) const MAX_PAGES: usize = 1 << 20;
/// Bytes of a message.
pub(super) const MAX_TEXT: u64 = 1 << 10;
/// Bytes of a head.
pub(super) const HEAD: usize = 9;

pub(super) fn head(kind: u8, len: u64) -> [u8; HEAD] {
    let mut head = [kind; HEAD];
    head[1..].copy_from_slice(&len.to_le_bytes());
    head
}

pub(super) fn parsed_head(head: [u8; HEAD]) -> (u8, u64) {
    let [kind, len @ ..] = head;
    (kind, u64::from_le_bytes(len))
}

pub(super) fn send(output: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    output.write_all(&head(kind, bytes.len() as u64))?;
    output.write_all(bytes)?;
    output.flush()
}

/// A frame; None at the end. One that says more than `most` bytes is an error.
pub(super) fn receive(input: &mut impl Read, most: u64) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut head = [0; HEAD];
    if input.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut head[1..])?;
    let (kind, len) = parsed_head(head);
    if len > most {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(io::Error::other)?;
    input.take(len).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == len {
        true => Ok(Some((kind, bytes))),
        false => Ok(None),
    }
}

/// Page, width, height and scale.
pub(super) fn page(page: u32, size: PageSize) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&page.to_le_bytes());
    bytes[4..8].copy_from_slice(&size.width.to_le_bytes());
    bytes[8..12].copy_from_slice(&size.height.to_le_bytes());
    bytes[12..].copy_from_slice(&size.scale.to_le_bytes());
    bytes
}

pub(super) fn parsed_page(bytes: &[u8]) -> Option<(u32, PageSize)> {
    let bytes: &[u8; 20] = bytes.try_into().ok()?;
    let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let scale = f64::from_le_bytes(bytes[12..].try_into().ok()?);
    Some((word(0)?, PageSize { width: word(4)?, height: word(8)?, scale }))
}

/// Bytes of a row of a bitmap.
pub(super) fn stride(width: u32) -> usize {
    (width as usize * 3).next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_are_sent() {
        let size = PageSize { width: 7, height: 70_000, scale: 1.5 };
        let mut sent = Vec::new();
        send(&mut sent, DRAW, &page(3, size)).unwrap();
        send(&mut sent, LOAD, b"").unwrap();
        let mut input = sent.as_slice();
        let (kind, bytes) = receive(&mut input, 20).unwrap().unwrap();
        assert_eq!((kind, parsed_page(&bytes)), (DRAW, Some((3, size))));
        assert_eq!(receive(&mut input, 20).unwrap(), Some((LOAD, Vec::new())));
        assert_eq!(receive(&mut input, 20).unwrap(), None);
        assert!(receive(&mut sent.as_slice(), 19).is_err(), "it would be too long");
        assert_eq!(receive(&mut &sent[..20], 20).unwrap(), None, "it is cut");
        assert_eq!([1, 4, 5].map(stride), [4, 12, 16]);
    }
}
