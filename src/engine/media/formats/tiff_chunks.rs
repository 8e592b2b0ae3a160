//! Strips and tiles of a TIFF, unpacked one at a time.

use std::io::Read;

use flate2::read::ZlibDecoder;
use weezl::{BitOrder, LzwStatus, decode::Decoder};

use super::tiff::{Directory, bad, tag, unread};
use crate::error::MediaError;

/// Bytes of a tile: tiles may be larger than the image.
const MAX_TILE_BYTES: usize = 64 << 20;

/// How chunks are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
}

/// Where a chunk lies in the image; what is outside is cut off.
pub(super) struct Area {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// The chunks of a page.
pub(super) struct Chunks<'a> {
    directory: &'a Directory<'a>,
    size: (usize, usize),
    chunk_size: (usize, usize),
    is_tiled: bool,
    bits: u32,
    samples: usize,
    compression: Compression,
    is_predicted: bool,
    offsets: Vec<u32>,
    lens: Vec<u32>,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(
        directory: &'a Directory<'a>,
        (width, height): (usize, usize),
        bits: u32,
        samples: usize,
    ) -> Result<Self, MediaError> {
        let compression = match directory.value(tag::COMPRESSION, 1)? {
            1 => Compression::None,
            5 => Compression::Lzw,
            8 | 32_946 => Compression::Deflate,
            32_773 => Compression::PackBits,
            other => return Err(unread(format!("compression {other}"))),
        };
        let is_predicted = match (directory.value(tag::PREDICTOR, 1)?, bits) {
            (1, _) => false,
            (2, 8 | 16) => true,
            (other, _) => return Err(unread(format!("predictor {other}"))),
        };
        let tile_width = directory.value(tag::TILE_WIDTH, 0)? as usize;
        let is_tiled = tile_width > 0;
        let chunk_size = match is_tiled {
            true => (tile_width, directory.value(tag::TILE_HEIGHT, 0)? as usize),
            false => {
                let rows = directory.value(tag::ROWS_PER_STRIP, u32::MAX)? as usize;
                (width, rows.min(height))
            }
        };
        let (offsets, lens) = match is_tiled {
            true => (directory.values(tag::TILE_OFFSETS)?, directory.values(tag::TILE_BYTES)?),
            false => (directory.values(tag::STRIP_OFFSETS)?, directory.values(tag::STRIP_BYTES)?),
        };
        let size = (width, height);
        let chunks = Chunks {
            directory,
            size,
            chunk_size,
            is_tiled,
            bits,
            samples,
            compression,
            is_predicted,
            offsets,
            lens,
        };
        let tile_bytes = chunks.row_bytes().saturating_mul(chunk_size.1);
        if chunk_size.1 == 0 || is_tiled && tile_bytes > MAX_TILE_BYTES {
            return Err(bad("tiles of a strange size"));
        }
        match chunks.offsets.len() == chunks.count() && chunks.lens.len() == chunks.count() {
            true => Ok(chunks),
            false => Err(bad("another number of strips or tiles than its size takes")),
        }
    }

    fn across(&self) -> usize {
        self.size.0.div_ceil(self.chunk_size.0)
    }

    pub(super) fn count(&self) -> usize {
        self.across() * self.size.1.div_ceil(self.chunk_size.1)
    }

    /// Bytes of a chunk's row.
    pub(super) fn row_bytes(&self) -> usize {
        (self.chunk_size.0 * self.samples * self.bits as usize).div_ceil(8)
    }

    /// Unpacks a chunk, and says where it lies.
    pub(super) fn decode(&self, index: usize, data: &mut Vec<u8>) -> Result<Area, MediaError> {
        let (chunk_width, chunk_height) = self.chunk_size;
        let x = index % self.across() * chunk_width;
        let y = index / self.across() * chunk_height;
        let width = chunk_width.min(self.size.0 - x);
        let height = chunk_height.min(self.size.1 - y);
        let rows = if self.is_tiled { chunk_height } else { height };
        let (at, len) = (self.offsets[index] as usize, self.lens[index] as usize);
        let packed = at.checked_add(len).and_then(|end| self.directory.bytes.get(at..end));
        let packed = packed.ok_or_else(|| bad("a strip or tile that is not in it"))?;
        data.clear();
        data.resize(self.row_bytes() * rows, 0);
        let is_whole = match self.compression {
            Compression::None => packed.get(..data.len()).map(|from| data.copy_from_slice(from)),
            Compression::Deflate => ZlibDecoder::new(packed).read_exact(data).ok(),
            Compression::Lzw => unpack_lzw(packed, data),
            Compression::PackBits => unpack_bits(packed, data),
        };
        is_whole.ok_or_else(|| bad("a strip or tile that ends too early"))?;
        if self.is_predicted {
            data.chunks_exact_mut(self.row_bytes()).for_each(|row| self.add_up(row));
        }
        Ok(Area { x, y, width, height })
    }

    /// Samples of differences to the pixel before.
    fn add_up(&self, row: &mut [u8]) {
        if self.bits == 8 {
            for at in self.samples..row.len() {
                row[at] = row[at].wrapping_add(row[at - self.samples]);
            }
            return;
        }
        for at in (self.samples * 2..row.len() - 1).step_by(2) {
            let before = self.directory.short(&row[at - self.samples * 2..]);
            let sum = self.directory.short(&row[at..]).wrapping_add(before);
            let bytes = match self.directory.is_big_endian {
                true => sum.to_be_bytes(),
                false => sum.to_le_bytes(),
            };
            row[at..at + 2].copy_from_slice(&bytes);
        }
    }
}

fn unpack_lzw(mut packed: &[u8], mut data: &mut [u8]) -> Option<()> {
    let mut decoder = Decoder::with_tiff_size_switch(BitOrder::Msb, 8);
    while !data.is_empty() {
        let result = decoder.decode_bytes(packed, data);
        packed = &packed[result.consumed_in..];
        data = &mut data[result.consumed_out..];
        match result.status {
            Ok(LzwStatus::Ok) => (),
            Ok(LzwStatus::Done | LzwStatus::NoProgress) | Err(_) => break,
        }
    }
    data.is_empty().then_some(())
}

fn unpack_bits(mut packed: &[u8], mut data: &mut [u8]) -> Option<()> {
    while !data.is_empty() {
        let (&control, rest) = packed.split_first()?;
        packed = rest;
        let control = control as i8;
        if control >= 0 {
            let len = (control as usize + 1).min(data.len());
            data[..len].copy_from_slice(packed.get(..len)?);
            (packed, data) = (&packed[len..], &mut data[len..]);
        } else if control != -128 {
            let len = (1 - isize::from(control)).unsigned_abs().min(data.len());
            data[..len].fill(*packed.first()?);
            (packed, data) = (&packed[1..], &mut data[len..]);
        }
    }
    Some(())
}
