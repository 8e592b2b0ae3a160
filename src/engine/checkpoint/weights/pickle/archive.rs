//! The zip archive around a pickle: stored entries, found by the directory at its end.

use std::collections::HashMap;
use std::ops::Range;

use vllm_batch_base::files::quoted;

/// Most entries: a storage per tensor, and some small ones.
const MAX_ENTRIES: usize = 1 << 17;

/// Bytes of the record at the end, without its comment.
const END_LEN: usize = 22;
/// Length of the record that leads to the directory of a file beyond 4 GiB.
const LOCATOR_LEN: usize = 20;
const END64_LEN: usize = 56;
const ENTRY_LEN: usize = 46;
const LOCAL_LEN: usize = 30;

/// In place of a number that has 64 bits elsewhere.
const ELSEWHERE: u64 = 0xFFFF_FFFF;

/// Entries by name, each with the place of its bytes in the file.
pub(super) struct Archive {
    entries: HashMap<String, Range<usize>>,
    /// The folder that holds everything: torch names it after the file.
    folder: String,
}

impl Archive {
    pub(super) fn read(file: &[u8]) -> Result<Self, String> {
        let (mut at, num_entries) = directory(file)?;
        if num_entries > MAX_ENTRIES as u64 {
            return Err(format!(
                "its archive has {num_entries} entries, the most is {MAX_ENTRIES}"
            ));
        }
        let mut entries = HashMap::new();
        for _ in 0..num_entries {
            let (name, range, next) = entry(file, at)?;
            if entries.insert(name.clone(), range).is_some() {
                return Err(format!("entry {} is there twice", quoted(&name)));
            }
            at = next;
        }
        let mut pickles = entries.keys().filter_map(|name| name.strip_suffix("/data.pkl"));
        let folder = match (pickles.next(), pickles.next()) {
            (Some(folder), None) if !folder.contains('/') => folder.to_owned(),
            _ => return Err("its archive is not one of torch.save: no data.pkl".to_owned()),
        };
        let archive = Self { entries, folder };
        match archive.find("byteorder") {
            Some(order) if &file[order.clone()] != b"little" => {
                Err("it was written on a machine of another byte order".to_owned())
            }
            _ => Ok(archive),
        }
    }

    fn find(&self, name: &str) -> Option<&Range<usize>> {
        self.entries.get(&format!("{}/{name}", self.folder))
    }

    /// The pickle.
    pub(super) fn pickle(&self) -> Result<Range<usize>, String> {
        self.find("data.pkl").cloned().ok_or_else(|| "it has no data.pkl".to_owned())
    }

    /// The bytes of a storage.
    pub(super) fn storage(&self, key: &str) -> Result<Range<usize>, String> {
        // Numbers; a long text would be copied for each tensor that names it.
        let name = (key.len() <= 64).then(|| format!("data/{key}"));
        let found = name.and_then(|name| self.find(&name).cloned());
        found.ok_or_else(|| format!("storage {} is not in the file", quoted(key)))
    }
}

/// Where the directory begins, and its number of entries.
fn directory(file: &[u8]) -> Result<(usize, u64), String> {
    let none = || "it is no file of torch.save, or truncated: it does not end as a zip".to_owned();
    // The record has a comment of up to 64 KiB behind it.
    let last = file.len().checked_sub(END_LEN).ok_or_else(none)?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let is_end = |at: &usize| {
        file[*at..].starts_with(b"PK\x05\x06")
            && number(file, at + 20, 2) == Some((last - at) as u64)
    };
    let end = (first..=last).rev().find(is_end).ok_or_else(none)?;
    let damaged = || "the directory of its archive is damaged".to_owned();
    let field = |at: usize, len: usize| number(file, at, len).ok_or_else(damaged);
    let locator = end.checked_sub(LOCATOR_LEN).filter(|at| file[*at..].starts_with(b"PK\x06\x07"));
    let (start, num_entries) = match locator {
        Some(locator) => {
            let at = usize::try_from(field(locator + 8, 8)?).map_err(|_| damaged())?;
            let record = file.get(at..).filter(|rest| rest.len() >= END64_LEN);
            if !record.is_some_and(|rest| rest.starts_with(b"PK\x06\x06")) {
                return Err(damaged());
            }
            (field(at + 48, 8)?, field(at + 32, 8)?)
        }
        None => (field(end + 16, 4)?, field(end + 10, 2)?),
    };
    Ok((usize::try_from(start).map_err(|_| damaged())?, num_entries))
}

/// An entry of the directory: its name, the place of its bytes, and where the next one is.
fn entry(file: &[u8], at: usize) -> Result<(String, Range<usize>, usize), String> {
    let damaged = || "the directory of its archive is damaged".to_owned();
    let field = |offset: usize, len: usize| {
        at.checked_add(offset).and_then(|at| number(file, at, len)).ok_or_else(damaged)
    };
    if field(0, 4)? != u64::from(u32::from_le_bytes(*b"PK\x01\x02")) {
        return Err(damaged());
    }
    let (flags, method) = (field(8, 2)?, field(10, 2)?);
    let (name_len, extra_len) = (field(28, 2)? as usize, field(30, 2)? as usize);
    let name_end = ENTRY_LEN + name_len;
    let next = at + name_end + extra_len + field(32, 2)? as usize;
    let name = file.get(at + ENTRY_LEN..at + name_end).ok_or_else(damaged)?;
    let name = std::str::from_utf8(name).map_err(|_| damaged())?.to_owned();
    let extra = file.get(at + name_end..at + name_end + extra_len).ok_or_else(damaged)?;
    if method != 0 || flags & 1 != 0 {
        return Err(format!("entry {} is compressed or encrypted", quoted(&name)));
    }
    // In this order in the extra field, and there only where they do not fit here.
    let mut wide = wide_numbers(extra);
    let mut full = |value: u64| match value {
        ELSEWHERE => wide.next().ok_or_else(damaged),
        value => Ok(value),
    };
    let (len, stored_len) = (full(field(24, 4)?)?, full(field(20, 4)?)?);
    let local = usize::try_from(full(field(42, 4)?)?).map_err(|_| damaged())?;
    let outside = || format!("entry {} leaves the file", quoted(&name));
    if len != stored_len {
        return Err(damaged());
    }
    let header = file.get(local..).filter(|rest| rest.len() >= LOCAL_LEN).ok_or_else(outside)?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(outside());
    }
    let lens = number(header, 26, 2).zip(number(header, 28, 2)).ok_or_else(outside)?;
    let start = local + LOCAL_LEN + (lens.0 + lens.1) as usize;
    let end = usize::try_from(len).ok().and_then(|len| start.checked_add(len));
    let end = end.filter(|end| *end <= file.len()).ok_or_else(outside)?;
    Ok((name, start..end, next))
}

/// The numbers of 64 bits of an extra field.
fn wide_numbers(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut numbers = Vec::new();
    while let (Some(kind), Some(len)) = (number(extra, 0, 2), number(extra, 2, 2)) {
        let Some(rest) = extra.get(4..) else { break };
        let (field, rest) = rest.split_at(rest.len().min(len as usize));
        if kind == 1 {
            numbers.extend(field.chunks_exact(8).filter_map(|bytes| number(bytes, 0, 8)));
        }
        extra = rest;
    }
    numbers.into_iter()
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
