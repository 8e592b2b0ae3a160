//! The search for the fastest algorithm of each bucket whose bits are the reference's.
//!
//! The reference is the first algorithm that cuBLASLt's heuristic offers for 2048 rows and that does
//! not split K: chosen by no clock, so that whoever tunes, and whatever wins, the bits are the same.
//! Its result over adversarial data is compared with a candidate's, every element of every row, each
//! row of x at many places. On Hopper no candidate that leaves K in one piece was seen to differ.

use super::buckets;
use super::error::GemmError;
use super::key::GemmKey;
use super::operation::{ANY_REDUCTION, NO_REDUCTION, Operation, without_split};
use super::table::{Algorithm, Choice};
use super::trial::Trial;

/// The heuristic is asked about GEMMs of smaller K too, for which it splits K less often. Its
/// algorithms serve the whole K as well.
const CANDIDATE_K: [usize; 3] = [4096, 2048, 1024];

/// A candidate this much slower than the best at first sight is not measured.
const MAX_SLOWDOWN: f64 = 1.3;

/// The pinned algorithm of a bucket beside the fastest that cuBLASLt offers with any bits.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketCost {
    /// Rows of x.
    pub rows: usize,
    /// A launch of the pinned algorithm.
    pub pinned_micros: f64,
    /// A launch of the fastest candidate.
    pub fastest_micros: f64,
}

/// The choices for these buckets.
pub fn tune(trial: &Trial<'_>, wanted: &[usize]) -> Result<Vec<Choice>, GemmError> {
    let is_small = |bucket: &usize| buckets::is_small(*bucket);
    let mut small = Vec::new();
    if let Some(&first) = wanted.iter().find(|bucket| is_small(bucket)) {
        let last = *wanted.iter().rfind(|bucket| is_small(bucket)).unwrap_or(&first);
        let candidates = small_candidates(trial)?;
        for launched in buckets::all_launched_rows(last.max(buckets::MAX_PADDING)) {
            if launched >= first {
                small.extend(fastest_equal(trial, launched, &candidates)?);
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
fn small_candidates(trial: &Trial<'_>) -> Result<Vec<Algorithm>, GemmError> {
    let key = trial.operation.key;
    let mut candidates = vec![trial.reference_algorithm];
    for k in [key.k].into_iter().chain(CANDIDATE_K.into_iter().filter(|&k| k < key.k)) {
        let operation = Operation::new(GemmKey { k, ..key })?;
        operation.bind(&trial.operands)?;
        for launched in buckets::all_launched_rows(512) {
            let rows = operation.rows(launched)?;
            for reductions in [NO_REDUCTION, ANY_REDUCTION] {
                let offered = operation.heuristic(trial.backend, &rows, reductions)?;
                candidates.extend(offered.iter().filter_map(without_split));
            }
        }
    }
    let mut distinct: Vec<Algorithm> = Vec::new();
    for candidate in candidates {
        if !distinct.contains(&candidate) {
            distinct.push(candidate);
        }
    }
    Ok(distinct)
}

/// The fastest candidate with the reference's bits, timed with the last rows of the bucket.
fn fastest_equal(
    trial: &Trial<'_>,
    bucket: usize,
    candidates: &[Algorithm],
) -> Result<Option<Choice>, GemmError> {
    let rows = trial.operation.rows(bucket)?;
    let mut measured: Vec<(f64, &Algorithm)> = Vec::new();
    let mut best = f64::INFINITY;
    for algorithm in candidates {
        let Some(first) = trial.first_micros(&rows, algorithm)? else { continue };
        if first > MAX_SLOWDOWN * best || !trial.matches(&rows, algorithm)? {
            continue;
        }
        let micros = trial.micros(&rows, algorithm, first)?;
        best = best.min(micros);
        measured.push((micros, algorithm));
    }
    measured.sort_by(|a, b| a.0.total_cmp(&b.0));
    let others = buckets::compared_rows(bucket).split_off(1);
    for (micros, algorithm) in measured {
        let mut is_equal = true;
        for &launched in &others {
            let rows = trial.operation.rows(launched)?;
            is_equal = is_equal && trial.matches(&rows, algorithm)?;
        }
        if is_equal {
            let algorithm = *algorithm;
            return Ok(Some(Choice { bucket, launched: bucket, algorithm, micros }));
        }
    }
    Ok(None)
}

/// What a choice costs beside the fastest candidate of any bits.
pub fn cost(trial: &Trial<'_>, choice: &Choice) -> Result<BucketCost, GemmError> {
    let launched = trial.operation.rows(choice.launched)?;
    let pinned = trial.first_micros(&launched, &choice.algorithm)?;
    let missing = GemmError::NoAlgorithm { key: trial.operation.key, rows: choice.bucket };
    let pinned_micros = trial.micros(&launched, &choice.algorithm, pinned.ok_or(missing)?)?;
    let rows = trial.operation.rows(choice.bucket)?;
    let mut fastest_micros = pinned_micros;
    for algorithm in trial.operation.heuristic(trial.backend, &rows, ANY_REDUCTION)? {
        if let Some(first) = trial.first_micros(&rows, &algorithm)?
            && first < MAX_SLOWDOWN * fastest_micros
        {
            fastest_micros = fastest_micros.min(trial.micros(&rows, &algorithm, first)?);
        }
    }
    Ok(BucketCost { rows: choice.bucket, pinned_micros, fastest_micros })
}
