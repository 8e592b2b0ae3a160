//! libFuzzer's entry to `safetensors_header`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::safetensors_header::check(data));
