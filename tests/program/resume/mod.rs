//! Runs of the real program that are killed, stopped, refused and continued: the bytes that come
//! out in the end are those of a run that nothing disturbed, and nothing that was finished is
//! computed again. `tests/files/crash` does the same to the files alone, operation by operation.
//!
//! `VLLM_BATCH_TEST_KILLS=5000 cargo test --release --test program resume::kill` kills as many
//! (`scripts/kill-soak`); `VLLM_BATCH_TEST_KILL_SEED` chooses other moments.

mod content;
mod damage;
mod disk_full;
mod engines;
mod forms;
mod guesses;
pub mod journal;
mod kill;
mod kill_pictures;
mod own_names;
mod pairs;
mod pipes;
pub mod program;
mod refusals;
mod rows;
mod shared_names;
mod signals;
mod work;
