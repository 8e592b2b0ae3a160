//! Scores on the CPU: a token's queries by panels of keys, some tokens at a time, since all scores
//! of a token are there when the best are chosen.

use std::ops::Range;

use crate::batch::Batch;
use crate::gemm::panel::PanelElement;
use crate::gemm::{MAX_INPUTS, MAX_PANEL_WIDTH, PanelProduct, Tiling, Widened};
use vllm_batch_device::Cpu;
use vllm_batch_device::Tensor;
use vllm_batch_device::kv_cache::KvLayerShape;
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;

use super::select::select;
use super::{ChoiceSize, IndexScores};

/// Positions that a thread scores at a time.
const CHUNK: usize = 512;

/// Scores that are there at once: 16 MB.
const MAX_SCORES: usize = 1 << 22;

/// Buffers that live between steps.
#[derive(Debug, Default)]
pub(super) struct ScoreRoom {
    /// The tokens that have a choice.
    pub tokens: Vec<Token>,
    /// (tokens, positions) of some of them, or (tokens, heads, blocks).
    pub scores: Vec<f32>,
    /// Of each thread: (num_heads, a panel's width) products and a value of each head, and
    /// ranks of positions.
    pub threads: Vec<(Vec<f32>, Vec<u64>)>,
}

/// A token that has a choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    /// Its row.
    pub row: usize,
    pub seq: usize,
    /// Positions up to its own.
    pub num_positions: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Scoring<'a> {
    pub cpu: &'a Cpu,
    pub scores: IndexScores<'a>,
    pub batch: &'a Batch,
    pub kv: KvLayerShape,
}

impl Scoring<'_> {
    /// Writes the choice of each token that has one into its row of `units`, (num_tokens, heads
    /// with a choice, units).
    pub(super) fn choose<E: PanelElement>(
        &self,
        keys: &[E],
        room: &mut ScoreRoom,
        (size, units): (ChoiceSize, &mut [u32]),
    ) {
        self.find_tokens(size.num_chosen, &mut room.tokens);
        let most = room.tokens.iter().map(|token| token.num_positions).max();
        let Some(most) = most else { return };
        room.threads.resize_with(self.cpu.pool.num_threads(), Default::default);
        for (products, _) in &mut room.threads {
            products.resize(self.scores.num_heads * (self.kv.k_panel_width() + 1), 0.0);
        }
        match self.scores.factors {
            Some(factors) => {
                self.choose_positions(keys, (room, most), factors, (size.num_chosen, units));
            }
            None => self.choose_blocks(keys, (room, most), (size, units)),
        }
    }

    /// The same of single positions, of `most` at most.
    fn choose_positions<E: PanelElement>(
        &self,
        keys: &[E],
        (room, most): (&mut ScoreRoom, usize),
        factors: (&Tensor, usize),
        (num_chosen, positions): (usize, &mut [u32]),
    ) {
        let stride = most.next_multiple_of(MAX_PANEL_WIDTH);
        let num_at_once = room.tokens_at_once(stride);
        let ScoreRoom { tokens, scores, threads } = room;
        let threads = SharedMut::new(threads);
        let positions = SharedMut::new(positions);
        let num_chunks = stride.div_ceil(CHUNK);
        for tokens in tokens.chunks(num_at_once) {
            let shared = SharedMut::new(&mut scores[..]);
            self.cpu.pool.run(tokens.len() * num_chunks, &|thread, item| {
                let (index, chunk) = (item / num_chunks, item % num_chunks);
                let (token, start) = (tokens[index], chunk * CHUNK);
                let end = (start + CHUNK).min(token.num_positions);
                if start < end {
                    // SAFETY: no two items with one thread index overlap, and each has a chunk of a
                    // token's scores, with whole panels.
                    let (room, out) = unsafe {
                        let len = (end - start).next_multiple_of(self.kv.k_panel_width());
                        (threads.slice(thread, 1), shared.slice(index * stride + start, len))
                    };
                    let products = &mut room[0].0;
                    self.score(keys, (token, start..end), factors, products, out);
                }
            });
            let scores = &*scores;
            self.cpu.pool.run(tokens.len(), &|thread, index| {
                let Token { row, num_positions, .. } = tokens[index];
                // SAFETY: as above; each item has the row of a token.
                let (room, out) = unsafe {
                    (threads.slice(thread, 1), positions.slice(row * num_chosen, num_chosen))
                };
                select(&scores[index * stride..][..num_positions], &mut room[0].1, out);
            });
        }
    }

    fn find_tokens(&self, num_chosen: usize, tokens: &mut Vec<Token>) {
        let Batch { positions, query_start_loc, .. } = self.batch;
        tokens.clear();
        for (seq, rows) in query_start_loc.windows(2).enumerate() {
            let token = |row: usize| Token { row, seq, num_positions: positions[row] as usize + 1 };
            let all = (rows[0] as usize..rows[1] as usize).map(token);
            tokens.extend(all.filter(|token| token.num_positions > num_chosen));
        }
    }

    /// The scores of a token for positions that begin with a panel.
    fn score<E: PanelElement>(
        &self,
        keys: &[E],
        (token, positions): (Token, Range<usize>),
        factors: (&Tensor, usize),
        products: &mut [f32],
        out: &mut [f32],
    ) {
        let num_heads = self.scores.num_heads;
        let factors = &factors.0.row(token.row)[factors.1..][..num_heads];
        let scale = 1.0 / (self.kv.head_dim as f32).sqrt();
        let scales = (scale, 1.0 / (num_heads as f32).sqrt());
        let mut out = out.chunks_exact_mut(self.kv.k_panel_width());
        self.for_panels(keys, (token, positions), products, |products| {
            let out = out.next().expect("a place for each panel");
            dispatch(self.cpu.isa, AddHeads { products, factors, scales, out });
        });
    }

    /// Calls `of_panel` with products (num_heads, width) of a token's queries and the keys of each
    /// panel of positions, which begin with one.
    pub(super) fn for_panels<E: PanelElement>(
        &self,
        keys: &[E],
        (token, positions): (Token, Range<usize>),
        products: &mut [f32],
        mut of_panel: impl FnMut(&[f32]),
    ) {
        let Self { kv, cpu, .. } = *self;
        let IndexScores { queries, num_heads, .. } = self.scores;
        let (width, head_dim) = (kv.k_panel_width(), kv.head_dim);
        let queries = &queries.row(token.row)[..num_heads * head_dim];
        let tiling = Tiling::new::<E>(cpu.isa, width < kv.panel_width, num_heads);
        let table = self.batch.block_table(token.seq);
        let panel_len = head_dim.next_multiple_of(2) * width;
        let mut widened = Widened::new();
        for position in positions.step_by(width) {
            let block = table[position / kv.block_size] as usize * kv.k_len();
            let panel = block + position % kv.block_size / width * panel_len;
            let keys = &keys[panel..panel + panel_len];
            for first in (0..head_dim).step_by(MAX_INPUTS) {
                let product = PanelProduct {
                    tiling: &tiling,
                    x: (queries[first..].as_ptr(), head_dim),
                    weights: keys[first * width..].as_ptr(),
                    inputs: (0, MAX_INPUTS.min(head_dim - first)),
                    out: (products.as_mut_ptr(), width),
                    is_first: first == 0,
                    bias: std::ptr::null(),
                    next: None,
                    brings_rows: false,
                };
                // SAFETY: queries are (num_heads, head_dim), the panel holds all of head_dim, and
                // products are (num_heads, width). The device was made for this CPU.
                unsafe { product.run(&mut widened) };
            }
            of_panel(&products[..num_heads * width]);
        }
    }
}

impl ScoreRoom {
    /// Tokens with so many scores each whose scores there is room for at once.
    pub(super) fn tokens_at_once(&mut self, stride: usize) -> usize {
        let num_at_once = (MAX_SCORES / stride).clamp(1, self.tokens.len());
        if self.scores.len() < num_at_once * stride {
            self.scores.resize((num_at_once * stride).next_power_of_two(), 0.0);
        }
        num_at_once
    }
}

/// out (width) = the sum over heads of factor * relu(product), both scaled.
struct AddHeads<'a> {
    /// (num_heads, width)
    products: &'a [f32],
    factors: &'a [f32],
    /// Of products and of factors.
    scales: (f32, f32),
    out: &'a mut [f32],
}

impl Kernel for AddHeads<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let width = self.out.len();
        for lane in (0..width).step_by(V::LANES) {
            // SAFETY: dispatched for this CPU; panels are whole vectors.
            unsafe {
                let (zero, scale) = (V::splat(0.0), V::splat(self.scales.0));
                let mut sum = zero;
                for (products, factor) in self.products.chunks_exact(width).zip(self.factors) {
                    let score = V::load(products[lane..].as_ptr()).mul(scale).max(zero);
                    sum = score.mul_add(V::splat(factor * self.scales.1), sum);
                }
                sum.store(self.out[lane..].as_mut_ptr());
            }
        }
    }
}
