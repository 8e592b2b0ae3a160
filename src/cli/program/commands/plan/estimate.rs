//! From the steps of a sample to the time of all rows.

use super::lengths::Lengths;
use super::sample::{Sample, Step};
use super::survey::Surveyed;

/// What bounds a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Rows of a step.
    pub max_num_seqs: usize,
    /// Tokens of a step.
    pub max_num_batched_tokens: usize,
    /// Tokens that the KV cache holds.
    pub num_cache_tokens: usize,
}

/// What all rows would take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// If answers are as long as the sample's.
    pub seconds: f64,
    /// If every answer is as long as its row allows.
    pub max_seconds: f64,
    /// Output tokens, as the sample's answers are.
    pub num_output_tokens: f64,
    /// Rows that run at once, on average.
    pub num_running: f64,
    /// What steps cost.
    pub cost: StepCost,
}

/// What a step costs: seconds for itself, for a prompt token and for an output token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Whatever is in it.
    pub per_step: f64,
    /// A token of a prompt.
    pub per_prompt_token: f64,
    /// A row that gets one token.
    pub per_output_token: f64,
}

impl Estimate {
    /// Puts the sample's costs to what was surveyed.
    pub fn new(surveyed: &Surveyed, sample: &Sample, limits: Limits) -> Self {
        let cost = StepCost::fit(&sample.steps);
        let rate = sample.num_stopped as f64 / sample.num_output_tokens.max(1) as f64;
        let num_output_tokens = expected_tokens(&surveyed.max_output_tokens, rate);
        let computed = surveyed.prompt_tokens.total() as f64 * (1.0 - sample.cached_share());
        let time = |num_output_tokens: f64| {
            let num_running = num_running(surveyed, num_output_tokens, limits);
            // Steps that decode take prompts along, as many as their token budget has room for.
            let num_tokens = computed + num_output_tokens;
            let num_steps = (num_output_tokens / num_running)
                .max(num_tokens / limits.max_num_batched_tokens as f64);
            num_steps * cost.per_step
                + computed * cost.per_prompt_token
                + num_output_tokens * cost.per_output_token
        };
        Self {
            seconds: time(num_output_tokens),
            max_seconds: time(surveyed.max_output_tokens.total() as f64),
            num_output_tokens,
            num_running: num_running(surveyed, num_output_tokens, limits),
            cost,
        }
    }
}

/// Rows at once: as many as may run, as there are, and as the KV cache holds.
fn num_running(surveyed: &Surveyed, num_output_tokens: f64, limits: Limits) -> f64 {
    let num_rows = surveyed.prompt_tokens.count().max(1) as f64;
    let per_row = (surveyed.prompt_tokens.total() as f64 + num_output_tokens) / num_rows;
    let in_cache = limits.num_cache_tokens as f64 / per_row.max(1.0);
    // A row of several completions counts as several.
    let completions = surveyed.max_output_tokens.count().max(1) as f64;
    let per_completion = completions / num_rows;
    (limits.max_num_seqs as f64).min(completions).min(in_cache * per_completion).max(1.0)
}

/// Output tokens where each token is the last with probability `rate`, and a limit ends the others.
fn expected_tokens(limits: &Lengths, rate: f64) -> f64 {
    let expected = |limit: usize| match rate > 0.0 {
        // The mean of min(X, limit) of a geometric X.
        true => (1.0 - (1.0 - rate.min(1.0)).powf(limit as f64)) / rate.min(1.0),
        false => limit as f64,
    };
    limits.iter().map(|(limit, count)| count as f64 * expected(limit)).sum()
}

impl StepCost {
    /// The least squares of `seconds = per_step + prompt tokens + output tokens` with no cost below
    /// zero. With three costs every set of them can be tried.
    pub fn fit(steps: &[Step]) -> Self {
        let rows: Vec<([f64; 3], f64)> = steps
            .iter()
            .map(|s| ([1.0, s.num_prompt_tokens as f64, s.num_output_tokens as f64], s.seconds))
            .collect();
        let mut best = (f64::INFINITY, [0.0; 3]);
        for set in 1..8_u8 {
            let Some(costs) = least_squares(&rows, set) else { continue };
            if costs.iter().any(|cost| *cost < 0.0) {
                continue;
            }
            let predicted = |x: &[f64; 3]| x.iter().zip(&costs).map(|(x, c)| x * c).sum::<f64>();
            let error = rows.iter().map(|(x, y)| (predicted(x) - y).powi(2)).sum();
            if error < best.0 {
                best = (error, costs);
            }
        }
        let [per_step, per_prompt_token, per_output_token] = best.1;
        Self { per_step, per_prompt_token, per_output_token }
    }
}

/// The costs in `set` (a bit each) that fit best, the others zero. None where the rows do not tell
/// them apart.
fn least_squares(rows: &[([f64; 3], f64)], set: u8) -> Option<[f64; 3]> {
    let chosen: Vec<usize> = (0..3).filter(|index| set & (1 << index) != 0).collect();
    let n = chosen.len();
    // Normal equations, with the right side as the last column.
    let mut matrix = vec![vec![0.0; n + 1]; n];
    for (x, y) in rows {
        for (i, &a) in chosen.iter().enumerate() {
            for (j, &b) in chosen.iter().enumerate() {
                matrix[i][j] += x[a] * x[b];
            }
            matrix[i][n] += x[a] * y;
        }
    }
    let scale: Vec<f64> = (0..n).map(|i| matrix[i][i]).collect();
    for pivot in 0..n {
        // Relative to what the column was: what is left of it is rounding.
        if matrix[pivot][pivot] <= 1e-9 * scale[pivot] {
            return None;
        }
        let row = matrix[pivot].clone();
        for other in (0..n).filter(|other| *other != pivot) {
            let factor = matrix[other][pivot] / row[pivot];
            matrix[other].iter_mut().zip(&row).for_each(|(to, from)| *to -= factor * from);
        }
    }
    let mut costs = [0.0; 3];
    for (i, &index) in chosen.iter().enumerate() {
        costs[index] = matrix[i][n] / matrix[i][i];
    }
    Some(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(num_prompt_tokens: u64, num_output_tokens: u64) -> Step {
        let seconds = 0.01 + 1e-4 * num_prompt_tokens as f64 + 1e-3 * num_output_tokens as f64;
        Step { seconds, num_prompt_tokens, num_output_tokens }
    }

    fn close(got: f64, wanted: f64) -> bool {
        (got - wanted).abs() < 1e-6 * wanted.abs().max(1e-3)
    }

    #[test]
    fn costs_are_found_again() {
        let steps: Vec<Step> = (1..20).map(|i| step(i * 37 % 64, i % 7 + 1)).collect();
        let StepCost { per_step, per_prompt_token, per_output_token } = StepCost::fit(&steps);
        assert!(close(per_step, 0.01), "{per_step}");
        assert!(close(per_prompt_token, 1e-4), "{per_prompt_token}");
        assert!(close(per_output_token, 1e-3), "{per_output_token}");
    }

    #[test]
    fn steps_that_are_all_alike_still_give_their_time() {
        let cost = StepCost::fit(&[step(0, 4), step(0, 4)]);
        let seconds = cost.per_step + 4.0 * cost.per_output_token;
        assert!(close(seconds, 0.014), "{cost:?}");
        assert_eq!(StepCost::fit(&[]), StepCost::default());
    }

    #[test]
    fn answers_end_by_themselves_or_at_their_limit() {
        let mut limits = Lengths::default();
        limits.add(512, 10);
        assert_eq!(expected_tokens(&limits, 0.0), 5120.0, "none ended: the limit");
        assert!(close(expected_tokens(&limits, 1.0), 10.0), "each token is the last");
        let tokens = expected_tokens(&limits, 0.1);
        assert!((99.0..100.001).contains(&tokens), "{tokens}");
    }

    #[test]
    fn time_is_steps_and_tokens() {
        let mut surveyed = Surveyed::default();
        surveyed.prompt_tokens.add(100, 40);
        surveyed.max_output_tokens.add(50, 40);
        let sample = Sample {
            steps: (1..20).map(|i| step(i * 37 % 64, i % 7 + 1)).collect(),
            num_output_tokens: 100,
            num_prompt_tokens: 100,
            ..Sample::default()
        };
        let limits =
            Limits { max_num_seqs: 8, max_num_batched_tokens: 2048, num_cache_tokens: 1 << 20 };
        let estimate = Estimate::new(&surveyed, &sample, limits);
        // 2000 output tokens in steps of 8 rows, 4000 prompt tokens.
        assert!(close(estimate.seconds, 250.0 * 0.01 + 0.4 + 2.0), "{estimate:?}");
        assert_eq!(estimate.num_running, 8.0);
        let small = Limits { num_cache_tokens: 300, ..limits };
        assert_eq!(Estimate::new(&surveyed, &sample, small).num_running, 2.0);
    }
}
