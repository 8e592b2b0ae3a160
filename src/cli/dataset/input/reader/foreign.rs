//! Files that are not text of rows: by their first bytes, and by their names.

use std::path::Path;

use super::{InputError, InputFormat, inner_name};

/// First bytes, and what begins so.
const MAGIC: &[(&[u8], &str)] = &[
    (b"GGUF", "a GGUF model"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"%!PS-Adobe-", "a PostScript document"),
    (b"{\\rtf", "an RTF document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Microsoft Office (xls, doc)"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"ARROW1", "an Arrow file"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Obj\x01", "an Avro file"),
    (b"RIFF", "sound, a video or a WebP image"),
    (b"OggS", "sound"),
    (b"fLaC", "sound"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"\0asm", "a WebAssembly program"),
    (b"Rar!\x1a", "a RAR archive"),
];

/// Extensions of files that are not rows, and what they are.
const EXTENSIONS: &[(&str, &str)] = &[
    ("faiss", "an index of vectors"),
    ("index", "an index of vectors"),
    ("hnsw", "an index of vectors"),
    ("lance", "a Lance dataset"),
    ("duckdb", "a database"),
    ("sqlite3", "a database"),
    ("h5", "HDF5"),
    ("hdf5", "HDF5"),
    ("pickle", "a Python pickle"),
    ("joblib", "a Python pickle"),
    ("pt", "tensors of PyTorch"),
    ("pth", "tensors of PyTorch"),
    ("doc", "a Word document"),
    ("rtf", "an RTF document"),
    ("odt", "a document"),
    ("pptx", "slides"),
    ("htm", "HTML"),
    ("yaml", "YAML"),
    ("yml", "YAML"),
    ("toml", "TOML"),
    ("xml", "XML"),
    ("html", "HTML"),
    ("arrow", "Arrow"),
    ("feather", "Arrow"),
    ("avro", "Avro"),
    ("orc", "ORC"),
    ("xlsx", "a spreadsheet"),
    ("xls", "a spreadsheet"),
    ("ods", "a spreadsheet"),
    ("pdf", "PDF"),
    ("docx", "a Word document"),
    ("sqlite", "a database"),
    ("db", "a database"),
    ("npy", "a NumPy array"),
    ("npz", "NumPy arrays"),
    ("pkl", "a Python pickle"),
    ("gguf", "a GGUF model"),
    ("safetensors", "model weights"),
];

/// Bytes that are searched for a NUL byte.
const REACH: usize = 1024;

/// Bytes of a safetensors file before its header.
const LENGTH_BYTES: usize = 8;

/// Refuses a file that is not text. Where the name or a flag says that it is lines of JSON or CSV,
/// a NUL byte costs its line only.
pub(super) fn refuse_binary(head: &[u8], format: InputFormat) -> Result<(), InputError> {
    if let Some(what) = binary_kind(head).filter(|_| !is_text(head) || is_document(head)) {
        let message = format!("the input is a binary file: {what}");
        return Err(InputError::refused(message, "give rows as JSON lines, CSV, TSV or text"));
    }
    let may_be_any = matches!(format, InputFormat::Auto | InputFormat::Txt);
    match first_nul(head).filter(|_| may_be_any) {
        None => Ok(()),
        Some(offset) => Err(InputError::refused(
            format!("the input is a binary file: it has a NUL byte at offset {}", offset + 1),
            "give rows as JSON lines, CSV, TSV or text; if it is UTF-16, say --encoding utf-16le",
        )),
    }
}

/// Kind of a file that begins so, if it is not text: "GGUF or ONNX?" begins a prompt, too.
pub(super) fn binary_kind(head: &[u8]) -> Option<&'static str> {
    let magic = MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what);
    magic.or_else(|| is_safetensors(head).then_some("model weights"))
}

fn first_nul(head: &[u8]) -> Option<usize> {
    head[..head.len().min(REACH)].iter().position(|byte| *byte == 0)
}

/// Whether the first bytes are UTF-8 without NUL bytes. The last character may be cut off.
fn is_text(head: &[u8]) -> bool {
    let reach = &head[..head.len().min(REACH)];
    let encoding = str::from_utf8(reach);
    encoding.map_or_else(|error| error.error_len().is_none(), |_| true) && first_nul(head).is_none()
}

/// Whether text is a document, by the whole of its first line: all bytes of one may be ASCII.
fn is_document(head: &[u8]) -> bool {
    let line = head.split(|byte| b"\r\n".contains(byte)).next().unwrap_or_default();
    let has_end = line.len() < head.len();
    let pdf = line.strip_prefix(b"%PDF-").map(<[u8]>::trim_ascii_end);
    let is_pdf = matches!(pdf, Some([b'0'..=b'9', b'.', b'0'..=b'9']));
    let is_post_script = line.starts_with(b"%!PS-Adobe-");
    has_end && (is_pdf || is_post_script) || head.starts_with(b"{\\rtf1")
}

/// Eight bytes of a length that no text begins with, then a JSON object.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<LENGTH_BYTES>() else { return false };
    u64::from_le_bytes(*length) < 1 << 32 && rest.starts_with(b"{")
}

/// Kind of a file whose name tells that it holds no rows.
pub fn foreign_kind(path: &Path) -> Option<&'static str> {
    let name = inner_name(path);
    let extension = name.extension()?.to_str()?.to_ascii_lowercase();
    EXTENSIONS.iter().find(|(known, _)| *known == extension).map(|(_, what)| *what)
}

/// Refuses an input whose name says that it holds no rows. `format` is not `Auto` where a flag says
/// how to read it.
///
/// # Errors
/// It does.
pub fn refuse_name(path: &Path, format: InputFormat) -> Result<(), InputError> {
    match (format, foreign_kind(path)) {
        (InputFormat::Auto, Some(what)) => Err(InputError::refused(
            format!("by its name the input is {what}, which is not read"),
            "convert it to JSON lines or CSV; --format txt reads it as lines of text",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(head: &[u8], format: InputFormat) -> Option<String> {
        refuse_binary(head, format).err().map(|error| error.to_string())
    }

    #[test]
    fn binary_files_are_refused_by_what_they_are() {
        let weights = [&300u64.to_le_bytes()[..], b"{\"a\":{}}"].concat();
        // Its length has a line end among its bytes.
        let ten = [&10u64.to_le_bytes()[..], b"{\"a\":{}}"].concat();
        for (head, what) in [
            (&b"GGUF\x03\0\0\0"[..], "GGUF"),
            (b"\x89PNG\r\n\x1a\n", "PNG"),
            (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF"),
            (b"GIF89a\x01\0\x01\0\x80", "GIF"),
            (b"\x7fELF\x02\x01\x01\0", "program"),
            (&weights, "weights"),
            (&ten, "weights"),
        ] {
            for format in [InputFormat::Auto, InputFormat::Txt, InputFormat::Jsonl] {
                let found = refused(head, format).expect(what);
                assert!(found.contains("binary file") && found.contains(what), "{found}");
            }
        }
    }

    #[test]
    fn documents_of_ascii_are_refused() {
        for (head, what) in [
            (&b"%PDF-1.4\n1 0 obj\n"[..], "PDF"),
            (b"%PDF-1.4 \r1 0 obj\r", "PDF"),
            (b"%!PS-Adobe-3.0\n%%Title: a\n", "PostScript"),
            (b"{\\rtf1\\ansi a}", "RTF"),
        ] {
            for format in [InputFormat::Auto, InputFormat::Txt, InputFormat::Jsonl] {
                let found = refused(head, format).expect(what);
                assert!(found.contains(what), "{found}");
            }
        }
    }

    #[test]
    fn a_nul_byte_is_no_text_where_nothing_says_what_the_file_is() {
        for format in [InputFormat::Auto, InputFormat::Txt] {
            let found = refused(b"ab\0c", format).expect("binary");
            assert!(found.ends_with("it has a NUL byte at offset 3"), "{found}");
        }
        assert_eq!(refused(b"ab\0c", InputFormat::Jsonl), None);
        assert_eq!(refused(b"ab\0c", InputFormat::Csv), None);
    }

    #[test]
    fn text_is_not_refused() {
        let far = [&b"x".repeat(REACH)[..], b"\0"].concat();
        for head in [&b""[..], b"a", b"{\"prompt\":\"a\"}\n", "\u{e9}\u{4e2d}".as_bytes(), &far] {
            assert_eq!(refused(head, InputFormat::Auto), None);
        }
        // The last one is cut off within a character.
        let cut = [b"GGUF ", "\u{4e2d}".repeat(REACH / 3).as_bytes()].concat();
        for head in [
            &b"GGUF or ONNX?\n"[..],
            b"GIF8,prompt\n1,a\n",
            b"%PDF-1.7 is a",
            b"%PDF-1.7 is a version\n",
            b"RIFF,prompt\n",
            &cut,
        ] {
            assert_eq!(refused(head, InputFormat::Auto), None);
        }
    }

    #[test]
    fn names_say_what_holds_no_rows() {
        let refused = |name: &str, format| refuse_name(Path::new(name), format).is_err();
        assert!(refused("rows.yaml", InputFormat::Auto) && refused("a.PDF.gz", InputFormat::Auto));
        assert!(!refused("rows.yaml", InputFormat::Txt));
        assert!(!refused("rows", InputFormat::Auto) && !refused("a.md", InputFormat::Auto));
    }
}
