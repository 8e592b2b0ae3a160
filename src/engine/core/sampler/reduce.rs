//! Reductions over a row of logits: maximum, count, sum of exponentials. Fixed numbers of
//! independent lanes let the compiler use vector instructions without changing the order of
//! operations, so a result is the same whatever the machine's vector width. All is inlined into
//! functions that are compiled for that width (`wide.rs`).

/// Elements between two looks at the running maximum; also what is skipped at once when gathering.
const CHUNK: usize = 256;
/// Independent maxima and counters.
const LANES: usize = 16;
/// Independent f64 sums.
const SUM_LANES: usize = 8;

/// Largest logit of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowMax {
    /// Its value; -inf when every logit is.
    pub(super) value: f32,
    /// Lowest token id that has it.
    pub(super) index: usize,
}

/// Largest logit and its lowest token id; None when the row has a NaN or +inf.
#[inline(always)]
pub(super) fn row_max(row: &[f32]) -> Option<RowMax> {
    let (mut best, mut best_chunk) = (f32::NEG_INFINITY, 0);
    let mut is_bad = false;
    for (number, chunk) in row.chunks(CHUNK).enumerate() {
        is_bad |= has_nan_or_infinity(chunk);
        let value = chunk_max(chunk);
        if value > best {
            (best, best_chunk) = (value, number);
        }
    }
    if is_bad {
        return None;
    }
    let start = best_chunk * CHUNK;
    let offset = row[start..].iter().position(|&x| x == best).unwrap_or(0);
    Some(RowMax { value: best, index: start + offset })
}

#[inline(always)]
fn has_nan_or_infinity(chunk: &[f32]) -> bool {
    // No early exit: a chunk without them, as all are, is read in full anyway, and in vectors.
    chunk.iter().fold(0u32, |bad, &x| bad | u32::from(x.is_nan() | (x == f32::INFINITY))) != 0
}

#[inline(always)]
fn chunk_max(chunk: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (body, rest) = chunk.as_chunks::<LANES>();
    for part in body {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane = larger(*lane, x);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// Divides every value.
#[inline(always)]
pub(super) fn divide(row: &mut [f32], divisor: f32) {
    row.iter_mut().for_each(|value| *value /= divisor);
}

/// Number of logits that are at least `floor`.
#[inline(always)]
pub(super) fn count_at_least(row: &[f32], floor: f32) -> usize {
    let mut count = 0;
    for chunk in row.chunks(CHUNK) {
        count += chunk.iter().map(|&x| u32::from(x >= floor)).sum::<u32>() as usize;
    }
    count
}

/// Calls `visit(index of its first, chunk)` for the chunks that have a value of at least `floor`.
/// Few tokens are likely: most chunks have none, and their maximum costs little.
#[inline(always)]
pub(super) fn for_each_chunk_reaching<'a>(
    row: &'a [f32],
    floor: f32,
    mut visit: impl FnMut(usize, &'a [f32]),
) {
    for (number, chunk) in row.chunks(CHUNK).enumerate() {
        if chunk_max(chunk) >= floor {
            visit(number * CHUNK, chunk);
        }
    }
}

/// k-th largest value, counted with multiplicity; -inf when fewer than `k` are above it.
/// `buffer` holds at most 2k candidates or as many chunks: two passes, amortised linear time.
#[inline(always)]
pub(super) fn kth_largest(values: &[f32], k: usize, buffer: &mut Vec<f32>) -> f32 {
    assert!(k > 0, "the 0-th largest value does not exist");
    let capacity = (2 * k).max(CHUNK).min(values.len());
    // At least k values are no less than the k-th largest of the chunks' maxima, and hardly more.
    buffer.clear();
    for chunk in values.chunks(CHUNK) {
        buffer.push(chunk_max(chunk));
    }
    let mut floor =
        if buffer.len() < k { f32::NEG_INFINITY } else { keep_largest(buffer, k).next_down() };
    buffer.clear();
    for chunk in values.chunks(CHUNK) {
        if chunk_max(chunk) <= floor {
            continue;
        }
        for &value in chunk {
            if value > floor {
                buffer.push(value);
                if buffer.len() > capacity {
                    floor = keep_largest(buffer, k);
                }
            }
        }
    }
    if buffer.len() < k { f32::NEG_INFINITY } else { keep_largest(buffer, k) }
}

/// Cuts the buffer to its k largest values and returns the least of them.
fn keep_largest(buffer: &mut Vec<f32>, k: usize) -> f32 {
    buffer.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    buffer.truncate(k);
    buffer[k - 1]
}

/// Below this exponent a weight is 0: e^-700 is nothing beside the maximum's 1.
const LEAST_EXPONENT: f64 = -700.0;
/// 1.5 * 2^52: adding it rounds to an integer and leaves that integer in the low mantissa bits.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts; the first has trailing zeros, so its products with small integers are exact.
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// 1/11!, 1/10!, ..., 1/0!: the Taylor series of e^r, good to 1e-14 for |r| <= ln(2) / 2.
const TAYLOR: [f64; 12] = [
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
    1.0,
    1.0,
];

/// e^(value - max), the unnormalized probability of a token; 0 for a masked one (-inf).
/// Own arithmetic rather than the C library's `exp`: it vectorizes, and gives the same bits on
/// every machine.
#[inline(always)]
pub(super) fn weight(value: f32, max: f32) -> f64 {
    let exponent = f64::from(value) - f64::from(max);
    let clamped = if exponent > LEAST_EXPONENT { exponent } else { LEAST_EXPONENT };
    let shifted = clamped * std::f64::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = (clamped - power * LN2_HIGH) - power * LN2_LOW;
    let series = TAYLOR[1..].iter().fold(TAYLOR[0], |sum, &term| sum * rest + term);
    let scaled = f64::from_bits(series.to_bits().wrapping_add(shifted.to_bits() << 52));
    if exponent > LEAST_EXPONENT { scaled } else { 0.0 }
}

/// Sum of the weights: lane i adds the values i, i + 8, i + 16, ... in turn.
#[inline(always)]
pub(super) fn sum_weights(values: &[f32], max: f32) -> f64 {
    let mut lanes = [0.0; SUM_LANES];
    let (body, rest) = values.as_chunks::<SUM_LANES>();
    for part in body {
        for (lane, &value) in lanes.iter_mut().zip(part) {
            *lane += weight(value, max);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += weight(value, max);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_weight_is_the_exponential() {
        assert_eq!(weight(3.5, 3.5), 1.0);
        assert_eq!(weight(f32::NEG_INFINITY, 3.5), 0.0);
        assert_eq!(weight(-1e30, 1e30), 0.0);
        for step in 0..200_000 {
            let value = -(step as f32) * 0.003_471;
            let want = f64::from(value).exp();
            let got = weight(value, 0.0);
            assert!((got / want - 1.0).abs() < 2e-14, "exp({value}): {got} is not {want}");
        }
    }

    #[test]
    fn sampler_row_max_takes_the_lowest_index_and_refuses_nan() {
        let mut row = vec![-3.0f32; 1000];
        (row[700], row[701], row[999]) = (2.0, 2.0, 2.0);
        assert_eq!(row_max(&row), Some(RowMax { value: 2.0, index: 700 }));
        row[3] = f32::NAN;
        assert_eq!(row_max(&row), None);
        row[3] = f32::INFINITY;
        assert_eq!(row_max(&row), None);
        let masked = [f32::NEG_INFINITY; 5];
        assert_eq!(row_max(&masked), Some(RowMax { value: f32::NEG_INFINITY, index: 0 }));
    }

    #[test]
    fn sampler_kth_largest_counts_ties_and_masked() {
        let row = [1.0, 5.0, 5.0, f32::NEG_INFINITY, 3.0];
        let mut buffer = Vec::new();
        let got: Vec<f32> = (1..=5).map(|k| kth_largest(&row, k, &mut buffer)).collect();
        assert_eq!(got, [5.0, 5.0, 3.0, 1.0, f32::NEG_INFINITY]);
        let rising: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        assert_eq!(kth_largest(&rising, 40, &mut buffer), 4960.0);
    }

    #[test]
    fn sampler_kth_largest_equals_sorting() {
        let mut state = 1u32;
        let mut random = |values: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % values
        };
        let mut buffer = Vec::new();
        for (len, num_values) in [(300, 7), (5000, 100_000), (5000, 40), (20_000, 1_000_000)] {
            let row: Vec<f32> = (0..len).map(|_| random(num_values) as f32 - 50.0).collect();
            let mut sorted = row.clone();
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            // Fewer than the chunks, as many, more; up to the whole row.
            for k in [1, 2, 19, 20, 21, 40, 100, 299, len] {
                assert_eq!(kth_largest(&row, k, &mut buffer), sorted[k - 1], "{k} of {len}");
            }
        }
    }
}
