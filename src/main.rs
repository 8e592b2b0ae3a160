//! The `vllm-batch` binary: parse, dispatch, map errors to exit codes.
fn main() {}
