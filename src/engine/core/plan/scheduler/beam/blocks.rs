//! KV blocks of beams.
//!
//! ```text
//! parent    [ full ][ full ][ half ]      after a round; a child is the parent with one more token
//! children  [   shared     ][ half ]      the last one goes on in the parent's own block,
//!           [   shared     ][ copy ]      the others in copies, made in the step that writes them
//! ```
//!
//! Beams share exactly the full blocks of the tokens that they have in common, also after a
//! preemption. So what a row needs of the pool is a function of its tokens, and no neighbour can
//! make it fail.

use super::{Beam, Donor, Scheduler};
use crate::plan::sequence::Sequence;
use crate::request::RequestStatus;

impl Scheduler {
    /// A sequence of the same tokens that shares all blocks of `parent`.
    pub(super) fn sharing(&mut self, parent: &Sequence) -> Sequence {
        parent.block_table.iter().for_each(|&block| self.block_pool.share(block));
        Sequence {
            serial: parent.serial,
            status: parent.status,
            token_ids: parent.token_ids.clone(),
            num_computed_tokens: parent.num_computed_tokens,
            block_table: parent.block_table.clone(),
            num_registered_blocks: parent.num_registered_blocks,
            last_serial: parent.last_serial,
            num_cached_tokens: parent.num_cached_tokens,
            ..Sequence::new(parent.request.clone(), parent.index)
        }
    }

    /// Blocks of a row for all its known tokens, each shared one once.
    pub(in crate::plan::scheduler) fn num_blocks_of_beams(&self, request_id: u64) -> usize {
        let row = self.beam_row(request_id);
        let leader = self.seq(row.leader());
        let per_beam = leader.num_tokens().div_ceil(self.block_size());
        if leader.status != RequestStatus::Running {
            let shared: usize = row.beams.iter().map(|beam| beam.donor.num_blocks).sum();
            return row.beams.len() * per_beam - shared;
        }
        let num_full = self.num_full_blocks(leader);
        let full = |beam: &Beam| &self.seq(beam.slot).block_table[..num_full];
        let mut blocks: Vec<u32> = row.beams.iter().flat_map(full).copied().collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len() + row.beams.len() * (per_beam - num_full)
    }

    /// Blocks whose tokens are all before the last one, which a beam computes alone.
    fn num_full_blocks(&self, seq: &Sequence) -> usize {
        (seq.num_tokens() - 1) / self.block_size()
    }

    /// Gives every beam that is not done blocks for all its known tokens, the one that it writes
    /// next for itself; false if the pool runs out.
    pub(in crate::plan::scheduler) fn grow_beams(&mut self, request_id: u64) -> bool {
        let row = self.beam_row(request_id);
        (row.num_done..row.beams.len()).all(|index| {
            let slot = self.beam_row(request_id).beams[index].slot;
            self.own_written_block(slot) && self.grow_sequence(slot)
        })
    }

    /// Replaces the block of the last token by a copy, where it is shared: it has the tokens before
    /// that one. Blocks before it stay shared, also while they are computed anew.
    fn own_written_block(&mut self, slot: usize) -> bool {
        let place = self.num_full_blocks(self.seq(slot));
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        match seq.block_table.get(place) {
            Some(&block) if self.block_pool.ref_count(block) > 1 => {}
            _ => return true,
        }
        let Some(copy) = self.block_pool.allocate() else { return false };
        let shared = std::mem::replace(&mut seq.block_table[place], copy);
        self.block_copies.push((shared, copy));
        self.block_pool.free(&[shared]);
        true
    }

    /// Takes the blocks of a row. It begins its round anew.
    pub(in crate::plan::scheduler) fn preempt_beams(&mut self, request_id: u64) {
        let donors = self.donors(request_id);
        let row = self.beam_rows.get_mut(&request_id).expect("the row is unfinished");
        row.num_done = 0;
        row.failure = None;
        row.search.restart_round();
        for (beam, donor) in row.beams.iter_mut().zip(donors) {
            beam.donor = donor;
            let seq = self.seqs[beam.slot].as_mut().expect("the slot is taken");
            self.block_pool.free(&seq.block_table);
            seq.preempt();
        }
        // Copies into blocks that nobody has.
        let Self { block_copies, block_pool, .. } = self;
        block_copies.retain(|&(_, copy)| block_pool.ref_count(copy) > 0);
    }

    /// Of each beam, the earlier one that it shares most full blocks with.
    fn donors(&self, request_id: u64) -> Vec<Donor> {
        let beams = &self.beam_row(request_id).beams;
        let full = |index: usize| {
            let seq = self.seq(beams[index].slot);
            &seq.block_table[..self.num_full_blocks(seq)]
        };
        let shared = |index: usize, beam: usize| {
            let pairs = full(index).iter().zip(full(beam));
            Donor { beam, num_blocks: pairs.take_while(|(own, other)| own == other).count() }
        };
        let most = |index: usize| {
            let earlier = (0..index).map(|beam| shared(index, beam));
            earlier.max_by_key(|donor| donor.num_blocks).unwrap_or_default()
        };
        (0..beams.len()).map(most).collect()
    }

    /// Gives the blocks of all known tokens to a row that waits, if that many are free.
    pub(in crate::plan::scheduler) fn admit_beams(&mut self, request_id: u64) -> bool {
        let row = self.beam_row(request_id);
        let (leader, num_beams) = (row.leader(), row.beams.len());
        let num_needed = self.num_blocks_of_beams(request_id);
        let num_taken = num_needed + self.num_kept_blocks;
        let has_room = num_beams == 1 || num_taken <= self.block_pool.num_free_blocks();
        if !has_room || !self.admit_sequence(leader) {
            return false;
        }
        (1..num_beams).for_each(|index| self.admit_beam(request_id, index));
        true
    }

    /// What the beam shared is computed by the beams before it, in this step or earlier.
    fn admit_beam(&mut self, request_id: u64, index: usize) {
        let beams = &self.beam_row(request_id).beams;
        let (slot, donor) = (beams[index].slot, beams[index].donor);
        let of_donor = &self.seq(beams[donor.beam].slot).block_table[..donor.num_blocks];
        let shared = of_donor.to_vec();
        shared.iter().for_each(|&block| self.block_pool.share(block));
        let block_size = self.block_size();
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        seq.status = RequestStatus::Running;
        seq.num_registered_blocks = shared.len();
        seq.num_computed_tokens = shared.len() * block_size;
        seq.block_table = shared;
        let grown = self.grow_sequence(slot);
        assert!(grown, "the blocks were counted");
    }
}
