//! Files of a model folder, which are not trusted: how they are opened, how much of them is read,
//! and how their texts are quoted.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::EngineError;
use super::machine::is_refusal;

/// Largest JSON file of a model folder but `tokenizer.json`; published ones stay below 1 MB.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Opens a regular file. Folders, devices and pipes are refused: a pipe would block for ever.
pub fn open(path: &Path) -> io::Result<File> {
    // Without the flag, opening a pipe that nobody writes to does not return.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(invalid("it is not a regular file"));
    }
    let mut start = [0; LFS_POINTER.len()];
    if metadata.len() < MAX_POINTER_BYTES
        && file.read_exact_at(&mut start, 0).is_ok()
        && start == LFS_POINTER
    {
        return Err(invalid("it is a git-lfs pointer, not the file: run `git lfs pull` there"));
    }
    Ok(file)
}

/// Start of the file that git leaves in place of a large file that was not fetched.
const LFS_POINTER: [u8; 42] = *b"version https://git-lfs.github.com/spec/v1";

/// Pointers have about 130 bytes; git-lfs itself takes nothing of this size for one.
const MAX_POINTER_BYTES: u64 = 1024;

/// All of a regular file, up to a limit.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(invalid(format!("it is larger than {} MiB, the limit", max_bytes >> 20))),
        false => Ok(bytes),
    }
}

/// The text of a regular file, up to a limit.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    String::from_utf8(read(path, max_bytes)?)
        .map_err(|error| invalid(format!("byte {} is not UTF-8", error.utf8_error().valid_up_to())))
}

/// Why a model file cannot be read: the machine's fault, or its own.
pub fn unreadable(path: &Path, error: &io::Error) -> EngineError {
    let text = format!("cannot read {}: {error}", path.display());
    match is_refusal(error) {
        true => EngineError::Machine(text),
        false => EngineError::Model(text),
    }
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// For messages: control characters and line breaks escaped, long text cut.
pub fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(120).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("`{}{dots}`", cut.escape_debug())
}

/// A library's message about such a file: in one line, long text cut.
pub fn one_line(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(400) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("the limit"));
        assert!(read(folder.path(), 4).unwrap_err().to_string().contains("not a regular file"));
        assert!(read(Path::new("/dev/zero"), 4).is_err());
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
        std::fs::write(&path, pointer).unwrap();
        assert!(read(&path, 999).unwrap_err().to_string().contains("run `git lfs pull`"));
        assert_eq!(read(&folder.path().join("b"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().to_string(), "byte 2 is not UTF-8");
    }

    #[test]
    fn quoted_text_has_no_line_breaks_and_an_end() {
        assert_eq!(quoted("a\nb\u{1b}"), "`a\\nb\\u{1b}`");
        assert!(quoted(&"x".repeat(999)).len() < 130);
        assert_eq!(one_line("a\n  b"), "a b");
        assert_eq!(one_line(&"x".repeat(999)).len(), 403);
    }
}
