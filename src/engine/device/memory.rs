//! How much memory the machine (or the container) has left, to size the KV pool; and what this
//! process gives back.

use std::path::Path;

/// Bytes this process may still take: the least of the system's available memory, the room under
/// the cgroup's limit, and that in its address space (`ulimit -v`). None where the system does not
/// say.
pub fn available_bytes() -> Option<u64> {
    let system = meminfo_bytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let bounds = [cgroup_room(Path::new("/sys/fs/cgroup")), address_room()];
    Some(bounds.into_iter().flatten().fold(system, u64::min))
}

/// Bytes that this process could take if all else made room: caches count as room here, which
/// `available_bytes` sees only outside of cgroups. None where the system does not say.
pub fn total_bytes() -> Option<u64> {
    let system = meminfo_bytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let cgroup = cgroup_bytes(Path::new("/sys/fs/cgroup"), "memory.max");
    Some(cgroup.map_or(system, |limit| limit.min(system)))
}

fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// cgroup v2: memory.max - memory.current; "max" is no limit.
fn cgroup_room(folder: &Path) -> Option<u64> {
    let limit = cgroup_bytes(folder, "memory.max")?;
    Some(limit.saturating_sub(cgroup_bytes(folder, "memory.current")?))
}

/// What a limit of the process leaves of its address space.
fn address_room() -> Option<u64> {
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

fn cgroup_bytes(folder: &Path, name: &str) -> Option<u64> {
    std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

/// Whether a limit is set on the address space of this process (`ulimit -v`).
pub fn has_address_limit() -> bool {
    own_address_limit().is_some()
}

/// What a thread's stack may reserve of a limited address space before it is needed, as a part of
/// the room.
const STACK_PART: u64 = 4;

/// Whether a stack of so many bytes may be reserved before it is needed: it takes nothing from what
/// is.
pub fn has_room_for_stack(bytes: usize) -> bool {
    address_room().is_none_or(|room| bytes as u64 <= room / STACK_PART)
}

/// What the heaps of threads may reserve of a limited address space, as a part of it.
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

/// Gives freed memory back to the system. glibc keeps what lies between blocks in use: after a
/// tokenizer of 262,144 tokens was loaded, more than it itself takes.
pub fn release_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this process that are in memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn resident_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        meminfo_bytes(&status, "VmRSS:").expect("a number")
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn freed_memory_is_given_back_below_a_block_in_use() {
        const SIZE: usize = 1 << 10;
        let mut blocks: Vec<_> = (0..200 << 10).map(|_| vec![1u8; SIZE]).collect();
        let last = blocks.pop();
        // All are in use: what other tests give back meanwhile does not count.
        let before = resident_bytes();
        drop(blocks);
        release_freed();
        let after = resident_bytes();
        // Other tests run meanwhile.
        assert!(after + (100 << 20) < before, "{after} of {before} bytes");
        assert!(last.is_some_and(|block| block[SIZE - 1] == 1));
    }

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

    #[test]
    fn a_cgroup_limit_bounds_it_and_max_does_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("memory.current"), "300\n").unwrap();
        std::fs::write(folder.path().join("memory.max"), "1000\n").unwrap();
        assert_eq!(cgroup_room(folder.path()), Some(700));
        std::fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(cgroup_room(folder.path()), None);
    }
}
