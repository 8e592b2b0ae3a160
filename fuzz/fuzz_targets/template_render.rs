//! libFuzzer's entry to `template_render`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: vllm_batch_fuzz::contained::let_contained_panics_pass(),
    |data: &[u8]| vllm_batch_fuzz::template_render::check(data)
);
