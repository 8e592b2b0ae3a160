//! Bytes of a recording, in memory or in a file, as readers of formats see them: without the tags
//! in front, and with lengths that their writer did not know.

use std::io::{self, Read, Seek, SeekFrom};

use symphonia::core::io::MediaSource;

use super::format::tag_len;

/// Bytes that are read at any place.
pub trait Seekable: Read + Seek + Send + Sync {}

impl<T: Read + Seek + Send + Sync> Seekable for T {}

/// The bytes of a recording. Places are counted from behind its tags.
pub(super) struct Source<'a> {
    inner: Box<dyn Seekable + 'a>,
    num_tag_bytes: u64,
    len: u64,
    at: u64,
    /// Numbers that are read in place of those that are there, and where.
    corrected: Vec<(u64, [u8; 4])>,
}

impl<'a> Source<'a> {
    /// # Errors
    /// The bytes cannot be read.
    pub(super) fn new(inner: impl Seekable + 'a) -> io::Result<Self> {
        let mut inner: Box<dyn Seekable + 'a> = Box::new(inner);
        let len = inner.seek(SeekFrom::End(0))?;
        let (num_tag_bytes, at, corrected) = (0, 0, Vec::new());
        let mut source = Source { inner, num_tag_bytes, len, at, corrected };
        let mut failed = None;
        let num_tag_bytes = tag_len(|at| {
            source.chunk(at).unwrap_or_else(|error| {
                failed = Some(error);
                None
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        source.num_tag_bytes = num_tag_bytes.min(len);
        source.len = len - source.num_tag_bytes;
        source.seek(SeekFrom::Start(0))?;
        Ok(source)
    }

    /// Bytes that there are.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Up to so many bytes from a place on.
    pub(super) fn bytes(&mut self, at: u64, max: usize) -> io::Result<Vec<u8>> {
        self.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        self.take(max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// So many bytes from a place on, if there are as many.
    pub(super) fn chunk<const N: usize>(&mut self, at: u64) -> io::Result<Option<[u8; N]>> {
        Ok(self.bytes(at, N)?.first_chunk().copied())
    }

    /// Has a number of the first bytes read as another.
    pub(super) fn correct(&mut self, at: u64, number: [u8; 4]) {
        self.corrected.push((at, number));
    }
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let max = usize::try_from(self.len.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let max = max.min(out.len());
        let read = self.inner.read(&mut out[..max])?;
        for (place, number) in &self.corrected {
            for (place, byte) in (*place..).zip(number) {
                if let Some(at) = place.checked_sub(self.at).filter(|at| *at < read as u64) {
                    out[at as usize] = *byte;
                }
            }
        }
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a place before the first");
        let at = at.ok_or_else(before)?;
        let place = self.num_tag_bytes.checked_add(at).ok_or_else(before)?;
        self.inner.seek(SeekFrom::Start(place))?;
        self.at = at;
        Ok(at)
    }
}

impl MediaSource for Source<'_> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len)
    }
}
