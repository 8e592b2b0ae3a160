//! `BlockList`: some of a number of blocks, in an order. Links are indices, so that a block leaves
//! it from anywhere in O(1) and nothing is allocated after `new`.

/// Neighbours of a block in the list; meaningless while it is not in it.
#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

/// A doubly linked list of blocks, each at most once.
#[derive(Debug)]
pub(super) struct BlockList {
    /// (num_blocks + 1) the last one is the sentinel: its next is the front, its prev the back.
    links: Vec<Links>,
    len: usize,
}

impl BlockList {
    /// All of so many blocks, in order.
    pub(super) fn all(num_blocks: usize) -> Self {
        assert!(num_blocks < u32::MAX as usize, "{num_blocks} blocks");
        let len = num_blocks as u32 + 1;
        let link = |i: u32| Links { prev: (i + len - 1) % len, next: (i + 1) % len };
        Self { links: (0..len).map(link).collect(), len: num_blocks }
    }

    /// Blocks in the list.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first one.
    pub(super) fn front(&self) -> Option<u32> {
        let front = self.links[self.sentinel() as usize].next;
        (front != self.sentinel()).then_some(front)
    }

    /// Takes a block out, which is in it.
    pub(super) fn remove(&mut self, block: u32) {
        let Links { prev, next } = self.links[block as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len -= 1;
    }

    /// Adds a block that is not in it before all others.
    pub(super) fn push_front(&mut self, block: u32) {
        self.link_after(self.sentinel(), block);
    }

    /// Adds a block that is not in it after all others.
    pub(super) fn push_back(&mut self, block: u32) {
        self.link_after(self.links[self.sentinel() as usize].prev, block);
    }

    /// The blocks in order, if the links agree.
    pub(super) fn assert_consistent(&self) -> Vec<u32> {
        let (mut at, mut listed) = (self.sentinel(), Vec::new());
        loop {
            let next = self.links[at as usize].next;
            assert_eq!(self.links[next as usize].prev, at, "links disagree");
            if next == self.sentinel() {
                assert_eq!(listed.len(), self.len);
                return listed;
            }
            listed.push(next);
            at = next;
        }
    }

    fn sentinel(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    fn link_after(&mut self, before: u32, block: u32) {
        let after = std::mem::replace(&mut self.links[before as usize].next, block);
        self.links[after as usize].prev = block;
        self.links[block as usize] = Links { prev: before, next: after };
        self.len += 1;
    }
}
