//! `Decoder`: gzip and zstd to what they hold, between the raw input and `Lines`. Which of them is
//! said by the first bytes, whatever the name.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::GzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::InputError;

/// Read at once of the raw input.
const BUFFER: usize = 128 << 10;

/// A zstd frame may ask for a window of this many bits at most, as the zstd tool has it: what a
/// frame asks for is allocated.
pub(super) const MAX_WINDOW_LOG: u32 = 27;

/// Error of zstd for a frame that needs more.
const WINDOW_REFUSED: &str = "Frame requires too much memory for decoding";

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Compression of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Members of RFC 1952.
    Gzip,
    /// Frames of RFC 8878.
    Zstd,
}

impl Codec {
    /// By the first bytes.
    pub fn of(head: &[u8]) -> Option<Self> {
        // pzstd and the seekable format begin with a frame to be skipped.
        let is_skippable = matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        if head.starts_with(&GZIP_MAGIC) {
            return Some(Codec::Gzip);
        }
        (is_skippable || head.starts_with(&ZSTD_MAGIC)).then_some(Codec::Zstd)
    }

    /// As a word: that of `Compression`.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Gzip => "gzip",
            Codec::Zstd => "zstd",
        }
    }

    /// Tool that decompresses it in a shell.
    pub(super) fn tool(self) -> &'static str {
        match self {
            Codec::Gzip => "zcat",
            Codec::Zstd => "zstdcat",
        }
    }
}

/// The raw input. The decoders would take an interrupted read for the end of a header.
struct Source(Box<dyn Read + Send>);

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

/// Reads what compressed data holds: all members of gzip, all frames of zstd.
pub struct Decoder(Stream);

enum Stream {
    Gzip(Box<Members>),
    Zstd(ZstdDecoder<'static, BufReader<Source>>),
}

impl Decoder {
    /// Decodes `input` from its first byte on.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(codec: Codec, input: Box<dyn Read + Send>) -> io::Result<Self> {
        let source = BufReader::with_capacity(BUFFER, Source(input));
        Ok(Self(match codec {
            Codec::Gzip => {
                let member = GzDecoder::new(Box::new(source) as Box<dyn BufRead + Send>);
                Stream::Gzip(Box::new(Members { member, ended: false }))
            }
            Codec::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(source)?;
                decoder.window_log_max(MAX_WINDOW_LOG)?;
                Stream::Zstd(decoder)
            }
        }))
    }
}

impl Read for Decoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (codec, result) = match &mut self.0 {
            Stream::Gzip(members) => (Codec::Gzip, members.read(buffer)),
            Stream::Zstd(decoder) => (Codec::Zstd, decoder.read(buffer)),
        };
        result.map_err(|error| explained(codec, error))
    }
}

/// The members of a gzip file. flate2's own reader of members takes the padding that tapes and
/// block devices leave for garbage.
struct Members {
    member: GzDecoder<Box<dyn BufRead + Send>>,
    ended: bool,
}

impl Members {
    /// Begins the next member; false if there is none.
    fn begin_next(&mut self) -> io::Result<bool> {
        let source = self.member.get_mut();
        if source.fill_buf()?.first() == Some(&GZIP_MAGIC[0]) {
            // Its state is used again: bgzip's members are small.
            let source = self.member.reset(Box::new(io::empty()));
            self.member.reset(source);
            return Ok(true);
        }
        loop {
            let padding = source.fill_buf()?;
            if padding.is_empty() {
                return Ok(false);
            }
            if padding.iter().any(|byte| *byte != 0) {
                return Err(io::Error::new(ErrorKind::InvalidData, "garbage after its end"));
            }
            let count = padding.len();
            source.consume(count);
        }
    }
}

impl Read for Members {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.ended {
            let count = self.member.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.ended = !self.begin_next()?;
        }
        Ok(0)
    }
}

/// An error of a decoder, in words; one of the raw input as it is.
fn explained(codec: Codec, error: io::Error) -> io::Error {
    let name = codec.name();
    match error.kind() {
        _ if error.raw_os_error().is_some() => error,
        ErrorKind::UnexpectedEof => {
            io::Error::new(ErrorKind::UnexpectedEof, format!("the {name} data is cut off"))
        }
        ErrorKind::Other if error.to_string() == WINDOW_REFUSED => {
            let limit = 1 << (MAX_WINDOW_LOG - 20);
            let message = format!("the zstd data needs a window of more than {limit} MiB");
            io::Error::new(ErrorKind::Unsupported, message)
        }
        ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::Other => {
            let message = format!("the {name} data is corrupt: {error}");
            io::Error::new(ErrorKind::InvalidData, message)
        }
        _ => error,
    }
}

/// An error at the first bytes: what a user can do something about is a refusal.
pub(super) fn refusal(error: io::Error) -> InputError {
    match error.kind() {
        ErrorKind::Unsupported => {
            let help = "use `zstd -dc --long=31 FILE | vllm-batch run ...`";
            InputError::refused(error.to_string(), help)
        }
        _ => InputError::Io(error),
    }
}

#[cfg(test)]
mod tests;
