//! libFuzzer's entry to `template_render`.

#![no_main]

use std::panic;

use vllm_batch::engine::text::is_contained;

/// libFuzzer's hook ends the process at a panic. Those that the program catches pass it by, as they
/// pass the program's own hook.
fn let_contained_panics_pass() {
    let abort = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.location().is_some_and(is_contained) {
            abort(info);
        }
    }));
}

libfuzzer_sys::fuzz_target!(
    init: let_contained_panics_pass(),
    |data: &[u8]| vllm_batch_fuzz::template_render::check(data)
);
