//! `BlockPool`: which KV blocks are free, who shares them, and which hold a reusable prefix.
//!
//! The free list is vLLM's: doubly linked, with links in the block's own record, so that a block
//! leaves it from anywhere in O(1). Allocation takes from the front. A freed block that holds a
//! registered prefix goes to the back (LRU), any other to the front. A free block keeps its prefix
//! until it is allocated again (lazy eviction), and a hit takes it out of the list (`touch`).
//!
//! ```text
//! front -> [no prefix] ... [no prefix] [oldest prefix] ... [newest prefix] <- back
//!           ^ allocate()                                    a chain's tail is before its head
//! ```

use super::prefix_cache::{PrefixCache, ROOT_SERIAL};

/// How much of some tokens the pool held when it was last asked, so that the next search goes on
/// from there. A hint: blocks before the last one may be gone since.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownPrefix {
    num_blocks: usize,
    last_block: u32,
    last_serial: u64,
}

impl KnownPrefix {
    /// Blocks of the prefix.
    pub fn num_blocks(self) -> usize {
        self.num_blocks
    }
}

#[derive(Clone, Debug)]
struct Block {
    ref_count: u32,
    /// Neighbours in the free list; meaningless while the block is in use.
    prev: u32,
    next: u32,
}

/// The blocks of the paged KV cache. Knows ids only; the memory is the executor's.
#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    /// (num_blocks + 1) the last one is the free list's sentinel: its next is the front, its prev
    /// the back.
    blocks: Vec<Block>,
    num_free_blocks: usize,
    /// Free blocks that hold a prefix.
    num_free_prefixes: usize,
    prefix_cache: Option<PrefixCache>,
}

impl BlockPool {
    /// `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: usize, block_size: usize, enable_prefix_caching: bool) -> Self {
        assert!(num_blocks > 0 && num_blocks < u32::MAX as usize, "{num_blocks} blocks");
        assert!(block_size > 0);
        let len = num_blocks as u32 + 1;
        let link = |i: u32| Block { ref_count: 0, prev: (i + len - 1) % len, next: (i + 1) % len };
        Self {
            block_size,
            blocks: (0..len).map(link).collect(),
            num_free_blocks: num_blocks,
            num_free_prefixes: 0,
            prefix_cache: enable_prefix_caching.then(|| PrefixCache::new(num_blocks, block_size)),
        }
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks of the pool, free and in use.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len() - 1
    }

    /// Blocks that nobody uses; they may hold prefixes.
    pub fn num_free_blocks(&self) -> usize {
        self.num_free_blocks
    }

    /// Those of them that hold no prefix: so many can be allocated before one is forgotten.
    pub fn num_fresh_blocks(&self) -> usize {
        self.num_free_blocks - self.num_free_prefixes
    }

    /// Sequences that use a block.
    pub fn ref_count(&self, block: u32) -> u32 {
        self.blocks[block as usize].ref_count
    }

    /// Takes the block at the front of the free list; the prefix it held is forgotten.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.blocks[self.sentinel()].next;
        if block as usize == self.sentinel() {
            return None;
        }
        self.unlink(block);
        self.blocks[block as usize].ref_count = 1;
        if let Some(cache) = &mut self.prefix_cache {
            cache.evict(block);
        }
        Some(block)
    }

    /// One more user of a block that was found by `find_prefix`, free or in use.
    pub fn touch(&mut self, block: u32) {
        if self.ref_count(block) == 0 {
            self.unlink(block);
        }
        self.blocks[block as usize].ref_count += 1;
    }

    /// One user less of each block of a sequence, last block first: of a chain's blocks the tail is
    /// evicted before the head, without which it could not be found.
    pub fn free(&mut self, block_table: &[u32]) {
        for &block in block_table.iter().rev() {
            let ref_count = &mut self.blocks[block as usize].ref_count;
            assert!(*ref_count > 0, "block {block} is freed twice");
            *ref_count -= 1;
            if *ref_count == 0 {
                let sentinel = self.sentinel() as u32;
                let holds_prefix = self.serial(block).is_some();
                let before =
                    if holds_prefix { self.blocks[sentinel as usize].prev } else { sentinel };
                self.link_after(before, block);
                self.num_free_prefixes += usize::from(holds_prefix);
            }
        }
    }

    /// Replaces the contents of `hits` by the blocks that hold the longest known prefix of
    /// `token_ids` under a root: full blocks, no more than `max_tokens` tokens. Returns the last
    /// one's serial.
    pub fn find_prefix(
        &self,
        (root, token_ids): (u64, &[u32]),
        max_tokens: usize,
        hits: &mut Vec<u32>,
    ) -> u64 {
        hits.clear();
        let mut parent = root;
        let Some(cache) = &self.prefix_cache else { return parent };
        for content in token_ids[..max_tokens].chunks_exact(self.block_size) {
            let Some(block) = cache.find(parent, content) else { break };
            hits.push(block);
            parent = cache.serial(block).expect("a found block is registered");
        }
        parent
    }

    /// Looks for more of a prefix than is known: full blocks, no more than `max_tokens` tokens.
    pub fn follow_prefix(
        &self,
        (root, token_ids): (u64, &[u32]),
        max_tokens: usize,
        known: &mut KnownPrefix,
    ) {
        let Some(cache) = &self.prefix_cache else { return };
        if known.num_blocks == 0 || cache.serial(known.last_block) != Some(known.last_serial) {
            *known = KnownPrefix { last_serial: root, ..KnownPrefix::default() };
        }
        let start = known.num_blocks * self.block_size;
        for content in token_ids[start..max_tokens.max(start)].chunks_exact(self.block_size) {
            let Some(block) = cache.find(known.last_serial, content) else { return };
            let last_serial = cache.serial(block).expect("a found block is registered");
            let num_blocks = known.num_blocks + 1;
            *known = KnownPrefix { num_blocks, last_block: block, last_serial };
        }
    }

    /// Makes a full block findable as the child of `parent`; returns the parent of the next block.
    pub fn register(&mut self, block: u32, parent: u64, token_ids: &[u32]) -> u64 {
        assert!(self.ref_count(block) > 0, "block {block} is registered while free");
        match &mut self.prefix_cache {
            Some(cache) => cache.register(block, parent, token_ids),
            None => ROOT_SERIAL,
        }
    }

    /// Walks the free list: its links agree, and it holds exactly the blocks without users.
    /// O(num_blocks), for tests.
    pub fn assert_consistent(&self) {
        let (sentinel, mut at, mut num_listed) = (self.sentinel(), self.sentinel(), 0);
        loop {
            let next = self.blocks[at].next as usize;
            assert_eq!(self.blocks[next].prev as usize, at, "links disagree");
            if next == sentinel {
                break;
            }
            assert_eq!(self.blocks[next].ref_count, 0, "block {next} is free and in use");
            num_listed += 1;
            at = next;
        }
        let unused = (0..sentinel as u32).filter(|&block| self.ref_count(block) == 0);
        assert_eq!((num_listed, num_listed), (self.num_free_blocks, unused.clone().count()));
        let num_prefixes = unused.filter(|&block| self.serial(block).is_some()).count();
        assert_eq!(self.num_free_prefixes, num_prefixes);
    }

    fn serial(&self, block: u32) -> Option<u64> {
        self.prefix_cache.as_ref().and_then(|cache| cache.serial(block))
    }

    fn sentinel(&self) -> usize {
        self.blocks.len() - 1
    }

    fn unlink(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        self.num_free_prefixes -= usize::from(self.serial(block).is_some());
        self.blocks[prev as usize].next = next;
        self.blocks[next as usize].prev = prev;
        self.num_free_blocks -= 1;
    }

    fn link_after(&mut self, before: u32, block: u32) {
        let after = std::mem::replace(&mut self.blocks[before as usize].next, block);
        self.blocks[after as usize].prev = block;
        self.blocks[block as usize].prev = before;
        self.blocks[block as usize].next = after;
        self.num_free_blocks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(pool: &mut BlockPool, count: usize) -> Vec<u32> {
        (0..count).map(|_| pool.allocate().expect("free blocks remain")).collect()
    }

    /// Allocates and registers a chain of blocks of two tokens each.
    fn chain(pool: &mut BlockPool, token_ids: &[u32]) -> Vec<u32> {
        let table = allocate(pool, token_ids.len() / 2);
        let mut parent = ROOT_SERIAL;
        for (&block, content) in table.iter().zip(token_ids.chunks(2)) {
            parent = pool.register(block, parent, content);
        }
        table
    }

    fn hits(pool: &BlockPool, token_ids: &[u32]) -> Vec<u32> {
        let mut hits = Vec::new();
        pool.find_prefix((ROOT_SERIAL, token_ids), token_ids.len(), &mut hits);
        hits
    }

    #[test]
    fn allocates_in_order_until_it_is_empty() {
        let mut pool = BlockPool::new(3, 2, true);
        assert_eq!(allocate(&mut pool, 3), [0, 1, 2]);
        assert_eq!(pool.allocate(), None);
        assert_eq!(pool.num_free_blocks(), 0);
        pool.assert_consistent();
    }

    #[test]
    fn blocks_without_a_prefix_are_reused_first_and_prefixes_by_age() {
        let mut pool = BlockPool::new(6, 2, true);
        let old = chain(&mut pool, &[1, 2, 3, 4]);
        let young = chain(&mut pool, &[5, 6]);
        let plain = allocate(&mut pool, 2);
        pool.free(&old);
        pool.free(&young);
        pool.free(&plain);
        pool.assert_consistent();
        // Block 5 was never used; `plain` lies before it; then the old chain, tail first.
        assert_eq!(allocate(&mut pool, 6), [3, 4, 5, old[1], old[0], young[0]]);
    }

    #[test]
    fn the_tail_of_a_chain_is_evicted_before_its_head() {
        let mut pool = BlockPool::new(3, 2, true);
        let table = chain(&mut pool, &[1, 2, 3, 4, 5, 6]);
        pool.free(&table);
        assert_eq!(hits(&pool, &[1, 2, 3, 4, 5, 6]), table);
        assert_eq!(pool.allocate(), Some(table[2]));
        assert_eq!(hits(&pool, &[1, 2, 3, 4, 5, 6]), table[..2]);
        assert_eq!(pool.allocate(), Some(table[1]));
        assert_eq!(hits(&pool, &[1, 2, 3, 4, 5, 6]), table[..1]);
    }

    #[test]
    fn touch_saves_a_free_block_and_shares_a_used_one() {
        let mut pool = BlockPool::new(2, 2, true);
        let table = chain(&mut pool, &[1, 2]);
        pool.free(&table);
        pool.touch(table[0]);
        assert_eq!(pool.num_free_blocks(), 1);
        pool.touch(table[0]);
        assert_eq!(pool.ref_count(table[0]), 2);
        assert_eq!(allocate(&mut pool, 1), [1]);
        assert_eq!(pool.allocate(), None);
        pool.free(&table);
        assert_eq!(pool.num_free_blocks(), 0, "one user remains");
        pool.free(&table);
        assert_eq!(pool.num_free_blocks(), 1);
        pool.assert_consistent();
    }

    #[test]
    fn the_search_stops_at_the_token_limit() {
        let mut pool = BlockPool::new(4, 2, true);
        let table = chain(&mut pool, &[1, 2, 3, 4]);
        let mut found = Vec::new();
        pool.find_prefix((ROOT_SERIAL, &[1, 2, 3, 4]), 3, &mut found);
        assert_eq!(found, table[..1]);
    }

    #[test]
    fn a_known_prefix_grows_and_is_forgotten_with_its_last_block() {
        let mut pool = BlockPool::new(4, 2, true);
        let tokens = [1, 2, 3, 4, 5, 6];
        let mut known = KnownPrefix::default();
        let mut follow = |pool: &BlockPool, max_tokens| {
            pool.follow_prefix((ROOT_SERIAL, &tokens), max_tokens, &mut known);
            known.num_blocks()
        };
        assert_eq!(follow(&pool, 6), 0);
        let table = chain(&mut pool, &tokens[..4]);
        assert_eq!(follow(&pool, 3), 1, "the limit is in the second block");
        assert_eq!(follow(&pool, 6), 2);
        let third = allocate(&mut pool, 1)[0];
        let parent = pool.serial(table[1]).expect("it is registered");
        pool.register(third, parent, &tokens[4..]);
        assert_eq!(follow(&pool, 6), 3);
        assert_eq!(pool.num_fresh_blocks(), 1);
        pool.free(&[table[0], table[1], third]);
        assert_eq!((pool.num_free_blocks(), pool.num_fresh_blocks()), (4, 1));
        allocate(&mut pool, 2);
        pool.assert_consistent();
        assert_eq!(follow(&pool, 6), 2, "the third was allocated again");
    }

    #[test]
    fn without_prefix_caching_nothing_is_found() {
        let mut pool = BlockPool::new(4, 2, false);
        let table = chain(&mut pool, &[1, 2, 3, 4]);
        assert!(hits(&pool, &[1, 2, 3, 4]).is_empty());
        pool.free(&table);
        pool.assert_consistent();
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_a_broken_invariant() {
        let mut pool = BlockPool::new(2, 2, true);
        let table = allocate(&mut pool, 1);
        pool.free(&table);
        pool.free(&table);
    }
}
