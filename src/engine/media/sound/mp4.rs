//! What of an MP4 file is looked at before its reader does: where the recording begins, since
//! encoders put samples in front of it, and an edit list says how many; and tables that would cost
//! the reader much more time than they have bytes.

use std::io;

use super::source::Source;

/// Edits that are looked at.
const MAX_EDITS: u64 = 4096;

/// Steps that a reader may take through tables, which it goes through from their beginning for each
/// packet. Those of an hour of sound are far less.
const MAX_STEPS: u64 = 1 << 32;

/// Bytes of tables, and boxes, that a file of sound may have.
const MAX_TABLE_BYTES: u64 = 64 << 20;
const MAX_BOXES: usize = 1 << 20;

/// The boxes with tables, one behind the other. None: there are more than a recording has.
///
/// # Errors
/// The bytes cannot be read.
pub(super) fn tables(source: &mut Source<'_>) -> io::Result<Option<Vec<u8>>> {
    let (mut tables, mut at) = (Vec::new(), 0);
    for _ in 0..MAX_BOXES {
        let head = source.bytes(at, 16)?;
        let num_left = source.len().saturating_sub(at);
        let Some((kind, head_len, len)) = box_head(&head, num_left) else {
            return Ok(Some(tables));
        };
        if len < head_len as u64 || len > num_left {
            return Ok(Some(tables));
        }
        if [*b"moov", *b"moof"].contains(&kind) {
            if tables.len() as u64 + len > MAX_TABLE_BYTES {
                return Ok(None);
            }
            tables.extend(source.bytes(at, len as usize)?);
        }
        at += len;
    }
    Ok(None)
}

/// Whether tables are what a reader gets through.
pub(super) fn is_sensible(bytes: &[u8]) -> bool {
    let mut steps = 0u64;
    let mut add = |more: Option<u64>| {
        steps = steps.saturating_add(more.unwrap_or_default());
        steps <= MAX_STEPS
    };
    boxes(bytes).all(|(kind, content)| match &kind {
        b"moof" => all(content, b"traf", |traf| {
            all(traf, b"trun", |run| {
                let count = number(run, 4, 4);
                add(count.map(|count| count.saturating_mul(count)))
            })
        }),
        b"moov" => all(content, b"trak", |track| {
            let table = || child(child(child(track, b"mdia")?, b"minf")?, b"stbl");
            let Some(table) = table() else { return true };
            let count = |kind, at| number(child(table, kind)?, at, 4);
            let num_packets = count(b"stsz", 8).unwrap_or_default();
            [count(b"stts", 4), count(b"stsc", 4)]
                .into_iter()
                .all(|entries| add(entries.map(|entries| entries.saturating_mul(num_packets))))
        }),
        _ => true,
    })
}

/// Whether something holds for all boxes of a kind.
fn all(bytes: &[u8], wanted: &[u8; 4], mut holds: impl FnMut(&[u8]) -> bool) -> bool {
    boxes(bytes).filter(|(kind, _)| kind == wanted).all(|(_, content)| holds(content))
}

/// Samples in front of the first recording, at its rate. 0: the file has no edit list.
pub(super) fn priming(bytes: &[u8], rate: u32) -> u64 {
    let Some(movie) = child(bytes, b"moov") else { return 0 };
    let track = boxes(movie).find_map(|(kind, track)| {
        let handler = || child(child(track, b"mdia")?, b"hdlr")?.get(8..12);
        (kind == *b"trak" && handler() == Some(b"soun")).then_some(track)
    });
    track.and_then(|track| of_track(track, rate)).unwrap_or_default()
}

fn of_track(track: &[u8], rate: u32) -> Option<u64> {
    let media = child(track, b"mdia")?;
    let header = child(media, b"mdhd")?;
    let is_long = *header.first()? == 1;
    let scale = number(header, if is_long { 20 } else { 12 }, 4)?;
    let list = child(child(track, b"edts")?, b"elst")?;
    let is_long = *list.first()? == 1;
    let (size, time_len) = if is_long { (20, 8) } else { (12, 4) };
    let count = number(list, 4, 4)?.min(MAX_EDITS) as usize;
    // Empty edits have the time -1: they are silence, which no decoder makes.
    let times = (0..count).map_while(|edit| number(list, 8 + edit * size + time_len, time_len));
    let empty = u64::MAX >> (64 - 8 * time_len);
    let start = { times }.find(|time| *time != empty)?;
    (scale > 0).then(|| (u128::from(start) * u128::from(rate) / u128::from(scale)) as u64)
}

/// The content of the first box of a kind.
fn child<'a>(bytes: &'a [u8], wanted: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(bytes).find_map(|(kind, content)| (kind == *wanted).then_some(content))
}

/// Boxes side by side: their kinds and contents.
fn boxes(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = bytes;
    let next = move || {
        let (kind, head_len, len) = box_head(rest, rest.len() as u64)?;
        let len = usize::try_from(len).ok()?;
        let content = rest.get(head_len..len)?;
        rest = &rest[len..];
        Some((kind, content))
    };
    std::iter::from_fn(next)
}

/// The kind of a box, bytes of its head, and of all of it, which are what is left where it says
/// none.
fn box_head(bytes: &[u8], num_left: u64) -> Option<([u8; 4], usize, u64)> {
    let kind = *bytes.first_chunk::<8>()?.last_chunk::<4>()?;
    let (head_len, len) = match number(bytes, 0, 4)? {
        0 => (8, num_left),
        1 => (16, number(bytes, 8, 8)?),
        len => (8, len),
    };
    Some((kind, head_len, len))
}

/// A number of so many bytes, the largest first.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
