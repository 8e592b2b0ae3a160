//! Where a recording is quiet, so that it is cut between words.

/// Pieces of a second that are looked at.
const STEPS_PER_SECOND: u32 = 100;

/// Steps that have to be quiet together: a closed consonant is shorter.
const WINDOW: usize = 10;

/// How much louder than the quietest window others are that count as the same pause.
const SAME: f64 = 2.0;

/// Samples of a step. Cuts are between steps, so that their times are short numbers.
pub(super) fn step(rate: u32) -> usize {
    (rate / STEPS_PER_SECOND).max(1) as usize
}

/// The middle of the quietest pause, in whole steps: of those that are equal the last. `values` are
/// of so many samples a second. Sums are of 64 bits in a fixed order, so that every
/// processor cuts at the same place.
pub(super) fn quietest(values: &[f32], rate: u32) -> usize {
    let step = step(rate);
    let loudness = |values: &[f32]| values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let steps: Vec<f64> = values.chunks_exact(step).map(loudness).collect();
    let windows: Vec<f64> = steps.windows(WINDOW).map(|window| window.iter().sum()).collect();
    let least = windows.iter().copied().fold(f64::INFINITY, f64::min);
    let Some(last) = windows.iter().rposition(|window| *window == least) else {
        return values.len();
    };
    let is_quiet = |window: &&f64| **window <= SAME * least;
    let num_before = windows[..last].iter().rev().take_while(is_quiet).count();
    let num_behind = windows[last + 1..].iter().take_while(is_quiet).count();
    let (first, last) = (last - num_before, last + num_behind);
    (first + last + WINDOW) / 2 * step
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second at 1000 samples of noise that is louder and softer.
    fn noise(loudness: impl Fn(usize) -> f32) -> Vec<f32> {
        let sample = |at: usize| if at * 7 % 5 < 2 { 0.9 } else { -0.7 };
        (0..1000).map(|at| sample(at) * loudness(at)).collect()
    }

    #[test]
    fn the_middle_of_the_quietest_pause_is_found() {
        let pause = |from, to| noise(move |at| if (from..to).contains(&at) { 0.01 } else { 1.0 });
        assert_eq!(quietest(&pause(400, 600), 1000), 500);
        assert_eq!(quietest(&pause(0, 200), 1000), 100);
        assert_eq!(quietest(&pause(900, 1000), 1000), 950);
        let two = noise(|at| match at {
            100..300 => 0.01,
            600..800 => 0.02,
            _ => 1.0,
        });
        assert_eq!(quietest(&two, 1000), 200);
        let equal = noise(|at| if at % 400 < 200 { 0.0 } else { 1.0 });
        assert_eq!(quietest(&equal, 1000), 900, "the last of equal ones");
    }

    #[test]
    fn what_is_shorter_than_a_window_ends_where_it_does() {
        assert_eq!(quietest(&[0.0; 99], 1000), 99);
        assert_eq!(quietest(&[0.5; 1000], 1000), 500, "nothing is quieter than the rest");
    }
}
