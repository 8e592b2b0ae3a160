//! How much memory a run takes: the packed weights once, and little else. Memory is no time: the
//! same on every machine, so it is asserted.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};
use vllm_batch::engine::checkpoint::decoder_spec;
use vllm_batch::engine::checkpoint::hf_config::HfConfig;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

const MIB: u64 = 1 << 20;

/// What a run may take beside the packed weights and the KV cache in use.
const BESIDE: u64 = 200 * MIB;

/// Models of 250 MiB in float32, the largest tensor of 32 MiB: a second copy of the weights cannot
/// hide in `BESIDE`. Experts are in tensors of their own, and in two of each layer.
fn configs() -> [Value; 3] {
    let of = |architecture: &str, inner: usize, more: Value| {
        let mut config = json!({
            "architectures": [architecture], "dtype": "float32", "vocab_size": 8192,
            "hidden_size": 1024, "intermediate_size": inner, "num_hidden_layers": 5,
            "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_act": "silu",
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 1
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let experts = json!({"num_local_experts": 8, "num_experts_per_tok": 2});
    [
        of("LlamaForCausalLM", 2816, json!({})),
        of("MixtralForCausalLM", 352, experts.clone()),
        of("GraniteMoeForCausalLM", 352, experts),
    ]
}

#[test]
fn weights_are_in_memory_once() {
    if !Path::new("/proc/self/status").exists() {
        return println!("SKIP: /proc says what a process takes, and it is not here");
    }
    // Two rows, one of them of many steps' tokens: the buffers of a step are in it.
    let prompt = "The sky is blue. ".repeat(40);
    for config in configs() {
        let (folder, name) = (tempfile::tempdir().expect("a folder"), &config["architectures"][0]);
        let num_bytes = write_model(folder.path(), &config.to_string());
        assert!(num_bytes > 240 * MIB, "{name}: a second copy must be seen");
        let peak = peak_of_run(folder.path(), &["hello", &prompt]);
        println!("{name}: {} MiB at most, the weights take {}", peak / MIB, num_bytes / MIB);
        assert!(peak > num_bytes, "{name}: the weights are in it");
        assert!(peak < num_bytes + BESIDE, "{name}: {} MiB at most", peak / MIB);
    }
}

/// The demo's tokenizer, a config and its weights, of one pattern; returns their bytes.
fn write_model(folder: &Path, config: &str) -> u64 {
    let tensors = decoder_spec(&HfConfig::parse(config, "config.json").unwrap()).unwrap().tensors();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(format!("{DEMO}/{name}"), folder.join(name)).expect("copied");
    }
    fs::write(folder.join("config.json"), config).expect("written");
    let mut header = Map::new();
    let mut end = 0u64;
    for (name, shape) in &tensors {
        let start = end;
        end += shape.iter().product::<usize>() as u64 * 4;
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let file = File::create(folder.join("model.safetensors")).expect("created");
    let mut file = BufWriter::new(file);
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
    for index in 0..end / 4 {
        let value = (index % 1009) as f32 / 50_000.0 - 0.01;
        file.write_all(&value.to_le_bytes()).expect("written");
    }
    file.flush().expect("written");
    end
}

/// The most memory that a run had when it had answered its rows, in bytes. Its input is still open
/// then, so it is there to be asked.
fn peak_of_run(model: &Path, prompts: &[&str]) -> u64 {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.arg("run").arg("--model").arg(model).args(["--input", "-", "--out", "-"]);
    command.args(["--device", "cpu", "--max-tokens", "2", "--quiet"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    for prompt in prompts {
        writeln!(stdin, "{}", json!({ "prompt": prompt })).expect("the child reads");
    }
    stdin.flush().expect("the child reads");
    for _ in prompts {
        let mut row = String::new();
        assert!(stdout.read_line(&mut row).expect("text") > 0, "a row is answered");
        let row: Value = serde_json::from_str(&row).expect("a row");
        assert!(row.get("error").is_none_or(Value::is_null), "{row}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it is running");
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.expect("a number") * 1024
}

/// More room is never worse: what runs under a limit of the address space runs under each higher
/// one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_higher_limit_of_the_address_space_never_fails_where_a_lower_one_does_not() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.jsonl"), "{\"prompt\": \"a\"}\n").unwrap();
    let mut lowest = None;
    let (mut before, mut steps) = (0, 0);
    for kib in (100_000..=1_000_000).step_by(20_000) {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\"")]);
        command.arg(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        command.args(["run", "-m", DEMO, "-i", "in.jsonl", "--device", "cpu", "--max-tokens", "2"]);
        command.args(["--threads", "2", "--stats", "stats.json", "-qq"]);
        let output = command.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => lowest = lowest.or(Some(kib)),
            Some(2 | 5) if lowest.is_none() => continue,
            code => panic!("{kib} KiB: {code:?}, and {lowest:?} are enough: {said}"),
        }
        let stats = fs::read_to_string(folder.path().join("stats.json")).unwrap();
        let stats: Value = serde_json::from_str(&stats).unwrap();
        let tokens = stats["engine"]["kv_cache_tokens"].as_u64().unwrap();
        // The stack of templates is reserved from some limit on; threads take a few MiB.
        assert!(tokens * 3 / 2 + 4096 > before, "{kib} KiB: {tokens} tokens, {before} before");
        (before, steps) = (tokens, steps + 1);
    }
    assert!(steps > 20 && lowest < Some(300_000), "{lowest:?}");
}
