//! `LineEnds`: text whose lines end with CR alone, as on old Macs, with LF in its place.

use std::io::{self, Read};

/// Reads text with LF for every CR, and for every CRLF.
pub(super) struct LineEnds {
    input: Box<dyn Read + Send>,
    /// The byte before was CR.
    is_after_cr: bool,
}

impl LineEnds {
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        Self { input, is_after_cr: false }
    }
}

impl Read for LineEnds {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.input.read(buffer)?;
            let mut kept = 0;
            for at in 0..count {
                let byte = buffer[at];
                let is_second = byte == b'\n' && self.is_after_cr;
                self.is_after_cr = byte == b'\r';
                if !is_second {
                    buffer[kept] = if self.is_after_cr { b'\n' } else { byte };
                    kept += 1;
                }
            }
            if kept > 0 || count == 0 {
                return Ok(kept);
            }
        }
    }
}

/// Whether text that begins so has such line ends: it has CR and no LF.
pub(super) fn are_cr(head: &[u8]) -> bool {
    !head.contains(&b'\n') && head.trim_ascii_end().contains(&b'\r')
}
