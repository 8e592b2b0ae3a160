//! Every op on a GPU against the same op on the CPU, within what the GPU's dtype rounds; and every
//! row alone, in other places and among others, with the same bits.
//!
//! The GPU is the CPU shim of its kernels, its threads in an order that every launch shuffles anew,
//! or a real one (`gpu`).

mod activation;
mod all_reduce;
mod attention;
mod by_head;
mod choose_blocks;
mod choose_positions;
mod codes;
mod codes_timed;
mod codes_widened;
mod columns;
mod copy_blocks;
mod elementwise;
mod embedding;
mod expert_codes;
mod experts;
mod fp8;
mod linear;
mod lora;
mod norm;
mod pair;
mod recurrent;
mod rotary;
mod sampling;
mod streams;
mod text_maxima;
mod texts;
mod token_mask;
mod uploads;

/// Numbers of rows on both sides of tiles, of padding and of work items.
const NUM_ROWS: [usize; 7] = [1, 2, 15, 16, 17, 33, 129];
