//! ALiBi (Press et al., 2022): a bias of attention scores that falls with the distance of a key,
//! by a slope of each head's own.

/// The slopes of `num_heads` heads, as Bloom, Falcon and MPT have them in transformers: powers of
/// 2^(-max_bias / n) for n heads, n a power of two; for other numbers those of the next lower power
/// of two, then every second one of the next higher. 8 is the `max_bias` of all but MPT.
///
/// # Panics
/// There are no heads.
pub fn alibi_slopes(num_heads: usize, max_bias: f64) -> Vec<f32> {
    let lower = 1 << num_heads.ilog2();
    let slope = |power: usize, of: usize| (-max_bias * power as f64 / of as f64).exp2() as f32;
    let whole = (1..=lower).map(|power| slope(power, lower));
    let between = (1..).step_by(2).map(|power| slope(power, 2 * lower));
    whole.chain(between).take(num_heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers 5.23: `_get_alibi_slopes(n)` of Bloom, and `build_mpt_alibi_tensor(n, 2, bias)`
    /// at the position before the last. For a bias of 8 they differ by rounding alone.
    #[test]
    fn slopes_are_those_of_transformers() {
        let expected: [(usize, f64, &[f32]); 5] = [
            (1, 8.0, &[0.00390625]),
            (4, 8.0, &[0.25, 0.0625, 0.015625, 0.00390625]),
            (6, 8.0, &[0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
            (
                12,
                8.0,
                &[
                    0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.70710677,
                    0.35355338, 0.17677668, 0.08838834,
                ],
            ),
            (6, 16.0, &[0.0625, 0.00390625, 0.00024414062, 1.5258789e-5, 0.25, 0.015625]),
        ];
        for (num_heads, max_bias, expected) in expected {
            let slopes = alibi_slopes(num_heads, max_bias);
            assert_eq!(slopes.len(), expected.len());
            for (head, (slope, expected)) in slopes.iter().zip(expected).enumerate() {
                let is_close = (slope - expected).abs() <= 2e-7 * expected;
                assert!(is_close, "{num_heads} heads, head {head}: {slope}, not {expected}");
            }
        }
    }
}
