//! libFuzzer's entry to all targets. `--target=NAME` chooses one; libFuzzer passes over flags that
//! begin with two dashes.

#![no_main]

use std::sync::LazyLock;

use vllm_batch_fuzz::contained::let_contained_panics_pass;
use vllm_batch_fuzz::{TARGETS, Target};

static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let mut args = std::env::args();
    let name = args.find_map(|arg| arg.strip_prefix("--target=").map(str::to_owned));
    let name = name.expect("--target=NAME");
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target {name}"))
});

libfuzzer_sys::fuzz_target!(
    init: if CHOSEN.contains_panics {
        let_contained_panics_pass();
    },
    |data: &[u8]| (CHOSEN.check)(data)
);
