//! Headers of safetensors files: tensors that are accepted lie in the file, side by side, each with
//! the bytes of its shape.

use std::collections::BTreeSet;

use vllm_batch::engine::checkpoint::weights::header;

use super::choices::Choices;

const MAX_INPUT: usize = 16 << 10;

/// The first byte is `0`: the rest is a file; else two bytes say how many data bytes stand behind
/// the header, and the rest is its JSON, whose length is put before it.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let mut choices = Choices::new(data);
    let is_file = choices.byte() == b'0';
    let num_data_bytes = if is_file { 0 } else { choices.below(1 << 12) };
    let rest = choices.rest();
    let mut file = Vec::with_capacity(8 + rest.len() + num_data_bytes);
    if !is_file {
        file.extend_from_slice(&(rest.len() as u64).to_le_bytes());
    }
    file.extend_from_slice(rest);
    file.resize(file.len() + num_data_bytes, 0);
    if let Ok(entries) = header::parse(&file) {
        assert_covers(&file, &entries);
    }
}

fn assert_covers(file: &[u8], entries: &[header::TensorEntry]) {
    let header_len = u64::from_le_bytes(file[..8].try_into().expect("8 bytes"));
    let mut expected = 8 + usize::try_from(header_len).expect("it is in the file");
    let mut names = BTreeSet::new();
    for entry in entries {
        assert_eq!(entry.range.start, expected, "{entry:?}");
        let num_bits = entry.shape.iter().product::<usize>() * entry.dtype.bitsize();
        assert_eq!(entry.range.len() * 8, num_bits, "{entry:?}");
        assert!(names.insert(&entry.name), "{entry:?}");
        expected = entry.range.end;
    }
    assert_eq!(expected, file.len());
}
