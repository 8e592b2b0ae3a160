//! Files as `torch.save` writes them: what tests and fuzz targets of the pickle reader are made of.

/// A tensor to write: name, torch's name of the storage, shape, bytes.
pub struct Tensor<'a> {
    pub name: &'a str,
    pub storage: &'a str,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

/// The archive of a pickle and of storages by their names.
pub fn archive(pickle: &[u8], storages: &[(String, &[u8])]) -> Vec<u8> {
    let mut entries = vec![("model/data.pkl".to_owned(), pickle)];
    let named = |(name, bytes): &(String, _)| (format!("model/data/{name}"), *bytes);
    entries.extend(storages.iter().map(named));
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in &entries {
        let offset = file.len() as u32;
        let (len, name_len) = ((bytes.len() as u32).to_le_bytes(), name.len() as u16);
        // From the version to the length of the extra field: stored, without a checksum.
        let mut shared = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        shared.extend([len, len].concat());
        shared.extend(name_len.to_le_bytes());
        shared.extend([0, 0]);
        file.extend(b"PK\x03\x04");
        file.extend(&shared);
        file.extend(name.as_bytes());
        file.extend(*bytes);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&shared);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, count) = (file.len() as u32, (entries.len() as u16).to_le_bytes());
    let len = (directory.len() as u32).to_le_bytes();
    file.extend(directory);
    file.extend(b"PK\x05\x06\x00\x00\x00\x00");
    file.extend([count, count].concat());
    file.extend([len, start.to_le_bytes()].concat());
    file.extend([0, 0]);
    file
}

/// The file of a dict of tensors.
pub fn file(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}(".to_vec();
    for (place, tensor) in tensors.iter().enumerate() {
        text(&mut pickle, tensor.name);
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut pickle, "storage");
        pickle.extend(format!("ctorch\n{}\n", tensor.storage).bytes());
        text(&mut pickle, &place.to_string());
        text(&mut pickle, "cpu");
        let mut stride = tensor.shape.iter().product::<usize>();
        int(&mut pickle, stride);
        pickle.extend(b"tQK\x00(");
        tensor.shape.iter().for_each(|size| int(&mut pickle, *size));
        pickle.extend(b"t(");
        for size in tensor.shape {
            stride /= size.max(&1);
            int(&mut pickle, stride);
        }
        pickle.extend(b"t\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"u.");
    let storages: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(place, tensor)| (place.to_string(), tensor.bytes))
        .collect();
    archive(&pickle, &storages)
}

fn text(pickle: &mut Vec<u8>, text: &str) {
    pickle.push(b'X');
    pickle.extend((text.len() as u32).to_le_bytes());
    pickle.extend(text.bytes());
}

fn int(pickle: &mut Vec<u8>, number: usize) {
    pickle.push(b'J');
    pickle.extend((number as u32).to_le_bytes());
}
