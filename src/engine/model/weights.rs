//! Tensors of a checkpoint: safetensors files mapped into memory, or seeded dummies.
//!
//! Every tensor the spec asks for must be there with its shape, and every tensor that is there must
//! be asked for: a silent mismatch would be a silent wrong answer.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use crate::engine::EngineError;
use crate::engine::config::DType;
use crate::engine::ops::linear::{SourceMatrix, SourceValues};

/// Where a model's tensors come from.
#[derive(Debug)]
pub enum Checkpoint {
    /// safetensors files of a folder.
    Files(MappedFiles),
    /// Random values, a pure function of the seed and each tensor's name.
    Dummy {
        /// Seed of all tensors.
        seed: u64,
    },
}

/// Largest absolute value of dummy weights: small, so that activations stay finite.
const DUMMY_SCALE: f32 = 0.05;

/// safetensors files, mapped.
#[derive(Debug)]
pub struct MappedFiles {
    maps: Vec<Mmap>,
    tensors: HashMap<String, Entry>,
    unused: BTreeSet<String>,
    dir: PathBuf,
}

#[derive(Clone, Debug)]
struct Entry {
    file: usize,
    dtype: DType,
    shape: Vec<usize>,
    range: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Maps the safetensors files of a folder: those that model.safetensors.index.json names, else
    /// all.
    ///
    /// # Errors
    /// No file is there, one is corrupt, or the index names a file outside the folder.
    pub fn open(dir: &Path) -> Result<Self, EngineError> {
        let mut files = MappedFiles {
            maps: Vec::new(),
            tensors: HashMap::new(),
            unused: BTreeSet::new(),
            dir: dir.to_owned(),
        };
        for path in weight_files(dir)? {
            files.map(&path)?;
        }
        files.unused = files.tensors.keys().cloned().collect();
        Ok(Checkpoint::Files(files))
    }

    /// A matrix (rows, columns).
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<SourceMatrix<'_>, EngineError> {
        match self {
            Checkpoint::Dummy { seed } => {
                Ok(SourceMatrix::random(rows, columns, dummy_seed(*seed, name), DUMMY_SCALE))
            }
            Checkpoint::Files(files) => files
                .take(name, &[rows, columns])
                .map(|(dtype, bytes)| SourceMatrix::from_bytes(rows, columns, dtype, bytes)),
        }
    }

    /// Several matrices of one width, by name and number of rows.
    ///
    /// # Errors
    /// One is missing or has another shape.
    pub fn matrices(
        &mut self,
        parts: &[(String, usize)],
        columns: usize,
    ) -> Result<Vec<SourceMatrix<'_>>, EngineError> {
        for (name, rows) in parts {
            self.matrix(name, *rows, columns)?;
        }
        let this = &*self;
        Ok(parts.iter().map(|(name, rows)| this.peek(name, *rows, columns)).collect())
    }

    /// A matrix that `matrix` has found before.
    fn peek(&self, name: &str, rows: usize, columns: usize) -> SourceMatrix<'_> {
        match self {
            Checkpoint::Dummy { seed } => {
                SourceMatrix::random(rows, columns, dummy_seed(*seed, name), DUMMY_SCALE)
            }
            Checkpoint::Files(files) => {
                let entry = files.find(name).map(|(_, entry)| entry).expect("found by `matrix`");
                let bytes = &files.maps[entry.file][entry.range.clone()];
                SourceMatrix::from_bytes(rows, columns, entry.dtype, bytes)
            }
        }
    }

    /// A vector, widened; dummies are `dummy` everywhere.
    ///
    /// # Errors
    /// It is missing or has another length.
    pub fn vector(&mut self, name: &str, len: usize, dummy: f32) -> Result<Vec<f32>, EngineError> {
        let matrix = match self {
            Checkpoint::Dummy { .. } => SourceMatrix {
                num_rows: 1,
                num_columns: len,
                values: SourceValues::Constant(dummy),
            },
            Checkpoint::Files(files) => {
                let (dtype, bytes) = files.take(name, &[len])?;
                SourceMatrix::from_bytes(1, len, dtype, bytes)
            }
        };
        Ok(matrix.to_vec())
    }

    /// Checks that every tensor was asked for.
    ///
    /// # Errors
    /// Some were not: the config does not describe these weights.
    pub fn finish(self) -> Result<(), EngineError> {
        let Checkpoint::Files(files) = self else { return Ok(()) };
        let unused: Vec<_> = files.unused.iter().filter(|name| !is_ignorable(name)).collect();
        match unused.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(EngineError::Model(format!(
                "{}: {} tensors are in the weight files but not in the model that config.json describes, \
                 the first is {first}",
                files.dir.display(),
                unused.len()
            ))),
        }
    }
}

/// Buffers that old checkpoints carry and nothing reads: rotary tables, attention masks, and an
/// output layer beside the embedding that it is tied to.
fn is_ignorable(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("attn.masked_bias")
        || name == "lm_head.weight"
}

fn dummy_seed(seed: u64, name: &str) -> u64 {
    // FNV-1a of the name: stable everywhere.
    name.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The folder's weight files.
fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let index = dir.join("model.safetensors.index.json");
    let single = dir.join("model.safetensors");
    if index.exists() {
        return indexed_files(dir, &index);
    }
    if single.exists() {
        return Ok(vec![single]);
    }
    let listing = std::fs::read_dir(dir)
        .map_err(|error| EngineError::Model(format!("cannot read {}: {error}", dir.display())))?;
    let names: Vec<_> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let has = |extension: &str| {
        names
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == extension))
            .cloned()
            .collect::<Vec<_>>()
    };
    let mut found = has("safetensors");
    found.sort();
    if !found.is_empty() {
        return Ok(found);
    }
    let pickles = !has("bin").is_empty() || !has("pt").is_empty();
    let help = if pickles {
        "its .bin files are pickles, which can run code and are refused: convert them with \
         transformers' save_pretrained(safe_serialization=True)"
    } else {
        "use --load-format dummy to run config.json with random weights"
    };
    Err(EngineError::Model(format!("no *.safetensors in {}; {help}", dir.display())))
}

fn indexed_files(dir: &Path, index: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let bad = |text: String| EngineError::Model(format!("{}: {text}", index.display()));
    let text = std::fs::read_to_string(index).map_err(|error| bad(error.to_string()))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let map = value.get("weight_map").and_then(serde_json::Value::as_object);
    let map = map.ok_or_else(|| bad("`weight_map` is missing".to_owned()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let name = file.as_str().filter(|name| is_plain_name(name));
        names.insert(
            name.ok_or_else(|| {
                bad(format!("{tensor} is said to be in {file}, no plain file name"))
            })?,
        );
    }
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

/// No folder, no parent, nothing hidden: the index may not lead out of its folder.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

impl MappedFiles {
    fn map(&mut self, path: &Path) -> Result<(), EngineError> {
        let bad = |text: String| EngineError::Model(format!("{}: {text}", path.display()));
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        // SAFETY: the mapping is read-only. A file that another process shortens meanwhile ends
        // this one with SIGBUS, as with every program that maps its weights; nothing is written.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| bad(error.to_string()))?;
        let (header_len, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| bad(format!("not a valid safetensors file: {error}")))?;
        let data_start = header_len + 8;
        for (name, info) in metadata.tensors() {
            let dtype = match info.dtype {
                Dtype::F32 => DType::Float32,
                Dtype::BF16 => DType::BFloat16,
                Dtype::F16 => DType::Float16,
                // Integer tensors are never weights of these families; asking for one fails below.
                _ => continue,
            };
            let range = data_start + info.data_offsets.0..data_start + info.data_offsets.1;
            if range.end > map.len() {
                return Err(bad(format!("{name} ends past the end of the file: it is truncated")));
            }
            let entry = Entry { file: self.maps.len(), dtype, shape: info.shape.clone(), range };
            if self.tensors.insert(name.clone(), entry).is_some() {
                return Err(bad(format!("{name} is in two files")));
            }
        }
        self.maps.push(map);
        Ok(())
    }

    /// An entry by the name transformers gives it, or by what other tools leave or add in front.
    fn find(&self, name: &str) -> Option<(String, &Entry)> {
        let shorter = name.strip_prefix("model.").unwrap_or(name);
        let candidates = [name.to_owned(), shorter.to_owned(), format!("language_model.{name}")];
        candidates.into_iter().find_map(|name| Some((name.clone(), self.tensors.get(&name)?)))
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(DType, &[u8]), EngineError> {
        let dir = self.dir.display();
        let Some((found, entry)) = self.find(name) else {
            return Err(EngineError::Model(format!(
                "{dir}: tensor {name} is missing from the weight files; are all shards there?"
            )));
        };
        if entry.shape != shape {
            return Err(EngineError::Model(format!(
                "{dir}: tensor {found} has shape {:?}, config.json asks for {shape:?}",
                entry.shape
            )));
        }
        let (dtype, file, range) = (entry.dtype, entry.file, entry.range.clone());
        self.unused.remove(&found);
        Ok((dtype, &self.maps[file][range]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_cannot_lead_out_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join("model.safetensors.index.json");
        for name in ["../x.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b"] {
            let json = serde_json::json!({"weight_map": {"t": name}});
            std::fs::write(&index, json.to_string()).unwrap();
            let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains("no plain file name"), "{name}: {error}");
        }
    }

    #[test]
    fn pickles_and_empty_folders_are_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("--load-format dummy"), "{error}");
        std::fs::write(folder.path().join("pytorch_model.bin"), b"x").unwrap();
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("save_pretrained"), "{error}");
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let data = vec![0u8; 64];
        let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![4, 4], &data).unwrap();
        let bytes = safetensors::serialize([("a", view)], None).unwrap();
        for len in [0, 4, 8, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(Checkpoint::open(folder.path()).is_err(), "{len} bytes");
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert!(checkpoint.matrix("a", 4, 3).unwrap_err().to_string().contains("shape [4, 4]"));
        assert!(checkpoint.matrix("b", 4, 4).unwrap_err().to_string().contains("missing"));
        assert!(checkpoint.finish().unwrap_err().to_string().contains("the first is a"));
    }
}
