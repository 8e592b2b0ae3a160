//! `Measure`: a mean over rows, and how sure it is.

use serde_json::{Value, json};

/// The quantile of the normal distribution for an interval of 95%.
const Z: f64 = 1.959_963_984_540_054;

/// Numbers of rows, summed up. Sums of 0 and 1 are exact, so that 4 of 5 is the number 0.8.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measure {
    num_rows: u64,
    sum: f64,
    sum_of_squares: f64,
    /// A row has something between 0 and 1, or beyond.
    is_graded: bool,
    /// A row is below 0, so that 0 is not the worst.
    has_negative: bool,
}

impl Measure {
    /// Takes the number of a row.
    pub fn add(&mut self, value: f64) {
        self.num_rows += 1;
        self.sum += value;
        self.sum_of_squares += value * value;
        self.is_graded |= value != 0.0 && value != 1.0;
        self.has_negative |= value < 0.0;
    }

    /// The same with rows of 0. Where that is not the worst, as of log-likelihoods, they are left
    /// out: they would make the mean better.
    pub fn with_zeros(self, num_rows: u64) -> Self {
        let counted = if self.has_negative { 0 } else { num_rows };
        Self { num_rows: self.num_rows + counted, ..self }
    }

    /// Rows that have the number.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// The mean. Of no rows 0.
    pub fn mean(&self) -> f64 {
        if self.num_rows == 0 { 0.0 } else { self.sum / self.num_rows as f64 }
    }

    /// The standard error of the mean, by the variance of a sample, as lm-evaluation-harness and
    /// inspect_ai say it; None of fewer than two rows.
    pub fn stderr(&self) -> Option<f64> {
        let n = self.num_rows as f64;
        let squares = self.sum_of_squares - self.sum * self.sum / n;
        (self.num_rows > 1).then(|| (squares.max(0.0) / (n - 1.0) / n).sqrt())
    }

    /// Wilson's interval of 95% for a share; None where rows are more than right or wrong.
    pub fn interval(&self) -> Option<(f64, f64)> {
        if self.is_graded || self.num_rows == 0 {
            return None;
        }
        let (n, p) = (self.num_rows as f64, self.mean());
        let centre = p + Z * Z / (2.0 * n);
        let reach = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        Some((((centre - reach) / scale).max(0.0), ((centre + reach) / scale).min(1.0)))
    }

    /// As reports have it.
    pub fn json(&self) -> Value {
        let mut value = json!({"value": self.mean(), "rows": self.num_rows});
        if let Some(stderr) = self.stderr() {
            value["stderr"] = stderr.into();
        }
        if let Some((low, high)) = self.interval() {
            value["low"] = low.into();
            value["high"] = high.into();
        }
        value
    }
}

/// The chance that at least one of `k` completions is right, where `right` of `n` are: one less
/// C(n - right, k) / C(n, k), as a product.
pub fn pass_at(k: u64, n: u64, right: u64) -> f64 {
    if n - right < k {
        return 1.0;
    }
    let all_wrong: f64 = (n - right + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product();
    1.0 - all_wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(values: &[f64]) -> Measure {
        let mut measure = Measure::default();
        values.iter().for_each(|value| measure.add(*value));
        measure
    }

    #[test]
    fn means_have_their_errors() {
        let shares = measure(&[1.0, 1.0, 0.0, 1.0]).with_zeros(1);
        assert_eq!((shares.mean(), shares.num_rows()), (0.6, 5));
        // The variance of a sample is 0.3.
        assert!((shares.stderr().unwrap() - (0.3f64 / 5.0).sqrt()).abs() < 1e-15);
        let (low, high) = shares.interval().unwrap();
        assert!((low - 0.230_724).abs() < 1e-6 && (high - 0.882_379).abs() < 1e-6, "{low} {high}");
        let graded = measure(&[0.5, 1.0]);
        assert_eq!((graded.mean(), graded.stderr(), graded.interval()), (0.75, Some(0.25), None));
        let one = measure(&[1.0]);
        assert_eq!((one.mean(), one.stderr()), (1.0, None));
        assert_eq!(measure(&[1.0; 7]).interval().unwrap().1, 1.0);
        assert_eq!(Measure::default().mean(), 0.0);
        assert_eq!(measure(&[-1.0, -3.0]).with_zeros(2).mean(), -2.0, "0 would be better");
    }

    #[test]
    fn four_of_five_is_the_number_that_a_gate_says() {
        for (right, all, gate) in [(4, 5, 0.8), (7, 10, 0.7), (1, 3, 1.0 / 3.0), (29, 100, 0.29)] {
            let wrong = (right..all).map(|_| 0.0);
            let values: Vec<f64> = (0..right).map(|_| 1.0).chain(wrong).collect();
            assert_eq!(measure(&values).mean(), gate);
        }
    }

    /// By exact fractions of 128 bits.
    #[test]
    fn pass_at_k_is_the_fraction_of_binomials() {
        let choose =
            |n: u128, k: u128| (0..k).fold(1u128, |c, i| c * n.saturating_sub(i) / (i + 1));
        for n in 1..=40u64 {
            for right in 0..=n {
                for k in 1..=n {
                    let wrong = choose((n - right).into(), k.into());
                    let all = choose(n.into(), k.into());
                    let exact = (all - wrong) as f64 / all as f64;
                    let got = pass_at(k, n, right);
                    assert!((got - exact).abs() < 1e-13, "{k} {n} {right}: {got} {exact}");
                }
            }
        }
    }
}
