//! Where a recording in an MP4 file begins: encoders put samples in front of it, and an edit list
//! says how many.

/// Boxes within boxes that are looked into.
const MAX_BOXES: usize = 4096;

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
    let count = number(list, 4, 4)?.min(MAX_BOXES as u64) as usize;
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
        let (head, _) = rest.split_first_chunk::<8>()?;
        let kind = *head.last_chunk::<4>()?;
        let (head_len, len) = match number(rest, 0, 4)? {
            0 => (8, rest.len() as u64),
            1 => (16, number(rest, 8, 8)?),
            len => (8, len),
        };
        let len = usize::try_from(len).ok()?;
        let content = rest.get(head_len..len)?;
        rest = &rest[len..];
        Some((kind, content))
    };
    std::iter::from_fn(next).take(MAX_BOXES)
}

/// A number of so many bytes, the largest first.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
