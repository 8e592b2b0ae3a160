//! Cubins on disk. An entry that is not whole is as good as none, and a folder that cannot be
//! written to only costs time.

use std::path::Path;

use super::super::disk_cache::{Hasher, write_whole};
use super::Compiled;

/// magic, hash of the rest (16 bytes), length of the log (8 bytes), log, cubin.
const MAGIC: &[u8; 8] = b"vbcubin1";

/// An entry, if it is there and whole.
pub(super) fn read(path: &Path) -> Option<Compiled> {
    let bytes = std::fs::read(path).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (hash, rest) = rest.split_first_chunk::<16>()?;
    if hash_of(rest) != u128::from_le_bytes(*hash) {
        return None;
    }
    let (log_len, rest) = rest.split_first_chunk::<8>()?;
    let (log, cubin) = rest.split_at_checked(u64::from_le_bytes(*log_len) as usize)?;
    let log = String::from_utf8(log.to_vec()).ok()?;
    Some(Compiled { cubin: cubin.to_vec(), log, is_cached: true })
}

/// Writes an entry.
pub(super) fn write(path: &Path, compiled: &Compiled) {
    let mut rest = (compiled.log.len() as u64).to_le_bytes().to_vec();
    rest.extend_from_slice(compiled.log.as_bytes());
    rest.extend_from_slice(&compiled.cubin);
    let hash = hash_of(&rest).to_le_bytes();
    // Without it the kernel is compiled again.
    let _ = write_whole(path, &[&MAGIC[..], &hash[..], &rest[..]].concat());
}

fn hash_of(bytes: &[u8]) -> u128 {
    let mut hasher = Hasher::default();
    hasher.field(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_entry_comes_back_and_a_damaged_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_owned();
        let path = folder.join("deep/norm-sm_80-0.cubin");
        let compiled = Compiled { cubin: vec![1, 2, 3], log: "a log".to_owned(), is_cached: false };
        write(&path, &compiled);
        assert_eq!(read(&path), Some(Compiled { is_cached: true, ..compiled.clone() }));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);

        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(&path), None, "cut at {cut}");
        }
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert_eq!(read(&path), None);
        std::fs::remove_dir_all(&folder).unwrap();

        // A folder that cannot be made: a file is in its place.
        std::fs::write(&folder, "").unwrap();
        write(&path, &compiled);
        assert_eq!(read(&path), None);
        std::fs::remove_file(folder).unwrap();
    }
}
