//! `WindowLimits`: how much of a run may be under way, so that its memory is bounded whatever the
//! size of the input.

use vllm_batch_base::config::Engines;

/// Rows that are computed or wait for it: enough for the scheduler to choose from.
const MIN_WINDOW_ROWS: usize = 4096;
/// Times as many rows as run at once.
const WINDOW_STEPS: usize = 16;
/// GPUs of a machine that rows are read ahead for, where nobody says how many there are.
const USUAL_GPUS: usize = 8;
const WINDOW_BYTES: usize = 256 << 20;
/// Rows that wait on disk for a slow earlier one. Each takes some tens of bytes of memory.
const MAX_AHEAD: u64 = 1 << 18;

/// How much may be under way.
#[derive(Clone, Copy, Debug)]
pub struct WindowLimits {
    /// Rows read and not yet finished.
    pub max_rows: usize,
    /// Bytes of such rows.
    pub max_bytes: usize,
    /// Rows read and not yet in the output.
    pub max_ahead: u64,
}

impl WindowLimits {
    /// Of engines that run so many sequences at once each.
    pub fn of(engines: Engines, max_num_seqs: usize) -> Self {
        let num_engines = match engines {
            Engines::Number(num) => num,
            Engines::AllGpus => USUAL_GPUS,
        };
        let of_engine = MIN_WINDOW_ROWS.max(WINDOW_STEPS.saturating_mul(max_num_seqs));
        Self {
            max_rows: of_engine.saturating_mul(num_engines),
            max_bytes: WINDOW_BYTES,
            max_ahead: MAX_AHEAD,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::config;

    #[test]
    fn rows_are_read_ahead_for_as_many_as_the_loaded_engine_runs() {
        let max_rows =
            |flags: &str, max_num_seqs| config(flags).unwrap().window(max_num_seqs).max_rows;
        assert_eq!([1, 256, 1024].map(|num| max_rows("", num)), [4096, 4096, 16384]);
        assert_eq!(max_rows("--data-parallel-size 3", 1024), 3 * 16384);
        assert_eq!(max_rows("--device cuda:all", 512), 8 * 8192);
    }
}
