//! The address space of this process, where `ulimit -v` bounds it.

/// A field of `/proc/meminfo` or of `/proc/PID/status`, in bytes.
pub fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Room that a limit of the process leaves of its address space.
pub fn address_room() -> Option<u64> {
    let limit = own_address_limit()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(limit.saturating_sub(meminfo_bytes(&status, "VmSize:")?))
}

fn own_address_limit() -> Option<u64> {
    address_limit(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

/// The limit that holds, of Linux's table of them; "unlimited" is none.
fn address_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether a limit is set on the address space of this process (`ulimit -v`).
pub fn has_address_limit() -> bool {
    own_address_limit().is_some()
}

/// Share of a limited address space that a thread's stack may reserve before it is needed, as a
/// divisor of the room.
const STACK_PART: u64 = 4;

/// Whether a stack of so many bytes may be reserved before it is needed: it takes nothing from what
/// is.
pub fn has_room_for_stack(bytes: usize) -> bool {
    address_room().is_none_or(|room| bytes as u64 <= room / STACK_PART)
}

/// Share of a limited address space that heaps of threads may reserve, as a divisor.
const HEAPS_PART: u64 = 16;

/// Bytes of address space that glibc reserves for the heap of a thread.
const HEAP_BYTES: u64 = 64 << 20;

/// Heaps of threads under a limit of the address space. At least one: that of the process, which
/// reserves nothing.
fn max_heaps(limit: u64) -> i32 {
    i32::try_from(limit / HEAPS_PART / HEAP_BYTES).unwrap_or(i32::MAX).max(1)
}

/// Keeps the heaps of threads from taking what a limit of the address space leaves. glibc reserves
/// one for each thread while there is room for it, so that a higher limit could leave less. To be
/// called before there are threads.
pub fn bound_heaps() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if let Some(limit) = own_address_limit() {
        // SAFETY: it sets a number that glibc's allocator reads under its own lock.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, max_heaps(limit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       100 kB\nMemFree: 1 kB\nMemAvailable:   20 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable:"), Some(20 * 1024));
        assert_eq!(meminfo_bytes(text, "MemTotal:"), Some(100 * 1024));
        assert_eq!(meminfo_bytes("MemTotal: 1 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn a_limit_of_the_address_space_is_read() {
        let table = |limit: &str| {
            format!("Limit  Soft Limit  Hard Limit  Units\nMax address space  {limit} 9 bytes\n")
        };
        assert_eq!(address_limit(&table("4294967296")), Some(1 << 32));
        assert_eq!(address_limit(&table("unlimited")), None);
    }

    #[test]
    fn a_higher_limit_of_the_address_space_leaves_more() {
        let mut left_before = 0;
        for kib in (100_000..100_000_000).step_by(10_000) {
            let limit = kib << 10;
            let heaps = max_heaps(limit);
            assert!(heaps >= 1);
            // The first is that of the process.
            let reserved = if heaps == 1 { 0 } else { heaps as u64 * HEAP_BYTES };
            assert!(reserved <= limit / HEAPS_PART);
            // Steps down, where one heap more is allowed, are small beside what is left.
            let left = limit - reserved;
            assert!(left + 2 * HEAP_BYTES > left_before, "{kib}");
            left_before = left;
        }
        assert_eq!([1 << 20, 1 << 30, 2 << 30, 5 << 30].map(max_heaps), [1, 1, 2, 5]);
    }
}
