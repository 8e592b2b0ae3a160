//! Parts of batches: what is shared, what is cut, and that every split is computed once.

use super::*;
use crate::step::work_of;
use vllm_batch_base::split_mix::{GAMMA, mix};

const BLOCK_SIZE: usize = 32;

/// On a GPU of so many resident blocks.
fn shape(num_blocks: usize) -> Shape {
    Shape {
        num_kv_heads: 8,
        shared_tokens: 32,
        decode_blocks: num_blocks,
        shared_blocks: num_blocks,
        block_size: BLOCK_SIZE,
        max_slots: 8192,
    }
}

/// A sequence that computes its last tokens: which beginning it has, of how many positions, its
/// length, and how many tokens.
type Seq = (u32, u32, u32, u32);

/// A batch of sequences, with blocks of their own behind what they share.
fn batch(seqs: &[Seq]) -> Batch {
    let longest = seqs.iter().map(|seq| seq.2).max().unwrap_or(0);
    let max_blocks_per_seq = longest.div_ceil(BLOCK_SIZE as u32) as usize;
    let mut batch = Batch { query_start_loc: vec![0], max_blocks_per_seq, ..Batch::default() };
    for (index, (prefix, shared, len, num_tokens)) in seqs.iter().enumerate() {
        batch.query_start_loc.push(batch.query_start_loc[index] + num_tokens);
        batch.seq_lens.push(*len);
        let own = 1_000_000 * (index as u32 + 100);
        let block = |block: u32| match (block + 1) * BLOCK_SIZE as u32 <= *shared {
            true => 10_000 * prefix + block,
            false => own + block,
        };
        batch.block_tables.extend((0..max_blocks_per_seq as u32).map(block));
    }
    batch
}

/// Tokens of a unit of prefill.
const PREFILL_TOKENS: u32 = 32;

fn make(seqs: &[Seq], shape: Shape) -> (Plan, Vec<AttentionWork>) {
    let (mut plan, mut units) = (Plan::default(), Vec::new());
    let batch = batch(seqs);
    let prefill: Vec<AttentionWork> = (0..batch.num_seqs())
        .filter(|seq| seqs[*seq].3 > 1)
        .flat_map(|seq| {
            let tokens = batch.query_start_loc[seq]..batch.query_start_loc[seq + 1];
            let first = batch.seq_lens[seq] - seqs[seq].3;
            work_of(tokens, PREFILL_TOKENS, ((seq * batch.max_blocks_per_seq) as u32, first))
        })
        .collect();
    plan.make((&batch, &prefill), &mut Sharing::default(), shape, &mut units);
    (plan, units)
}

/// Sequences of one length that decode and begin with as many positions of one prompt.
fn few_shot(num_seqs: u32, shared: u32, own: u32) -> Vec<Seq> {
    (0..num_seqs).map(|_| (1, shared, shared + own, 1)).collect()
}

/// The positions that each of a row's slots has, upward; as (start, end).
fn slots_of_row(plan: &Plan, units: &[AttentionWork], merge: MergeWork) -> Vec<(u32, u32)> {
    let mut slots = vec![None; merge.num_slots as usize];
    let mut fill = |slot: u32, positions: (u32, u32)| {
        let place = &mut slots[(slot - merge.slot) as usize];
        assert_eq!(place.replace(positions), None, "a slot is written once");
    };
    let splits = |start: u32, end: u32| {
        let starts = (start..end).step_by(SPLIT as usize);
        starts.enumerate().map(move |(i, start)| (i as u32, (start, end.min(start + SPLIT))))
    };
    for work in &plan.shared {
        let tokens = &plan.shared_tokens[work.first as usize..][..work.num_tokens as usize];
        for token in tokens.iter().filter(|token| token.token == merge.token) {
            match work.start {
                0 => fill(token.slot + work.place, (0, work.end)),
                start => splits(start, work.end)
                    .for_each(|(i, split)| fill(token.slot + work.place + i, split)),
            }
        }
    }
    for unit in units.iter().filter(|unit| unit.token == merge.token) {
        splits(unit.start, unit.end).for_each(|(i, split)| fill(unit.slot + i, split));
    }
    slots.into_iter().map(|slot| slot.expect("every slot is written")).collect()
}

/// Every row that decodes is computed once, from its first position to its last, in one unit or in
/// slots of its own; and so is every token of a chunk that is cut. Gives how many chunks are.
fn check_cover(seqs: &[Seq], shape: Shape) -> usize {
    let (plan, units) = make(seqs, shape);
    let batch = batch(seqs);
    let mut taken = Vec::new();
    let is_cut = |seq: usize| plan.cut_seqs.contains(&((seq * batch.max_blocks_per_seq) as u32));
    let tokens = seqs.iter().enumerate().flat_map(|(index, (.., len, num_tokens))| {
        let first = batch.query_start_loc[index];
        (0..*num_tokens).map(move |i| (index, first + i, len - num_tokens + 1 + i))
    });
    for (index, token, len) in tokens {
        let mut merges = plan.merges.iter().filter(|merge| merge.token == token);
        let Some(merge) = merges.next() else {
            assert!(!is_cut(index));
            let own: Vec<_> = units.iter().filter(|unit| unit.token == token).collect();
            if seqs[index].3 > 1 {
                assert!(own.is_empty(), "prefill computes it");
            } else if !plan.merges.is_empty() {
                assert_eq!(own.len(), 1);
                assert_eq!((own[0].start, own[0].end, own[0].slot), (0, len, NO_SLOT));
            }
            continue;
        };
        assert!(merges.next().is_none());
        assert!(seqs[index].3 == 1 || is_cut(index));
        let mut next = 0;
        for (start, end) in slots_of_row(&plan, &units, *merge) {
            assert_eq!(start, next, "{seqs:?}");
            assert!(end % SPLIT == 0 || end == len);
            next = end;
        }
        assert_eq!(next, len, "{seqs:?}");
        taken.extend(merge.slot..merge.slot + merge.num_slots);
    }
    taken.sort_unstable();
    assert!(taken.windows(2).all(|pair| pair[0] < pair[1]), "rows have slots of their own");
    assert!(taken.last().is_none_or(|last| (*last as usize) < shape.max_slots));
    for work in &plan.shared {
        let table = |token: u32| {
            let seq = batch.query_start_loc.partition_point(|start| *start <= token) - 1;
            &batch.block_table(seq)[..work.end as usize / BLOCK_SIZE]
        };
        let first = work.seq as usize / batch.max_blocks_per_seq;
        let tokens = &plan.shared_tokens[work.first as usize..][..work.num_tokens as usize];
        let expected = &batch.block_table(first)[..work.end as usize / BLOCK_SIZE];
        assert!(tokens.iter().all(|token| table(token.token) == expected), "{seqs:?}");
        // Tokens of a chunk see all of it.
        assert!(!is_cut(first) || work.end <= batch.seq_lens[first] - seqs[first].3);
    }
    plan.cut_seqs.len()
}

#[test]
fn rows_are_covered_once_whatever_the_batch_and_the_gpu() {
    let mut state = 0u64;
    let mut below = |n: u64| {
        state = state.wrapping_add(GAMMA);
        (mix(state) % n) as u32
    };
    let mut num_cut = 0;
    for _ in 0..400 {
        let num_seqs = 1 + below(40);
        let seqs: Vec<Seq> = (0..num_seqs)
            .map(|_| {
                let longest = if below(4) == 0 { 6000 } else { 900 };
                let len = 1 + below(longest);
                let num_tokens = if below(5) == 0 { 1 + below(u64::from(len).min(70)) } else { 1 };
                (below(3), below(3000), len, num_tokens)
            })
            .collect();
        for num_blocks in [1, 2, 16, 264] {
            for (num_kv_heads, max_slots) in [(1, 8192), (8, 8192), (2, 40)] {
                let shape = Shape { num_kv_heads, max_slots, ..shape(num_blocks) };
                num_cut += check_cover(&seqs, shape);
            }
        }
    }
    assert!(num_cut > 100, "{num_cut} chunks were cut");
}

#[test]
fn chunks_of_few_tokens_behind_long_contexts_are_cut_and_others_are_not() {
    let cut = |seqs: &[Seq]| {
        let (plan, _) = make(seqs, shape(264));
        (check_cover(seqs, shape(264)), plan.shared.len())
    };
    // 8 guesses at 32k, 8 units of 128 splits: 4 in each block, and 2 in a part.
    assert_eq!(cut(&[(0, 0, 32 << 10, 8)]), (1, 64));
    // The end of a prompt of 128k. Its 64 tokens have 128 slots each, so that 385 of 511 splits go
    // together: that does not pay.
    assert_eq!(cut(&[(0, 0, 128 << 10, 64)]), (0, 0));
    assert_eq!(cut(&[(0, 0, 128 << 10, 16)]).0, 1);
    // Rows with guesses fill the GPU, as do other prompts, and short contexts are not worth it.
    assert_eq!(cut(&[(0, 0, 32 << 10, 8); 40]), (0, 0));
    assert_eq!(cut(&[(0, 0, 32 << 10, 8), (0, 0, 40_000, 8000)]), (0, 0));
    assert_eq!(cut(&[(0, 0, 1000, 8)]), (0, 0));
}

#[test]
fn short_contexts_and_even_batches_stay_whole() {
    let of = |num_seqs: usize, len: u32| vec![(0, 0, len, 1); num_seqs];
    for seqs in [of(256, 1000), of(1024, 200), of(4, 768), of(64, 32_000), of(1, 20), of(0, 0)] {
        assert!(make(&seqs, shape(264)).0.merges.is_empty(), "{:?}", seqs.first());
    }
    // Two rows that share save nothing.
    assert!(make(&few_shot(2, 2048, 300), shape(2)).0.merges.is_empty());
}

#[test]
fn a_long_row_beside_short_ones_is_cut_and_they_are_not() {
    let mut seqs = vec![(0, 0, 900, 1); 255];
    seqs.push((0, 0, 128 << 10, 1));
    let (plan, units) = make(&seqs, shape(264));
    assert_eq!(plan.merges, [MergeWork { token: 255, slot: 0, num_slots: 512 }]);
    assert_eq!(units.iter().filter(|unit| unit.slot == NO_SLOT).count(), 255);
    // 12,256 splits on 264 blocks are 47 each.
    let parts: Vec<_> = units.iter().filter(|unit| unit.token == 255).collect();
    assert_eq!(parts.len(), 512usize.div_ceil(24));
    assert!(parts.iter().all(|part| part.end - part.start <= 24 * SPLIT));
}

#[test]
fn rows_that_share_compute_it_together_and_in_parts_where_blocks_are_left() {
    let (plan, units) = make(&few_shot(256, 2000, 200), shape(264));
    // 7 splits are shared: 8 units of rows and 8 heads over 264 blocks, 2 splits in each.
    let starts: Vec<_> = plan.shared[..4].iter().map(|work| (work.start, work.place)).collect();
    assert_eq!(starts, [(0, 0), (512, 1), (1024, 3), (1536, 5)]);
    assert_eq!((plan.shared.len(), plan.shared_tokens.len(), units.len()), (8 * 4, 256, 256));
    assert!(units.iter().all(|unit| (unit.start, unit.end) == (1792, 2200)));
    // One slot for the first part, five for the others, two for the row's own splits.
    assert!(plan.merges.iter().all(|merge| merge.num_slots == 8));
    // Without slots for that, all of it is merged at once.
    let few_slots = Shape { max_slots: 256 * 3, ..shape(264) };
    let (plan, _) = make(&few_shot(256, 2000, 200), few_slots);
    assert!(plan.shared.iter().all(|work| (work.start, work.end) == (0, 1792)));
    assert!(plan.merges.iter().all(|merge| merge.num_slots == 3));
    let too_few = Shape { max_slots: 256 * 3 - 1, ..shape(264) };
    assert!(make(&few_shot(256, 2000, 200), too_few).0.shared.is_empty());
}

/// A prompt of all rows, and longer ones of some.
#[test]
fn groups_are_those_that_save_most() {
    let with = |prefix: u32, shared: u32| move |_| (prefix, shared, 3000, 1);
    let seqs: Vec<Seq> = (0..40).map(with(1, 2048)).chain((0..40).map(with(2, 2048))).collect();
    let mut batch = batch(&seqs);
    // All begin with the first split of the first prompt.
    for seq in 40..80 {
        let table = seq * batch.max_blocks_per_seq;
        batch.block_tables.copy_within(0..SPLIT as usize / BLOCK_SIZE, table);
    }
    let (mut plan, mut units) = (Plan::default(), Vec::new());
    plan.make((&batch, &[]), &mut Sharing::default(), shape(2), &mut units);
    assert_eq!(plan.shared.len(), 2 * 2, "two groups of two units");
    assert!(plan.shared.iter().all(|work| (work.start, work.end) == (0, 2048)));
}
