//! Weight files, mapped: which tensors they have, how each is stored, and which of them
//! were asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use safetensors::Dtype;

use super::gguf::StoredRows;
use super::mapped_file::{MappedFile, Maps};
use super::of_gguf::by_turns;
use super::quantized::QuantizedModules;
use super::{header, index, pickle};
use crate::adapter::MergedAdapter;
use crate::spec::NamedShape;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, OnLostFile};
use vllm_batch_base::files::{self, quoted};
use vllm_batch_base::matrix::{SourceMatrix, SourceValues};

/// Weight files, mapped.
#[derive(Debug)]
pub struct MappedFiles {
    /// Files of the model, and those that go with it.
    maps: Vec<Arc<Maps>>,
    pub(super) tensors: HashMap<String, Entry>,
    pub(super) unused: BTreeSet<String>,
    /// The folder, or the GGUF file.
    path: PathBuf,
    /// Tensors that the folder's config quantizes.
    pub(super) quantized: QuantizedModules,
    /// Adapter that is added to tensors as they are read.
    merged: Option<Box<MergedAdapter>>,
    /// The tensors are not needed any more.
    pub(super) given_up: Arc<AtomicBool>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub file: usize,
    pub stored: Stored,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
}

/// Type of a tensor's bytes.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    /// Values, one after the other.
    Values(DType),
    /// Those of some outputs of a matrix of (inputs, outputs).
    Transposed {
        /// Their type.
        dtype: DType,
        /// Outputs of the matrix.
        num_stored: usize,
        /// The first of these.
        first: usize,
    },
    /// Rows of a GGUF file.
    Rows(StoredRows),
    /// Several tensors that are one, of which so many values stand beside each other by turns, or
    /// all.
    Joined(Arc<[Entry]>, Option<usize>),
    /// Type that weights do not have.
    Other(Dtype),
}

impl From<Dtype> for Stored {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::Values(DType::Float32),
            Dtype::BF16 => Self::Values(DType::BFloat16),
            Dtype::F16 => Self::Values(DType::Float16),
            other => Self::Other(other),
        }
    }
}

impl Entry {
    /// The type that a file of safetensors gives it.
    pub(super) fn dtype(&self) -> Option<Dtype> {
        Some(match self.stored {
            Stored::Values(DType::Float32) => Dtype::F32,
            Stored::Values(DType::BFloat16) => Dtype::BF16,
            Stored::Values(DType::Float16) => Dtype::F16,
            Stored::Other(dtype) => dtype,
            Stored::Transposed { .. } | Stored::Rows(_) | Stored::Joined(..) => return None,
        })
    }

    /// Pieces of this shape, one after the other; None: it is not of such pieces, or not plain.
    pub(super) fn pieces(&self, shape: &[usize]) -> Option<impl Iterator<Item = Self> + use<>> {
        let Stored::Values(dtype) = self.stored else { return None };
        let num_values = |shape: &[usize]| shape.iter().product::<usize>();
        let (all, of_one) = (num_values(&self.shape), num_values(shape));
        if of_one == 0 || !all.is_multiple_of(of_one) {
            return None;
        }
        let (file, first, len) = (self.file, self.range.start, of_one * dtype.size_bytes());
        let shape = shape.to_vec();
        Some((0..all / of_one).map(move |index| {
            let start = first + index * len;
            let stored = Stored::Values(dtype);
            Self { file, stored, shape: shape.clone(), range: start..start + len }
        }))
    }

    /// Pieces of this shape of matrices of (inputs, outputs), so many beside each other in each;
    /// None: it is not of such matrices, or not plain.
    pub(super) fn transposed_pieces(
        &self,
        shape: [usize; 2],
        num_beside: usize,
    ) -> Option<impl Iterator<Item = Self> + use<>> {
        let Stored::Values(dtype) = self.stored else { return None };
        let [rows, columns] = shape;
        let num_stored = rows * num_beside;
        let matrices = self.pieces(&[columns, num_stored])?;
        Some(matrices.flat_map(move |matrix| {
            (0..num_beside).map(move |index| {
                let stored = Stored::Transposed { dtype, num_stored, first: index * rows };
                Self {
                    stored,
                    shape: shape.to_vec(),
                    file: matrix.file,
                    range: matrix.range.clone(),
                }
            })
        }))
    }

    /// Whether it is of values that need no format.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.stored, Stored::Values(_) | Stored::Transposed { .. })
    }
}

/// What names begin with, without `model`, and what they do in the files of some models.
const OTHER_NAMES: &[(&str, &str)] = &[
    // As PaddleOCR-VL is published.
    ("projector.", "mlp_AR."),
    // As HyperCLOVA X is.
    ("projector.", "model.vision_projector."),
    ("visual.", "model.vision_model."),
    // As Qwen3-ASR is.
    ("multi_modal_projector.linear_1.", "audio_tower.proj1."),
    ("multi_modal_projector.linear_2.", "audio_tower.proj2."),
    // As transformers 5.24 saves Qianfan-OCR.
    ("layers.", "language_model.model.encoder.layers."),
    // And Kimi K2.5.
    ("layers.", "language_model.model.blocks."),
    ("mm_projector.", "model.mm_projector."),
    ("vision_tower.patch_embed.", "vision_tower.encoder.patch_embed."),
    // As Phi-4-multimodal's own code has them.
    ("embed_tokens_extend.image_embed.img_projection_up.", PHI4_UP),
    ("embed_tokens_extend.image_embed.img_projection_down.", PHI4_DOWN),
    ("embed_tokens_extend.image_embed.sub_img_feature_extensor", PHI4_NEWLINE),
    ("embed_tokens_extend.image_embed.global_img_feature_extensor", PHI4_SEPARATOR),
];
const PHI4_UP: &str = "model.embed_tokens_extend.image_embed.img_projection.0.";
const PHI4_DOWN: &str = "model.embed_tokens_extend.image_embed.img_projection.2.";
const PHI4_NEWLINE: &str = "model.embed_tokens_extend.image_embed.sub_GN";
const PHI4_SEPARATOR: &str = "model.embed_tokens_extend.image_embed.glb_GN";

impl MappedFiles {
    /// Maps them, and reads what they have.
    pub(super) fn open(dir: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        Self::map(dir, index::weight_files(dir)?, on_lost_file)
    }

    /// As [`super::Checkpoint::of_module`].
    pub(super) fn of_module(
        path: &Path,
        name: &str,
        on_lost_file: Option<OnLostFile>,
    ) -> Result<Self, EngineError> {
        let Self { maps, tensors, .. } = Self::map(path, vec![path.to_owned()], on_lost_file)?;
        let named = tensors.into_iter().map(|(tensor, entry)| (format!("{name}.{tensor}"), entry));
        Ok(Self::new(path, maps, named.collect()))
    }

    /// Maps one file of safetensors, whatever is in its tensors' names.
    ///
    /// # Errors
    /// It is not there or corrupt.
    pub fn of_file(path: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        Self::map(path, vec![path.to_owned()], on_lost_file)
    }

    /// Names and shapes of all tensors, by their names.
    pub fn shapes(&self) -> BTreeMap<&str, &[usize]> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice())).collect()
    }

    /// Whether a tensor is one of values.
    ///
    /// # Errors
    /// It is not there, has another shape, or is of another type.
    pub fn check_values(&self, tensor: &NamedShape) -> Result<(), EngineError> {
        self.checked(tensor).map(|_| ())
    }

    /// The values of a tensor, in the order of its elements.
    ///
    /// # Errors
    /// As `check_values`; or the file has changed since it was mapped.
    pub fn values(&self, tensor: &NamedShape) -> Result<Vec<f32>, EngineError> {
        let values = self.source(self.checked(tensor)?.1).to_vec();
        self.refuse_changed()?;
        Ok(values)
    }

    fn map(
        of: &Path,
        paths: Vec<PathBuf>,
        on_lost_file: Option<OnLostFile>,
    ) -> Result<Self, EngineError> {
        let mut maps = Vec::new();
        for path in paths {
            maps.push(MappedFile::open(&path).map_err(|error| files::unreadable(&path, &error))?);
        }
        let maps = Maps::watched(maps, on_lost_file);
        let maps = maps.map_err(|error| files::unreadable(of, &error))?;
        let tensors = find_tensors(&maps)?;
        // A model that sees, within one that compares tokens; and what thinks of one that speaks.
        let unwrapped = |name: String| {
            let inner = ["vlm.", "thinker."].iter().find_map(|outer| name.strip_prefix(outer));
            inner.map(str::to_owned).unwrap_or(name)
        };
        let tensors = tensors.into_iter().map(|(name, entry)| (unwrapped(name), entry));
        Ok(Self::new(of, vec![maps.into()], tensors.collect()))
    }

    pub(super) fn new(path: &Path, maps: Vec<Arc<Maps>>, tensors: HashMap<String, Entry>) -> Self {
        let unused = tensors.keys().cloned().collect();
        let quantized = QuantizedModules::default();
        let (path, given_up) = (path.to_owned(), Arc::default());
        Self { maps, tensors, unused, path, quantized, merged: None, given_up }
    }

    /// Leaves tensors with these prefixes unused; how many there are.
    pub(super) fn leave(&mut self, prefixes: &[&str]) -> usize {
        let num_tensors = self.unused.len();
        // Also of the text part of a multimodal checkpoint.
        let in_others = |prefix: &&str| {
            let shorter = prefix.strip_prefix("model.").unwrap_or(prefix);
            [format!("language_model.{prefix}"), format!("model.language_model.{shorter}")]
        };
        let others: Vec<_> = prefixes.iter().flat_map(in_others).collect();
        let others = others.iter().map(String::as_str);
        let all: Vec<_> = prefixes.iter().copied().chain(others).collect();
        self.unused.retain(|name| !all.iter().any(|prefix| name.starts_with(prefix)));
        num_tensors - self.unused.len()
    }

    /// Leaves a tensor unused, if it is there, or what it is made of.
    pub(super) fn leave_tensor(&mut self, tensor: &NamedShape) {
        for name in self.names_of(tensor).unwrap_or_default() {
            self.unused.remove(&name);
        }
    }

    /// As [`super::Checkpoint::check`].
    pub(super) fn check(
        &self,
        asked: &[NamedShape],
        optional: &[NamedShape],
    ) -> Result<(), EngineError> {
        let mut unused = self.unused.clone();
        let is_there = |tensor: &&NamedShape| self.has(&tensor.0);
        for tensor in asked.iter().chain(optional.iter().filter(is_there)) {
            for name in self.names_of(tensor)? {
                unused.remove(&name);
            }
        }
        self.refuse_unused(&unused)
    }

    /// Whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Whether two tensors are there and have the same values, in the same type.
    pub(super) fn is_copy(&self, name: &str, other: &str) -> bool {
        let (Some((_, one)), Some((_, other))) = (self.find(name), self.find(other)) else {
            return false;
        };
        one.is_plain()
            && (one.dtype(), &one.shape) == (other.dtype(), &other.shape)
            && self.bytes(one) == self.bytes(other)
    }

    /// Notes that a tensor was asked for.
    pub(super) fn take(&mut self, tensor: &NamedShape) -> Result<(), EngineError> {
        if self.given_up.load(Relaxed) {
            return Err(EngineError::Model("loading was given up".to_owned()));
        }
        for name in self.names_of(tensor)? {
            self.unused.remove(&name);
        }
        Ok(())
    }

    /// Names in the files of a tensor that the model asks for, or of its parts.
    fn names_of(&self, tensor: &NamedShape) -> Result<Vec<String>, EngineError> {
        match self.quantized.get(&tensor.0) {
            Some(module) => Ok(self.tensors_of(module)?.0),
            None => Ok(vec![self.checked(tensor)?.0]),
        }
    }

    /// As [`super::Checkpoint::merge`].
    pub(super) fn merge(&mut self, merged: MergedAdapter) -> Result<(), EngineError> {
        let is_plain = |name: &str| self.find(name).is_none_or(|(_, entry)| entry.is_plain());
        let is_quantized = |name: &&str| self.quantized.get(name).is_some() || !is_plain(name);
        if let Some(name) = merged.tensors().find(is_quantized) {
            return Err(self.error(format!(
                "{name} is quantized, and merging would widen it; use `settings.lora_modules` in place of \
                 `settings.lora_merge`"
            )));
        }
        self.merged = Some(Box::new(merged));
        Ok(())
    }

    /// A matrix that `take` has found, or several, one after the other.
    pub(super) fn matrix(&self, tensor: &NamedShape) -> Result<SourceMatrix<'_>, EngineError> {
        if let Some(module) = self.quantized.get(&tensor.0) {
            return self.quantized_matrix(module);
        }
        let (_, entry) = self.checked(tensor)?;
        let matrix = self.source(entry);
        assert_eq!(Some(&matrix.num_columns), tensor.1.last(), "no matrix");
        if matches!(&entry.stored, Stored::Rows(rows) if rows.is_changed()) {
            return Err(self.error(format!("{} is read as a vector alone", tensor.0)));
        }
        let Some(merged) = &self.merged else { return Ok(matrix) };
        Ok(match merged.merged(&tensor.0, || matrix.to_vec())? {
            None => matrix,
            Some(values) => {
                let values = SourceValues::Owned(values.into());
                SourceMatrix::new(matrix.num_rows, matrix.num_columns, values)
            }
        })
    }

    /// A vector that `take` has found.
    pub(super) fn vector(&self, tensor: &NamedShape) -> Result<Vec<f32>, EngineError> {
        let (_, entry) = self.checked(tensor)?;
        if let Some(merged) = &self.merged
            && let Some(values) = merged.merged(&tensor.0, || unreachable!("no matrix"))?
        {
            return Ok(values);
        }
        let mut values = self.source(entry).to_vec();
        if let Stored::Rows(StoredRows { change, .. }) = entry.stored {
            values.iter_mut().for_each(|value| *value = change.of(*value));
        }
        Ok(values)
    }

    /// The values of a tensor that was checked, unchanged. A vector has one row, or one
    /// column.
    fn source(&self, entry: &Entry) -> SourceMatrix<'_> {
        let (shape, bytes) = (&entry.shape, self.bytes(entry));
        match &entry.stored {
            Stored::Values(dtype) => {
                let columns = shape.last().copied().unwrap_or(1);
                let rows = shape.iter().rev().skip(1).product();
                SourceMatrix::from_bytes(rows, columns, *dtype, bytes)
            }
            &Stored::Transposed { dtype, num_stored, first } => {
                let (rows, columns) = (shape[0], shape[1]);
                let stored = SourceMatrix::from_bytes(columns, num_stored, dtype, bytes);
                stored.of_columns(first..first + rows).transposed()
            }
            Stored::Rows(rows) => rows.source(shape.iter().product(), bytes),
            Stored::Joined(pieces, run) => {
                let pieces: Vec<_> =
                    pieces.iter().map(|piece| self.source(piece).to_vec()).collect();
                let columns = shape.last().copied().unwrap_or(1);
                let values = SourceValues::Owned(by_turns(&pieces, *run).into());
                SourceMatrix::new(shape.iter().product::<usize>() / columns, columns, values)
            }
            Stored::Other(dtype) => unreachable!("{dtype} is refused by `checked`"),
        }
    }

    /// Says that what was read so far is packed: it takes no memory from now on.
    pub fn release(&self) {
        self.files().for_each(MappedFile::release);
    }

    /// As [`super::Checkpoint::finish`].
    pub(super) fn finish(self) -> Result<(), EngineError> {
        self.refuse_changed()?;
        self.refuse_unused(&self.unused)
    }

    fn refuse_changed(&self) -> Result<(), EngineError> {
        match self.files().find(|map| !map.is_unchanged()) {
            Some(map) => Err(bad_file(map.path(), "it has changed while it was read; run again")),
            None => Ok(()),
        }
    }

    /// An entry by the name transformers gives it, or by what other tools leave or add in front.
    pub(super) fn find(&self, name: &str) -> Option<(String, &Entry)> {
        const PREFIXES: [&str; 10] = [
            "model.",
            "transformer.",
            "bert.",
            "roberta.",
            "distilbert.",
            "mpnet.",
            "gpt_neox.",
            "gpt_neox_japanese.",
            "biogpt.",
            "new.",
        ];
        let shorter = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        let candidates = [
            name.to_owned(),
            shorter.to_owned(),
            format!("language_model.{name}"),
            // As transformers has models within others.
            format!("language_model.{shorter}"),
            format!("model.language_model.{shorter}"),
            format!("model.text_model.{shorter}"),
            format!("text_model.{shorter}"),
            // As those of DeepSeek-VL2 have it.
            format!("language.{name}"),
            // As the files of HyperCLOVA X have it.
            format!("model.language_model.{name}"),
            // As transformers writes classifiers of what has another name in its own code.
            format!("nomic_bert.{shorter}"),
            format!("gte.{shorter}"),
        ];
        let entry = |name: String| Some((name.clone(), self.tensors.get(&name)?));
        // As transformers 5 has CLIP in other models.
        let clip = ["vision_tower", "vision_model"].into_iter().flat_map(|tower| {
            let rest =
                shorter.strip_prefix(tower).and_then(|rest| rest.strip_prefix(".vision_model."));
            let names =
                rest.map(|rest| [format!("{tower}.{rest}"), format!("model.{tower}.{rest}")]);
            names.into_iter().flatten()
        });
        let others = OTHER_NAMES
            .iter()
            .filter_map(|(own, other)| Some(format!("{other}{}", shorter.strip_prefix(own)?)));
        let others = clip.chain(others);
        let found = candidates.iter().cloned().chain(others).find_map(entry);
        // What TensorFlow calls them.
        let old = |name: &String| {
            let weight = name.strip_suffix("LayerNorm.weight");
            let bias = name.strip_suffix("LayerNorm.bias");
            weight
                .map(|name| format!("{name}LayerNorm.gamma"))
                .or_else(|| bias.map(|name| format!("{name}LayerNorm.beta")))
        };
        // What adapters within the files make of it.
        let adapted = || {
            let module = name.strip_suffix(".weight")?;
            entry(format!("{module}.base_layer.weight"))
        };
        found.or_else(|| candidates.iter().filter_map(old).find_map(entry)).or_else(adapted)
    }

    /// The same, where it is what the model asks for.
    fn checked(&self, (name, shape): &NamedShape) -> Result<(String, &Entry), EngineError> {
        let Some((found, entry)) = self.find(name) else {
            return Err(self.error(self.stored_quantized(name).unwrap_or_else(|| {
                format!("tensor {name} is missing from the weight files; are all shards there?")
            })));
        };
        if let Stored::Other(dtype) = entry.stored {
            return Err(self.error(self.of_other_type(&found, dtype)));
        }
        if entry.shape != *shape {
            return Err(self.error(format!(
                "tensor {found} has shape {}, the model asks for {shape:?}",
                quoted(&format!("{:?}", entry.shape))
            )));
        }
        Ok((found, entry))
    }

    /// An error about the files.
    pub fn error(&self, text: impl std::fmt::Display) -> EngineError {
        EngineError::Model(format!("{}: {text}", self.path.display()))
    }

    /// The bytes of a tensor.
    pub(super) fn bytes(&self, entry: &Entry) -> &[u8] {
        let file = self.files().nth(entry.file).expect("a file of its tensors");
        &file.bytes()[entry.range.clone()]
    }

    fn files(&self) -> impl Iterator<Item = &MappedFile> {
        self.maps.iter().flat_map(|maps| maps.iter())
    }

    fn refuse_unused(&self, unused: &BTreeSet<String>) -> Result<(), EngineError> {
        let is_mask = |name: &String| is_causal_mask(name, &self.tensors[name].shape);
        let unused: Vec<_> =
            unused.iter().filter(|name| !is_ignorable(name) && !is_mask(name)).collect();
        match unused.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(EngineError::Model(format!(
                "{}: {} tensors are in the weight files but not in the model that its config \
                 describes, the first is {}",
                self.path.display(),
                unused.len(),
                quoted(first)
            ))),
        }
    }
}

/// All tensors of all files.
fn find_tensors(maps: &[MappedFile]) -> Result<HashMap<String, Entry>, EngineError> {
    let mut tensors = HashMap::new();
    for (file, map) in maps.iter().enumerate() {
        let is_pickle = |extension: &OsStr| extension == "bin" || extension == "pt";
        let parse = match map.path().extension().is_some_and(is_pickle) {
            true => pickle::parse,
            false => header::parse,
        };
        let entries = parse(map.bytes()).map_err(|text| bad_file(map.path(), text))?;
        for header::TensorEntry { name, dtype, shape, range } in entries {
            let entry = Entry { file, stored: dtype.into(), shape, range };
            if tensors.insert(name.clone(), entry).is_some() {
                let text = format!("{} is in another file as well", quoted(&name));
                return Err(bad_file(map.path(), text));
            }
        }
    }
    Ok(tensors)
}

/// Buffers that old checkpoints carry and nothing reads: tables of computed positions, attention
/// masks, and an output layer beside the embedding that it is tied to.
fn is_ignorable(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with(".attn.masked_bias")
        || name.ends_with(".attention.masked_bias")
        || name.ends_with("decoder.version")
        || name.ends_with(".embed_positions.weights")
        || name.ends_with(".position_ids")
        || name == "lm_head.weight"
}

/// The causal mask that GPT-2, GPT-NeoX and CodeGen keep beside attention's biases: (1, 1, n, n).
fn is_causal_mask(name: &str, shape: &[usize]) -> bool {
    let names = [".attn.bias", ".attention.bias", ".attn.causal_mask"];
    let is_named = names.iter().any(|ending| name.ends_with(ending));
    is_named && matches!(shape, [1, 1, rows, columns] if rows == columns)
}

pub(super) fn bad_file(path: &Path, text: impl std::fmt::Display) -> EngineError {
    EngineError::Model(format!("{}: {text}", path.display()))
}
