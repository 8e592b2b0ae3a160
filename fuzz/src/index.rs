//! `model.safetensors.index.json`: what is accepted names files of its own folder only.

use std::path::{Component, Path};

use vllm_batch::engine::base::weight_files::FORMATS;
use vllm_batch::engine::checkpoint::weights::index;

const MAX_INPUT: usize = 16 << 10;

/// The input is the file.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let Ok(names) = index::parse(data, &FORMATS[0]) else { return };
    assert!(!names.is_empty());
    for name in &names {
        let parts: Vec<Component<'_>> = Path::new(name).components().collect();
        assert!(matches!(parts.as_slice(), [Component::Normal(_)]), "{name:?}");
        assert!(Path::new("folder").join(name).starts_with("folder"), "{name:?}");
        assert!(name.ends_with(".safetensors") && !name.starts_with('.'), "{name:?}");
    }
}
