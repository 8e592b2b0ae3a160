//! The same bytes for a row whatever runs beside it: the output file of `vllm-batch run` is
//! byte-identical for every batch size, token budget, block size, thread count, with and without
//! prefix caching, and under preemption; greedy and sampled rows, in float32 and bfloat16.

mod blocks;
mod rows;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Ways to run the same rows: each value of a flag is in one of them. Blocks: enough for one long
/// row, too few for all, so that rows are preempted.
const VARIANTS: &[&str] = &[
    "--max-num-seqs 1",
    "--max-num-seqs 7 --max-num-batched-tokens 16 --no-enable-prefix-caching",
    "--max-num-seqs 64 --max-num-batched-tokens 4096 --block-size 64",
    "--block-size 16 --num-gpu-blocks-override 24",
    "--block-size 16 --num-gpu-blocks-override 24 --no-enable-prefix-caching --threads 1",
    "--threads 2 --max-num-seqs 2 --max-num-batched-tokens 64 --block-size 16",
];

/// The same with guessed tokens, which models with states refuse.
const GUESSES: &[&str] = &[
    "--max-num-seqs 2 --block-size 16 --speculative-config \
     {\"method\":\"ngram\",\"num_speculative_tokens\":5,\"prompt_lookup_min\":1,\"prompt_lookup_max\":3}",
    "--max-num-seqs 8 --block-size 16 --num-gpu-blocks-override 24 --speculative-config \
     {\"method\":\"suffix\"}",
];

/// Five of every way to sample.
const NUM_ROWS: usize = 65;

/// Two of every way to sample: some kernels are slow where nothing is optimised.
const NUM_KERNEL_ROWS: usize = 26;

struct Run {
    output: Vec<u8>,
    stats: Value,
}

fn run(model: &Path, input: &Path, folder: &Path, flags: &str) -> Run {
    let (out, stats) = (folder.join("out.jsonl"), folder.join("stats.json"));
    let status = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args([
            "run",
            "-qq",
            "--overwrite",
            "--generation-config",
            "vllm",
            "--kv-cache-memory-bytes",
            "16MiB",
        ])
        .arg("--model")
        .arg(model)
        .arg("--input")
        .arg(input)
        .arg("--out")
        .arg(&out)
        .arg("--stats")
        .arg(&stats)
        .args(flags.split_whitespace())
        .status()
        .unwrap();
    assert!(status.success(), "{}: {flags}: {status}", model.display());
    let stats = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    Run { output: std::fs::read(&out).unwrap(), stats }
}

/// The first row that differs, for the message.
fn first_difference(left: &[u8], right: &[u8]) -> String {
    let lines = |bytes: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
    };
    let (left, right) = (lines(left), lines(right));
    let differs = left.iter().zip(&right).find(|(left, right)| left != right);
    match differs {
        Some((left, right)) => format!("{left}\n{right}"),
        None => format!("{} rows, {} rows", left.len(), right.len()),
    }
}

fn check(model: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    check_model(&root.join("testdata").join(model), NUM_ROWS, "", GUESSES);
}

/// The same of a model that keeps states.
fn check_states(model: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    check_model(&root.join("testdata").join(model), NUM_ROWS, "", &[]);
}

/// Runs so many rows on a model with these flags in every way, and in some more.
fn check_model(model: &Path, num_rows: usize, flags: &str, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, rows::jsonl(num_rows)).unwrap();
    for dtype in ["float32", "bfloat16"] {
        let baseline = run(model, &input, folder.path(), &format!("--dtype {dtype} {flags}"));
        assert_eq!(baseline.stats["rows"]["ok"], num_rows, "{dtype}");
        let cached = |run: &Run| run.stats["tokens"]["cached"].as_u64().unwrap();
        let mut num_cached = cached(&baseline);
        let mut num_preemptions = baseline.stats["num_preemptions"].as_u64().unwrap();
        for variant in VARIANTS.iter().chain(more) {
            let all_flags = format!("--dtype {dtype} {flags} {variant}");
            let other = run(model, &input, folder.path(), &all_flags);
            num_preemptions += other.stats["num_preemptions"].as_u64().unwrap();
            num_cached += cached(&other);
            if variant.contains("--no-enable-prefix-caching") {
                assert_eq!(cached(&other), 0);
            }
            assert!(
                other.output == baseline.output,
                "{} {dtype} {variant} changed a row:\n{}",
                model.display(),
                first_difference(&baseline.output, &other.output)
            );
            let num_guessed = other.stats["speculation"]["num_draft_tokens"].as_u64().unwrap();
            assert_eq!(num_guessed > 0, variant.contains("--speculative-config"), "{variant}");
        }
        // How many there are depends on how fast rows come.
        assert!(num_preemptions > 0, "the small pools preempted nothing");
        // Blocks of a model with large states may be longer than its rows by default.
        assert!(num_cached > 0, "prefixes are shared");
    }
}

#[test]
fn the_demo_model_gives_the_same_bytes_however_it_is_run() {
    check("demo");
}

/// Kernels that are not this machine's choice, and ways to run them.
const KERNELS: &[&str] = &[
    "--cpu-isa avx512",
    "--cpu-isa avx512-bf16",
    "--cpu-isa amx-twin",
    "--cpu-isa avx2",
    "--cpu-isa neon",
    "--cpu-isa neon-bf16",
    "--cpu-isa portable",
    "--quantization int8",
    "--quantization int8 --cpu-isa amx-twin",
    "--quantization int8 --cpu-isa avx2",
    "--quantization int8 --cpu-isa portable",
];
const KERNEL_VARIANTS: &[&str] = &[
    "--max-num-seqs 1",
    "--max-num-seqs 7 --max-num-batched-tokens 16 --threads 1 --no-enable-prefix-caching",
    "--block-size 16 --num-gpu-blocks-override 24",
    GUESSES[0],
];

#[test]
fn every_set_of_kernels_gives_the_same_bytes_however_it_is_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, rows::jsonl(NUM_KERNEL_ROWS)).unwrap();
    let model = root.join("testdata/demo");
    for kernels in KERNELS {
        let flags = format!("--device cpu --dtype bfloat16 {kernels}");
        let isa = kernels.split(' ').skip_while(|word| *word != "--cpu-isa").nth(1);
        if isa.is_some_and(|isa| !has_isa(isa)) {
            println!("SKIP {kernels}: this CPU does not have it");
            continue;
        }
        let baseline = run(&model, &input, folder.path(), &flags);
        for variant in KERNEL_VARIANTS {
            let other = run(&model, &input, folder.path(), &format!("{flags} {variant}"));
            assert!(
                other.output == baseline.output,
                "{} {kernels} {variant} changed a row:\n{}",
                model.display(),
                first_difference(&baseline.output, &other.output)
            );
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, rows::jsonl(NUM_KERNEL_ROWS)).unwrap();
    for (model, flags) in [("demo", ""), ("demo", "--quantization int8"), ("golden/gptq", "")] {
        let model = root.join("testdata").join(model);
        let run = |num_threads: usize| {
            let flags = format!("--device cpu {flags} --threads {num_threads}");
            run(&model, &input, folder.path(), &flags)
        };
        let alone = run(1);
        for num_threads in [2, 8, 64] {
            let other = run(num_threads);
            assert!(
                other.output == alone.output,
                "{} {flags}, {num_threads} threads changed a row:\n{}",
                model.display(),
                first_difference(&alone.output, &other.output)
            );
        }
    }
}

/// Whether this CPU has it, as the system says.
fn has_isa(isa: &str) -> bool {
    // An emulator's own machine may be another one.
    let is_of_x86 = isa.starts_with("avx") || isa.starts_with("amx");
    let is_of_aarch64 = isa.starts_with("neon");
    if is_of_x86 && cfg!(target_arch = "aarch64") || is_of_aarch64 && cfg!(target_arch = "x86_64") {
        return false;
    }
    let flags: &[&str] = match isa {
        "avx512" => &["avx512f", "avx512bw", "avx512dq", "avx512vl"],
        "avx512-bf16" => &["avx512_bf16", "avx512vl"],
        "avx2" | "amx-twin" => &["avx2", "fma", "f16c"],
        "neon" => &["asimd"],
        "neon-bf16" => &["bf16"],
        _ => &[],
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.iter().all(|flag| cpu.split_whitespace().any(|word| word == *flag))
}

#[test]
fn sliding_windows_and_head_norms_give_the_same_bytes_however_they_are_run() {
    check("golden/gemma3");
}

#[test]
fn soft_caps_give_the_same_bytes_however_they_are_run() {
    check("golden/gemma2");
}

#[test]
fn states_of_short_convolutions_give_the_same_bytes_however_they_are_run() {
    check_states("golden/lfm2_bias");
}

#[test]
fn states_of_delta_nets_give_the_same_bytes_however_they_are_run() {
    check_states("golden/qwen3_next");
}

#[test]
fn shared_keys_and_inputs_of_layers_give_the_same_bytes_however_they_are_run() {
    check("golden/gemma4");
}

#[test]
fn recurrences_give_the_same_bytes_however_they_are_run() {
    check_states("golden/granite_hybrid");
}

#[test]
fn latent_attention_gives_the_same_bytes_however_it_is_run() {
    check("golden/minicpm3");
}

#[test]
fn post_norm_and_learned_positions_give_the_same_bytes_however_they_are_run() {
    check("golden/opt350");
}

#[test]
fn experts_give_the_same_bytes_however_they_are_run() {
    check("golden/qwen3_moe");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("testdata/golden/glm4_moe");
    check_model(&model, NUM_KERNEL_ROWS, "--quantization int8", GUESSES);
    let model = root.join("testdata/golden/gpt_oss");
    check_model(&model, NUM_KERNEL_ROWS, "", GUESSES);
}

#[test]
fn blocks_of_a_gguf_file_give_the_same_bytes_however_they_are_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("blocks.gguf");
    std::fs::write(&model, blocks::file()).unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/demo");
    let tokenizer = format!("--tokenizer {}", demo.display());
    check_model(&model, NUM_KERNEL_ROWS, &tokenizer, GUESSES);
}

#[test]
fn a_row_alone_has_the_bytes_that_it_has_among_others() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("testdata/demo");
    let folder = tempfile::tempdir().unwrap();
    let (all, alone) = (folder.path().join("all.jsonl"), folder.path().join("alone.jsonl"));
    let rows = rows::jsonl(NUM_ROWS);
    std::fs::write(&all, &rows).unwrap();
    let together = run(&model, &all, folder.path(), "");
    let together = String::from_utf8(together.output).unwrap();
    for (index, (row, expected)) in rows.lines().zip(together.lines()).enumerate().step_by(9) {
        std::fs::write(&alone, format!("{row}\n")).unwrap();
        let output = run(&model, &alone, folder.path(), "").output;
        assert_eq!(String::from_utf8(output).unwrap().trim_end(), expected, "row {index}");
    }
}
