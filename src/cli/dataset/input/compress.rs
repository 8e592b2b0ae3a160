//! `Compression`: which one a file's name asks for, and how blocks of rows become its members.

use std::io::{self, Write};
use std::path::Path;

use flate2::GzBuilder;
use zstd::stream::write::Encoder;

/// zlib's default. The bytes depend on it.
const GZIP_LEVEL: u32 = 6;

/// zstd's default. Up to it zstd compresses alike on every processor; from 5 to 12 it chooses its
/// match finder by what the processor can do.
const ZSTD_LEVEL: i32 = 3;

/// Compression of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// It is not.
    #[default]
    None,
    /// Members of RFC 1952, one after the other.
    Gzip,
    /// Frames of RFC 8878, one after the other.
    Zstd,
}

impl Compression {
    /// Compression by a file's extension.
    pub fn from_path(path: &Path) -> Self {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "gz" => Compression::Gzip,
            "zst" => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// As a word.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// Appends one complete member or frame that holds `block`: the same bytes for the same block,
    /// always. Members of consecutive blocks decode to the blocks, joined.
    pub fn encode(self, block: &[u8], out: &mut Vec<u8>) {
        match self {
            Compression::None => out.extend_from_slice(block),
            Compression::Gzip => gzip(block, out).expect("a Vec takes everything"),
            Compression::Zstd => zstd(block, out).expect("a Vec takes everything"),
        }
    }
}

/// No time, no name, and 255 for the system: a header that says nothing of where it was made.
fn gzip(block: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let header = GzBuilder::new().mtime(0).operating_system(255);
    let mut encoder = header.write(out, flate2::Compression::new(GZIP_LEVEL));
    encoder.write_all(block)?;
    encoder.finish().map(drop)
}

/// With a checksum, so that a damaged file is noticed.
fn zstd(block: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = Encoder::new(out, ZSTD_LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.set_pledged_src_size(Some(block.len() as u64))?;
    encoder.write_all(block)?;
    encoder.finish().map(drop)
}

#[cfg(test)]
impl Compression {
    /// Decompressed content of an output.
    pub fn decoded(self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Compression::None => out.extend_from_slice(bytes),
            Compression::Gzip => {
                let mut decoder = flate2::read::MultiGzDecoder::new(bytes);
                io::Read::read_to_end(&mut decoder, &mut out).map(drop).unwrap();
            }
            Compression::Zstd => zstd::stream::copy_decode(bytes, &mut out).unwrap(),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(compression: Compression, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        compression.encode(block, &mut out);
        out
    }

    #[test]
    fn the_last_extension_decides() {
        for (name, compression) in [
            ("a.jsonl", Compression::None),
            ("a.jsonl.gz", Compression::Gzip),
            ("a.csv.ZST", Compression::Zstd),
            ("a.gz.jsonl", Compression::None),
            (".gz", Compression::None),
        ] {
            assert_eq!(Compression::from_path(Path::new(name)), compression, "{name}");
        }
    }

    #[test]
    fn members_of_blocks_decode_to_the_blocks_joined() {
        let row = |i: usize| format!("{{\"id\":{i},\"response\":\"{}\"}}\n", i * i);
        let rows: String = (0..40_000).map(row).collect();
        let blocks = [&rows.as_bytes()[..1], &rows.as_bytes()[1..700_000], b"", b"\n"];
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut joined = Vec::new();
            for block in blocks {
                let member = encoded(compression, block);
                assert_eq!(member, encoded(compression, block), "the same bytes again");
                // Appended, whatever stands there already.
                compression.encode(block, &mut joined);
                assert!(joined.ends_with(&member));
            }
            assert_eq!(compression.decoded(&joined), blocks.concat(), "{compression:?}");
        }
    }

    #[test]
    fn known_bytes_never_change() {
        let row = b"{\"prompt\":\"a\"}\n";
        let gzip = encoded(Compression::Gzip, row);
        assert_eq!(gzip[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255], "no time, no name");
        let zstd = encoded(Compression::Zstd, row);
        assert_eq!(zstd[..6], [0x28, 0xb5, 0x2f, 0xfd, 0x24, 15], "size and checksum");
        let rows: String =
            (0..5000).map(|i| format!("{{\"id\":{},\"x\":1}}\n", i * 7919)).collect();
        let sums = [Compression::Gzip, Compression::Zstd].map(|compression| {
            let bytes = encoded(compression, rows.as_bytes());
            let step = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
            (bytes.len(), bytes.iter().fold(7, step))
        });
        assert_eq!(
            sums,
            [(22_546, 5_735_913_376_183_963_278), (15_288, 6_410_240_271_251_219_926)]
        );
    }
}
