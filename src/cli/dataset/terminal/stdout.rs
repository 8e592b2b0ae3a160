//! Whether standard output leads anywhere.

use std::fs;

/// Bits of a descriptor's flags that say how it is open, and their value for both ways.
const ACCESS_MODE: u32 = 0o3;
const READ_AND_WRITE: u32 = 0o2;

/// Whether standard output was closed when the program began (`>&-`). Rust opens `/dev/null` in its
/// place, for reading and writing. So do programs that start others without an output. A shell's
/// `> /dev/null` is open for writing only.
pub fn was_closed() -> bool {
    let target = fs::read_link("/proc/self/fd/1");
    let is_null = target.is_ok_and(|path| path.as_os_str() == "/dev/null");
    let Ok(facts) = fs::read_to_string("/proc/self/fdinfo/1") else { return false };
    is_null && flags(&facts).is_some_and(|flags| flags & ACCESS_MODE == READ_AND_WRITE)
}

/// The `flags` of a file in `/proc/self/fdinfo`, which are octal.
fn flags(facts: &str) -> Option<u32> {
    let line = facts.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_octal() {
        assert_eq!(flags("pos:\t0\nflags:\t0100002\nmnt_id:\t25\n"), Some(0o100_002));
        assert_eq!(flags("pos:\t0\n"), None);
    }
}
