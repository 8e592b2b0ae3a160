//! libFuzzer's entry to `journal_recovery`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::journal_recovery::check(data));
