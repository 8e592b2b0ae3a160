//! The best positions by their scores.

/// Bits that are in the order of positions, best first: by score downward, then upward.
fn rank(score: f32, position: usize) -> u64 {
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score };
    // Both zeros are one score.
    let bits = (score + 0.0).to_bits();
    let upward = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!upward) << 32 | position as u64
}

/// Writes the positions of the best scores, as many as there is room for, upward. It takes a few
/// passes over the scores, whatever their number. `ranks` is room to work in.
pub(super) fn select(scores: &[f32], ranks: &mut Vec<u64>, out: &mut [u32]) {
    assert!((1..=scores.len()).contains(&out.len()));
    let ranked = || scores.iter().enumerate().map(|(position, score)| rank(*score, position));
    ranks.clear();
    ranks.extend(ranked());
    let (_, &mut last, _) = ranks.select_nth_unstable(out.len() - 1);
    let chosen = ranked().filter(|rank| *rank <= last);
    out.iter_mut().zip(chosen).for_each(|(out, rank)| *out = rank as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(scores: &[f32], num: usize) -> Vec<u32> {
        let (mut ranks, mut out) = (vec![7; 3], vec![u32::MAX; num]);
        select(scores, &mut ranks, &mut out);
        out
    }

    #[test]
    fn the_lowest_of_equal_scores_are_chosen() {
        assert_eq!(selected(&[0.0, 1.0, 0.0, 0.0, -1.0, 0.0], 3), [0, 1, 2]);
        assert_eq!(selected(&[0.0, 1.0, -0.0, 0.0, 2.0, 0.0], 4), [0, 1, 2, 4]);
        assert_eq!(selected(&[-0.0; 9], 2), [0, 1]);
        assert_eq!(selected(&[-3.0, -2.0, -2.0, -1.0, -2.0], 3), [1, 2, 3]);
        assert_eq!(selected(&[5.0], 1), [0]);
    }

    #[test]
    fn what_is_no_number_is_the_worst() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(selected(&[nan, -1.0, -nan, inf, 0.5], 3), [1, 3, 4]);
        assert_eq!(selected(&[nan, -inf, -nan, 1.0], 2), [0, 3], "as good as the least number");
    }

    #[test]
    fn a_sort_chooses_the_same() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few values, so that many are equal.
            (state >> 24) as f32 / 16.0 - 8.0
        };
        for len in [1, 2, 17, 400] {
            let scores: Vec<f32> = (0..len).map(|_| random().floor()).collect();
            for num in [1, len / 3 + 1, len] {
                let mut order: Vec<u32> = (0..len as u32).collect();
                // Stable.
                order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
                order.truncate(num);
                order.sort_unstable();
                assert_eq!(selected(&scores, num), order, "{num} of {len}");
            }
        }
    }
}
