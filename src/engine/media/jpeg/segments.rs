//! Markers and their segments.

use super::{MediaError, damaged, unsupported};

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    App(u8),
    Frame(FrameKind),
    Quantization,
    Huffman,
    RestartInterval,
    Scan,
    End,
    Other,
}

/// How coefficients are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Sequential,
    Progressive,
}

/// Segments, one after the other.
pub(super) struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Segments<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, MediaError> {
        match bytes.starts_with(&[0xff, 0xd8]) {
            true => Ok(Segments { bytes, at: 2 }),
            false => Err(damaged("it does not begin as one")),
        }
    }

    /// The next marker, and what its segment holds. Bytes between segments are passed over, as
    /// libjpeg passes over them.
    pub(super) fn next(&mut self) -> Result<(Marker, &'a [u8]), MediaError> {
        let code = self.code()?;
        let marker = match code {
            0xe0..=0xef => Marker::App(code - 0xe0),
            0xc0 | 0xc1 => Marker::Frame(FrameKind::Sequential),
            0xc2 => Marker::Frame(FrameKind::Progressive),
            0xc4 => Marker::Huffman,
            0xc3 | 0xc5..=0xc7 | 0xcb | 0xcd..=0xcf => {
                return Err(unsupported("lossless or hierarchical frames"));
            }
            0xc9 | 0xca => return Err(unsupported("arithmetic codes")),
            0xda => Marker::Scan,
            0xdb => Marker::Quantization,
            0xdd => Marker::RestartInterval,
            0xd9 => return Ok((Marker::End, &[])),
            // Markers without a segment.
            0x01 | 0xd0..=0xd7 => return Ok((Marker::Other, &[])),
            0xd8 => return Err(damaged("a second beginning")),
            _ => Marker::Other,
        };
        let len = self.bytes.get(self.at..self.at + 2).ok_or_else(cut)?;
        let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
        let segment = self.bytes.get(self.at + 2..self.at + len.max(2)).ok_or_else(cut)?;
        if len < 2 {
            return Err(damaged("a segment shorter than its length"));
        }
        self.at += len;
        Ok((marker, segment))
    }

    fn code(&mut self) -> Result<u8, MediaError> {
        loop {
            let rest = self.rest();
            self.at += rest.iter().position(|&byte| byte == 0xff).ok_or_else(cut)?;
            let rest = self.rest();
            let fill = rest.iter().position(|&byte| byte != 0xff).ok_or_else(cut)?;
            self.at += fill + 1;
            if rest[fill] != 0 {
                return Ok(rest[fill]);
            }
        }
    }

    /// What follows the segment.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Passes over coded data.
    pub(super) fn skip(&mut self, len: usize) {
        self.at += len;
    }
}

fn cut() -> MediaError {
    damaged("it ends too early")
}
