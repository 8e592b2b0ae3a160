//! libFuzzer's entry to `openai_lines`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::openai_lines::check(data));
