//! Attention to latents at chosen positions, or to K and V in chosen blocks of these, on the CPU:
//! those of a token are copied into blocks of their own, upward, and it attends to these as to a
//! text of its own. Some tokens at a time.

use crate::batch::Batch;
use crate::choose_positions::{Choice, ChoiceSize};
use crate::gemm::panel::PanelElement;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Reach;
use vllm_batch_device::kv_cache::{KvCacheShape, KvData, KvHeads, KvLayerShape, StateShape};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{CacheLayer, KvCache, Tensor};

use super::cpu::{AttentionScratch, Task};

/// Bytes of what is copied, about.
const COPIED_BYTES: usize = 64 << 20;

/// Tokens whose latents are copied at a time, at most.
const MAX_TOKENS: usize = 64;

/// Latents that tokens chose, and how they attend to them.
#[derive(Debug)]
pub(super) struct ChosenScratch {
    /// Blocks of some tokens, one token after the other.
    cache: KvCache,
    /// A sequence for each token.
    batch: Batch,
    num_chosen: usize,
    scratch: Box<AttentionScratch>,
}

impl ChosenScratch {
    fn new(cache: &KvCache, kv: KvLayerShape, num_chosen: usize) -> Self {
        let dtype = match &cache.data {
            KvData::Float32 { .. } => DType::Float32,
            KvData::BFloat16 { .. } => DType::BFloat16,
            KvData::Float16 { .. } => DType::Float16,
            KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
        };
        let KvLayerShape { block_size, num_kv_heads, head_dim, v_dim, panel_width, .. } = kv;
        let num_blocks = num_chosen.div_ceil(block_size);
        let mut shape = KvCacheShape {
            layers: vec![KvHeads { num: num_kv_heads, head_dim, v_dim }],
            num_blocks,
            block_size,
            states: StateShape::default(),
            panel_width,
        };
        let num_tokens = COPIED_BYTES / shape.num_bytes(dtype.size_bytes());
        let num_tokens = num_tokens.clamp(1, MAX_TOKENS);
        shape.num_blocks = num_blocks * num_tokens;
        let batch = Batch {
            seq_lens: vec![num_chosen as u32; num_tokens],
            block_tables: (0..shape.num_blocks as u32).collect(),
            max_blocks_per_seq: num_blocks,
            ..Batch::default()
        };
        let cache = KvCache::new(shape, dtype);
        Self { cache, batch, num_chosen, scratch: Box::default() }
    }

    /// Whether it is for such latents, or K and V, and choices.
    fn is_for(&self, kv: KvLayerShape, num_chosen: usize) -> bool {
        let own = self.cache.shape.layer(0);
        own == KvLayerShape { num_blocks: own.num_blocks, ..kv } && self.num_chosen == num_chosen
    }
}

/// Attention of the tokens that have a choice; others are left alone. `task` is that of the step.
pub(super) fn attend(
    task: Task<'_>,
    (layer, choice): (CacheLayer<'_>, &Choice),
    scratch: &mut Option<ChosenScratch>,
    out: &mut Tensor,
) {
    let ChoiceSize { num_chosen, unit, num_heads } = choice.size();
    let are_of_heads = if unit == 1 { task.kv.num_kv_heads } else { task.shape.num_kv_heads };
    assert!(are_of_heads == num_heads && task.shape.reach == Reach::All);
    let scratch = match scratch {
        Some(scratch) if scratch.is_for(task.kv, num_chosen) => scratch,
        _ => scratch.insert(ChosenScratch::new(layer.cache, task.kv, num_chosen)),
    };
    let positions = &task.batch.positions;
    scratch.batch.positions.clear();
    let last = |position: &u32| choice.num_positions(*position as usize) as u32 - 1;
    scratch.batch.positions.extend(positions.iter().map(last));
    let has_choice = |row: usize| positions[row] as usize >= num_chosen;
    let max_tokens = scratch.cache.shape.num_blocks / scratch.batch.max_blocks_per_seq;
    let mut row = 0;
    while row < positions.len() {
        let rest = (row..positions.len()).take(max_tokens);
        let num_tokens = rest.take_while(|row| has_choice(*row)).count();
        if num_tokens > 0 {
            attend_some(task, (layer, choice), scratch, (row, row + num_tokens), out);
        }
        row += num_tokens.max(1);
    }
}

/// Attention of the tokens from one row on up to another.
fn attend_some(
    task: Task<'_>,
    (layer, choice): (CacheLayer<'_>, &Choice),
    chosen: &mut ChosenScratch,
    rows: (usize, usize),
    out: &mut Tensor,
) {
    let ChosenScratch { cache, batch, scratch, .. } = chosen;
    batch.query_start_loc.clear();
    batch.query_start_loc.extend(rows.0 as u32..=rows.1 as u32);
    batch.seq_lens.clear();
    batch.seq_lens.extend(batch.positions[rows.0..rows.1].iter().map(|last| last + 1));
    scratch.sharing.find(batch, task.kv.block_size);
    let kv = cache.shape.layer(0);
    let copies = Copies { task, choice, rows, kv };
    let own = Task { batch, kv, ..task };
    let [of_k, of_v] = layer.ranges();
    match (&layer.cache.data, &mut cache.data) {
        (KvData::Float32 { k, v }, KvData::Float32 { k: own_k, v: own_v }) => {
            copies.run((&k[of_k], &v[of_v]), (own_k, own_v));
            own.run(own_k, own_v, scratch, out);
        }
        (KvData::BFloat16 { k, v }, KvData::BFloat16 { k: own_k, v: own_v }) => {
            copies.run((&k[of_k], &v[of_v]), (own_k, own_v));
            own.run(own_k, own_v, scratch, out);
        }
        (KvData::Float16 { k, v }, KvData::Float16 { k: own_k, v: own_v }) => {
            copies.run((&k[of_k], &v[of_v]), (own_k, own_v));
            own.run(own_k, own_v, scratch, out);
        }
        _ => unreachable!("a cache of the CPU, and one that was made like it"),
    }
}

/// Copies of the latents, or of K and V, of some tokens' choices.
#[derive(Clone, Copy)]
struct Copies<'a> {
    task: Task<'a>,
    choice: &'a Choice,
    /// The tokens: from one row on up to another.
    rows: (usize, usize),
    /// Of the copies.
    kv: KvLayerShape,
}

impl Copies<'_> {
    fn run<E: PanelElement>(&self, from: (&[E], &[E]), to: (&mut [E], &mut [E])) {
        let Self { choice, rows, kv, .. } = *self;
        let (k, v) = (SharedMut::new(to.0), SharedMut::new(to.1));
        let ChoiceSize { num_chosen, unit, .. } = choice.size();
        let num_blocks = num_chosen.div_ceil(kv.block_size);
        let num_items = (rows.1 - rows.0) * num_blocks;
        let [k_len, v_len] = kv.block_lens();
        self.task.cpu.pool.run(num_items, &|_, item| {
            let (row, block) = (rows.0 + item / num_blocks, item % num_blocks);
            // SAFETY: each item has a block.
            let to = unsafe { (k.slice(item * k_len, k_len), v.slice(item * v_len, v_len)) };
            if unit > 1 {
                return self.copy_of_heads((row, block), from, to);
            }
            let mut of_heads = choice.of_token(row);
            let positions = of_heads.next().and_then(|all| all.chunks(kv.block_size).nth(block));
            self.copy_block(row, positions.unwrap_or_default(), from, to);
        });
    }

    /// Copies a block of the cache for each head, of the blocks of positions that it chose for the
    /// token of a row.
    fn copy_of_heads<E: PanelElement>(
        &self,
        (row, block): (usize, usize),
        (from_k, from_v): (&[E], &[E]),
        (to_k, to_v): (&mut [E], &mut [E]),
    ) {
        let Self { choice, kv, .. } = *self;
        let blocks_of_unit = choice.size().unit / kv.block_size;
        let position = self.task.batch.positions[row] as usize;
        let table = self.table_of(row);
        for (head, units) in choice.of_token(row).enumerate() {
            let unit = units[block / blocks_of_unit] as usize;
            let from = unit * blocks_of_unit + block % blocks_of_unit;
            if from > position / kv.block_size {
                return;
            }
            let from = table[from] as usize * kv.num_kv_heads + head;
            let copy = |to: &mut [E], from_all: &[E], len: usize| {
                let to = &mut to[head * len..][..len];
                to.copy_from_slice(&from_all[from * len..][..len]);
            };
            copy(to_k, from_k, kv.k_len());
            copy(to_v, from_v, kv.v_len());
        }
    }

    /// Blocks of the cache of the sequence that a row is of.
    fn table_of(&self, row: usize) -> &[u32] {
        let batch = self.task.batch;
        let seq = batch.query_start_loc.partition_point(|start| *start as usize <= row) - 1;
        batch.block_table(seq)
    }

    /// Copies the latents of some positions that the token of a row attends to into a block. What
    /// does not turn of K is taken from V, whose values lie beside each other.
    fn copy_block<E: PanelElement>(
        &self,
        row: usize,
        positions: &[u32],
        (from_k, from_v): (&[E], &[E]),
        (to_k, to_v): (&mut [E], &mut [E]),
    ) {
        let (kv, table) = (self.kv, self.table_of(row));
        let (width, k_width) = (kv.panel_width, kv.k_panel_width());
        let k_panel_len = kv.head_dim.next_multiple_of(2) * k_width;
        let v_panel_len = kv.block_size * width;
        let num_turning = kv.head_dim - kv.v_dim;
        for (to, &position) in positions.iter().enumerate() {
            let (block, at) =
                (position as usize / kv.block_size, position as usize % kv.block_size);
            let block = table[block] as usize;
            let panel_of = |at: usize| at / k_width * k_panel_len;
            let to_k = &mut to_k[panel_of(to)..][..k_panel_len];
            let from_k = &from_k[block * kv.k_len() + panel_of(at)..][..k_panel_len];
            for input in 0..num_turning {
                to_k[E::index(input, to % k_width, k_width)] =
                    from_k[E::index(input, at % k_width, k_width)];
            }
            for panel in 0..kv.v_width() / width {
                let start = panel * v_panel_len;
                let to_v = &mut to_v[start..start + v_panel_len];
                let from_v = &from_v[block * kv.v_len() + start..][..v_panel_len];
                for lane in 0..width {
                    let value = from_v[E::index(at, lane, width)];
                    to_v[E::index(to, lane, width)] = value;
                    let input = panel * width + lane;
                    if input < kv.v_dim {
                        to_k[E::index(num_turning + input, to % k_width, k_width)] = value;
                    }
                }
            }
        }
    }
}
