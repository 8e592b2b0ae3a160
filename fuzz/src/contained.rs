//! The program's panic hook, for targets that run libraries whose panics are contained.

use std::panic;

use vllm_batch::engine::base::contained::is_contained;

/// libFuzzer's hook ends the process at a panic. Those that the program catches pass it by, as they
/// pass the program's own hook.
pub fn let_contained_panics_pass() {
    let abort = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.location().is_some_and(is_contained) {
            abort(info);
        }
    }));
}
