//! Tensors of GGUF files as those of a checkpoint: of a model's files, and of a projector's that go
//! with them; several tensors of a file may be one.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::gguf::{GgufFiles, Piece, TensorInfo, Translated};
use super::mapped_files::{Entry, MappedFiles, Stored, bad_file};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

impl MappedFiles {
    /// As [`super::Checkpoint::of_gguf`].
    pub(super) fn of_gguf(
        path: &Path,
        models: &[TranslatedFiles<'_>],
    ) -> Result<Self, EngineError> {
        let (mut maps, mut tensors) = (Vec::new(), HashMap::new());
        let mut num_files = 0;
        for model in models {
            let found = translated(model.files, num_files, model.translate);
            let found = found.map_err(|text| bad_file(model.path, text))?;
            num_files += model.files.maps().len();
            maps.push(Arc::clone(model.files.maps()));
            for (name, entry) in found {
                if tensors.insert(name.clone(), entry).is_some() {
                    let text = format!("{} is in the model's file too", quoted(&name));
                    return Err(bad_file(model.path, text));
                }
            }
        }
        Ok(Self::new(path, maps, tensors))
    }
}

/// GGUF files, and what each of their tensors is.
pub struct TranslatedFiles<'a> {
    /// For messages.
    pub path: &'a Path,
    /// The files.
    pub files: &'a GgufFiles,
    /// What a tensor is in Hugging Face's words: none, where the config is made of it; several,
    /// where it holds several.
    pub translate: &'a dyn Fn(&TensorInfo) -> Result<Vec<Translated>, String>,
}

/// All tensors of GGUF files, by Hugging Face's names. There are so many files before these.
fn translated(
    files: &GgufFiles,
    num_before: usize,
    translate: impl Fn(&TensorInfo) -> Result<Vec<Translated>, String>,
) -> Result<HashMap<String, Entry>, String> {
    let mut tensors = HashMap::new();
    let mut pieces = BTreeMap::<String, Vec<(Piece, Entry)>>::new();
    for (file, tensor) in files.places() {
        let of_tensor = |text| format!("tensor {}: {text}", quoted(&tensor.name));
        for translated in translate(tensor).map_err(of_tensor)? {
            let stored = Stored::Rows(translated.stored(tensor).map_err(of_tensor)?);
            let range = translated.range(tensor);
            let Translated { name, shape, piece, .. } = translated;
            let entry = Entry { file: num_before + file, stored, shape, range };
            if let Some(piece) = piece {
                pieces.entry(name).or_default().push((piece, entry));
            } else if tensors.insert(name.clone(), entry).is_some() {
                return Err(of_tensor(format!("another one is {} too", quoted(&name))));
            }
        }
    }
    for (name, pieces) in pieces {
        let joined = joined(pieces).map_err(|text| format!("{}: {text}", quoted(&name)))?;
        if tensors.insert(name.clone(), joined).is_some() {
            return Err(format!("{} is there twice", quoted(&name)));
        }
    }
    Ok(tensors)
}

/// The tensor that pieces make together.
fn joined(mut pieces: Vec<(Piece, Entry)>) -> Result<Entry, String> {
    pieces.sort_by_key(|(piece, _)| piece.index);
    let Piece { count, shape, run, .. } = pieces[0].0.clone();
    let are_all = pieces.iter().map(|(piece, _)| piece.index).eq(0..count);
    let num_values = |shape: &[usize]| shape.iter().product::<usize>();
    let num_found: usize = pieces.iter().map(|(_, entry)| num_values(&entry.shape)).sum();
    let are_equal = pieces.iter().all(|(_, entry)| entry.shape == pieces[0].1.shape);
    let is_whole = run.is_none_or(|run| {
        are_equal && run > 0 && num_values(&pieces[0].1.shape).is_multiple_of(run)
    });
    if !are_all || num_found != num_values(&shape) || !is_whole {
        let shapes: Vec<_> = pieces.iter().map(|(_, entry)| &entry.shape).collect();
        return Err(format!("pieces of shapes {shapes:?} do not make one of {shape:?}"));
    }
    let entries: Vec<Entry> = pieces.into_iter().map(|(_, entry)| entry).collect();
    let (file, range) = (entries[0].file, entries[0].range.clone());
    Ok(Entry { file, stored: Stored::Joined(entries.into(), run), shape, range })
}

/// Values of pieces, so many of each by turns, or all of each.
pub(super) fn by_turns(pieces: &[Vec<f32>], run: Option<usize>) -> Vec<f32> {
    let Some(run) = run else { return pieces.concat() };
    let num_turns = pieces.first().map_or(0, |piece| piece.len() / run);
    let turns = (0..num_turns)
        .flat_map(|turn| pieces.iter().flat_map(move |piece| &piece[turn * run..(turn + 1) * run]));
    turns.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::super::gguf::GgmlType;
    use super::super::gguf::written::Written;
    use super::*;
    use crate::weights::Checkpoint;

    /// A file of matrices of two rows, whose translations are given.
    fn checkpoint(
        translate: &dyn Fn(&TensorInfo) -> Result<Vec<Translated>, String>,
    ) -> Result<Checkpoint, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let bytes = |first: u8| -> Vec<u8> {
            (first..first + 4).flat_map(|value| f32::from(value).to_le_bytes()).collect()
        };
        let written = Written::new().tensor("a", &[2, 2], GgmlType::F32, &bytes(0)).tensor(
            "b",
            &[2, 2],
            GgmlType::F32,
            &bytes(10),
        );
        std::fs::write(&path, written.bytes()).unwrap();
        let files = GgufFiles::open(&path, None).unwrap();
        let files = TranslatedFiles { path: &path, files: &files, translate };
        Checkpoint::of_gguf(&path, &[files]).map_err(|error| error.to_string())
    }

    fn piece(count: usize, shape: &[usize], run: Option<usize>) -> impl Fn(usize) -> Piece {
        move |index| Piece { index, count, shape: shape.to_vec(), run }
    }

    fn pieces(make: &dyn Fn(usize) -> Piece) -> Result<Checkpoint, String> {
        checkpoint(&|tensor| {
            let piece = Some(make(usize::from(tensor.name == "b")));
            Ok(vec![Translated { piece, ..Translated::named("whole".to_owned(), tensor) }])
        })
    }

    #[test]
    fn pieces_are_one_behind_the_other_or_by_turns() {
        for (shape, run, expected) in [
            (&[4, 2][..], None, [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]),
            (&[2, 2, 2], Some(2), [0.0, 1.0, 10.0, 11.0, 2.0, 3.0, 12.0, 13.0]),
            (&[2, 4], Some(1), [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 3.0, 13.0]),
        ] {
            let mut checkpoint = pieces(&piece(2, shape, run)).unwrap();
            let whole = ("whole".to_owned(), shape.to_vec());
            checkpoint.check(std::slice::from_ref(&whole), &[]).unwrap();
            assert_eq!(checkpoint.matrix(&whole).unwrap().to_vec(), expected);
            checkpoint.finish().unwrap();
        }
    }

    #[test]
    fn pieces_that_do_not_make_a_tensor_are_refused() {
        for make in [
            &piece(3, &[6, 2], None) as &dyn Fn(usize) -> Piece,
            &piece(2, &[5, 2], None),
            &piece(2, &[2, 2, 2], Some(3)),
            &|_| piece(2, &[4, 2], None)(0),
        ] {
            let error = pieces(make).unwrap_err();
            assert!(error.contains("`whole`: pieces of shapes"), "{error}");
        }
    }
}
