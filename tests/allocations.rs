//! A step of running sequences allocates nothing: all memory is there after the first ones.
//!
//! The allocator counts what any thread asks it for, so this file has one test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, EngineConfig, ModelConfig, ParallelConfig,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::stats::GivenLimits;

struct Counting;

static NUM_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is the system allocator's, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `GlobalAlloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NUM_ROWS: u64 = 64;
/// More than two KV blocks.
const NUM_STEPS: u32 = 80;

fn config() -> EngineConfig {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    EngineConfig {
        model: ModelConfig {
            model_dir: root.join(Path::new("testdata/golden/llama3")),
            dtype: Some(DType::BFloat16),
            ..ModelConfig::default()
        },
        cache: CacheConfig { num_blocks: Some(512), ..CacheConfig::default() },
        // With more it is chance which thread meets the first row of a kind, and grows its buffers.
        parallel: ParallelConfig { num_threads: Some(1), ..ParallelConfig::default() },
        ..EngineConfig::default()
    }
}

/// Greedy rows, and rows of every kind of truncation.
fn params(row: u64) -> SamplingParams {
    SamplingParams {
        max_tokens: Some(NUM_STEPS),
        ignore_eos: true,
        temperature: if row.is_multiple_of(2) { 0.0 } else { 0.8 },
        top_k: if row % 4 == 1 { 5 } else { 0 },
        top_p: if row % 8 == 3 { 0.9 } else { 1.0 },
        repetition_penalty: if row % 16 == 2 { 1.1 } else { 1.0 },
        ..SamplingParams::default()
    }
}

/// Runs 64 rows to their end; returns the allocations of each step in which nobody came or went.
fn run(engine: &mut Engine) -> Vec<u64> {
    let processor = engine.input_processor();
    for row in 0..NUM_ROWS {
        let prompt = Prompt::TokenIds(vec![3 + row as u32; 4]);
        let request = processor.process(row, prompt, params(row), RowKey(row));
        engine.add_request(request.expect("a valid row"));
    }
    let mut counts = Vec::new();
    let mut num_finished = 0;
    while engine.has_unfinished_requests() {
        let before = NUM_ALLOCATIONS.load(Ordering::Relaxed);
        let outputs = engine.step().expect("the CPU does not fail");
        let count = NUM_ALLOCATIONS.load(Ordering::Relaxed) - before;
        num_finished += outputs.len() as u64;
        counts.push(count);
    }
    assert_eq!((num_finished, counts.len()), (NUM_ROWS, NUM_STEPS as usize));
    // In the first all are admitted, in the last they are finished.
    counts[1..counts.len() - 1].to_vec()
}

#[test]
fn a_step_of_running_sequences_allocates_nothing() {
    let engines = [
        ("simulated", Engine::simulated(&config()).expect("the files are committed")),
        ("llama3", Engine::load(&config()).expect("the files are committed")),
    ];
    for (name, mut engine) in engines {
        let first = run(&mut engine);
        let second = run(&mut engine);
        println!("{name}: {first:?}, then {second:?}");
        assert_eq!(second, vec![0; NUM_STEPS as usize - 2], "{name}, when all buffers have grown");
        engine.start_op_times(GivenLimits { flops: Some(1e12), bandwidth: Some(1e10) });
        assert_eq!(run(&mut engine), vec![0; NUM_STEPS as usize - 2], "{name}, ops timed");
    }
}
