//! The first bytes of an input: what it is, and what it must not be.

use super::decompress::Codec;
use super::{InputError, InputFormat, foreign};

/// The mark of UTF-8.
pub const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// The first byte of text that is not blank.
pub(super) fn first_byte(head: &[u8]) -> Option<u8> {
    let text = head.strip_prefix(UTF8_BOM).unwrap_or(head);
    text.trim_ascii_start().first().copied()
}

/// Refuses what is not text, by its magic bytes and whatever its name. `codec` is what it was
/// decompressed from: that is done once.
pub(super) fn refuse_unsupported(head: &[u8], codec: Option<Codec>) -> Result<(), InputError> {
    let again = codec.and(Codec::of(head)).map(|inner| (inner.name(), inner.tool()));
    let others = [
        (b"\xfd7zXZ".as_slice(), "xz", "xzcat"),
        (b"BZh", "bzip2", "bzcat"),
        (b"PK\x03\x04", "zip", "unzip -p"),
    ];
    let other = others.iter().find(|(magic, ..)| head.starts_with(magic));
    if let Some((name, tool)) = again.or(other.map(|(_, name, tool)| (*name, *tool))) {
        let (what, command) = match codec {
            None => (
                format!("compressed with {name}, which is not supported yet"),
                format!("{tool} FILE"),
            ),
            Some(codec) => (
                format!("compressed twice, with {} and inside it {name}", codec.name()),
                format!("{} FILE | {tool}", codec.tool()),
            ),
        };
        return Err(InputError::refused(
            format!("the input is {what}"),
            format!("use `{command} | vllm-batch run ...`"),
        ));
    }
    if is_parquet(head) {
        return Err(match codec {
            Some(codec) => InputError::refused(
                format!("the input is a Parquet file within {}", codec.name()),
                "decompress it: Parquet is read at any place, and compressed by itself",
            ),
            None => InputError::refused(
                "the input begins as a Parquet file, and is a pipe or cut off",
                "Parquet is read from its end: give a whole file, as in -i FILE.parquet",
            ),
        });
    }
    // The mark of little-endian UTF-32 begins with that of UTF-16.
    match head.starts_with(b"\xff\xfe\0\0") || head.starts_with(b"\0\0\xfe\xff") {
        true => Err(InputError::refused(
            "the input is UTF-32, which is not read",
            "convert it with iconv: `iconv -f UTF-32 -t UTF-8 FILE | vllm-batch run ...`",
        )),
        false => Ok(()),
    }
}

/// Whether a file that began so could be read as something else, or without its first character:
/// output that may be input again must not.
pub fn is_mark(head: &[u8]) -> bool {
    head.starts_with(UTF8_BOM)
        || Codec::of(head).is_some()
        || foreign::binary_kind(head).is_some()
        || refuse_unsupported(head, None).is_err()
}

/// Binary fields follow the magic bytes; `PAR1,PAR2` names two columns.
fn is_parquet(head: &[u8]) -> bool {
    let fields = head.strip_prefix(b"PAR1").map(|rest| &rest[..rest.len().min(4)]);
    fields.is_some_and(|bytes| bytes.iter().any(|b| b.is_ascii_control() && !b"\t\r\n".contains(b)))
}

/// The format of an input whose name says nothing.
pub(super) fn format(head: &[u8]) -> InputFormat {
    match first_byte(head) {
        Some(b'{' | b'[' | b'"') => InputFormat::Jsonl,
        _ => InputFormat::Txt,
    }
}
