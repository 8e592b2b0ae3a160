//! How much memory the machine (or the container) has left, to size the KV pool.

use std::path::Path;

/// Bytes this process may still take: the smaller of the system's available memory and the room
/// under the cgroup's limit. None where the system does not say.
pub fn available_bytes() -> Option<u64> {
    let system = meminfo_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let cgroup = cgroup_room(Path::new("/sys/fs/cgroup"));
    Some(cgroup.map_or(system, |room| room.min(system)))
}

fn meminfo_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// cgroup v2: memory.max - memory.current; "max" is no limit.
fn cgroup_room(folder: &Path) -> Option<u64> {
    let read = |name: &str| -> Option<u64> {
        std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       100 kB\nMemFree: 1 kB\nMemAvailable:   20 kB\n";
        assert_eq!(meminfo_available(text), Some(20 * 1024));
        assert_eq!(meminfo_available("MemTotal: 1 kB\n"), None);
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
