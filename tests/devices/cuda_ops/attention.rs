//! paged_attention, with K and V written by rotary_and_cache: decode and prefill in one step
//! against the CPU; a token's bits however its sequence is computed, whatever is beside it, and
//! whatever stale K and V lie behind it.

mod e4m3;
mod parts;
mod unseen;
mod wgmma;
mod wgmma_timed;

use vllm_batch::engine::base::config::{DType, ShimGpu};
use vllm_batch::engine::base::layers::{QkvHeads, Reach, alibi_slopes};
use vllm_batch::engine::device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch::engine::device::{Device, KvCache, Precision, Tensor};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{
    AttentionScratch, AttentionShape, StepInputs, StepLimits, WeightValues, paged_attention,
    rotary_and_cache,
};

use crate::cuda_ops::pair::{Bound, Pair, output, to_bits};

const MAX_MODEL_LEN: usize = 1152;
const LAYER: usize = 1;

/// One model's attention.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: QkvHeads,
    block_size: usize,
    /// Of the layer, the first of the cache's.
    num_kv_heads: usize,
    reach: Reach,
    soft_cap: Option<f32>,
    has_alibi: bool,
    has_sinks: bool,
    /// V is the last values of K, so many.
    latent_dim: Option<usize>,
}

const fn case(num_heads: usize, num_kv_heads: usize, head_dim: usize, block_size: usize) -> Case {
    let heads = QkvHeads { num_heads, num_kv_heads, head_dim };
    let (has_alibi, has_sinks, latent_dim) = (false, false, None);
    let (reach, soft_cap) = (Reach::All, None);
    Case { heads, block_size, num_kv_heads, reach, soft_cap, has_alibi, has_sinks, latent_dim }
}

/// Latents that all heads share: `rope` values that turn, and `rank` others.
const fn latents(num_heads: usize, (rope, rank): (usize, usize), block_size: usize) -> Case {
    Case { latent_dim: Some(rank), ..case(num_heads, 1, rope + rank, block_size) }
}

impl Case {
    /// Width of a V head, and of a head's output.
    fn v_dim(&self) -> usize {
        self.latent_dim.unwrap_or(self.heads.head_dim)
    }
}

/// A sequence of `len` tokens, of which the K and V of the first `cached` are there.
#[derive(Clone, Copy, Debug)]
struct Seq {
    seed: u64,
    cached: usize,
    len: usize,
    /// Seed and number of the tokens that it begins with, in blocks of all that do.
    prefix: (u64, usize),
}

const fn seq(seed: u64, cached: usize, len: usize) -> Seq {
    Seq { seed, cached, len, prefix: (0, 0) }
}

/// Sequences that begin with the first `prefix.1` tokens of `prefix.0`.
const fn after(prefix: (u64, usize), seed: u64, cached: usize, len: usize) -> Seq {
    Seq { seed, cached, len, prefix }
}

/// Values of the last K or V head of a token that are not made up: the first, and the last.
#[derive(Clone, Copy, Debug)]
struct Odd {
    /// Of the sequence, or of what it begins with.
    seed: u64,
    position: usize,
    is_v: bool,
    values: [f32; 2],
}

/// A device with the cache of some sequences.
struct Run<'a> {
    device: &'a Device,
    pair: &'a Pair,
    case: Case,
    seqs: &'a [Seq],
    cache: KvCache,
    inputs: StepInputs,
    alibi: Option<WeightValues>,
    sinks: Option<WeightValues>,
    odd: &'a [Odd],
    /// Of steps so far: some had rows in parts, and parts of several rows.
    had_parts: (bool, bool),
}

impl<'a> Run<'a> {
    fn new(pair: &'a Pair, device: &'a Device, case: Case, seqs: &'a [Seq]) -> Self {
        let blocks = MAX_MODEL_LEN.div_ceil(case.block_size) * seqs.len();
        let head_dim = case.heads.head_dim;
        let v_dim = case.latent_dim.map_or(head_dim, |rank| device.latent_v_dim(rank));
        let heads = KvHeads { num: case.heads.num_kv_heads, head_dim, v_dim };
        let shape = KvCacheShape {
            layers: vec![heads; 2],
            num_blocks: blocks,
            block_size: case.block_size,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let limits = StepLimits {
            max_num_tokens: seqs.len() * MAX_MODEL_LEN,
            max_num_seqs: seqs.len(),
            max_num_logits: 1,
            max_model_len: MAX_MODEL_LEN,
            block_size: case.block_size,
            num_q_per_kv: case.heads.num_heads / case.heads.num_kv_heads,
            heads: case.heads,
            attends_to_all: case.reach == Reach::All && !case.has_alibi,
            has_states: false,
            has_axes: false,
            has_whole_images: false,
            has_choices: false,
        };
        let cache = KvCache::on_device(device, shape, pair.dtype).expect("memory");
        let inputs = StepInputs::new(device, limits).expect("memory");
        let num_heads = case.heads.num_heads;
        let of_heads = |values| WeightValues::on_device(device, values).expect("memory");
        // Steep ones too, which leave most positions no weight.
        let slopes = || alibi_slopes(num_heads, 8.0).into_iter().map(|slope| 4.0 * slope);
        let alibi = case.has_alibi.then(|| of_heads(slopes().collect()));
        // The first takes nothing, the last what is more than all positions together.
        let sink = |head: usize| 30.0 * head as f32 / (num_heads - 1) as f32 - 20.0;
        let sinks = case.has_sinks.then(|| of_heads((0..num_heads).map(sink).collect()));
        let had_parts = (false, false);
        Self { device, pair, case, seqs, cache, inputs, alibi, sinks, odd: &[], had_parts }
    }

    /// Values of q and k, of a token.
    fn qk_width(&self) -> usize {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = self.case.heads;
        (num_heads + num_kv_heads) * head_dim
    }

    /// Values of q, k and v, where v is not in k.
    fn width(&self) -> usize {
        self.qk_width() + self.cache.shape.layer(LAYER).v_dim * self.case.heads.num_kv_heads
    }

    /// The sequences' blocks are interleaved, the later ones first. Those of a prefix are the first
    /// sequence's that has it.
    fn block(&self, seq: usize, index: usize) -> usize {
        let (seed, len) = self.seqs[seq].prefix;
        let has_it = |other: &Seq| other.prefix.0 == seed;
        let seq = match (index + 1) * self.case.block_size <= len {
            true => self.seqs.iter().position(has_it).expect("it has it itself"),
            false => seq,
        };
        let last = MAX_MODEL_LEN.div_ceil(self.case.block_size) - 1;
        (last - index) * self.seqs.len() + seq
    }

    /// These positions of the sequences, where there are any.
    fn batch(&self, ranges: &[(usize, usize)]) -> Batch {
        let block_size = self.case.block_size;
        let max_blocks_per_seq = MAX_MODEL_LEN.div_ceil(block_size);
        let mut batch = Batch { query_start_loc: vec![0], max_blocks_per_seq, ..Batch::default() };
        for (seq, &(first, end)) in ranges.iter().enumerate().filter(|(_, (a, b))| a < b) {
            let slot = |position: usize| {
                self.block(seq, position / block_size) * block_size + position % block_size
            };
            batch.positions.extend((first..end).map(|position| position as u32));
            batch.slot_mapping.extend((first..end).map(|position| slot(position) as u32));
            batch.input_ids.resize(batch.positions.len(), 0);
            batch.query_start_loc.push(batch.positions.len() as u32);
            batch.seq_lens.push(end as u32);
            batch
                .block_tables
                .extend((0..end.div_ceil(block_size)).map(|b| self.block(seq, b) as u32));
            batch.block_tables.resize(batch.seq_lens.len() * max_blocks_per_seq, 0);
        }
        batch
    }

    /// One step over these positions: K and V, then attention if it `attends`; outputs by sequence.
    fn step(&mut self, ranges: &[(usize, usize)], values: &[f32], attends: bool) -> Vec<Vec<f32>> {
        let (num_heads, v_dim) = (self.case.heads.num_heads, self.case.v_dim());
        let batch = self.batch(ranges);
        let num_tokens = batch.num_tokens();
        if num_tokens == 0 {
            return vec![Vec::new(); ranges.len()];
        }
        let device = self.device;
        let width = self.width();
        let step = self.inputs.step(device, &batch);
        let (has_parts, shares) = step.has_parts();
        self.had_parts = (self.had_parts.0 || has_parts, self.had_parts.1 || shares);
        let mut qkv = device.upload_as(values, width, Precision::Activation).expect("memory");
        qkv.resize_rows(step.num_rows());
        let cache = self.cache.layer_mut(LAYER);
        rotary_and_cache(device, (&mut qkv, self.case.heads), None, step, cache);
        if !attends {
            device.check().expect("the op ran");
            return Vec::new();
        }
        let shape = AttentionShape {
            num_heads,
            num_kv_heads: self.case.num_kv_heads,
            scale: 0.3,
            soft_cap: self.case.soft_cap,
            reach: self.case.reach,
            is_causal: false,
            alibi: self.alibi.as_ref(),
            sinks: self.sinks.as_ref(),
        };
        let mut out = output(device, step.num_rows(), num_heads * v_dim, Precision::Activation);
        let mut scratch = AttentionScratch::default();
        let cache = self.cache.layer(LAYER);
        paged_attention(device, (&qkv, step), cache, shape, &mut scratch, &mut out);
        out.set_num_rows(num_tokens);
        let out = device.read(&out).expect("the op ran");
        let mut rest = &out[..];
        let mut outputs = Vec::new();
        for (first, end) in ranges {
            let (own, others) = rest.split_at((end - first) * num_heads * v_dim);
            outputs.push(own.to_vec());
            rest = others;
        }
        outputs
    }

    /// Rows of qkv of these positions, sequence after sequence.
    fn values(&self, ranges: &[(usize, usize)]) -> Vec<f32> {
        let (width, qk_width) = (self.width(), self.qk_width());
        // The v of a latent is a copy of the end of its k.
        let stored = if self.case.latent_dim.is_some() { qk_width } else { width };
        let mut values = Vec::new();
        for (seq, (first, end)) in self.seqs.iter().zip(ranges) {
            let (prefix_seed, prefix_len) = seq.prefix;
            let mut all = self.pair.values(prefix_len, stored, prefix_seed, 1.5).values;
            let own = self.pair.values(seq.len, stored, seq.seed, 1.5).values;
            all.extend_from_slice(&own[prefix_len * stored..]);
            self.put_odd(*seq, &mut all);
            for row in all[first * stored..end * stored].chunks(stored) {
                values.extend_from_slice(row);
                values.extend_from_slice(&row[stored - (width - stored)..]);
            }
        }
        values
    }

    /// Puts what is not made up into all rows of a sequence.
    fn put_odd(&self, seq: Seq, rows: &mut [f32]) {
        let QkvHeads { num_heads, head_dim, .. } = self.case.heads;
        let (width, num_kv_heads) = (rows.len() / seq.len, self.case.num_kv_heads);
        let seed = |position| if position < seq.prefix.1 { seq.prefix.0 } else { seq.seed };
        for odd in self.odd.iter().filter(|odd| odd.seed == seed(odd.position)) {
            let last_head = match (odd.is_v, self.case.latent_dim) {
                (true, None) => self.qk_width() + (num_kv_heads - 1) * head_dim,
                (true, Some(rank)) => width - rank,
                (false, _) => (num_heads + num_kv_heads - 1) * head_dim,
            };
            let dim = if odd.is_v { self.case.v_dim() } else { head_dim };
            let first = odd.position * width + last_head;
            [rows[first], rows[first + dim - 1]] = odd.values;
        }
    }

    /// NaN everywhere, as in blocks that a sequence of a broken model has left.
    fn poison(&mut self) {
        let ranges = vec![(0, MAX_MODEL_LEN); self.seqs.len()];
        let values = vec![f32::NAN; ranges.len() * MAX_MODEL_LEN * self.width()];
        self.step(&ranges, &values, false);
    }

    /// Outputs of the tokens that are not cached, computed in chunks of up to `chunk`.
    fn outputs(&mut self, chunk: usize) -> Vec<Vec<f32>> {
        let cached: Vec<_> = self.seqs.iter().map(|seq| (0, seq.cached)).collect();
        let values = self.values(&cached);
        self.step(&cached, &values, false);
        let mut outputs = vec![Vec::new(); self.seqs.len()];
        let mut done = 0;
        while self.seqs.iter().any(|seq| seq.cached + done < seq.len) {
            let range = |seq: &Seq| {
                let first = (seq.cached + done).min(seq.len);
                (first, (first + chunk).min(seq.len))
            };
            let ranges: Vec<_> = self.seqs.iter().map(range).collect();
            let values = self.values(&ranges);
            for (output, more) in outputs.iter_mut().zip(self.step(&ranges, &values, true)) {
                output.extend(more);
            }
            done += chunk;
        }
        outputs
    }
}

fn on_gpu(pair: &Pair, case: Case, seqs: &[Seq], chunk: usize) -> Vec<Vec<f32>> {
    Run::new(pair, &pair.gpu, case, seqs).outputs(chunk)
}

/// Against the CPU, whose weights of V are not rounded to the dtype.
fn check_close(pair: &Pair, case: Case, seqs: &[Seq]) -> Vec<Vec<f32>> {
    let slack = match pair.dtype {
        DType::Float32 => 5e-6,
        DType::BFloat16 => 3e-3,
        DType::Float16 => 4e-4,
    };
    let got = on_gpu(pair, case, seqs, MAX_MODEL_LEN);
    let expected = Run::new(pair, &pair.cpu, case, seqs).outputs(MAX_MODEL_LEN);
    let width = case.heads.num_heads * case.v_dim();
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let what = format!("{case:?}, {:?}, {}", seqs[index], pair.dtype.name());
        Bound { dtype: pair.dtype, slack }.assert_close(&what, got, expected, width);
    }
    got
}

/// Against the step with all of them: each alone, in chunks, one token at a time, among others at
/// other places, and with NaN wherever nothing was written.
fn check_bits(pair: &Pair, case: Case, seqs: &[Seq], together: &[Vec<f32>]) {
    let same = |how: &str, seq: Seq, got: &[f32], expected: &[f32]| {
        let what = format!("{case:?}, {seq:?}, {}", pair.dtype.name());
        assert!(to_bits(got) == to_bits(expected), "{what}: {how} has other bits");
    };
    for (seq, expected) in seqs.iter().zip(together) {
        same("alone", *seq, &on_gpu(pair, case, &[*seq], MAX_MODEL_LEN)[0], expected);
    }
    let mut reversed = seqs.to_vec();
    reversed.reverse();
    for chunk in [1, 7, 32] {
        let mut run = Run::new(pair, &pair.gpu, case, &reversed);
        run.poison();
        let outputs = run.outputs(chunk);
        for ((seq, expected), got) in seqs.iter().zip(together).zip(outputs.iter().rev()) {
            same(&format!("chunks of {chunk} over NaN"), *seq, got, expected);
        }
    }
}

/// Decodes and prefills around tiles of 32 positions and splits of 256.
const MIX: [Seq; 8] = [
    seq(70, 30, 31),
    seq(71, 31, 32),
    seq(72, 32, 33),
    seq(73, 254, 258),
    seq(74, 0, 17),
    seq(75, 255, 256),
    seq(76, 256, 257),
    seq(77, 520, 523),
];

fn check(dtype: DType, seed: u64, cases: &[Case], seqs: &[Seq]) {
    let Some(pair) = Pair::open(dtype, seed, None) else { return };
    for case in cases {
        let together = check_close(&pair, *case, seqs);
        check_bits(&pair, *case, seqs, &together);
    }
}

#[test]
fn paged_attention_f32_decodes_and_prefills() {
    let window = Case { reach: Reach::Window(40), soft_cap: Some(20.0), ..case(4, 2, 12, 48) };
    check(DType::Float32, 700, &[case(3, 1, 32, 16), window], &MIX);
}

#[test]
fn paged_attention_with_alibi() {
    let with = |case: Case| Case { has_alibi: true, ..case };
    let capped =
        Case { reach: Reach::Window(40), soft_cap: Some(20.0), ..with(case(4, 2, 12, 48)) };
    check(DType::Float32, 701, &[with(case(6, 2, 16, 16)), capped], &MIX);
    let capped =
        Case { reach: Reach::Window(33), soft_cap: Some(20.0), ..with(case(2, 1, 16, 16)) };
    check(DType::BFloat16, 770, &[with(case(6, 2, 16, 16)), capped], &MIX);
    check(DType::Float16, 780, &[with(case(4, 4, 64, 32))], &MIX);
}

#[test]
fn paged_attention_with_sinks() {
    let with = |case: Case| Case { has_sinks: true, ..case };
    let both = |case: Case| Case { has_alibi: true, reach: Reach::Window(40), ..with(case) };
    check(DType::Float32, 703, &[with(case(6, 2, 16, 16)), both(case(4, 2, 12, 48))], &MIX);
    check(DType::BFloat16, 820, &[with(case(8, 1, 64, 16)), both(case(4, 2, 16, 16))], &MIX);
    check(DType::Float16, 830, &[with(case(4, 2, 32, 32))], &MIX);
}

#[test]
fn paged_attention_of_a_layer_with_fewer_kv_heads_than_the_cache() {
    let of = |num_kv_heads, case: Case| Case { num_kv_heads, ..case };
    check(DType::Float32, 702, &[of(1, case(4, 2, 16, 16))], &MIX);
    check(DType::BFloat16, 790, &[of(1, case(32, 4, 16, 16)), of(2, case(4, 4, 64, 32))], &MIX);
}

#[test]
fn paged_attention_in_heads_that_tensor_cores_take_padded() {
    check(DType::BFloat16, 800, &[case(3, 1, 24, 16), case(2, 1, 120, 32)], &MIX);
    check(DType::Float16, 810, &[case(2, 2, 56, 16)], &MIX);
}

#[test]
fn paged_attention_decode_beside_prefill_in_narrow_heads() {
    check(DType::BFloat16, 710, &[case(3, 1, 16, 16), case(8, 8, 32, 48)], &MIX);
}

#[test]
fn paged_attention_prefill_beside_decode_in_heads_of_64() {
    check(DType::BFloat16, 720, &[case(14, 2, 64, 16)], &MIX);
    check(DType::Float16, 730, &[case(8, 1, 64, 32)], &MIX);
}

#[test]
fn paged_attention_decode_beside_prefill_in_heads_of_128() {
    check(DType::BFloat16, 740, &[case(4, 1, 128, 32)], &MIX);
}

/// Another GPU has other numbers of warps, groups and stages, and the same bits.
#[test]
fn paged_attention_has_the_same_bits_with_the_shared_memory_of_every_generation() {
    let open = |max_smem_kb, seed| {
        // Fewer blocks than units are resident.
        let gpu = ShimGpu { max_smem_kb, num_sms: 2, ..ShimGpu::default() };
        Pair::open_as(DType::BFloat16, seed, gpu)
    };
    let Some(hopper) = open(227, 850) else { return };
    let seqs = [seq(95, 31, 32), seq(96, 0, 150), seq(97, 250, 290)];
    let wide = [case(2, 1, 192, 16), case(2, 1, 256, 16)];
    for case in [case(4, 1, 128, 16), case(3, 1, 80, 16)].into_iter().chain(wide) {
        let expected = on_gpu(&hopper, case, &seqs, MAX_MODEL_LEN);
        for max_smem_kb in [163, 99] {
            let other = open(max_smem_kb, 851).expect("as before");
            let got = on_gpu(&other, case, &seqs, MAX_MODEL_LEN);
            for (got, expected) in got.iter().zip(&expected) {
                assert!(to_bits(got) == to_bits(expected), "{case:?}, {max_smem_kb} KB");
            }
        }
    }
}

/// Where a watchdog ends long launches, a step has several, of the same bits.
#[test]
fn paged_attention_has_the_same_bits_in_several_launches() {
    let narrow = [(DType::Float32, case(2, 1, 16, 16)), (DType::BFloat16, case(4, 1, 64, 16))];
    let wide = (DType::BFloat16, latents(20, (16, 48), 32));
    for (dtype, case) in narrow.into_iter().chain([wide]) {
        let open = |max_launch_positions| {
            Pair::open_as(dtype, 852, ShimGpu { max_launch_positions, ..ShimGpu::default() })
        };
        let Some(unbounded) = open(None) else { return };
        let seqs = [seq(98, 31, 32), seq(99, 0, 150), seq(94, 250, 290), seq(93, 0, 9)];
        let expected = on_gpu(&unbounded, case, &seqs, MAX_MODEL_LEN);
        for max_positions in [1, 300] {
            let got =
                on_gpu(&open(Some(max_positions)).expect("as before"), case, &seqs, MAX_MODEL_LEN);
            for (got, expected) in got.iter().zip(&expected) {
                assert!(to_bits(got) == to_bits(expected), "{case:?}, {max_positions} positions");
            }
        }
    }
}

#[test]
fn paged_attention_prefill_beside_decode_with_windows_and_soft_caps() {
    let with = |reach, soft_cap| Case { reach, soft_cap, ..case(2, 1, 16, 16) };
    let (one, some, many) = (Reach::Window(1), Reach::Window(33), Reach::Window(257));
    let windows = [with(one, None), with(some, Some(20.0)), with(many, None)];
    check(DType::BFloat16, 750, &windows, &MIX);
    check(DType::Float16, 760, &[with(Reach::All, Some(5.0))], &MIX);
}

#[test]
fn paged_attention_decodes_and_prefills_in_chunks_of_positions() {
    let with = |len, case: Case| Case { reach: Reach::Chunk(len), ..case };
    let narrow = [1, 33, 64, 257].map(|len| with(len, case(2, 1, 16, 16)));
    check(DType::BFloat16, 755, &narrow, &MIX);
    check(DType::BFloat16, 756, &[with(37, case(4, 1, 128, 32))], &MIX);
    check(DType::Float16, 765, &[with(48, case(8, 2, 64, 32))], &MIX);
    check(DType::Float32, 706, &[with(40, case(4, 2, 12, 48))], &MIX);
    check(DType::BFloat16, 895, &[with(33, case(4, 2, 512, 16))], &WIDE_MIX);
}

/// Few positions, since heads are wide: around tiles of 32.
const WIDE_MIX: [Seq; 4] = [seq(80, 30, 31), seq(81, 31, 34), seq(82, 0, 17), seq(83, 63, 66)];

#[test]
fn paged_attention_f32_over_latents_and_wide_heads() {
    let window = Case { reach: Reach::Window(40), ..case(2, 1, 512, 16) };
    check(DType::Float32, 704, &[latents(3, (8, 24), 16), latents(2, (16, 44), 48)], &MIX);
    check(DType::Float32, 705, &[latents(2, (64, 512), 16), window], &WIDE_MIX);
}

/// Blocks of 16, 32 and 64 rows, by the heads of a token; V in whole pairs and not, shared evenly
/// by warps and not.
#[test]
fn wide_attention_16_over_latents_as_wide_attention_32_and_wide_attention_64() {
    let narrow = [latents(3, (8, 24), 16), latents(20, (16, 48), 32), latents(40, (8, 40), 16)];
    check(DType::BFloat16, 860, &narrow, &MIX);
    check(DType::Float16, 870, &[latents(5, (64, 192), 16)], &WIDE_MIX);
    check(DType::BFloat16, 880, &[latents(16, (64, 512), 16)], &WIDE_MIX[..3]);
}

#[test]
fn wide_attention_in_heads_of_their_own_with_windows_and_soft_caps() {
    let windows = Case { reach: Reach::Window(33), soft_cap: Some(20.0), ..case(2, 2, 264, 16) };
    check(DType::BFloat16, 890, &[case(4, 2, 512, 16), windows], &WIDE_MIX);
}

/// Blocks are smaller where there is less shared memory.
#[test]
fn wide_attention_has_the_same_bits_with_the_shared_memory_of_every_generation() {
    let open = |max_smem_kb, seed| {
        let gpu = ShimGpu { max_smem_kb, ..ShimGpu::default() };
        Pair::open_as(DType::BFloat16, seed, gpu)
    };
    let Some(hopper) = open(227, 900) else { return };
    let seqs = [seq(95, 31, 32), seq(96, 0, 20)];
    for case in [latents(40, (64, 512), 16), case(40, 1, 512, 16)] {
        let expected = on_gpu(&hopper, case, &seqs, MAX_MODEL_LEN);
        let other = open(99, 901).expect("as before");
        let got = on_gpu(&other, case, &seqs, MAX_MODEL_LEN);
        for (got, expected) in got.iter().zip(&expected) {
            assert!(to_bits(got) == to_bits(expected), "{case:?}");
        }
    }
}
