//! GGUF files: what is accepted lies in the file as it says, is read in one way only, and is a
//! model of some family or refused.

use std::collections::BTreeSet;

use vllm_batch::engine::checkpoint::gguf::Described;
use vllm_batch::engine::checkpoint::weights::gguf::{Array, Gguf, TensorInfo, Value, read};

use super::choices::Choices;

const MAX_INPUT: usize = 16 << 10;

/// Most values of a row that are read.
const MAX_READ: usize = 1 << 10;

/// The first byte is `0`: the rest is a file; else two bytes say how many times 16 bytes of data
/// stand behind the header, and the rest is the header.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let mut choices = Choices::new(data);
    let is_file = choices.byte() == b'0';
    let num_data_bytes = if is_file { 0 } else { choices.below(1 << 12) * 16 };
    let mut file = choices.rest().to_vec();
    file.extend((0..num_data_bytes).map(|index| index as u8));
    let Ok(Gguf { metadata, tensors }) = Gguf::parse(&file) else { return };
    for (key, value) in metadata.iter() {
        assert!(metadata.get(key).is_some_and(|found| std::ptr::eq(found, value)), "{key}");
        assert_whole(value, file.len());
    }
    assert_apart(&file, &tensors);
    for tensor in &tensors {
        assert_read_alike(&file, tensor);
    }
    let shapes = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone()));
    let metadata = metadata.into();
    let described = Described { metadata, shapes: shapes.collect(), ..Described::default() };
    let _ = described.generation_config();
    if let Ok(translation) = described.translate() {
        for tensor in &tensors {
            let _ = translation.names.translate(tensor);
        }
    }
}

/// An array has as many elements as it says, which the file had room for.
fn assert_whole(value: &Value, file_len: usize) {
    match value {
        Value::Array(Array::Texts(texts)) => {
            assert_eq!(texts.iter().count(), texts.len());
            assert!(texts.len() * 8 + texts.iter().map(str::len).sum::<usize>() < file_len);
        }
        Value::Array(Array::Numbers(numbers)) => {
            assert_eq!(numbers.iter().count(), numbers.len());
            assert!(numbers.len() < file_len);
        }
        _ => (),
    }
}

fn assert_apart(file: &[u8], tensors: &[TensorInfo]) {
    let (mut end, mut names) = (24, BTreeSet::new());
    for tensor in tensors {
        assert!(tensor.range.start >= end && tensor.range.end <= file.len(), "{tensor:?}");
        assert!(names.insert(&tensor.name), "{tensor:?}");
        let num_values = tensor.shape.iter().product::<usize>();
        let num_blocks = num_values / tensor.ty.block_len();
        assert_eq!(num_blocks * tensor.ty.block_len(), num_values, "{tensor:?}");
        assert_eq!(num_blocks * tensor.ty.block_bytes(), tensor.range.len(), "{tensor:?}");
        end = tensor.range.end;
    }
}

/// A part of a row has the bits that it has in the whole row.
fn assert_read_alike(file: &[u8], tensor: &TensorInfo) {
    let bytes = &file[tensor.range.clone()];
    let len = tensor.shape.last().copied().unwrap_or(1).min(MAX_READ);
    let mut whole = vec![0.0; len];
    read(tensor.ty, bytes, 0..len, &mut whole);
    let columns = len / 3..len - len / 4;
    let mut part = vec![0.0; columns.len()];
    read(tensor.ty, bytes, columns.clone(), &mut part);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&part), bits(&whole[columns]), "{tensor:?}");
}
