//! A GGUF model on disk: one file, or all parts of a split one.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::container::{Gguf, TensorInfo};
use super::{GgmlType, Metadata, read};
use crate::weights::mapped_file::{MappedFile, Maps};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::OnLostFile;
use vllm_batch_base::files::{self, quoted};
use vllm_batch_base::weight_files::{MAX_GGUF_PARTS, gguf_parts};

const SPLIT_NO: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// A file or its parts, mapped.
#[derive(Debug)]
pub struct GgufFiles {
    maps: Arc<Maps>,
    metadata: Arc<Metadata>,
    /// Each with the place of its file in `maps`, in the order of their bytes.
    tensors: Vec<(usize, TensorInfo)>,
}

impl GgufFiles {
    /// Maps a file; of a split one all parts, by the name of any.
    ///
    /// # Errors
    /// One cannot be read, is damaged, or is no part of the same model.
    pub fn open(path: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        let open =
            |path: &Path| MappedFile::open(path).map_err(|error| files::unreadable(path, &error));
        let watched = |maps| {
            Maps::watched(maps, on_lost_file).map_err(|error| files::unreadable(path, &error))
        };
        let maps = watched(vec![open(path)?])?;
        let Gguf { metadata, tensors } = parse(&maps[0])?;
        let bad_part = |text| bad_file(path, text);
        let Some(paths) = part_paths(path, &metadata).map_err(bad_part)? else {
            let tensors = tensors.into_iter().map(|tensor| (0, tensor)).collect();
            return Ok(Self { maps: maps.into(), metadata: metadata.into(), tensors });
        };
        let maps = watched(paths.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?)?;
        let Gguf { metadata, .. } = parse(&maps[0])?;
        let tensors = tensors_of_parts(&maps, &metadata)?;
        let said = metadata.unsigned(SPLIT_TENSORS).map_err(bad_part)?;
        match said {
            Some(said) if said != tensors.len() as u64 => {
                let found = tensors.len();
                Err(bad_part(format!("{SPLIT_TENSORS} is {said}, all parts have {found}")))
            }
            _ => Ok(Self { maps: maps.into(), metadata: metadata.into(), tensors }),
        }
    }

    /// Values by key; of a split file those of its first part.
    pub fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    /// All tensors, each with the place of its file.
    pub(in crate::weights) fn places(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        self.tensors.iter().map(|(file, tensor)| (*file, tensor))
    }

    /// The files and the watch over them.
    pub(in crate::weights) fn maps(&self) -> &Arc<Maps> {
        &self.maps
    }

    /// All tensors.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|(_, tensor)| tensor)
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors().find(|tensor| tensor.name == name)
    }

    /// The values of a tensor of one dimension as f32; None: it is not there.
    ///
    /// # Errors
    /// It has more dimensions.
    pub fn vector(&self, name: &str) -> Result<Option<Vec<f32>>, String> {
        let Some((file, tensor)) = self.tensors.iter().find(|(_, tensor)| tensor.name == name)
        else {
            return Ok(None);
        };
        let &[len] = &tensor.shape[..] else {
            return Err(format!("tensor {} has shape {:?}", quoted(name), tensor.shape));
        };
        let mut values = vec![0.0; len];
        read(tensor.ty, &self.maps[*file].bytes()[tensor.range.clone()], 0..len, &mut values);
        Ok(Some(values))
    }

    /// The files, parts in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.maps.iter().map(MappedFile::path)
    }

    /// Number of tensors of each type, the most first: `F32 109, Q5_0 81, Q4_K 27`.
    pub fn types(&self) -> String {
        let mut counts = BTreeMap::<GgmlType, usize>::new();
        self.tensors().for_each(|tensor| *counts.entry(tensor.ty).or_default() += 1);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let counts: Vec<_> = counts.iter().map(|(ty, count)| format!("{ty} {count}")).collect();
        counts.join(", ")
    }
}

fn bad_file(path: &Path, text: impl std::fmt::Display) -> EngineError {
    EngineError::Model(format!("{}: {text}", path.display()))
}

fn parse(map: &MappedFile) -> Result<Gguf, EngineError> {
    Gguf::parse(map.bytes()).map_err(|text| bad_file(map.path(), text))
}

/// The paths of all parts, where a file is one of several: `NAME-00002-of-00003.gguf`.
fn part_paths(path: &Path, metadata: &Metadata) -> Result<Option<Vec<PathBuf>>, String> {
    let num_parts = metadata.unsigned(SPLIT_COUNT)?.unwrap_or(1);
    if num_parts <= 1 {
        return Ok(None);
    }
    if num_parts > MAX_GGUF_PARTS as u64 {
        return Err(format!("{num_parts} parts, the limit is {MAX_GGUF_PARTS}"));
    }
    let number = metadata.unsigned(SPLIT_NO)?.unwrap_or(0).saturating_add(1);
    let paths = gguf_parts(path);
    let place = paths.iter().position(|part| part == path).map(|place| place as u64 + 1);
    if place != Some(number) || paths.len() as u64 != num_parts {
        let ending = format!("-{number:05}-of-{num_parts:05}.gguf");
        return Err(format!("it is part {number} of {num_parts}, so its name ends with {ending}"));
    }
    Ok(Some(paths))
}

/// The tensors of all parts, each with the place of its part.
fn tensors_of_parts(
    maps: &[MappedFile],
    first: &Metadata,
) -> Result<Vec<(usize, TensorInfo)>, EngineError> {
    let mut all = Vec::new();
    let mut parts = HashMap::new();
    for (index, map) in maps.iter().enumerate() {
        let Gguf { metadata, tensors } = parse(map)?;
        let bad_part = |text| bad_file(map.path(), text);
        check_part(index, maps.len(), &metadata, first).map_err(bad_part)?;
        for tensor in tensors {
            if let Some(other) = parts.insert(tensor.name.clone(), index + 1) {
                let name = quoted(&tensor.name);
                return Err(bad_part(format!("tensor {name} is in part {other} too")));
            }
            all.push((index, tensor));
        }
    }
    Ok(all)
}

/// Whether a file is the part that its name says, and says nothing else than the first.
fn check_part(
    index: usize,
    num_parts: usize,
    metadata: &Metadata,
    first: &Metadata,
) -> Result<(), String> {
    for (key, wanted) in [(SPLIT_NO, index), (SPLIT_COUNT, num_parts)] {
        let found = metadata.unsigned(key)?;
        if found != Some(wanted as u64) {
            let found = found.map_or("missing".to_owned(), |found| found.to_string());
            return Err(format!("{key} is {found} in part {} of {num_parts}", index + 1));
        }
    }
    let differs = |key, value| key != SPLIT_NO && first.get(key) != Some(value);
    match metadata.iter().find(|(key, value)| differs(key, value)) {
        Some((key, _)) => Err(format!("key {} is not what part 1 says", quoted(key))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::written::Written;
    use super::*;

    fn part(no: u16, count: u16, tensors: i32) -> Written {
        Written::new()
            .key(SPLIT_NO, 2, &no.to_le_bytes())
            .key(SPLIT_COUNT, 2, &count.to_le_bytes())
            .key(SPLIT_TENSORS, 5, &tensors.to_le_bytes())
    }

    /// Two parts of a model in a folder.
    fn split(parts: [Written; 2]) -> (tempfile::TempDir, [PathBuf; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let paths = [1, 2].map(|no| folder.path().join(format!("a-0000{no}-of-00002.gguf")));
        for (part, path) in parts.iter().zip(&paths) {
            std::fs::write(path, part.bytes()).unwrap();
        }
        (folder, paths)
    }

    fn tensor(written: Written, name: &str, value: f32) -> Written {
        written.tensor(name, &[1], GgmlType::F32, &value.to_le_bytes())
    }

    #[test]
    fn any_part_stands_for_all() {
        let first = tensor(tensor(part(0, 2, 3), "a", 1.0), "b", 2.0).key("k", 7, &[1]);
        let second = part(1, 2, 3).tensor("c", &[32], GgmlType::Q8_0, &[0; 34]);
        let (_folder, paths) = split([first, second]);
        for path in &paths {
            let files = GgufFiles::open(path, None).unwrap();
            assert_eq!(files.metadata().bool("k"), Ok(Some(true)));
            assert_eq!(files.paths().collect::<Vec<_>>(), paths);
            assert_eq!(files.vector("b"), Ok(Some(vec![2.0])));
            assert_eq!(files.vector("c"), Ok(Some(vec![0.0; 32])));
            assert_eq!(files.vector("d"), Ok(None));
            assert_eq!(files.types(), "F32 2, Q8_0 1");
        }
    }

    #[test]
    fn every_fault_of_parts_is_named() {
        let first = || tensor(part(0, 2, 2), "a", 1.0);
        for (parts, wanted) in [
            ([first(), tensor(part(1, 2, 2), "a", 1.0)], "tensor `a` is in part 1 too"),
            ([first(), part(1, 2, 2)], "split.tensors.count is 2, all parts have 1"),
            ([first(), tensor(part(0, 2, 2), "b", 1.0)], "split.no is 0 in part 2"),
            ([first(), tensor(part(1, 3, 2), "b", 1.0)], "split.count is 3"),
            ([first(), tensor(part(1, 2, 3), "b", 1.0)], "key `split.tensors.count` is not"),
            ([first(), tensor(part(1, 2, 2), "b", 1.0).key("x", 7, &[1])], "key `x` is not"),
            (
                [first(), Written { version: 9, ..part(1, 2, 2) }],
                "00002-of-00002.gguf: GGUF version",
            ),
            ([tensor(part(0, 3, 2), "a", 1.0), part(1, 2, 2)], "ends with -00001-of-00003.gguf"),
            ([part(0, u16::MAX, 2), part(1, 2, 2)], "65535 parts"),
        ] {
            let (_folder, paths) = split(parts);
            let error = GgufFiles::open(&paths[0], None).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}, not {wanted}");
        }
        let (_folder, paths) = split([first(), part(1, 2, 2)]);
        std::fs::remove_file(&paths[1]).unwrap();
        let error = GgufFiles::open(&paths[0], None).unwrap_err().to_string();
        assert!(
            error.contains("cannot read") && error.contains("a-00002-of-00002.gguf"),
            "{error}"
        );
    }
}
