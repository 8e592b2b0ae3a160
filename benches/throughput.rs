//! The engine on the peers' workloads: run seconds without loading, total tokens per second, and
//! the share of the floor (multiply-adds over the f32 peak measured in the same run).
//!
//!     cargo bench --bench throughput -- --model smol135 --workload mixed --reps 3
//!
//! Also: `--threads N`, `--block-size N`, `--dtype float32`, `--max-num-seqs N`,
//! `--max-num-batched-tokens N`, `--look-ahead N` (0: first come, first served), `--num-blocks N`,
//! `--simulated true` (no model: steps and tokens are counted, seconds mean nothing).
//! Workloads and tokenizer are the peers' (`benches/runs` has their figures), but for `prefixes`:
//! 128 rows that share 16 prefixes of 256 tokens, shuffled, of mixed lengths. Weights are dummies
//! of `benches/shapes`. Greedy, `ignore_eos`: every row yields exactly its `max_tokens`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, EngineConfig, LoadFormat, ModelConfig, ParallelConfig, SchedulerConfig,
};
use vllm_batch::engine::base::matrix::SourceMatrix;
use vllm_batch::engine::core::{Engine, EngineInfo};
use vllm_batch::engine::device::{Device, Tensor};
use vllm_batch::engine::ops::linear::{LinearWeight, linear};

/// Of the workload `prefixes`.
const NUM_PREFIXES: usize = 16;
const PREFIX_LEN: usize = 256;

#[derive(Deserialize)]
struct Row {
    prompt_token_ids: Vec<u32>,
    max_tokens: u32,
}

fn main() {
    let options = options();
    let get = |key: &str, default: &str| options.get(key).cloned().unwrap_or(default.to_owned());
    let reps: usize = get("reps", "3").parse().expect("--reps takes a number");
    let peak = peak_gflops();
    println!("f32 GEMM peak on this machine, best of 40: {peak:.0} GFLOP/s (2048 x 1024 x 1024)");
    println!(
        "| model | workload | seconds (median of {reps}) | tokens/s | floor, s | share of floor \
         | RSS MB | steps | tokens computed |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for model in get("model", "smol135,qwen05").split(',') {
        for workload in get("workload", "mixed,prefill,decode,shared").split(',') {
            let rows = rows(workload);
            // A new engine each time: the prefix cache of the last run would answer for this one.
            let timed = |_| {
                let mut engine = load(model, &options);
                (run(&mut engine, &rows), engine.stats())
            };
            let mut runs: Vec<_> = (0..reps).map(timed).collect();
            runs.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (median, stats) = runs[reps / 2];
            let num_tokens: usize =
                rows.iter().map(|row| row.prompt_token_ids.len() + row.max_tokens as usize).sum();
            let floor = 2e-9 * multiply_adds(model, workload, &rows) / peak;
            println!(
                "| {model} | {workload} | {median:.2} | {:.0} | {floor:.2} | {:.0}% | {} \
                 | {} | {} |",
                num_tokens as f64 / median,
                100.0 * floor / median,
                peak_rss_mb(),
                stats.num_steps,
                stats.num_computed_tokens
            );
        }
        describe(load(model, &options).info());
    }
}

/// `--key value` pairs; what cargo adds (`--bench`) is ignored.
fn options() -> HashMap<String, String> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let pair = |pair: &[String]| (pair[0].trim_start_matches("--").to_owned(), pair[1].clone());
    args.chunks_exact(2).map(pair).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn rows(workload: &str) -> Vec<Row> {
    if workload == "prefixes" {
        return shuffled_prefixes();
    }
    let path = root().join(format!("benches/workloads/{workload}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

/// Eight rows of each prefix, in any order, with 16 to 64 tokens of their own and 8 to 64 more.
fn shuffled_prefixes() -> Vec<Row> {
    let mut state = 0x243F_6A88_85A3_08D3_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) % below
    };
    let mut tokens = |len: u64| (0..len).map(|_| 1000 + random(8000) as u32).collect::<Vec<_>>();
    let prefixes: Vec<_> = (0..NUM_PREFIXES).map(|_| tokens(PREFIX_LEN as u64)).collect();
    let mut order: Vec<usize> = (0..8 * NUM_PREFIXES).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, tokens(1)[0] as usize % (last + 1));
    }
    let row = |index: usize| {
        let own_len = 16 + u64::from(tokens(1)[0]) % 49;
        let prompt_token_ids = [&prefixes[index / 8][..], &tokens(own_len)].concat();
        Row { prompt_token_ids, max_tokens: 8 + tokens(1)[0] % 57 }
    };
    order.into_iter().map(row).collect()
}

fn load(model: &str, options: &HashMap<String, String>) -> Engine {
    let number = |key: &str| options.get(key).map(|value| value.parse().expect("a number"));
    let dtype = options.get("dtype").map_or(DType::BFloat16, |name| match name.as_str() {
        "float32" => DType::Float32,
        "float16" => DType::Float16,
        _ => DType::BFloat16,
    });
    let model = ModelConfig {
        model_dir: root().join("benches/shapes").join(model),
        tokenizer_dir: Some(root().join("benches/tokenizer")),
        load_format: LoadFormat::Dummy,
        dtype: Some(dtype),
        ..ModelConfig::default()
    };
    let mut cache = CacheConfig { kv_cache_memory_bytes: Some(4 << 30), ..CacheConfig::default() };
    cache.block_size = number("block-size");
    cache.num_blocks = number("num-blocks");
    let parallel = ParallelConfig { num_threads: number("threads"), ..ParallelConfig::default() };
    let scheduler = SchedulerConfig {
        max_num_seqs: number("max-num-seqs"),
        max_num_batched_tokens: number("max-num-batched-tokens"),
        look_ahead: number("look-ahead"),
        ..SchedulerConfig::default()
    };
    let config = EngineConfig { model, cache, parallel, scheduler, ..EngineConfig::default() };
    let is_simulated = options.contains_key("simulated");
    let load = if is_simulated { Engine::simulated } else { Engine::load };
    load(&config).unwrap_or_else(|error| panic!("{error}"))
}

fn describe(info: &EngineInfo) {
    println!(
        "\n{} {} x{}, context {}\n",
        info.dtype.name(),
        info.kernel_set,
        info.num_threads,
        info.max_model_len
    );
}

/// Seconds from the first request to the last output.
fn run(engine: &mut Engine, rows: &[Row]) -> f64 {
    let processor = engine.input_processor();
    let start = Instant::now();
    for (index, row) in rows.iter().enumerate() {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(row.max_tokens),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let prompt = Prompt::TokenIds(row.prompt_token_ids.clone());
        let request = processor.process(index as u64, prompt, params, RowKey(index as u64));
        engine.add_request(request.expect("a valid row"));
    }
    let mut num_tokens = 0;
    while engine.has_unfinished_requests() {
        for output in engine.step().expect("the CPU does not fail") {
            num_tokens += output.outputs[0].token_ids.len();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(num_tokens, rows.iter().map(|row| row.max_tokens as usize).sum::<usize>());
    seconds
}

/// Multiply-adds of the linear layers: every token but the last of a row goes through the layers,
/// the output layer runs once per generated token. A shared prefix counts once.
fn multiply_adds(model: &str, workload: &str, rows: &[Row]) -> f64 {
    let text =
        std::fs::read_to_string(root().join("benches/shapes").join(model).join("config.json"));
    let config: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    let get = |key: &str| config[key].as_f64().expect("a number");
    let (hidden, inner, heads) =
        (get("hidden_size"), get("intermediate_size"), get("num_attention_heads"));
    let kv_share = get("num_key_value_heads") / heads;
    let per_layer = hidden * hidden * (2.0 + 2.0 * kv_share) + 3.0 * hidden * inner;
    let num_prompt: usize = rows.iter().map(|row| row.prompt_token_ids.len()).sum();
    let num_output: usize = rows.iter().map(|row| row.max_tokens as usize).sum();
    let cached = match workload {
        "shared" => 384 * (rows.len() - 1),
        "prefixes" => PREFIX_LEN * (rows.len() - NUM_PREFIXES),
        _ => 0,
    };
    let through_layers = (num_prompt + num_output - rows.len() - cached) as f64;
    through_layers * per_layer * get("num_hidden_layers")
        + num_output as f64 * hidden * get("vocab_size")
}

/// The rate of our own f32 kernel on a matrix that fits the cache: the best it can do.
fn peak_gflops() -> f64 {
    let device = Device::cpu(None);
    let (m, n, k) = (2048, 1024, 1024);
    let weight = LinearWeight::load(
        &device,
        DType::Float32,
        &[SourceMatrix::random(n, k, 1, 1.0)].into(),
        None,
    )
    .expect("the CPU has room");
    let x = Tensor::from_vec(SourceMatrix::random(m, k, 2, 1.0).to_vec(), k);
    let mut out = Tensor::zeros(m, n);
    let seconds = (0..40).map(|_| {
        let start = Instant::now();
        linear(&device, &x, &weight, &mut out);
        start.elapsed().as_secs_f64()
    });
    2e-9 * (m * n * k) as f64 / seconds.fold(f64::INFINITY, f64::min)
}

fn peak_rss_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: 0 kB");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
