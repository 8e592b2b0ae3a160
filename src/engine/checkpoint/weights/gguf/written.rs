//! GGUF files as tests write them.

use super::GgmlType;

/// A file in the making.
pub(crate) struct Written {
    pub(crate) version: u32,
    /// Keys with type and value, as they are in the file.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Tensors, as they are in the file.
    pub(crate) tensors: Vec<Vec<u8>>,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Written {
    pub(crate) fn new() -> Self {
        Self { version: 3, keys: Vec::new(), tensors: Vec::new(), data: Vec::new() }
    }

    /// A value of a type by its id.
    pub(crate) fn key(mut self, key: &str, id: u32, value: &[u8]) -> Self {
        self.keys.push([&text(key), &id.to_le_bytes()[..], value].concat());
        self
    }

    /// An array of a type of elements by its id.
    pub(crate) fn array(self, key: &str, id: u32, elements: &[Vec<u8>]) -> Self {
        let len = (elements.len() as u64).to_le_bytes();
        self.key(key, 9, &[&id.to_le_bytes()[..], &len, &elements.concat()].concat())
    }

    /// An entry as it is given; `dims` in the file's order.
    pub(crate) fn entry(mut self, name: &str, dims: &[u64], id: u32, offset: u64) -> Self {
        let dims_bytes: Vec<u8> = dims.iter().flat_map(|size| size.to_le_bytes()).collect();
        let num_dims = (dims.len() as u32).to_le_bytes();
        let end = [&id.to_le_bytes()[..], &offset.to_le_bytes()].concat();
        self.tensors.push([&text(name), &num_dims[..], &dims_bytes, &end].concat());
        self
    }

    /// A tensor (rows first) with its bytes behind those before it.
    pub(crate) fn tensor(mut self, name: &str, shape: &[u64], ty: GgmlType, bytes: &[u8]) -> Self {
        let offset = self.data.len().next_multiple_of(32);
        self.data.resize(offset, 0);
        self.data.extend(bytes);
        let dims: Vec<u64> = shape.iter().rev().copied().collect();
        self.entry(name, &dims, ty.id(), offset as u64)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        file.extend(self.keys.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }
}
