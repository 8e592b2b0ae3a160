//! libFuzzer's entry to `gguf`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::gguf::check(data));
