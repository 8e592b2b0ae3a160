//! Panics of the template engine, of the tokenizers crate, of llguidance, of the parquet crate and
//! of decoders of images that cost one row, the tokenizer or a file, and are no bug's end of the
//! process.

use std::panic::{AssertUnwindSafe, Location, catch_unwind};

/// Runs `render`; None if it panicked.
pub fn contain<T>(render: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(render)).ok()
}

/// Crates that run within `contain` only: what models and files bring is read and run by them.
const CONTAINED: [&str; 25] = [
    "minijinja-",
    "parquet-",
    // What the parquet crate cuts pages with.
    "bytes-",
    "tokenizers-",
    "tk-convert-",
    "tk-encode-",
    "tk-serialize-",
    "bitcannon-",
    "fancy-regex-",
    "spm_precompiled-",
    "daachorse-",
    "llguidance-",
    "derivre-",
    "toktrie-",
    "referencing-",
    "jsonschema-",
    "fraction-",
    "num-bigint-",
    "num-rational-",
    "png-",
    "fdeflate-",
    "image-webp-",
    "byteorder-lite-",
    "gif-",
    "weezl-",
];

/// Whether a panic at this place is caught and becomes an error row: a panic hook should let it
/// pass.
pub fn is_contained(location: &Location<'_>) -> bool {
    let folders = location.file().split(['/', '\\']);
    folders.into_iter().any(|folder| CONTAINED.iter().any(|name| folder.starts_with(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_only_those_of_the_named_crates_are_let_pass() {
        assert_eq!(contain(|| 1), Some(1));
        assert_eq!(contain(|| -> u32 { panic!("planted") }), None);
        assert!(!is_contained(Location::caller()));
    }
}
