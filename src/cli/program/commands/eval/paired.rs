//! Tests of two measures over the same rows: McNemar's, exact, and a bootstrap with a fixed seed.

use vllm_batch_engine::sampler::philox::philox4x32_10;

/// Resamples of the bootstrap: a multiple of four, since four numbers are drawn at a time.
const NUM_RESAMPLES: usize = 1000;

/// Key of the bootstrap's random numbers: the same files give the same interval.
const SEED: [u32; 2] = [0x6576_616c, 0];

/// The chance that as many rows or more flip one way, if each flipped row may as well have gone the
/// other: McNemar's exact test with two sides.
///
/// `worse`, `better`: rows that flipped each way.
pub fn mcnemar(worse: u64, better: u64) -> f64 {
    let (fewer, all) = (worse.min(better), worse + better);
    // The logarithm of C(all, i) / 2^all, from i to i + 1.
    let mut log = -(all as f64) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    for i in 0..=fewer {
        sum += log.exp();
        log += ((all - i) as f64 / (i + 1) as f64).ln();
    }
    (2.0 * sum).min(1.0)
}

/// A paired bootstrap in memory that does not grow with the rows: each row counts in each resample
/// as often as a Poisson variable of mean 1 says (Chamandy et al. 2012).
#[derive(Debug)]
pub struct Bootstrap {
    num_rows: u64,
    /// Rows, and the sum of their differences.
    resamples: Vec<(f64, f64)>,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { num_rows: 0, resamples: vec![(0.0, 0.0); NUM_RESAMPLES] }
    }
}

impl Bootstrap {
    /// Takes the difference of a pair.
    pub fn add(&mut self, difference: f64) {
        let row = [self.num_rows as u32, (self.num_rows >> 32) as u32];
        self.num_rows += 1;
        for (block, resamples) in self.resamples.chunks_exact_mut(4).enumerate() {
            let drawn = philox4x32_10([row[0], row[1], block as u32, 0], SEED);
            for ((rows, sum), bits) in resamples.iter_mut().zip(drawn) {
                let count = f64::from(poisson(bits));
                *rows += count;
                *sum += count * difference;
            }
        }
    }

    /// The interval of 95% of the mean difference; None of too few rows.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let means = self.resamples.iter().filter(|(rows, _)| *rows > 0.0);
        let mut means: Vec<f64> = means.map(|(rows, sum)| sum / rows).collect();
        if self.num_rows < 2 || means.len() < NUM_RESAMPLES / 2 {
            return None;
        }
        means.sort_by(f64::total_cmp);
        let at = |share: f64| means[((means.len() - 1) as f64 * share).round() as usize];
        Some((at(0.025), at(0.975)))
    }
}

/// A Poisson variable of mean 1 from 32 random bits.
fn poisson(bits: u32) -> u32 {
    let uniform = (f64::from(bits) + 0.5) / f64::from(u32::MAX);
    let (mut count, mut chance, mut sum) = (0, (-1f64).exp(), 0.0);
    loop {
        sum += chance;
        if uniform < sum || chance < 1e-12 {
            return count;
        }
        count += 1;
        chance /= f64::from(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values by exact fractions.
    #[test]
    fn mcnemars_test_is_the_binomial_one() {
        let cases = [
            (0, 0, 1.0),
            (5, 5, 1.0),
            (1, 0, 1.0),
            (6, 0, 0.03125),
            (0, 6, 0.03125),
            (1, 9, 0.021_484_375),
            (10, 20, 0.098_737_146_705_389_02),
            (400, 500, 0.000_956_444_136_918_946_1),
        ];
        for (worse, better, expected) in cases {
            let got = mcnemar(worse, better);
            assert!((got - expected).abs() < 1e-9, "{worse} {better}: {got}");
        }
        assert!(mcnemar(0, 5000) < 1e-300);
    }

    #[test]
    fn the_bootstrap_finds_the_error_of_a_mean() {
        let mut bootstrap = Bootstrap::default();
        assert_eq!(bootstrap.interval(), None);
        // 400 rows, of which one in four is better by 1: the mean is 0.25, its error 0.0217.
        (0..400).for_each(|row| bootstrap.add(f64::from(u8::from(row % 4 == 0))));
        let (low, high) = bootstrap.interval().unwrap();
        assert!((low - 0.2075).abs() < 0.006 && (high - 0.2925).abs() < 0.006, "{low} {high}");
        let mut again = Bootstrap::default();
        (0..400).for_each(|row| again.add(f64::from(u8::from(row % 4 == 0))));
        assert_eq!(again.interval(), Some((low, high)));
    }

    #[test]
    fn counts_have_mean_1_and_variance_1() {
        let counts: Vec<f64> = (0..1u32 << 16).map(|at| f64::from(poisson(at << 16))).collect();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let squares = counts.iter().map(|count| (count - 1.0).powi(2)).sum::<f64>();
        assert!((mean - 1.0).abs() < 1e-3, "{mean}");
        assert!((squares / counts.len() as f64 - 1.0).abs() < 1e-2, "{squares}");
    }
}
