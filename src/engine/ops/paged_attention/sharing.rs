//! Sequences of a step that begin with the same blocks.

use crate::batch::Batch;

/// The sequences of a step in an order in which those that share blocks lie beside each other.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// First block << 32 | sequence.
    order: Vec<u64>,
    /// By place in `order`: leading blocks that are also those of the sequence before.
    depths: Vec<u32>,
}

impl Sharing {
    /// Of a step, whose blocks have so many tokens. Only blocks that are full are compared.
    ///
    /// Where nothing is shared this sorts one number for each sequence and compares neighbours'
    /// first blocks: some 10 ns a sequence. Tables are compared further only where first blocks
    /// are equal: 93 shared blocks cost a sequence 90 to 150 ns.
    pub(crate) fn find(&mut self, batch: &Batch, block_size: usize) {
        let table = |key: u64| {
            let seq = seq_of(key);
            &batch.block_table(seq)[..batch.seq_lens[seq] as usize / block_size]
        };
        self.order.clear();
        self.order.extend((0..batch.num_seqs() as u64).map(|seq| {
            let first = table(seq).first().copied().unwrap_or(u32::MAX);
            u64::from(first) << 32 | seq
        }));
        self.order.sort_unstable();
        for run in self.order.chunk_by_mut(|a, b| first_block(*a) == first_block(*b)) {
            let first = table(run[0]);
            let lens = run[1..].iter().map(|key| common_len(first, table(*key)));
            let Some(common) = lens.min() else { continue };
            let rest = |key: u64| &table(key)[common..];
            run.sort_unstable_by(|a, b| rest(*a).cmp(rest(*b)).then(a.cmp(b)));
        }
        self.depths.clear();
        self.depths.extend(self.order.first().map(|_| 0));
        self.depths.extend(self.order.windows(2).map(|pair| {
            match first_block(pair[0]) == first_block(pair[1]) {
                true => common_len(table(pair[0]), table(pair[1])) as u32,
                false => 0,
            }
        }));
    }

    /// Sequences of the step.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The sequence at a place of the order.
    pub(crate) fn seq(&self, place: usize) -> usize {
        seq_of(self.order[place])
    }

    /// Leading blocks that it shares with the sequence at the place before.
    pub(crate) fn depth(&self, place: usize) -> usize {
        self.depths[place] as usize
    }
}

fn seq_of(key: u64) -> usize {
    (key & u64::from(u32::MAX)) as usize
}

fn first_block(key: u64) -> u64 {
    key >> 32
}

/// Leading blocks of one table that are those of another.
fn common_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_that_share_lie_beside_each_other() {
        let tables: [&[u32]; 7] =
            [&[7, 1, 2], &[3, 4, 5], &[7, 1, 6], &[9, 0, 0], &[3, 4, 8], &[7, 2, 2], &[3, 0, 0]];
        let batch = Batch {
            // The last sequences have one full block, and none.
            seq_lens: vec![48, 50, 63, 31, 48, 48, 15],
            block_tables: tables.concat(),
            max_blocks_per_seq: 3,
            ..Batch::default()
        };
        let mut sharing = Sharing::default();
        sharing.find(&batch, 16);
        let seqs: Vec<usize> = (0..sharing.len()).map(|place| sharing.seq(place)).collect();
        let depths: Vec<usize> = (0..sharing.len()).map(|place| sharing.depth(place)).collect();
        assert_eq!(seqs, [1, 4, 0, 2, 5, 3, 6]);
        assert_eq!(depths, [0, 2, 0, 2, 1, 0, 0]);
        sharing.find(&Batch::default(), 16);
        assert_eq!(sharing.len(), 0);
    }
}
