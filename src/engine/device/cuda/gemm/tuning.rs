//! The search for the fastest algorithm of each bucket whose bits are the reference's.
//!
//! The reference is the first algorithm that cuBLASLt's heuristic offers for 2048 rows and that
//! does not split K: chosen by no clock, so that whoever tunes, and whatever wins, the bits are the
//! same. Its result over adversarial data is compared with a candidate's, every element of every
//! row, each row of x at many places. On Hopper nearly every candidate that
//! leaves K in one piece has the same bits (docs/PERFORMANCE.md); the others are refused here.

use super::buckets;
use super::error::GemmError;
use super::key::GemmKey;
use super::operation::{ANY_REDUCTION, NO_REDUCTION, Operation, Rows, without_split};
use super::table::{Algorithm, Choice};
use super::trial::Trial;

/// The heuristic is asked about GEMMs of smaller K too, for which it splits K less often. Its
/// algorithms serve the whole K as well.
const CANDIDATE_K: [usize; 2] = [4096, 2048];

/// Candidates that are measured well: the fastest at first sight that have the right bits.
const NUM_FINALISTS: usize = 6;

/// A candidate this much slower than the first finalist at first sight is none.
const MAX_SLOWDOWN: f64 = 1.3;

/// Measurements of a finalist, of which the fastest counts.
const NUM_ROUNDS: usize = 3;

/// An algorithm that may serve small buckets, and the row counts that the heuristic offered it for.
struct Candidate {
    algorithm: Algorithm,
    min_rows: usize,
    max_rows: usize,
}

impl Candidate {
    /// Whether it is worth a look. What won on an H200 had been offered for row counts near by.
    fn may_serve(&self, launched: usize) -> bool {
        self.min_rows / 2 <= launched && launched / 8 <= self.max_rows
    }
}

/// The choices for these buckets.
pub(super) fn tune(trial: &Trial<'_>, wanted: &[usize]) -> Result<Vec<Choice>, GemmError> {
    let is_small = |bucket: &usize| buckets::is_small(*bucket);
    let mut small = Vec::new();
    if let Some(&first) = wanted.iter().find(|bucket| is_small(bucket)) {
        let last = *wanted.iter().rfind(|bucket| is_small(bucket)).unwrap_or(&first);
        let candidates = small_candidates(trial)?;
        for launched in buckets::all_launched_rows(last.max(buckets::MAX_PADDING)) {
            if launched >= first {
                let near = candidates.iter().filter(|candidate| candidate.may_serve(launched));
                let near: Vec<Algorithm> = near.map(|candidate| candidate.algorithm).collect();
                small.extend(fastest_equal(trial, launched, &near)?);
            }
        }
    }
    let mut choices = Vec::new();
    for &bucket in wanted {
        let choice = if is_small(&bucket) {
            let serves = |choice: &&Choice| Choice { bucket, ..**choice }.is_possible();
            let by_time = |a: &&Choice, b: &&Choice| a.micros.total_cmp(&b.micros);
            small.iter().filter(serves).min_by(by_time).copied()
        } else {
            let rows = trial.operation.rows(bucket)?;
            let mut candidates = trial.operation.heuristic(trial.backend, &rows, NO_REDUCTION)?;
            candidates.push(trial.reference_algorithm);
            fastest_equal(trial, bucket, &candidates)?
        };
        let key = trial.operation.key;
        let choice = choice.ok_or(GemmError::NoAlgorithm { key, rows: bucket })?;
        choices.push(Choice { bucket, ..choice });
    }
    Ok(choices)
}

/// Whatever may serve up to 512 rows. The heuristic's candidates for other row counts are among
/// them, and those that it offers with K split, with K in one piece: of itself it offers few
/// that leave K whole where K is long and rows are few.
fn small_candidates(trial: &Trial<'_>) -> Result<Vec<Candidate>, GemmError> {
    let key = trial.operation.key;
    let algorithm = trial.reference_algorithm;
    let mut candidates = vec![Candidate { algorithm, min_rows: 0, max_rows: usize::MAX }];
    for k in [key.k].into_iter().chain(CANDIDATE_K.into_iter().filter(|&k| k < key.k)) {
        let operation = Operation::new(GemmKey { k, ..key })?;
        operation.bind(&trial.operands)?;
        for launched in buckets::all_launched_rows(512) {
            let rows = operation.rows(launched)?;
            for reductions in [NO_REDUCTION, ANY_REDUCTION] {
                let offered = operation.heuristic(trial.backend, &rows, reductions)?;
                for algorithm in offered.iter().filter_map(without_split) {
                    let known = candidates.iter_mut().find(|known| known.algorithm == algorithm);
                    if let Some(known) = known {
                        known.min_rows = known.min_rows.min(launched);
                        known.max_rows = known.max_rows.max(launched);
                    } else {
                        let (min_rows, max_rows) = (launched, launched);
                        candidates.push(Candidate { algorithm, min_rows, max_rows });
                    }
                }
            }
        }
    }
    Ok(candidates)
}

/// The fastest candidate with the reference's bits, timed with the last rows of the bucket.
fn fastest_equal(
    trial: &Trial<'_>,
    bucket: usize,
    candidates: &[Algorithm],
) -> Result<Option<Choice>, GemmError> {
    let rows = trial.operation.rows(bucket)?;
    let mut seen = Vec::new();
    for algorithm in candidates {
        seen.extend(trial.first_micros(&rows, algorithm)?.map(|micros| (micros, *algorithm)));
    }
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut finalists: Vec<(f64, Algorithm)> = Vec::new();
    for (micros, algorithm) in seen {
        let is_slow = finalists.first().is_some_and(|best| micros > MAX_SLOWDOWN * best.0);
        if is_slow || finalists.len() == NUM_FINALISTS {
            break;
        }
        if is_equal(trial, &buckets::sampled_rows(bucket), &algorithm)? {
            finalists.push((micros, algorithm));
        }
    }
    let micros = race(trial, &rows, &finalists)?;
    let mut timed: Vec<_> = micros.into_iter().zip(finalists).collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let compared = buckets::last_compared(bucket, trial.max_rows);
    for (micros, (_, algorithm)) in timed {
        // What depends on the number of rows (waves that are not full, say) may show at one only.
        if is_equal(trial, &buckets::compared_rows(bucket, trial.max_rows), &algorithm)? {
            return Ok(Some(Choice { bucket, launched: bucket, algorithm, micros, compared }));
        }
    }
    Ok(None)
}

/// Whether the algorithm has the reference's bits at each of these row counts.
fn is_equal(trial: &Trial<'_>, rows: &[usize], algorithm: &Algorithm) -> Result<bool, GemmError> {
    for &launched in rows {
        if !trial.matches(&trial.operation.rows(launched)?, algorithm)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Microseconds of each algorithm, from about what it takes. In rounds, so that a change of the
/// device's clocks meets all.
fn race(
    trial: &Trial<'_>,
    rows: &Rows,
    algorithms: &[(f64, Algorithm)],
) -> Result<Vec<f64>, GemmError> {
    let mut fastest = vec![f64::INFINITY; algorithms.len()];
    for _ in 0..NUM_ROUNDS {
        for ((about, algorithm), fastest) in algorithms.iter().zip(&mut fastest) {
            *fastest = fastest.min(trial.micros(rows, algorithm, *about)?);
        }
    }
    Ok(fastest)
}
