//! Tensors of a checkpoint: safetensors files, pytorch_model.bin or GGUF files mapped into memory,
//! or made-up weights.
//!
//! Every tensor the spec asks for must be there with its shape, and every tensor that is there must
//! be asked for: a silent mismatch would be a silent wrong answer.

mod dummy;
pub mod gguf;
pub mod header;
pub mod index;
mod mapped_file;
mod mapped_files;
mod of_gguf;
pub mod pickle;
mod quantized;
mod stacked;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::adapter::MergedAdapter;
use super::quantization::{Place, QuantizationConfig};
use super::spec::{BesideTable, LinearSpec, NamedShape};
pub use dummy::DummyWeights;
pub use mapped_files::MappedFiles;
pub use of_gguf::TranslatedFiles;
pub use quantized::{
    linears_of_decoder, linears_of_encoder, linears_of_sound_tower, linears_of_tower,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::OnLostFile;
use vllm_batch_base::matrix::SourceMatrix;

/// Where a model's tensors come from.
#[derive(Debug)]
pub enum Checkpoint {
    /// Weight files.
    Files(MappedFiles),
    /// Made-up weights.
    Dummy(DummyWeights),
}

impl Checkpoint {
    /// Made-up weights, a pure function of the seed and each tensor's name.
    pub fn dummy(seed: u64) -> Self {
        Checkpoint::Dummy(DummyWeights::new(seed))
    }

    /// Maps the weight files of a folder: the safetensors files that model.safetensors.index.json
    /// names, else all; where there are none, pytorch_model.bin or its shards.
    ///
    /// # Errors
    /// No file is there, one is corrupt, or the index names a file outside the folder.
    pub fn open(dir: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        Ok(Checkpoint::Files(MappedFiles::open(dir, on_lost_file)?))
    }

    /// Maps a file of torch.save that has the tensors of one module, which are called as in a model
    /// that calls the module `name`.
    ///
    /// # Errors
    /// The file is not there or corrupt, or holds anything but tensors.
    pub fn of_module(
        path: &Path,
        name: &str,
        on_lost_file: Option<OnLostFile>,
    ) -> Result<Self, EngineError> {
        Ok(Checkpoint::Files(MappedFiles::of_module(path, name, on_lost_file)?))
    }

    /// The tensors of GGUF files, by what each is in Hugging Face's words: of the model at `path`,
    /// and of what goes with it.
    ///
    /// # Errors
    /// A tensor is unknown, or cannot be what it is said to be.
    pub fn of_gguf(path: &Path, models: &[TranslatedFiles<'_>]) -> Result<Self, EngineError> {
        Ok(Checkpoint::Files(MappedFiles::of_gguf(path, models)?))
    }

    /// The same, whose linear layers are stored as `config` says; experts may be stacked where a
    /// model asks for each.
    ///
    /// # Errors
    /// The format has no layer of a shape that the model has.
    pub fn quantized<'a>(
        mut self,
        config: Option<&QuantizationConfig>,
        linears: impl Iterator<Item = (&'a LinearSpec, Place)>,
    ) -> Result<Self, EngineError> {
        let linears: Vec<_> = linears.collect();
        match &mut self {
            Checkpoint::Files(files) => {
                files.unstack(linears.iter().flat_map(|(linear, _)| &linear.parts));
                if let Some(config) = config {
                    files.quantize(config, linears.into_iter())?;
                }
            }
            Checkpoint::Dummy(weights) => {
                if let Some(config) = config {
                    weights.quantize(config, linears.into_iter())?;
                }
            }
        }
        Ok(self)
    }

    /// Leaves scales of keys and values unused, in a quantized checkpoint; how many there are.
    pub fn leave_cache_scales(&mut self) -> usize {
        match self {
            Checkpoint::Files(files) => files.leave_cache_scales(),
            Checkpoint::Dummy(_) => 0,
        }
    }

    /// Adds an adapter to the tensors as they are read from now on, or puts its own in their place.
    ///
    /// # Errors
    /// One is quantized.
    ///
    /// # Panics
    /// There are no files.
    pub fn merge(&mut self, merged: MergedAdapter) -> Result<(), EngineError> {
        match self {
            Checkpoint::Files(files) => files.merge(merged),
            Checkpoint::Dummy(_) => panic!("no weights to merge with"),
        }
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
        match self {
            Checkpoint::Files(files) => files.leave(prefixes),
            Checkpoint::Dummy(_) => 0,
        }
    }

    /// Leaves a tensor unused, if it is there, or what it is made of.
    pub fn leave_tensor(&mut self, tensor: &NamedShape) {
        if let Checkpoint::Files(files) = self {
            files.leave_tensor(tensor);
        }
    }

    /// Whether the files have a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        matches!(self, Checkpoint::Files(files) if files.has(name))
    }

    /// Tensors of the files for an output layer `head` (vocab_size, width), if the config declares
    /// it to be `table` (vocab_size, width).
    pub fn beside_table(&self, head: &LinearSpec, table: &LinearSpec) -> BesideTable {
        let Checkpoint::Files(files) = self else { return BesideTable::Nothing };
        if !files.has_module(&head.parts[0].name) {
            return BesideTable::Nothing;
        }
        let (Some(head), Some(table)) = (head.weights().next(), table.weights().next()) else {
            return BesideTable::Nothing;
        };
        let is_copy = files.is_copy(&head.0, &table.0);
        files.release();
        if is_copy { BesideTable::Copy(head) } else { BesideTable::Head }
    }

    /// Checks the files against what a model asks for and what it can do without, by name and
    /// shape, before anything large is read or allocated.
    ///
    /// # Errors
    /// A tensor is missing, has another shape, or its type is not one of weights; or the file has a
    /// tensor that the model does not use.
    pub fn check(&self, asked: &[NamedShape], optional: &[NamedShape]) -> Result<(), EngineError> {
        match self {
            Checkpoint::Files(files) => files.check(asked, optional),
            Checkpoint::Dummy(_) => Ok(()),
        }
    }

    /// A matrix (rows, columns).
    ///
    /// # Errors
    /// It is missing or has another shape.
    ///
    /// # Panics
    /// The shape is none of a matrix.
    pub fn matrix(&mut self, tensor: &NamedShape) -> Result<SourceMatrix<'_>, EngineError> {
        self.take(tensor)?;
        self.peek(tensor)
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
            self.take(tensor)?;
        }
        let this = &*self;
        tensors.iter().map(|tensor| this.peek(tensor)).collect()
    }

    /// Notes that a tensor was asked for.
    fn take(&mut self, tensor: &NamedShape) -> Result<(), EngineError> {
        match self {
            Checkpoint::Files(files) => files.take(tensor),
            Checkpoint::Dummy(_) => Ok(()),
        }
    }

    /// A matrix that was asked for before.
    fn peek(&self, tensor: &NamedShape) -> Result<SourceMatrix<'_>, EngineError> {
        let (name, shape) = tensor;
        let &[ref counts @ .., rows, columns] = &shape[..] else {
            panic!("{name} is no matrix: {shape:?}")
        };
        let rows = counts.iter().product::<usize>() * rows;
        match self {
            Checkpoint::Dummy(weights) => Ok(weights.matrix(name, (rows, columns))),
            Checkpoint::Files(files) => files.matrix(tensor),
        }
    }

    /// A matrix of the files, which was checked and is not taken by this, or of made-up codes.
    pub fn stored_matrix(&self, tensor: &NamedShape) -> Option<SourceMatrix<'_>> {
        match self {
            Checkpoint::Files(files) if tensor.1.len() >= 2 => files.matrix(tensor).ok(),
            Checkpoint::Files(_) => None,
            Checkpoint::Dummy(weights) => weights.codes(&tensor.0),
        }
    }

    /// A vector, widened; dummies are `dummy` everywhere.
    ///
    /// # Errors
    /// It is missing or has another length.
    pub fn vector(&mut self, tensor: &NamedShape, dummy: f32) -> Result<Vec<f32>, EngineError> {
        match self {
            Checkpoint::Dummy(_) => Ok(vec![dummy; tensor.1.iter().product()]),
            Checkpoint::Files(files) => {
                files.take(tensor)?;
                files.vector(tensor)
            }
        }
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
            Checkpoint::Files(files) if !files.has(&tensor.0) => {
                Ok(vec![default; tensor.1.iter().product()])
            }
            _ => self.vector(tensor, default),
        }
    }

    /// Says that what was read so far is packed: it takes no memory from now on.
    pub fn release(&self) {
        if let Checkpoint::Files(files) = self {
            files.release();
        }
    }

    /// Checks that every tensor was asked for, and that the files are what they were.
    ///
    /// # Errors
    /// Some were not: the config does not describe these weights. Or a file has changed.
    pub fn finish(self) -> Result<(), EngineError> {
        match self {
            Checkpoint::Files(files) => files.finish(),
            Checkpoint::Dummy(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use safetensors::Dtype;

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
