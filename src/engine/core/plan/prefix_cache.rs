//! `PrefixCache`: from (parent block, token ids) to the block that holds their K and V.
//!
//! Every registered block has a serial that no other block ever had. A block's key is its parent's
//! serial with its own token ids, and both are compared in full: the hash only picks the bucket. So
//! a hit proves, by induction from the root, that the whole prefix is equal, and no collision can
//! give wrong K and V. When a parent is evicted its serial is gone for good, and children that
//! outlived it can no longer be found; they leave the pool by LRU order.
//!
//! ```text
//! tokens   | a b c d | e f g h | i j ...        block_size = 4
//! key       (0, abcd) (1, efgh)  not full: not registered
//! serial        1         2
//! ```

/// Serial of the parent that a sequence's first block has.
pub const ROOT_SERIAL: u64 = 0;

/// The same of a sequence that is computed with the adapter of a number, or whose media are of a
/// later epoch: its K and V are its own. Serials count from 1 upward and never come here.
pub fn root_serial(lora: Option<u32>, epoch: u32) -> u64 {
    match (lora, epoch) {
        (None, 0) => ROOT_SERIAL,
        // No adapter has the last number.
        _ => u64::MAX - (u64::from(epoch) << 32) - u64::from(lora.unwrap_or(u32::MAX)),
    }
}

/// The same of a request that shares nothing with others, whose number is its own. Neither serials
/// nor epochs come near.
pub fn own_root_serial(number: u64) -> u64 {
    (1 << 63) - 1 - number
}

const NONE: u32 = u32::MAX;

/// The table: chained buckets whose links are indices, so that it never allocates after `new`.
#[derive(Debug)]
pub struct PrefixCache {
    block_size: usize,
    /// (power of two) first block of each bucket, or NONE.
    buckets: Vec<u32>,
    /// (num_blocks) next block in the same bucket, or NONE.
    next: Vec<u32>,
    /// (num_blocks) serial of a registered block; ROOT_SERIAL: not registered.
    serials: Vec<u64>,
    /// (num_blocks) serial of a registered block's parent.
    parents: Vec<u64>,
    /// (num_blocks, block_size) token ids of registered blocks.
    token_ids: Vec<u32>,
    last_serial: u64,
}

impl PrefixCache {
    /// An empty cache over a pool of `num_blocks` blocks of `block_size` tokens.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self {
            block_size,
            buckets: vec![NONE; (num_blocks * 2).next_power_of_two()],
            next: vec![NONE; num_blocks],
            serials: vec![ROOT_SERIAL; num_blocks],
            parents: vec![ROOT_SERIAL; num_blocks],
            token_ids: vec![0; num_blocks * block_size],
            last_serial: ROOT_SERIAL,
        }
    }

    /// The block that holds `token_ids` (one block's worth) after the block `parent`.
    pub fn find(&self, parent: u64, token_ids: &[u32]) -> Option<u32> {
        let mut block = self.buckets[self.bucket(parent, token_ids)];
        while block != NONE && !self.holds(block, parent, token_ids) {
            block = self.next[block as usize];
        }
        (block != NONE).then_some(block)
    }

    /// Serial of a registered block, None of another.
    pub fn serial(&self, block: u32) -> Option<u64> {
        let serial = self.serials[block as usize];
        (serial != ROOT_SERIAL).then_some(serial)
    }

    /// Makes `block` findable, unless its content already is; returns the serial of the block that
    /// is found from now on (the canonical one), which is the parent of the sequence's next block.
    pub fn register(&mut self, block: u32, parent: u64, token_ids: &[u32]) -> u64 {
        if let Some(canonical) = self.find(parent, token_ids) {
            return self.serials[canonical as usize];
        }
        let at = block as usize;
        assert_eq!(self.serials[at], ROOT_SERIAL, "block {block} is registered twice");
        self.last_serial += 1;
        self.serials[at] = self.last_serial;
        self.parents[at] = parent;
        self.token_ids[at * self.block_size..][..self.block_size].copy_from_slice(token_ids);
        self.link(block);
        self.last_serial
    }

    /// Forgets a block; nothing happens if it is not registered.
    pub fn evict(&mut self, block: u32) {
        let at = block as usize;
        if self.serials[at] == ROOT_SERIAL {
            return;
        }
        let bucket = self.bucket(self.parents[at], self.content(block));
        let next = self.next[at];
        if self.buckets[bucket] == block {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket] as usize;
            while self.next[before] != block {
                before = self.next[before] as usize;
            }
            self.next[before] = next;
        }
        self.next[at] = NONE;
        self.serials[at] = ROOT_SERIAL;
    }

    /// What `from` holds is found in `to` from now on, with its serial. `to` holds nothing.
    pub fn move_to(&mut self, from: u32, to: u32) {
        let (at, new) = (from as usize, to as usize);
        assert_ne!(self.serials[at], ROOT_SERIAL, "block {from} holds nothing");
        assert_eq!(self.serials[new], ROOT_SERIAL, "block {to} holds a prefix");
        let serial = self.serials[at];
        let content = at * self.block_size..(at + 1) * self.block_size;
        self.evict(from);
        self.serials[new] = serial;
        self.parents[new] = self.parents[at];
        self.token_ids.copy_within(content, new * self.block_size);
        self.link(to);
    }

    /// Makes a block findable whose serial, parent and content are set.
    fn link(&mut self, block: u32) {
        let at = block as usize;
        let bucket = self.bucket(self.parents[at], self.content(block));
        self.next[at] = std::mem::replace(&mut self.buckets[bucket], block);
    }

    fn content(&self, block: u32) -> &[u32] {
        &self.token_ids[block as usize * self.block_size..][..self.block_size]
    }

    fn holds(&self, block: u32, parent: u64, token_ids: &[u32]) -> bool {
        self.parents[block as usize] == parent && self.content(block) == token_ids
    }

    fn bucket(&self, parent: u64, token_ids: &[u32]) -> usize {
        const K: u64 = 0x9E37_79B9_7F4A_7C15;
        let mixed = token_ids.iter().fold(parent.wrapping_mul(K), |h, &id| {
            (h.rotate_left(23) ^ u64::from(id)).wrapping_mul(K)
        });
        (mixed ^ (mixed >> 32)) as usize & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_needs_equal_tokens_and_an_equal_parent() {
        let mut cache = PrefixCache::new(4, 2);
        let first = cache.register(0, ROOT_SERIAL, &[1, 2]);
        let second = cache.register(1, first, &[1, 2]);
        assert_ne!(first, second);
        assert_eq!(cache.find(ROOT_SERIAL, &[1, 2]), Some(0));
        assert_eq!(cache.find(first, &[1, 2]), Some(1));
        assert_eq!(cache.find(second, &[1, 2]), None);
        assert_eq!(cache.find(ROOT_SERIAL, &[2, 1]), None);
    }

    #[test]
    fn adapters_have_roots_of_their_own() {
        let mut cache = PrefixCache::new(4, 2);
        let roots = [None, Some(0), Some(1)].map(|lora| root_serial(lora, 0));
        cache.register(0, roots[1], &[1, 2]);
        assert_eq!(roots.map(|root| cache.find(root, &[1, 2])), [None, Some(0), None]);
        let roots = [(None, 0), (Some(0), 0), (None, 1), (Some(0), 1), (Some(1), 1), (None, 2)];
        let roots = roots.map(|(lora, epoch)| root_serial(lora, epoch));
        assert_eq!(std::collections::HashSet::from(roots).len(), roots.len());
    }

    #[test]
    fn equal_content_adopts_the_first_blocks_serial() {
        let mut cache = PrefixCache::new(4, 2);
        let canonical = cache.register(0, ROOT_SERIAL, &[1, 2]);
        assert_eq!(cache.register(1, ROOT_SERIAL, &[1, 2]), canonical);
        assert_eq!(cache.serial(1), None);
        assert_eq!(cache.find(ROOT_SERIAL, &[1, 2]), Some(0));
    }

    #[test]
    fn children_of_an_evicted_block_are_never_found_again() {
        let mut cache = PrefixCache::new(4, 2);
        let parent = cache.register(0, ROOT_SERIAL, &[1, 2]);
        cache.register(1, parent, &[3, 4]);
        cache.evict(0);
        assert_eq!(cache.find(ROOT_SERIAL, &[1, 2]), None);
        let again = cache.register(2, ROOT_SERIAL, &[1, 2]);
        assert_ne!(again, parent);
        assert_eq!(cache.find(again, &[3, 4]), None);
    }

    #[test]
    fn what_moves_is_found_with_its_children() {
        let mut cache = PrefixCache::new(4, 2);
        let parent = cache.register(0, ROOT_SERIAL, &[1, 2]);
        cache.register(1, parent, &[3, 4]);
        cache.move_to(0, 3);
        assert_eq!(cache.find(ROOT_SERIAL, &[1, 2]), Some(3));
        assert_eq!((cache.serial(0), cache.serial(3)), (None, Some(parent)));
        assert_eq!(cache.find(parent, &[3, 4]), Some(1));
    }

    #[test]
    fn eviction_unlinks_from_the_middle_of_a_crowded_bucket() {
        // 64 blocks in 128 buckets: some chains are long enough to be cut at every place.
        let mut cache = PrefixCache::new(64, 1);
        for block in 0..64 {
            cache.register(block, ROOT_SERIAL, &[block * 7]);
        }
        for evicted in (0..64).step_by(3) {
            cache.evict(evicted);
        }
        for block in 0..64 {
            let expected = (block % 3 != 0).then_some(block);
            assert_eq!(cache.find(ROOT_SERIAL, &[block * 7]), expected);
        }
    }
}
