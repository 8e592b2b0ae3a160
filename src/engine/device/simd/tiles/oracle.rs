//! TDPBF16PS in plain code, operation by operation.

/// 2^-126, the smallest normal number.
const MIN_NORMAL: f64 = 1.0 / (1u128 << 126) as f64;

/// What takes the smallest normal numbers to where f32 has all of its places.
const SCALE: f64 = (1u128 << 100) as f64;

/// sum after a step of words of two bf16, of a row and of a column.
pub(super) fn add_step(sum: f32, row: &[u32], column: &[u32]) -> f32 {
    let (mut even, mut odd) = (0.0, 0.0);
    for (&x, &w) in row.iter().zip(column) {
        even = multiply_add(low(x), low(w), even);
        odd = multiply_add(high(x), high(w), odd);
    }
    add(sum, add(even, odd))
}

fn low(word: u32) -> f32 {
    f32::from_bits(word << 16)
}

fn high(word: u32) -> f32 {
    f32::from_bits(word & 0xffff_0000)
}

/// A product of bf16 is exact in f64, and 53 places are enough for a second rounding of the sum to
/// give what one would.
fn multiply_add(x: f32, w: f32, sum: f32) -> f32 {
    round(f64::from(flushed(x)) * f64::from(flushed(w)) + f64::from(flushed(sum)))
}

fn add(a: f32, b: f32) -> f32 {
    round(f64::from(flushed(a)) + f64::from(flushed(b)))
}

/// A denormal input is a zero of its sign.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0f32.copysign(value) } else { value }
}

/// To nearest, in 24 places whatever the exponent; then what is below the normal numbers is a zero
/// of its sign.
fn round(exact: f64) -> f32 {
    if exact.abs() >= 2.0 * MIN_NORMAL || exact.is_nan() {
        return exact as f32;
    }
    let scaled = f64::from((exact * SCALE) as f32);
    match scaled.abs() < MIN_NORMAL * SCALE {
        true => 0.0f32.copysign(exact as f32),
        false => (scaled / SCALE) as f32,
    }
}
