//! `TowerCache`: embeddings of media by their numbers, as many as fit into a number of bytes. What
//! a step needs stays until the next one. Knows no tower and no table of media.

use std::collections::{BTreeSet, HashMap};

use vllm_batch_device::Tensor;

/// Most media. Each is a mapping of memory by itself, and Linux grants a process 65,530 of those.
const MAX_ENTRIES: usize = 1 << 14;

/// Embeddings of media.
#[derive(Debug)]
pub(super) struct TowerCache {
    max_bytes: u64,
    bytes: u64,
    entries: HashMap<u64, Entry>,
    /// (the last step that needed it, the medium), the longest unused first.
    by_use: BTreeSet<(u64, u64)>,
    step: u64,
}

#[derive(Debug)]
struct Entry {
    /// (num_tokens, hidden_size)
    rows: Tensor,
    last_use: u64,
}

fn bytes_of(rows: &Tensor) -> u64 {
    (rows.num_rows() * rows.row_bytes()) as u64
}

impl TowerCache {
    /// An empty cache.
    pub(super) fn new(max_bytes: u64) -> Self {
        let (entries, by_use) = (HashMap::new(), BTreeSet::new());
        Self { max_bytes, bytes: 0, entries, by_use, step: 0 }
    }

    /// Most bytes, unless a step needs more.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Begins a step that needs these media; those that are missing, each once, in their order.
    pub(super) fn begin_step(&mut self, media: impl Iterator<Item = u64>) -> Vec<u64> {
        self.step += 1;
        let mut missing = Vec::new();
        for medium in media {
            match self.entries.get_mut(&medium) {
                Some(entry) => {
                    self.by_use.remove(&(entry.last_use, medium));
                    entry.last_use = self.step;
                    self.by_use.insert((self.step, medium));
                }
                None if missing.contains(&medium) => {}
                None => missing.push(medium),
            }
        }
        self.make_room();
        missing
    }

    /// Embeddings that the step in hand needs. The longest unused others make room.
    pub(super) fn insert(&mut self, medium: u64, rows: Tensor) {
        self.bytes += bytes_of(&rows);
        self.by_use.insert((self.step, medium));
        let before = self.entries.insert(medium, Entry { rows, last_use: self.step });
        assert!(before.is_none(), "a medium is encoded where it is missing");
        self.make_room();
    }

    /// Drops the longest unused that the step does not need, where there are too many.
    fn make_room(&mut self) {
        while self.bytes > self.max_bytes || self.entries.len() > MAX_ENTRIES {
            match self.by_use.first().copied() {
                Some((last_use, oldest)) if last_use < self.step => self.remove(oldest),
                _ => break,
            }
        }
    }

    fn remove(&mut self, medium: u64) {
        if let Some(entry) = self.entries.remove(&medium) {
            self.by_use.remove(&(entry.last_use, medium));
            self.bytes -= bytes_of(&entry.rows);
        }
    }

    /// The embeddings of a medium of the step in hand.
    ///
    /// # Panics
    /// It was not inserted.
    pub(super) fn rows(&self, medium: u64) -> &Tensor {
        &self.entries.get(&medium).expect("a medium of the step is encoded").rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten rows of 4 values: 160 bytes.
    fn rows() -> Tensor {
        Tensor::zeros(10, 4)
    }

    fn step(cache: &mut TowerCache, media: &[u64]) -> Vec<u64> {
        let missing = cache.begin_step(media.iter().copied());
        missing.iter().for_each(|medium| cache.insert(*medium, rows()));
        media.iter().for_each(|medium| assert_eq!(cache.rows(*medium).num_rows(), 10));
        missing
    }

    #[test]
    fn the_longest_unused_makes_room() {
        let mut cache = TowerCache::new(3 * 160);
        assert_eq!(step(&mut cache, &[7, 8, 7, 9]), [7, 8, 9]);
        assert!(step(&mut cache, &[8]).is_empty());
        assert_eq!(step(&mut cache, &[5]), [5]);
        assert!(step(&mut cache, &[9, 8]).is_empty());
        assert_eq!((step(&mut cache, &[7]), cache.bytes), (vec![7], 3 * 160));
        assert_eq!(step(&mut cache, &[8, 5]), [5]);
    }

    #[test]
    fn small_media_are_no_more_than_the_system_has_mappings_for() {
        let mut cache = TowerCache::new(u64::MAX);
        for medium in 0..MAX_ENTRIES as u64 + 3 {
            assert_eq!(step(&mut cache, &[medium]), [medium]);
        }
        assert_eq!((cache.entries.len(), cache.by_use.len()), (MAX_ENTRIES, MAX_ENTRIES));
        assert_eq!(step(&mut cache, &[2, 3]), [2]);
    }

    #[test]
    fn what_a_step_needs_stays_however_much_it_is() {
        let mut cache = TowerCache::new(100);
        assert_eq!(step(&mut cache, &[1, 2, 3]), [1, 2, 3]);
        assert!(step(&mut cache, &[3, 2]).is_empty());
        assert_eq!(step(&mut cache, &[4]), [4]);
        assert_eq!((cache.entries.len(), cache.bytes), (1, 160));
    }

    #[test]
    fn what_the_next_step_does_not_need_goes_where_there_is_no_room() {
        let mut cache = TowerCache::new(200);
        assert_eq!(step(&mut cache, &[1, 2, 3]), [1, 2, 3]);
        assert!(step(&mut cache, &[3]).is_empty());
        assert_eq!((cache.entries.len(), cache.bytes), (1, 160));
    }
}
