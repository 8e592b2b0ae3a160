//! `bfdot` and `bfmmla` against Arm's manual, operation by operation.

use super::*;
use vllm_batch_base::isa::Isa;
use vllm_batch_base::split_mix::{GAMMA, mix};

/// Outputs of a run.
const NUM_OUTPUTS: usize = 1_000_000;

/// Bits below the 24 places of an f32 in an f64.
const DROPPED: u64 = (1 << 29) - 1;

/// A denormal is a zero of its sign.
fn flushed(value: f32) -> f64 {
    if value.is_subnormal() { f64::from(0.0f32.copysign(value)) } else { f64::from(value) }
}

/// To odd: what is not an f32 becomes the neighbour towards zero with its last place set. `rest` is
/// what `value` leaves of the exact number. Denormal results are zeros, large ones infinite.
fn to_odd(value: f64, rest: f64) -> f32 {
    if value.is_nan() || value.is_infinite() {
        return if value.is_nan() { f32::NAN } else { value as f32 };
    }
    let mut bits = value.to_bits();
    if rest != 0.0 {
        if rest.is_sign_negative() != value.is_sign_negative() {
            bits -= 1;
        }
        bits |= 1;
    }
    let sticky = bits & DROPPED != 0;
    let cut = f64::from_bits(bits & !DROPPED);
    if cut.abs() < f64::from(f32::MIN_POSITIVE) {
        return 0.0f32.copysign(value as f32);
    }
    if cut.abs() > f64::from(f32::MAX) {
        return f32::INFINITY.copysign(value as f32);
    }
    f32::from_bits((cut as f32).to_bits() | u32::from(sticky))
}

/// a + b
fn add(a: f32, b: f32) -> f32 {
    let (a, b) = (flushed(a), flushed(b));
    let sum = a + b;
    // What rounding to 53 places has left of the exact sum (Knuth's two sums).
    let from_b = sum - a;
    let rest = (a - (sum - from_b)) + (b - from_b);
    to_odd(sum, if sum.is_finite() { rest } else { 0.0 })
}

fn add_pair(sum: f32, x: u32, w: u32) -> f32 {
    let low = |word: u32| flushed(f32::from_bits(word << 16));
    let high = |word: u32| flushed(f32::from_bits(word & 0xffff_0000));
    // Products of bf16 are exact in f64.
    let products = add(to_odd(low(x) * low(w), 0.0), to_odd(high(x) * high(w), 0.0));
    add(sum, products)
}

/// Words of two bf16: of one size mostly, else any bits.
fn word(state: &mut u64) -> u32 {
    *state = state.wrapping_add(GAMMA);
    let bits = mix(*state);
    let word = bits as u32;
    match bits >> 60 {
        0 => word,
        1 => word & 0x807f_807f,
        _ => word & 0x81ff_81ff | 0x3f00_3f00,
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn products_of_bf16_are_rounded_to_odd_pair_by_pair() {
    if !Isa::NeonBf16.is_available() {
        return;
    }
    let mut state = 7;
    for _ in 0..NUM_OUTPUTS / 4 {
        let [rows, columns] = [(); 2].map(|()| [(); 4].map(|()| word(&mut state)));
        let start: [f32; 4] = [(); 4].map(|()| f32::from_bits(word(&mut state)));
        let (mut dots, mut products) = ([0.0; 4], [0.0; 4]);
        // SAFETY: the CPU has the instructions; arrays of four.
        unsafe {
            let (x, w) = (vld1q_u32(rows.as_ptr()), vld1q_u32(columns.as_ptr()));
            vst1q_f32(dots.as_mut_ptr(), dot(vld1q_f32(start.as_ptr()), w, x));
            let sums = add_pair_products(vld1q_f32(start.as_ptr()), x, w);
            vst1q_f32(products.as_mut_ptr(), sums);
        }
        for lane in 0..4 {
            let expected = add_pair(start[lane], rows[lane], columns[lane]);
            assert!(same(dots[lane], expected), "bfdot of {rows:x?}, {columns:x?}, {start:?}");
            let (row, column) = (lane / 2, lane % 2);
            let first = add_pair(start[lane], rows[2 * row], columns[2 * column]);
            let expected = add_pair(first, rows[2 * row + 1], columns[2 * column + 1]);
            assert!(same(products[lane], expected), "bfmmla of {rows:x?}, {columns:x?}, {start:?}");
        }
    }
}

/// # Safety
/// The CPU has `bfdot`.
#[target_feature(enable = "neon,bf16")]
unsafe fn dot(sums: float32x4_t, weights: uint32x4_t, x: uint32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe { add_pairs(sums, weights, x) }
}
