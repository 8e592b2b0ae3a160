//! The `vllm-batch` binary: parse, dispatch, map errors to exit codes. All of it is in `cli`.

fn main() -> std::process::ExitCode {
    vllm_batch::cli::main().into()
}
