//! `Choices`: an input's bytes as decisions. When they run out, every decision is the first.

/// Bytes that are used up one after the other.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// Decides by these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether any byte is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below a limit, which is at most 65536.
    pub fn below(&mut self, limit: usize) -> usize {
        let wide = u16::from_le_bytes([self.byte(), if limit > 256 { self.byte() } else { 0 }]);
        usize::from(wide) % limit.max(1)
    }

    /// The next bytes, as many as there are up to a number.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}

/// The bytes before the first NUL, and those after it.
pub fn split_at_nul(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[]),
    }
}
