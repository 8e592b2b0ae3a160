//! `pytorch_model.bin`: tensors that are accepted lie in the file, each with the bytes of its
//! shape.

use std::collections::BTreeSet;

use vllm_batch::engine::checkpoint::weights::pickle;

use super::choices::Choices;
use super::torch_file::archive;

const MAX_INPUT: usize = 16 << 10;

/// The first byte is `0`: the rest is a file; else two bytes say how many bytes storage 0 has, and
/// the rest is the pickle.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let mut choices = Choices::new(data);
    let file = match choices.byte() {
        b'0' => choices.rest().to_vec(),
        _ => {
            let storage = vec![0; choices.below(1 << 12)];
            archive(choices.rest(), &[("0".to_owned(), &storage)])
        }
    };
    let Ok(entries) = pickle::parse(&file) else { return };
    let mut names = BTreeSet::new();
    for entry in &entries {
        assert!(entry.range.end <= file.len(), "{entry:?}");
        let num_bits = entry.shape.iter().product::<usize>() * entry.dtype.bitsize();
        assert_eq!(entry.range.len() * 8, num_bits, "{entry:?}");
        assert!(names.insert(&entry.name), "{entry:?}");
    }
}
