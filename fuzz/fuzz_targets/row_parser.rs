//! libFuzzer's entry to `row_parser`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::row_parser::check(data));
