//! Pages to what they hold: no page becomes longer than it says.

use std::io::Read;

use parquet::basic::CompressionCodec;

use crate::input::reader::InputError;

/// Refuses what no page is decompressed from.
///
/// # Errors
/// It is one of these.
pub(super) fn check(codec: CompressionCodec) -> Result<(), InputError> {
    let name = match codec {
        CompressionCodec::BROTLI => "brotli",
        CompressionCodec::LZO => "LZO",
        _ => return Ok(()),
    };
    let message = format!("its columns are compressed with {name}, which is not read");
    Err(InputError::refused(message, "write the file again with zstd or snappy"))
}

/// The `length` bytes that a page holds.
///
/// # Errors
/// It holds more, or less, or is damaged.
pub(super) fn decompress(
    codec: CompressionCodec,
    page: &[u8],
    length: usize,
) -> Result<Vec<u8>, String> {
    if length == 0 {
        // A page of nulls alone: writers differ in what they leave.
        return Ok(Vec::new());
    }
    let text = |error: &dyn std::fmt::Display| format!("cannot be decompressed: {error}");
    let out = match codec {
        CompressionCodec::UNCOMPRESSED => page.to_vec(),
        CompressionCodec::SNAPPY => {
            // What its own first bytes say is allocated.
            if snap::raw::decompress_len(page).map_err(|error| text(&error))? != length {
                return Err("has another length than its header says".to_owned());
            }
            snap::raw::Decoder::new().decompress_vec(page).map_err(|error| text(&error))?
        }
        CompressionCodec::ZSTD => {
            zstd::bulk::decompress(page, length).map_err(|error| text(&error))?
        }
        CompressionCodec::GZIP => {
            let mut out = Vec::with_capacity(length);
            let members = flate2::bufread::MultiGzDecoder::new(page);
            members.take(length as u64 + 1).read_to_end(&mut out).map_err(|error| text(&error))?;
            out
        }
        CompressionCodec::LZ4_RAW => lz4(page, length)?,
        // Hadoop's frames, or what older writers took for them.
        CompressionCodec::LZ4 => match hadoop_lz4(page, length) {
            Some(out) => out,
            None => lz4(page, length)?,
        },
        CompressionCodec::BROTLI | CompressionCodec::LZO => unreachable!("`check` refuses them"),
    };
    match out.len() == length {
        true => Ok(out),
        false => Err("has another length than its header says".to_owned()),
    }
}

fn lz4(block: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let mut out = vec![0; length];
    let count = lz4_flex::block::decompress_into(block, &mut out);
    let count = count.map_err(|error| format!("cannot be decompressed: {error}"))?;
    out.truncate(count);
    Ok(out)
}

/// Blocks, each after its length and that of what it holds, in four bytes each.
fn hadoop_lz4(mut page: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while !page.is_empty() {
        let (head, rest) = page.split_first_chunk::<8>()?;
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("4 bytes")) as usize;
        let (holds, size) = (number(&head[..4]), number(&head[4..]));
        if holds > length - out.len() {
            return None;
        }
        out.extend(lz4(rest.get(..size)?, holds).ok().filter(|block| block.len() == holds)?);
        page = &rest[size..];
    }
    (out.len() == length).then_some(out)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn compressed(codec: CompressionCodec, text: &[u8]) -> Vec<u8> {
        match codec {
            CompressionCodec::SNAPPY => snap::raw::Encoder::new().compress_vec(text).unwrap(),
            CompressionCodec::ZSTD => zstd::bulk::compress(text, 1).unwrap(),
            CompressionCodec::GZIP => {
                let mut out = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                out.write_all(text).unwrap();
                out.finish().unwrap()
            }
            CompressionCodec::LZ4_RAW => lz4_flex::block::compress(text),
            CompressionCodec::LZ4 => {
                let mut out = Vec::new();
                for half in [&text[..text.len() / 2], &text[text.len() / 2..]] {
                    let block = lz4_flex::block::compress(half);
                    out.extend((half.len() as u32).to_be_bytes());
                    out.extend((block.len() as u32).to_be_bytes());
                    out.extend(block);
                }
                out
            }
            _ => text.to_vec(),
        }
    }

    #[test]
    fn a_page_has_the_length_that_it_says_or_is_refused() {
        let text = b"ab".repeat(5000);
        for codec in [
            CompressionCodec::UNCOMPRESSED,
            CompressionCodec::SNAPPY,
            CompressionCodec::GZIP,
            CompressionCodec::ZSTD,
            CompressionCodec::LZ4,
            CompressionCodec::LZ4_RAW,
        ] {
            let page = compressed(codec, &text);
            assert_eq!(decompress(codec, &page, text.len()).unwrap(), text, "{codec:?}");
            for length in [1, text.len() - 1, text.len() + 1] {
                assert!(decompress(codec, &page, length).is_err(), "{codec:?} {length}");
            }
            assert!(decompress(codec, &page[..page.len() / 2], text.len()).is_err(), "{codec:?}");
        }
        let raw = compressed(CompressionCodec::LZ4_RAW, &text);
        assert_eq!(decompress(CompressionCodec::LZ4, &raw, text.len()).unwrap(), text);
        assert!(check(CompressionCodec::BROTLI).is_err() && check(CompressionCodec::ZSTD).is_ok());
    }
}
