//! `--device` on a machine whose GPUs are hidden: refused by name, passed over by `auto`.

use std::fs;
use std::process::{Command, Output};

use crate::gpu;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/llama2");

/// A run of one row without any GPU in sight.
fn run(flags: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.jsonl"), "{\"prompt\": \"a b\"}\n").unwrap();
    Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .current_dir(folder.path())
        .args(["run", "--model", MODEL, "-i", "in.jsonl", "--max-tokens", "2"])
        .args(flags)
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap()
}

/// The program is not where the tests of a real GPU run: only their own binaries are.
fn is_skipped() -> bool {
    if gpu::is_real() {
        println!("SKIP: the program itself is tested where it is built");
    }
    gpu::is_real()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn cuda_is_refused_with_exit_code_2_and_one_line_that_says_why() {
    if is_skipped() {
        return;
    }
    for device in ["cuda", "cuda:0", "cuda:3"] {
        let output = run(&["--device", device]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
        let lines: Vec<&str> = stderr(&output).lines().filter(|l| l.contains("GPU")).collect();
        assert_eq!(lines.len(), 1, "{}", stderr(&output));
        assert!(
            lines[0].starts_with("error[config]: --device: the GPU cannot be used: "),
            "{}",
            lines[0]
        );
    }
}

#[test]
fn auto_says_in_one_line_why_it_takes_the_cpu() {
    if is_skipped() {
        return;
    }
    // Where nothing says that there is a GPU, only who asks for details hears of it.
    let says = |flags: &[&str]| {
        let output = run(flags);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said = stderr(&output).to_owned();
        let lines: Vec<_> =
            said.lines().filter(|l| l.starts_with("running on the CPU: ")).collect();
        assert!(lines.len() <= 1, "{said}");
        lines.first().map(|line| (*line).to_owned())
    };
    let why = says(&["-v"]).expect("a reason");
    assert_eq!(says(&["-v", "--device", "auto"]).as_ref(), Some(&why));
    let signs = ["/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg"];
    let has_signs = !why.contains("is not installed")
        || signs.iter().any(|sign| std::path::Path::new(sign).exists());
    assert_eq!(says(&[]).is_some(), has_signs);
}

#[test]
fn the_cpu_asked_for_is_taken_without_a_word() {
    if is_skipped() {
        return;
    }
    let output = run(&["--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains("running on the CPU"), "{}", stderr(&output));
}

#[test]
fn prompts_by_wgmma_are_refused_where_there_is_no_gpu() {
    if is_skipped() {
        return;
    }
    let output = run(&["--device", "cpu", "--prefill-kernel", "wgmma"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let expected = "--prefill-kernel: wgmma is not supported on the CPU";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn fp8_is_refused_where_there_is_no_gpu() {
    if is_skipped() {
        return;
    }
    for flag in ["--quantization", "--kv-cache-dtype"] {
        for device in ["auto", "cpu", "cuda"] {
            let output = run(&["--device", device, "--dtype", "bfloat16", flag, "fp8"]);
            assert_eq!(output.status.code(), Some(2), "{device}: {}", stderr(&output));
            assert!(stderr(&output).contains(flag), "{}", stderr(&output));
            assert!(stderr(&output).contains("GPU"), "{}", stderr(&output));
        }
    }
}
