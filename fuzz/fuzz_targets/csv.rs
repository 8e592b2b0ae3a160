//! libFuzzer's entry to `csv_records`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vllm_batch_fuzz::csv_records::check(data));
