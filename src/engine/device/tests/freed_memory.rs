//! Memory that is given back: the memory of a process is counted, so this test is alone in one.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

use vllm_batch_base::machine::address_space::meminfo_bytes;
use vllm_batch_device::memory::release_freed;

/// Bytes of this process that are in memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    meminfo_bytes(&status, "VmRSS:").expect("a number")
}

#[test]
fn freed_memory_is_given_back_below_a_block_in_use() {
    const SIZE: usize = 1 << 10;
    let mut blocks: Vec<_> = (0..200 << 10).map(|_| vec![1u8; SIZE]).collect();
    let last = blocks.pop();
    let before = resident_bytes();
    drop(blocks);
    release_freed();
    let after = resident_bytes();
    assert!(after + (150 << 20) < before, "{after} of {before} bytes");
    assert!(last.is_some_and(|block| block[SIZE - 1] == 1));
}
