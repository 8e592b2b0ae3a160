//! WAV files whose writer did not know their length: a pipe, or a server that sends speech while it
//! is made.

/// Where the first chunk is.
const FIRST_CHUNK: usize = 12;

/// The bytes with the length of their samples, where they do not say it.
pub(super) fn ended(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut at = FIRST_CHUNK;
    loop {
        let (name, rest) = bytes.get(at..)?.split_first_chunk::<4>()?;
        let (len, samples) = rest.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*len);
        if name == b"data" {
            let is_open = [0, u32::MAX].contains(&len) && !samples.is_empty();
            let len = u32::try_from(samples.len()).ok().filter(|_| is_open)?;
            let mut bytes = bytes.to_vec();
            bytes[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
            // What the whole says is not looked at where this is its largest.
            bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
            return Some(bytes);
        }
        at = at.checked_add(8)?.checked_add(len as usize)?.checked_next_multiple_of(2)?;
    }
}
