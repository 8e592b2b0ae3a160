//! Free memory of the machine (or the container), to size the KV pool; and memory that this
//! process gives back.

use std::path::Path;

use vllm_batch_base::machine::address_space::{address_room, meminfo_bytes};

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

/// cgroup v2: memory.max - memory.current; "max" is no limit.
fn cgroup_room(folder: &Path) -> Option<u64> {
    let limit = cgroup_bytes(folder, "memory.max")?;
    Some(limit.saturating_sub(cgroup_bytes(folder, "memory.current")?))
}

fn cgroup_bytes(folder: &Path, name: &str) -> Option<u64> {
    std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
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
