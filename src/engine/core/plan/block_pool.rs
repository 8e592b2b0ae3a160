//! `BlockPool`: which KV blocks are free, who shares them, and which hold a reusable prefix.
//!
//! The free list is vLLM's. Allocation takes from the front. A freed block that holds a registered
//! prefix goes to the back (LRU), any other to the front. A free block keeps its prefix until it is
//! allocated again (lazy eviction), and a hit takes it out of the list (`take_prefix`). Where there
//! are blocks in the host's memory (`host_blocks.rs`), the prefix goes there then.
//!
//! ```text
//! front -> [no prefix] ... [no prefix] [oldest prefix] ... [newest prefix] <- back
//!           ^ allocate()                                    a chain's tail is before its head
//! ```

mod block_list;
mod host_blocks;

use super::prefix_cache::{PrefixCache, ROOT_SERIAL};
use block_list::BlockList;
use host_blocks::HostBlocks;

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

/// The blocks of the paged KV cache. Knows ids only; the memory is the executor's.
#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    /// (num_blocks) sequences that use each block.
    ref_counts: Vec<u32>,
    /// Those without users.
    free: BlockList,
    /// Free blocks that hold a prefix.
    num_free_prefixes: usize,
    prefix_cache: Option<PrefixCache>,
    /// Those of the host, if prefixes go there.
    host: Option<HostBlocks>,
}

impl BlockPool {
    /// `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: usize, block_size: usize, enable_prefix_caching: bool) -> Self {
        assert!(num_blocks > 0 && block_size > 0);
        Self {
            block_size,
            ref_counts: vec![0; num_blocks],
            free: BlockList::all(num_blocks),
            num_free_prefixes: 0,
            prefix_cache: enable_prefix_caching.then(|| PrefixCache::new(num_blocks, block_size)),
            host: None,
        }
    }

    /// The same with so many blocks in the host's memory, to which prefixes go that leave these.
    ///
    /// # Panics
    /// There are some, and the pool has no prefix cache.
    pub fn with_host_blocks(self, num_host_blocks: usize) -> Self {
        if num_host_blocks == 0 {
            return self;
        }
        assert!(self.prefix_cache.is_some(), "the host's blocks hold prefixes");
        let num_blocks = self.num_blocks();
        Self {
            prefix_cache: Some(PrefixCache::new(num_blocks + num_host_blocks, self.block_size)),
            host: Some(HostBlocks::new(num_blocks, num_host_blocks)),
            ..self
        }
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks of the pool, free and in use.
    pub fn num_blocks(&self) -> usize {
        self.ref_counts.len()
    }

    /// Blocks that nobody uses; they may hold prefixes.
    pub fn num_free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Those of them that hold no prefix: so many can be allocated before one is forgotten.
    pub fn num_fresh_blocks(&self) -> usize {
        self.free.len() - self.num_free_prefixes
    }

    /// Sequences that use a block.
    pub fn ref_count(&self, block: u32) -> u32 {
        self.ref_counts[block as usize]
    }

    /// Takes the block at the front of the free list; the prefix it held goes to the host's blocks,
    /// or is forgotten.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.front()?;
        self.take(block);
        if let Some(cache) = &mut self.prefix_cache {
            match &mut self.host {
                Some(host) if cache.serial(block).is_some() => host.keep(block, cache),
                _ => cache.evict(block),
            }
        }
        Some(block)
    }

    /// One user more of a block that is in use.
    pub fn share(&mut self, block: u32) {
        assert!(self.ref_count(block) > 0, "block {block} is shared while free");
        self.ref_counts[block as usize] += 1;
    }

    /// Blocks of the free list that `take_prefix` takes for blocks that were found.
    pub fn num_free_of_prefix(&self, hits: &[u32]) -> usize {
        let is_free = |&&block: &&u32| self.is_on_host(block) || self.ref_count(block) == 0;
        hits.iter().filter(is_free).count()
    }

    /// One user more of each block that `find_prefix` found, free or in use. Those of the host come
    /// back: others take their places in `hits`. `num_free_of_prefix` of them are free.
    pub fn take_prefix(&mut self, hits: &mut [u32]) {
        for &block in &*hits {
            match &mut self.host {
                Some(host) if host.contains(block) => host.hold(block),
                _ => self.use_found(block),
            }
        }
        // First all that leave for their sake: then both ways are one group of copies each.
        let num_of_host = hits.iter().filter(|&&block| self.is_on_host(block)).count();
        let to: Vec<u32> = (0..num_of_host).map_while(|_| self.allocate()).collect();
        let (Some(host), Some(cache)) = (&mut self.host, &mut self.prefix_cache) else { return };
        let of_host = hits.iter_mut().filter(|block| host.contains(**block));
        let pairs: Vec<_> = of_host.zip(to).collect();
        assert_eq!(pairs.len(), num_of_host, "the blocks were counted");
        for (hit, to) in pairs {
            host.give_back(std::mem::replace(hit, to), to, cache);
        }
    }

    /// Moves the copies of blocks that `allocate` and `take_prefix` have asked for to the end of
    /// `copies`, in the order in which they are to be made.
    pub fn take_copies(&mut self, copies: &mut Vec<(u32, u32)>) {
        if let Some(host) = &mut self.host {
            host.take_copies(copies);
        }
    }

    /// Prefixes that went to the host's blocks so far, and those that came back.
    pub fn num_moved(&self) -> (u64, u64) {
        self.host.as_ref().map_or((0, 0), HostBlocks::num_moved)
    }

    /// One user less of each block of a sequence, last block first: of a chain's blocks the tail is
    /// evicted before the head, without which it could not be found.
    pub fn free(&mut self, block_table: &[u32]) {
        for &block in block_table.iter().rev() {
            let ref_count = &mut self.ref_counts[block as usize];
            assert!(*ref_count > 0, "block {block} is freed twice");
            *ref_count -= 1;
            if *ref_count == 0 {
                let holds_prefix = self.serial(block).is_some();
                match holds_prefix {
                    true => self.free.push_back(block),
                    false => self.free.push_front(block),
                }
                self.num_free_prefixes += usize::from(holds_prefix);
            }
        }
    }

    /// Replaces the contents of `hits` by the blocks that hold the longest known prefix of
    /// `token_ids` under a root, those of the host among them: full blocks, no more than
    /// `max_tokens` tokens. Returns the last one's serial.
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

    /// Blocks of a known prefix that the pool would forget: 0 while a sequence uses all of them.
    pub fn num_endangered(&self, known: KnownPrefix) -> usize {
        let last = known.last_block;
        let is_used = || !self.is_on_host(last) && self.ref_count(last) > 0;
        if known.num_blocks == 0 || is_used() { 0 } else { known.num_blocks }
    }

    /// Makes a full block findable as the child of `parent`; returns the parent of the next block.
    pub fn register(&mut self, block: u32, parent: u64, token_ids: &[u32]) -> u64 {
        assert!(self.ref_count(block) > 0, "block {block} is registered while free");
        match &mut self.prefix_cache {
            Some(cache) => cache.register(block, parent, token_ids),
            None => ROOT_SERIAL,
        }
    }

    /// Walks the lists: their links agree, and the free one holds exactly the blocks without users.
    /// O(num_blocks), for tests.
    pub fn assert_consistent(&self) {
        let mut listed = self.free.assert_consistent();
        listed.sort_unstable();
        let num_blocks = self.num_blocks() as u32;
        let unused = (0..num_blocks).filter(|&block| self.ref_count(block) == 0);
        assert!(listed.iter().copied().eq(unused), "a block is free and in use, or neither");
        let num_prefixes = listed.iter().filter(|&&block| self.serial(block).is_some()).count();
        assert_eq!(self.num_free_prefixes, num_prefixes);
        if let (Some(host), Some(cache)) = (&self.host, &self.prefix_cache) {
            host.assert_consistent(cache);
        }
    }

    fn serial(&self, block: u32) -> Option<u64> {
        self.prefix_cache.as_ref().and_then(|cache| cache.serial(block))
    }

    fn is_on_host(&self, block: u32) -> bool {
        self.host.as_ref().is_some_and(|host| host.contains(block))
    }

    fn use_found(&mut self, block: u32) {
        match self.ref_count(block) {
            0 => self.take(block),
            _ => self.share(block),
        }
    }

    /// The first user of a free block.
    fn take(&mut self, block: u32) {
        self.num_free_prefixes -= usize::from(self.serial(block).is_some());
        self.free.remove(block);
        self.ref_counts[block as usize] = 1;
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

    /// Finds a prefix and takes it.
    fn take(pool: &mut BlockPool, token_ids: &[u32]) -> Vec<u32> {
        let mut found = hits(pool, token_ids);
        pool.take_prefix(&mut found);
        found
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
    fn a_prefix_that_is_taken_leaves_the_free_list_and_is_shared() {
        let mut pool = BlockPool::new(2, 2, true);
        let table = chain(&mut pool, &[1, 2]);
        pool.free(&table);
        take(&mut pool, &[1, 2]);
        assert_eq!(pool.num_free_blocks(), 1);
        take(&mut pool, &[1, 2]);
        assert_eq!(pool.ref_count(table[0]), 2);
        assert_eq!(allocate(&mut pool, 1), [1]);
        assert_eq!(pool.allocate(), None);
        pool.free(&table);
        assert_eq!(pool.num_free_blocks(), 0, "one user remains");
        pool.free(&table);
        assert_eq!(pool.num_free_blocks(), 1);
        pool.assert_consistent();
    }

    /// The copies since the last call.
    fn copies(pool: &mut BlockPool) -> Vec<(u32, u32)> {
        let mut copies = Vec::new();
        pool.take_copies(&mut copies);
        copies
    }

    #[test]
    fn prefixes_go_to_the_host_and_come_back_with_what_follows_them() {
        let mut pool = BlockPool::new(3, 2, true).with_host_blocks(4);
        let tokens = [1, 2, 3, 4, 5, 6];
        let table = chain(&mut pool, &tokens);
        pool.free(&table);
        // The head stays on the device.
        let other = allocate(&mut pool, 2);
        assert_eq!(other, [table[2], table[1]]);
        assert_eq!(copies(&mut pool), [(table[2], 3), (table[1], 4)]);
        assert_eq!(hits(&pool, &tokens), [table[0], 4, 3]);
        assert_eq!(pool.num_free_of_prefix(&[table[0], 4, 3]), 3);
        pool.assert_consistent();
        pool.free(&other);
        let new = [table[0], table[2], table[1]];
        assert_eq!(take(&mut pool, &tokens), new);
        assert_eq!(copies(&mut pool), [(4, table[2]), (3, table[1])]);
        assert_eq!(pool.num_moved(), (2, 2));
        assert_eq!(hits(&pool, &tokens), new);
        pool.assert_consistent();
    }

    #[test]
    fn the_host_forgets_what_came_first_and_holds_what_is_on_its_way_back() {
        let mut pool = BlockPool::new(2, 2, true).with_host_blocks(2);
        let tokens: [&[u32]; 4] = [&[1, 2], &[3, 4], &[5, 6], &[7, 8]];
        for token_ids in tokens {
            let table = chain(&mut pool, token_ids);
            pool.free(&table);
        }
        let place = |pool: &BlockPool, index: usize| hits(pool, tokens[index]);
        assert_eq!([0, 1, 2, 3].map(|index| place(&pool, index)), [[2], [3], [0], [1]]);
        copies(&mut pool);
        // The first comes back; the third leaves for it, and takes the place of the second.
        assert_eq!(take(&mut pool, tokens[0]), [0]);
        assert_eq!(copies(&mut pool), [(0, 3), (2, 0)]);
        assert_eq!(place(&pool, 1), [0; 0]);
        assert_eq!(place(&pool, 2), [3]);
        pool.assert_consistent();
        // The place that is free again is taken before another prefix is forgotten.
        assert_eq!(pool.allocate(), Some(1));
        assert_eq!(copies(&mut pool), [(1, 2)]);
        assert_eq!((place(&pool, 2), place(&pool, 3)), (vec![3], vec![2]));
        pool.assert_consistent();
    }

    #[test]
    fn a_prefix_is_forgotten_where_all_of_the_hosts_are_on_their_way_back() {
        let mut pool = BlockPool::new(1, 2, true).with_host_blocks(1);
        let table = chain(&mut pool, &[1, 2]);
        pool.free(&table);
        let table = chain(&mut pool, &[3, 4]);
        pool.free(&table);
        assert_eq!(copies(&mut pool), [(0, 1)]);
        assert_eq!(take(&mut pool, &[1, 2]), [0]);
        assert_eq!(copies(&mut pool), [(1, 0)]);
        assert!(hits(&pool, &[3, 4]).is_empty());
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
