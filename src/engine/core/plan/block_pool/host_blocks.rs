//! `HostBlocks`: blocks in the host's memory, which take in prefixes that leave the device, and
//! give them back (vLLM's KV offloading).
//!
//! In the prefix cache and in lists of copies they are the blocks after those of the device. A
//! prefix that moves keeps its serial, so what follows it is found as before.

use super::block_list::BlockList;
use crate::plan::prefix_cache::PrefixCache;

/// Which of them hold a prefix, and what has moved.
#[derive(Debug)]
pub(super) struct HostBlocks {
    /// The number of the first one: that of the device's blocks.
    first: u32,
    /// Those that hold nothing, then those that hold a prefix, the one that came first first. The
    /// numbers count from 0.
    list: BlockList,
    /// From and to, in the order in which contents have moved since `take_copies`.
    copies: Vec<(u32, u32)>,
    num_kept: u64,
    num_returned: u64,
}

impl HostBlocks {
    pub(super) fn new(num_device_blocks: usize, num_blocks: usize) -> Self {
        let first = num_device_blocks as u32;
        let list = BlockList::all(num_blocks);
        Self { first, list, copies: Vec::new(), num_kept: 0, num_returned: 0 }
    }

    /// Whether a block is one of these.
    pub(super) fn contains(&self, block: u32) -> bool {
        block >= self.first
    }

    /// Takes in the prefix of a block of the device, in place of the one that is here longest.
    pub(super) fn keep(&mut self, block: u32, cache: &mut PrefixCache) {
        let Some(place) = self.list.front() else { return cache.evict(block) };
        let to = self.first + place;
        cache.evict(to);
        cache.move_to(block, to);
        self.list.remove(place);
        self.list.push_back(place);
        self.copies.push((block, to));
        self.num_kept += 1;
    }

    /// Until `give_back` no other prefix takes the place of that of `block`.
    pub(super) fn hold(&mut self, block: u32) {
        self.list.remove(block - self.first);
    }

    /// Gives the prefix of a block that is held to one of the device, which holds none.
    pub(super) fn give_back(&mut self, block: u32, to: u32, cache: &mut PrefixCache) {
        cache.move_to(block, to);
        self.list.push_front(block - self.first);
        self.copies.push((block, to));
        self.num_returned += 1;
    }

    /// Moves what was to be copied, in order, to the end of `copies`.
    pub(super) fn take_copies(&mut self, copies: &mut Vec<(u32, u32)>) {
        copies.append(&mut self.copies);
    }

    /// Blocks that were taken in so far, and those that were given back.
    pub(super) fn num_moved(&self) -> (u64, u64) {
        (self.num_kept, self.num_returned)
    }

    /// Every block is in the list: those without a prefix first. For tests.
    pub(super) fn assert_consistent(&self, cache: &PrefixCache) {
        let holds = |place: &u32| cache.serial(self.first + place).is_some();
        let listed = self.list.assert_consistent();
        assert!(listed.is_sorted_by_key(holds), "blocks without a prefix come first");
    }
}
