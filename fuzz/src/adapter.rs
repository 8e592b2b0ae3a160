//! Folders of LoRA adapters: `adapter_config.json` and the header of the tensors. What is accepted
//! has modules by name, each with the matrices that it says.

use std::path::Path;

use vllm_batch::engine::checkpoint::adapter::{AdapterFiles, AdapterKind, AdapterModule};

use super::choices::{Choices, split_at_nul};

const MAX_INPUT: usize = 16 << 10;

/// Largest rank of an adapter that is read.
const MAX_RANK: usize = 64;

/// Two bytes say how many data bytes stand behind the header. What follows is the config up to a
/// NUL, and the header's JSON, whose length is put before it.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let mut choices = Choices::new(data);
    let num_data_bytes = choices.below(1 << 14);
    let (config, header) = split_at_nul(choices.rest());
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    };
    write("adapter_config.json", config);
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header);
    weights.resize(weights.len() + num_data_bytes, 0);
    write("adapter_model.safetensors", &weights);
    match AdapterFiles::open(folder.path(), MAX_RANK, None) {
        Ok(files) => assert_whole(&files),
        Err(error) => assert!(is_about(&error.to_string(), folder.path()), "{error}"),
    }
}

/// An error names the file.
fn is_about(error: &str, folder: &Path) -> bool {
    let path = folder.display().to_string();
    error.contains(&path) && !error.contains('\0')
}

fn assert_whole(files: &AdapterFiles) {
    let names: Vec<&str> = files.modules().iter().map(|module| module.name.as_str()).collect();
    assert!(!names.is_empty() && names.is_sorted_by(|a, b| a < b), "{names:?}");
    for module in files.modules() {
        let AdapterModule { kind, rank, scale, num_inputs, num_outputs, .. } = module;
        assert!(*num_inputs > 0 && *num_outputs > 0 && scale.is_finite(), "{module:?}");
        if let AdapterKind::Saved { bias } = kind {
            let saved = files.read_saved(module).expect("the file is as it was");
            assert_eq!(saved.weight.len(), num_inputs * num_outputs, "{module:?}");
            assert_eq!(saved.bias.map(|bias| bias.len()), bias.then_some(*num_outputs));
        } else {
            assert!((1..=MAX_RANK).contains(rank), "{module:?}");
            let matrices = files.read(module).expect("the file is as it was");
            assert_eq!(matrices.a.len(), rank * num_inputs, "{module:?}");
            assert_eq!(matrices.b.len(), num_outputs * rank, "{module:?}");
        }
    }
    for copy in files.copies() {
        let values = files.read_copy(copy).expect("the file is as it was");
        assert_eq!(values.len(), copy.shape.iter().product::<usize>(), "{copy:?}");
    }
}
