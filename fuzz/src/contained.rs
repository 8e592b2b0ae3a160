//! The program's panic hook, for targets that run libraries whose panics are contained.

use std::panic::{self, Location};

use vllm_batch::engine::base::contained::is_contained;

/// Crates that run in the process that draws pages alone, where all panics are caught.
const DRAWING: [&str; 9] = [
    "hayro",
    "kurbo-",
    "moxcms-",
    "pic-scale-",
    "read-fonts-",
    "skrifa-",
    "vello_common-",
    "vello_cpu-",
    "zune-jpeg-",
];

fn draws(location: &Location<'_>) -> bool {
    let mut folders = location.file().split(['/', '\\']);
    folders.any(|folder| DRAWING.iter().any(|name| folder.starts_with(name)))
}

/// libFuzzer's hook ends the process at a panic. Those that the program catches pass it by, as they
/// pass the program's own hook.
pub fn let_contained_panics_pass() {
    let abort = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.location().is_some_and(|place| is_contained(place) || draws(place)) {
            abort(info);
        }
    }));
}
