//! Little-endian values of a file's header, one after the other, within a limit.

use vllm_batch_base::files::quoted;

/// Largest header: about ten times what the largest published vocabularies take.
const MAX_HEADER_BYTES: usize = 256 << 20;

/// A place in the header of a file.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    /// Bytes that may be the header.
    bytes: &'a [u8],
    at: usize,
    is_cut: bool,
}

impl<'a> Cursor<'a> {
    /// At the start of a file.
    pub(super) fn new(file: &'a [u8]) -> Self {
        let bytes = &file[..file.len().min(MAX_HEADER_BYTES)];
        Self { bytes, at: 0, is_cut: bytes.len() < file.len() }
    }

    /// Bytes before the place.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    fn too_short(&self) -> String {
        match self.is_cut {
            true => format!("its header is larger than {} MiB, the limit", MAX_HEADER_BYTES >> 20),
            false => "it is truncated: its header goes on after its end".to_owned(),
        }
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let taken = self.rest().get(..len).ok_or_else(|| self.too_short())?;
        self.at += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, _) = self.rest().split_first_chunk::<N>().ok_or_else(|| self.too_short())?;
        self.at += N;
        Ok(*taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of things that take `each` bytes or more: no more than there is room for.
    pub(super) fn count(&mut self, each: usize) -> Result<usize, String> {
        let count = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        match count <= self.rest().len() / each {
            true => Ok(count),
            false => Err(self.too_short()),
        }
    }

    /// A text after its length in bytes.
    pub(super) fn text(&mut self) -> Result<&'a str, String> {
        let len = self.count(1)?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes)
            .map_err(|_| format!("{} is not UTF-8", quoted(&String::from_utf8_lossy(bytes))))
    }
}
