//! Shared code of the disk caches: hashes for names and checksums, and files that others see whole
//! or not at all. Not for anything hostile.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher as _};
use std::io;
use std::path::Path;

/// Two FNV-1a streams of 64 bits. Fields are delimited, so ("ab", "c") is not ("a", "bc").
#[derive(Clone, Debug)]
pub(super) struct Hasher {
    streams: [u64; 2],
}

impl Default for Hasher {
    fn default() -> Self {
        Self { streams: [0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142] }
    }
}

impl Hasher {
    /// Adds one field.
    pub(super) fn field(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes(&(bytes.len() as u64).to_le_bytes());
        self.bytes(bytes);
        self
    }

    fn bytes(&mut self, bytes: &[u8]) {
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        for &byte in bytes {
            self.streams[0] = (self.streams[0] ^ u64::from(byte)).wrapping_mul(PRIME);
            // The second stream takes the bytes complemented and mixes its high half down, so that
            // the two do not collide together.
            let mixed = (self.streams[1] ^ u64::from(!byte)).wrapping_mul(PRIME);
            self.streams[1] = mixed ^ (mixed >> 29);
        }
    }

    /// The hash of the fields so far.
    pub(super) fn finish(&self) -> u128 {
        (u128::from(self.streams[0]) << 64) | u128::from(self.streams[1])
    }
}

/// Another one at each call, in this process and in others: part of a file's name.
pub(super) fn unique_name() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

/// Writes a file under a name of its own and renames it; makes its folder.
///
/// # Errors
/// It cannot be written: then nothing is left of it.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let temporary = path.with_extension(format!("{}.tmp", unique_name()));
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error that is handed on says more than one about the rest of a file.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(fields: &[&str]) -> u128 {
        let mut hasher = Hasher::default();
        for field in fields {
            hasher.field(field.as_bytes());
        }
        hasher.finish()
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<String> = (0..1000).map(|_| unique_name()).collect();
        assert_eq!(names.len(), 1000);
    }

    #[test]
    fn fields_are_delimited_and_ordered() {
        assert_eq!(hash(&["ab", "c"]), hash(&["ab", "c"]));
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_ne!(hash(&["ab", "c"]), hash(&["c", "ab"]));
        assert_ne!(hash(&[""]), hash(&[]));
    }
}
