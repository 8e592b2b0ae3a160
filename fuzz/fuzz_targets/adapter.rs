//! libFuzzer's entry to `adapter`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::adapter::check(data));
