//! libFuzzer's entry to `pickle`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::pickle::check(data));
