//! Bits of coded data, up to the next marker.

use super::{MediaError, damaged};

/// Bits, the highest of a byte first. `0xff 0x00` is the byte `0xff`.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The next bits, at the top.
    held: u64,
    num_held: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Bits { bytes, at: 0, held: 0, num_held: 0 }
    }

    #[inline]
    fn fill(&mut self) {
        while self.num_held <= 56 {
            let Some(&byte) = self.bytes.get(self.at) else { return };
            if byte == 0xff {
                if self.bytes.get(self.at + 1) != Some(&0) {
                    return;
                }
                self.at += 1;
            }
            self.at += 1;
            self.held |= u64::from(byte) << (56 - self.num_held);
            self.num_held += 8;
        }
    }

    /// The next 16 bits, with zeros behind the last.
    #[inline]
    pub(super) fn peek(&mut self) -> usize {
        if self.num_held < 16 {
            self.fill();
        }
        (self.held >> 48) as usize
    }

    /// Passes over bits that were looked at.
    #[inline]
    pub(super) fn pass(&mut self, count: u32) -> Result<(), MediaError> {
        if count > self.num_held {
            return Err(damaged("its coded data ends too early"));
        }
        self.held <<= count;
        self.num_held -= count;
        Ok(())
    }

    /// A number of up to 16 bits.
    #[inline]
    pub(super) fn take(&mut self, count: u32) -> Result<i32, MediaError> {
        let value = self.peek() >> (16 - count);
        self.pass(count)?;
        Ok(value as i32)
    }

    /// A number whose first bit is its sign, as JPEG writes them.
    #[inline]
    pub(super) fn take_signed(&mut self, count: u32) -> Result<i32, MediaError> {
        if count == 0 {
            return Ok(0);
        }
        let value = self.take(count)?;
        Ok(if value < 1 << (count - 1) { value - (1 << count) + 1 } else { value })
    }

    /// Ends an interval: the marker `index` must follow.
    pub(super) fn restart(&mut self, index: usize) -> Result<(), MediaError> {
        self.end();
        let rest = &self.bytes[self.at..];
        let fill = rest.iter().position(|&byte| byte != 0xff).unwrap_or(0);
        if fill == 0 || usize::from(rest[fill]) != 0xd0 + index % 8 {
            return Err(damaged("a mark between intervals is missing"));
        }
        self.at += fill + 1;
        Ok(())
    }

    /// Drops what is left of the interval, and says where the marker behind it is.
    pub(super) fn end(&mut self) -> usize {
        (self.held, self.num_held) = (0, 0);
        let is_marker = |pair: &[u8]| pair[0] == 0xff && pair[1] != 0;
        let rest = &self.bytes[self.at..];
        self.at += rest.windows(2).position(is_marker).unwrap_or(rest.len());
        self.at
    }
}
