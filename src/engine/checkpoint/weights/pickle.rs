//! `pytorch_model.bin`: the tensors of a file that `torch.save` wrote, without running what it
//! says.
//!
//! Such a file is a zip archive of one pickle and the bytes of each storage. A pickle is a program,
//! and Python runs whatever it names. Here it may name the few things that a dict of tensors is
//! made of, none of which is code; anything else refuses the file. What it allocates is bounded by
//! counts of our own, and no number of it is believed before it was held against the file.

mod archive;
mod program;

use std::collections::HashSet;

use safetensors::Dtype;

use self::archive::Archive;
use super::header::TensorEntry;
use vllm_batch_base::files::quoted;

/// Most tensors of a file.
const MAX_TENSORS: usize = 1 << 16;

/// Largest pickle. It has about 150 bytes per tensor.
const MAX_PICKLE_BYTES: usize = 16 << 20;

/// A tensor as the pickle describes it.
#[derive(Clone, Debug, PartialEq)]
struct Description<'a> {
    dtype: Dtype,
    /// Names the storage in the archive.
    storage: &'a str,
    /// Elements of the storage.
    storage_len: u64,
    /// In elements, as all below.
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

/// The tensors of a file of `torch.save`, by the place of their bytes. Several may share theirs.
///
/// # Errors
/// The bytes are no such file, or it holds anything but tensors; the text says why.
pub fn parse(file: &[u8]) -> Result<Vec<TensorEntry>, String> {
    refuse_old_formats(file)?;
    let archive = Archive::read(file)?;
    let pickle = archive.pickle()?;
    if pickle.len() > MAX_PICKLE_BYTES {
        return Err(format!("its pickle is larger than {} MiB", MAX_PICKLE_BYTES >> 20));
    }
    let mut names = HashSet::new();
    let mut entries = Vec::new();
    for (name, description) in program::run(&file[pickle])? {
        // Before the name is copied: one text may stand for many names.
        if !names.insert(name) {
            return Err(format!("tensor {} is there twice", quoted(name)));
        }
        let entry = locate(&archive, name, &description);
        entries.push(entry.map_err(|text| format!("tensor {}: {text}", quoted(name)))?);
    }
    Ok(entries)
}

/// Before torch 1.6 a file was a pickle without an archive, or a tar.
fn refuse_old_formats(file: &[u8]) -> Result<(), String> {
    let is_tar = file.len() > 262 && &file[257..262] == b"ustar";
    if file.starts_with(&[0x80]) || is_tar {
        return Err(
            "it has the format of torch before 1.6; load it with torch and save it again, \
                    or convert the model with transformers' save_pretrained"
                .to_owned(),
        );
    }
    Ok(())
}

/// The bytes of a tensor: in its storage, row by row.
fn locate(
    archive: &Archive,
    name: &str,
    description: &Description<'_>,
) -> Result<TensorEntry, String> {
    let Description { dtype, storage, storage_len, offset, shape, strides } = description;
    let bytes = archive.storage(storage)?;
    let too_large = || "its size overflows".to_owned();
    let element_bytes = (dtype.bitsize() / 8) as u64;
    let stored = storage_len.checked_mul(element_bytes).ok_or_else(too_large)?;
    if stored != bytes.len() as u64 {
        let text = format!("storage {} has {} bytes", quoted(storage), bytes.len());
        return Err(format!("{text}, the pickle says {stored}"));
    }
    let product = |len: u64, size: &u64| len.checked_mul(*size);
    let len = shape.iter().try_fold(1, product).ok_or_else(too_large)?;
    let end = offset.checked_add(len).ok_or_else(too_large)?;
    if len > 0 && !is_contiguous(shape, strides) {
        return Err(format!(
            "it is a view of strides {strides:?}; save the model again with each tensor \
             .contiguous()"
        ));
    }
    if end > *storage_len {
        return Err(format!("it ends at element {end} of a storage of {storage_len}"));
    }
    // All below `bytes.end` now, so that nothing can overflow.
    let start = bytes.start + (offset * element_bytes) as usize;
    let range = start..start + (len * element_bytes) as usize;
    let shape = shape.iter().map(|size| *size as usize).collect();
    Ok(TensorEntry { name: name.to_owned(), dtype: *dtype, shape, range })
}

fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1;
    let mut sizes = shape.iter().zip(strides).rev();
    shape.len() == strides.len()
        && sizes.all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected *= size;
            fits
        })
}
