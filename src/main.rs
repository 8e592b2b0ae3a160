//! The `vllm-batch` binary: parse, dispatch, map errors to exit codes. All of it is in
//! `vllm_batch_cli`.

fn main() -> std::process::ExitCode {
    vllm_batch_cli::main().into()
}
