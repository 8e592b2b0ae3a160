//! Tensors of a checkpoint: safetensors files or pytorch_model.bin mapped into memory, or seeded
//! dummies.
//!
//! Every tensor the spec asks for must be there with its shape, and every tensor that is there must
//! be asked for: a silent mismatch would be a silent wrong answer.

pub mod header;
pub mod index;
mod mapped_file;
pub mod pickle;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use safetensors::Dtype;

use super::spec::NamedShape;
use crate::engine::EngineError;
use crate::engine::config::{DType, OnLostFile};
use crate::engine::files::{self, quoted};
use crate::engine::ops::linear::SourceMatrix;
use mapped_file::{MappedFile, Watch};

/// Where a model's tensors come from.
#[derive(Debug)]
pub enum Checkpoint {
    /// Weight files of a folder.
    Files(MappedFiles),
    /// Random values, a pure function of the seed and each tensor's name.
    Dummy {
        /// Seed of all tensors.
        seed: u64,
    },
}

/// Largest absolute value of dummy weights: small, so that activations stay finite.
const DUMMY_SCALE: f32 = 0.05;

/// Weight files, mapped.
#[derive(Debug)]
pub struct MappedFiles {
    maps: Vec<MappedFile>,
    /// While the files are mapped; None where nobody asked for it.
    _watch: Option<Watch>,
    tensors: HashMap<String, Entry>,
    unused: BTreeSet<String>,
    dir: PathBuf,
    /// The tensors are not needed any more.
    given_up: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
struct Entry {
    file: usize,
    /// None: a type that weights do not have.
    dtype: Option<DType>,
    file_dtype: Dtype,
    shape: Vec<usize>,
    range: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Maps the weight files of a folder: the safetensors files that model.safetensors.index.json
    /// names, else all; where there are none, pytorch_model.bin or its shards.
    ///
    /// # Errors
    /// No file is there, one is corrupt, or the index names a file outside the folder.
    pub fn open(dir: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        let mut maps = Vec::new();
        for path in index::weight_files(dir)? {
            maps.push(MappedFile::open(&path).map_err(|error| files::unreadable(&path, &error))?);
        }
        // Before the first byte is read.
        let watch = on_lost_file.map(|on_lost| mapped_file::watch(&maps, on_lost)).transpose();
        let watch = watch.map_err(|error| files::unreadable(dir, &error))?;
        let tensors = find_tensors(&maps)?;
        let unused = tensors.keys().cloned().collect();
        let dir = dir.to_owned();
        let given_up = Arc::default();
        Ok(Checkpoint::Files(MappedFiles { maps, _watch: watch, tensors, unused, dir, given_up }))
    }

    /// The same, whose tensors are refused once `given_up` is set.
    pub fn until(mut self, given_up: &Arc<AtomicBool>) -> Self {
        if let Checkpoint::Files(files) = &mut self {
            files.given_up = Arc::clone(given_up);
        }
        self
    }

    /// Leaves tensors with these prefixes unused; how many there are.
    pub fn leave(&mut self, prefixes: &[&str]) -> usize {
        let Checkpoint::Files(files) = self else { return 0 };
        let num_tensors = files.unused.len();
        files.unused.retain(|name| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
        num_tensors - files.unused.len()
    }

    /// Checks the files against what a model asks for and what it can do without, by name and
    /// shape, before anything large is read or allocated.
    ///
    /// # Errors
    /// A tensor is missing, has another shape, or its type is not one of weights; or the file has a
    /// tensor that the model does not use.
    pub fn check(&self, asked: &[NamedShape], optional: &[NamedShape]) -> Result<(), EngineError> {
        let Checkpoint::Files(files) = self else { return Ok(()) };
        let mut unused = files.unused.clone();
        let is_there = |tensor: &&NamedShape| files.find(&tensor.0).is_some();
        for tensor in asked.iter().chain(optional.iter().filter(is_there)) {
            unused.remove(&files.checked(tensor)?.0);
        }
        files.refuse_unused(&unused)
    }

    /// A matrix (rows, columns).
    ///
    /// # Errors
    /// It is missing or has another shape.
    ///
    /// # Panics
    /// The shape is none of a matrix.
    pub fn matrix(&mut self, tensor: &NamedShape) -> Result<SourceMatrix<'_>, EngineError> {
        if let Checkpoint::Files(files) = self {
            files.take(tensor)?;
        }
        Ok(self.peek(tensor))
    }

    /// Several matrices.
    ///
    /// # Errors
    /// One is missing or has another shape.
    pub fn matrices(
        &mut self,
        tensors: &[NamedShape],
    ) -> Result<Vec<SourceMatrix<'_>>, EngineError> {
        for tensor in tensors {
            self.matrix(tensor)?;
        }
        let this = &*self;
        Ok(tensors.iter().map(|tensor| this.peek(tensor)).collect())
    }

    /// A matrix that `matrix` has found before.
    fn peek(&self, tensor: &NamedShape) -> SourceMatrix<'_> {
        let (name, shape) = tensor;
        let &[rows, columns] = &shape[..] else { panic!("{name} is no matrix: {shape:?}") };
        match self {
            Checkpoint::Dummy { seed } => {
                SourceMatrix::random(rows, columns, dummy_seed(*seed, name), DUMMY_SCALE)
            }
            Checkpoint::Files(files) => {
                let found = files.checked(tensor).expect("found by `matrix`");
                SourceMatrix::from_bytes(rows, columns, found.1, files.bytes(found.2))
            }
        }
    }

    /// A vector, widened; dummies are `dummy` everywhere.
    ///
    /// # Errors
    /// It is missing or has another length.
    pub fn vector(&mut self, tensor: &NamedShape, dummy: f32) -> Result<Vec<f32>, EngineError> {
        let len = tensor.1.iter().product();
        let matrix = match self {
            Checkpoint::Dummy { .. } => return Ok(vec![dummy; len]),
            Checkpoint::Files(files) => {
                let (dtype, bytes) = files.take(tensor)?;
                SourceMatrix::from_bytes(1, len, dtype, bytes)
            }
        };
        Ok(matrix.to_vec())
    }

    /// The same where the file may lack it; then it is `default`.
    ///
    /// # Errors
    /// It is there and has another length.
    pub fn vector_or(
        &mut self,
        tensor: &NamedShape,
        default: f32,
    ) -> Result<Vec<f32>, EngineError> {
        match self {
            Checkpoint::Files(files) if files.find(&tensor.0).is_none() => {
                Ok(vec![default; tensor.1.iter().product()])
            }
            _ => self.vector(tensor, default),
        }
    }

    /// Says that what was read so far is packed: it takes no memory from now on.
    pub fn release(&self) {
        if let Checkpoint::Files(files) = self {
            files.maps.iter().for_each(MappedFile::release);
        }
    }

    /// Checks that every tensor was asked for, and that the files are what they were.
    ///
    /// # Errors
    /// Some were not: the config does not describe these weights. Or a file has changed.
    pub fn finish(self) -> Result<(), EngineError> {
        let Checkpoint::Files(files) = self else { return Ok(()) };
        match files.maps.iter().find(|map| !map.is_unchanged()) {
            Some(map) => Err(bad_file(map.path(), "it has changed while it was read; run again")),
            None => files.refuse_unused(&files.unused),
        }
    }
}

/// Buffers that old checkpoints carry and nothing reads: rotary tables, attention masks, and an
/// output layer beside the embedding that it is tied to.
fn is_ignorable(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with(".attn.masked_bias")
        || name.ends_with(".attention.masked_bias")
        || name.ends_with("decoder.version")
        || name.ends_with(".position_ids")
        || name == "lm_head.weight"
}

/// The causal mask that GPT-2, GPT-NeoX and CodeGen keep beside attention's biases: (1, 1, n, n).
fn is_causal_mask(name: &str, shape: &[usize]) -> bool {
    let names = [".attn.bias", ".attention.bias", ".attn.causal_mask"];
    let is_named = names.iter().any(|ending| name.ends_with(ending));
    is_named && matches!(shape, [1, 1, rows, columns] if rows == columns)
}

fn dummy_seed(seed: u64, name: &str) -> u64 {
    // FNV-1a of the name: stable everywhere.
    name.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

fn bad_file(path: &Path, text: impl std::fmt::Display) -> EngineError {
    EngineError::Model(format!("{}: {text}", path.display()))
}

/// All tensors of all files.
fn find_tensors(maps: &[MappedFile]) -> Result<HashMap<String, Entry>, EngineError> {
    let mut tensors = HashMap::new();
    for (file, map) in maps.iter().enumerate() {
        let parse = match map.path().extension().is_some_and(|extension| extension == "bin") {
            true => pickle::parse,
            false => header::parse,
        };
        let entries = parse(map.bytes()).map_err(|text| bad_file(map.path(), text))?;
        for header::TensorEntry { name, dtype: file_dtype, shape, range } in entries {
            let dtype = match file_dtype {
                Dtype::F32 => Some(DType::Float32),
                Dtype::BF16 => Some(DType::BFloat16),
                Dtype::F16 => Some(DType::Float16),
                _ => None,
            };
            let entry = Entry { file, dtype, file_dtype, shape, range };
            if tensors.insert(name.clone(), entry).is_some() {
                let text = format!("{} is in another file as well", quoted(&name));
                return Err(bad_file(map.path(), text));
            }
        }
    }
    Ok(tensors)
}

impl MappedFiles {
    /// An entry by the name transformers gives it, or by what other tools leave or add in front.
    fn find(&self, name: &str) -> Option<(String, &Entry)> {
        let prefixes = ["model.", "transformer."];
        let shorter = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        let candidates = [
            name.to_owned(),
            shorter.to_owned(),
            format!("language_model.{name}"),
            format!("model.language_model.{shorter}"),
        ];
        candidates.into_iter().find_map(|name| Some((name.clone(), self.tensors.get(&name)?)))
    }

    /// The same, where it is what the model asks for.
    fn checked(&self, (name, shape): &NamedShape) -> Result<(String, DType, &Entry), EngineError> {
        let dir = self.dir.display();
        let Some((found, entry)) = self.find(name) else {
            return Err(EngineError::Model(format!(
                "{dir}: tensor {name} is missing from the weight files; are all shards there?"
            )));
        };
        if entry.shape != *shape {
            return Err(EngineError::Model(format!(
                "{dir}: tensor {found} has shape {}, config.json asks for {shape:?}",
                quoted(&format!("{:?}", entry.shape))
            )));
        }
        let Some(dtype) = entry.dtype else {
            return Err(EngineError::Model(format!(
                "{dir}: tensor {found} is of type {}; weights are F32, BF16 or F16",
                entry.file_dtype
            )));
        };
        Ok((found, dtype, entry))
    }

    fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.maps[entry.file].bytes()[entry.range.clone()]
    }

    fn take(&mut self, tensor: &NamedShape) -> Result<(DType, &[u8]), EngineError> {
        if self.given_up.load(Relaxed) {
            return Err(EngineError::Model("loading was given up".to_owned()));
        }
        let (found, dtype, entry) = self.checked(tensor)?;
        let (file, range) = (entry.file, entry.range.clone());
        self.unused.remove(&found);
        Ok((dtype, &self.maps[file].bytes()[range]))
    }

    fn refuse_unused(&self, unused: &BTreeSet<String>) -> Result<(), EngineError> {
        let is_mask = |name: &String| is_causal_mask(name, &self.tensors[name].shape);
        let unused: Vec<_> =
            unused.iter().filter(|name| !is_ignorable(name) && !is_mask(name)).collect();
        match unused.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(EngineError::Model(format!(
                "{}: {} tensors are in the weight files but not in the model that config.json \
                 describes, the first is {}",
                self.dir.display(),
                unused.len(),
                quoted(first)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_model_uses_is_left_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let view = |shape: &[usize]| {
            let data = &[0; 64][..4 * shape.iter().product::<usize>()];
            safetensors::tensor::TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap()
        };
        let write = |tensors: &[(&str, &[usize])]| {
            let views = tensors.iter().map(|(name, shape)| (*name, view(shape)));
            std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
            Checkpoint::open(folder.path(), None).unwrap()
        };
        let mut images = write(&[("visual.a", &[2]), ("model.visual.b", &[2])]);
        assert_eq!(images.leave(&["visual."]), 1);
        assert!(images.check(&[], &[]).unwrap_err().to_string().contains("`model.visual.b`"));
        assert_eq!(images.leave(&["model.visual."]), 1);
        images.check(&[], &[]).unwrap();
        images.finish().unwrap();
        let masks: [(&str, &[usize]); 2] =
            [("h.0.attn.bias", &[1, 1, 2, 2]), ("h.0.attn.masked_bias", &[])];
        write(&masks).finish().unwrap();
        for name in ["h.0.attn.bias", "h.0.bias"] {
            assert!(write(&[(name, &[2])]).finish().is_err(), "a bias that nothing reads");
        }
        write(&[("h.0.ln.weight", &[3])])
            .check(&[("transformer.h.0.ln.weight".to_owned(), vec![3])], &[])
            .unwrap();
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let data: Vec<u8> = (0..16u8).flat_map(|value| f32::from(value).to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![4, 4], &data).unwrap();
        let bytes = safetensors::serialize([("a", view)], None).unwrap();
        for len in [0, 4, 8, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(Checkpoint::open(folder.path(), None).is_err(), "{len} bytes");
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut checkpoint = Checkpoint::open(folder.path(), None).unwrap();
        let tensor = |name: &str, columns| (name.to_owned(), vec![4, columns]);
        let wrong = checkpoint.matrix(&tensor("a", 3)).unwrap_err().to_string();
        assert!(wrong.contains("shape `[4, 4]`"), "{wrong}");
        let wrong = checkpoint.matrix(&tensor("b", 4)).unwrap_err().to_string();
        assert!(wrong.contains("missing"), "{wrong}");
        assert!(checkpoint.finish().unwrap_err().to_string().contains("the first is `a`"));

        let given_up = Arc::default();
        let mut checkpoint = Checkpoint::open(folder.path(), None).unwrap().until(&given_up);
        assert_eq!(checkpoint.matrix(&tensor("a", 4)).unwrap().to_vec()[15], 15.0);
        // What is read again after it comes back from the file.
        checkpoint.release();
        assert_eq!(checkpoint.matrix(&tensor("a", 4)).unwrap().to_vec()[15], 15.0);
        given_up.store(true, Relaxed);
        assert!(checkpoint.matrix(&tensor("a", 4)).unwrap_err().to_string().contains("given up"));
    }
}
