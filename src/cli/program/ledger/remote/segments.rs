//! A journal in pieces: objects that hold ranges of its bytes, in the order in which they were
//! written. A piece that begins before the end of those before it takes the place of what they have
//! from there on, as a journal that is cut and goes on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vllm_batch_dataset::object_store::{Listed, ObjectName, Store, StoreError};

/// What a piece's name begins with.
const NAME: &str = "segment-";

/// A piece, as far as it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its name in the bucket.
    key: String,
    /// Where in the journal it begins.
    start: u64,
    /// Bytes of it that no later piece replaces.
    length: u64,
}

/// The name of a piece: who wrote it, which of theirs it is, and where it begins.
pub fn name(prefix: &ObjectName, epoch: u32, number: u32, start: u64) -> ObjectName {
    prefix.with_suffix(&format!("{NAME}{epoch:08}-{number:08}-{start:018}"))
}

/// Whether an object is a piece, by what follows the prefix.
pub fn is_own(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix(NAME) else { return false };
    let lengths: Vec<usize> = rest.split('-').map(str::len).collect();
    lengths == [8, 8, 18] && rest.bytes().all(|c| c == b'-' || c.is_ascii_digit())
}

/// What of a journal is there, from its first byte on.
pub fn pieces(listed: &[Listed], prefix: &ObjectName) -> Vec<Piece> {
    let place = |listed: &Listed| -> Option<(u32, u32, u64)> {
        let rest = listed.key.strip_prefix(&prefix.key)?.strip_prefix(NAME)?;
        let mut numbers = rest.split('-');
        let place = (
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
        );
        numbers.next().is_none().then_some(place)
    };
    let placed = listed.iter().filter_map(|listed| Some((place(listed)?, listed)));
    let mut placed: Vec<_> = placed.collect();
    placed.sort_by_key(|(place, _)| *place);
    let mut pieces: Vec<Piece> = Vec::new();
    for ((_, _, start), listed) in placed {
        while pieces.last().is_some_and(|last| last.start >= start) {
            pieces.pop();
        }
        let end = pieces.last().map_or(0, |last| last.start + last.length);
        if start > end {
            // What comes after a piece that is gone cannot be placed.
            break;
        }
        if let Some(last) = pieces.last_mut() {
            last.length = start - last.start;
        }
        pieces.push(Piece { key: listed.key.clone(), start, length: listed.size });
    }
    pieces
}

/// Completes a journal on this machine by its pieces; returns how much of it they have. Where it is
/// another one than they say, it is the newer one, and they end there.
///
/// # Errors
/// A piece or the file cannot be read, or the file not be written.
pub fn complete(
    store: &Store,
    bucket: &str,
    pieces: &[Piece],
    journal: &File,
) -> Result<u64, StoreError> {
    let failed = |error: io::Error| StoreError::disk("complete the journal", &error);
    let mut end = 0;
    for piece in pieces {
        let name = ObjectName { bucket: bucket.to_owned(), key: piece.key.clone() };
        let Some(mut bytes) = store.get(&name)? else { return Ok(end) };
        bytes.truncate(piece.length as usize);
        let mut own = vec![0; bytes.len()];
        let count = read_at_most(journal, &mut own, piece.start).map_err(failed)?;
        if own[..count] != bytes[..count] {
            return Ok(end);
        }
        if count < bytes.len() {
            journal.write_all_at(&bytes, piece.start).map_err(failed)?;
        }
        end = piece.start + bytes.len() as u64;
    }
    journal.sync_all().map_err(failed)?;
    Ok(end)
}

fn read_at_most(file: &File, bytes: &mut [u8], start: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], start + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_pieces_take_the_place_of_earlier_ones() {
        let prefix = ObjectName { bucket: "b".into(), key: "out.journal/".into() };
        let found = |pieces_of: &[(u32, u32, u64, u64)]| -> Vec<(u64, u64)> {
            let listed: Vec<Listed> = pieces_of
                .iter()
                .map(|&(epoch, number, start, size)| Listed {
                    key: name(&prefix, epoch, number, start).key,
                    size,
                })
                .chain([Listed { key: "out.journal/lock-00000001".into(), size: 3 }])
                .collect();
            pieces(&listed, &prefix).iter().map(|piece| (piece.start, piece.length)).collect()
        };
        assert_eq!(found(&[(1, 0, 0, 10), (1, 1, 10, 5)]), [(0, 10), (10, 5)]);
        assert_eq!(
            found(&[(1, 0, 0, 10), (1, 1, 10, 5), (2, 0, 12, 4)]),
            [(0, 10), (10, 2), (12, 4)]
        );
        assert_eq!(found(&[(1, 0, 0, 10), (1, 1, 10, 5), (2, 0, 0, 4)]), [(0, 4)]);
        assert_eq!(found(&[(2, 0, 10, 1), (1, 0, 0, 10), (1, 1, 10, 9)]), [(0, 10), (10, 1)]);
        assert_eq!(found(&[(1, 0, 0, 10), (1, 2, 20, 5)]), [(0, 10)], "one is gone");
        assert!(found(&[(1, 1, 10, 5)]).is_empty());
    }
}
