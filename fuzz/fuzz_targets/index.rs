//! libFuzzer's entry to `index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::index::check(data));
