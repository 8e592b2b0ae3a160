//! Numbers of rows that a GEMM is launched with, and buckets that share an algorithm.

/// Row counts that each have an algorithm of their own.
const SMALL: [usize; 12] = [8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512];

/// The last row counts of ranges that share an algorithm, which also serve what lies beyond.
const RANGES: [usize; 3] = [1024, 2048, 4096];

/// Past `SMALL`, rows are padded to a multiple of this.
const STEP: usize = 128;

/// A small GEMM may be launched with up to this many rows: kernels that split the rows and share
/// the weights between thread blocks then use more of the device.
pub(super) const MAX_PADDING: usize = 128;

/// Rows that x (and its scales) and out must have room for in a GEMM of `rows` rows. What x holds
/// past `rows` does not matter, and out is overwritten there.
pub fn padded_rows(rows: usize) -> usize {
    launched_rows(rows).max(MAX_PADDING)
}

/// The smallest number of rows that a GEMM of `rows` rows is launched with.
pub fn launched_rows(rows: usize) -> usize {
    SMALL.into_iter().find(|&small| rows <= small).unwrap_or_else(|| rows.next_multiple_of(STEP))
}

/// Every value of `launched_rows` up to `max_rows` rows, upward.
pub(super) fn all_launched_rows(max_rows: usize) -> Vec<usize> {
    let last = launched_rows(max_rows);
    let large = (SMALL[SMALL.len() - 1] + STEP..=last).step_by(STEP);
    SMALL.into_iter().filter(|&small| small <= last).chain(large).collect()
}

/// The bucket that a number of launched rows is in: it names its algorithm.
pub(super) fn bucket(launched: usize) -> usize {
    let small = SMALL.into_iter().find(|&small| launched <= small);
    let range = || RANGES.into_iter().find(|&end| launched <= end);
    small.or_else(range).unwrap_or(RANGES[RANGES.len() - 1])
}

/// The buckets of up to `max_rows` rows, upward.
pub(super) fn buckets(max_rows: usize) -> Vec<usize> {
    let last = bucket(launched_rows(max_rows));
    SMALL.into_iter().chain(RANGES).filter(|&bucket| bucket <= last).collect()
}

/// Whether a bucket has one number of rows, not a range of them.
pub(super) fn is_small(bucket: usize) -> bool {
    bucket <= SMALL[SMALL.len() - 1]
}

/// Row counts at which a candidate for this bucket is compared with the reference at first: the
/// last, the first and one between.
pub(super) fn sampled_rows(bucket: usize) -> Vec<usize> {
    if is_small(bucket) {
        return vec![bucket];
    }
    let first = bucket / 2 + STEP;
    vec![bucket, first, (first + bucket / 4).next_multiple_of(STEP)]
}

/// Row counts at which an algorithm of this bucket may be launched, in GEMMs of up to `max_rows`
/// rows and those of the whole bucket: it is compared with the reference at each of them.
pub(super) fn compared_rows(bucket: usize, max_rows: usize) -> Vec<usize> {
    let first = if is_small(bucket) { bucket } else { bucket / 2 + STEP };
    (first..=last_compared(bucket, max_rows)).step_by(STEP).collect()
}

/// The last of these. The last bucket goes on as far as there are rows.
pub(super) fn last_compared(bucket: usize, max_rows: usize) -> usize {
    match bucket == RANGES[RANGES.len() - 1] {
        true => launched_rows(max_rows).max(bucket),
        false => bucket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_to_the_next_bucket_and_then_to_multiples_of_128() {
        let cases = [(1, 8), (8, 8), (9, 16), (65, 96), (449, 512), (513, 640), (8192, 8192)];
        for (rows, launched) in cases {
            assert_eq!(launched_rows(rows), launched, "{rows} rows");
            assert_eq!(padded_rows(rows), launched.max(128), "{rows} rows");
        }
    }

    #[test]
    fn every_launch_has_a_bucket_that_is_prepared() {
        for max_rows in [1, 8, 100, 512, 513, 1024, 1025, 5000, 9000] {
            let buckets = buckets(max_rows);
            assert!(buckets.is_sorted());
            let launched = all_launched_rows(max_rows);
            for rows in 1..=max_rows {
                assert!(launched.contains(&launched_rows(rows)), "{rows} of {max_rows} rows");
            }
            for launched in launched {
                assert!(buckets.contains(&bucket(launched)), "{launched} of {max_rows} rows");
                assert_eq!(launched_rows(launched), launched);
            }
        }
    }

    #[test]
    fn an_algorithm_is_compared_at_every_launch_of_its_bucket() {
        for max_rows in [1, 512, 513, 1030, 4096, 16_384] {
            let mut compared = Vec::new();
            for end in buckets(max_rows) {
                for rows in sampled_rows(end).into_iter().chain(compared_rows(end, max_rows)) {
                    assert_eq!((bucket(rows), launched_rows(rows)), (end, rows));
                }
                compared.extend(compared_rows(end, max_rows));
            }
            let launched = all_launched_rows(max_rows);
            assert!(launched.iter().all(|rows| compared.contains(rows)), "{max_rows} rows");
        }
    }
}
