//! libFuzzer's entry to `parquet_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vllm_batch_fuzz::contained::let_contained_panics_pass(),
    |data: &[u8]| vllm_batch_fuzz::parquet_file::check(data)
);
