//! Names of a projector's tensors, from llama.cpp's to transformers', with what undoes llama.cpp's
//! conversion.
//!
//! Source: llama.cpp's `gguf-py/gguf/tensor_mapping.py` and `conversion/`.

use std::sync::Arc;

use super::super::names::{Order, Parts};
use crate::weights::gguf::{Change, Piece, TensorInfo, Translated};
use vllm_batch_base::files::quoted;

/// What a name begins with in a projector's file.
const LAYERS: &str = "v.blk.";
const DEEP: &str = "v.deepstack.";

/// Tensors for sounds, which are left out: what their names begin with, and in transformers.
const SOUNDS: [(&str, &str); 2] = [("mm.a.", "model.embed_audio."), ("a.", "model.audio_tower.")];

/// What bounds of the inputs and outputs of a product are called.
const BOUNDS: [&str; 4] = ["input_max", "input_min", "output_max", "output_min"];

/// The weights of patches, of the first and of the second frame.
const PATCHES: [&str; 2] = ["v.patch_embd.weight", "v.patch_embd.weight.1"];

/// The parts of a layer that are one tensor in transformers.
const QKV: [&str; 3] = ["attn_q", "attn_k", "attn_v"];

/// The names of a projector's tensors.
#[derive(Clone, Debug, Default)]
pub struct ProjectorNames {
    /// Tensors that are no layer's. One with its suffix is no module's.
    pub(super) outer: Parts,
    /// What stands before the number of a layer.
    pub(super) layers: &'static str,
    /// Tensors of a layer.
    pub(super) inner: Parts,
    /// The name of q, k and v together, and the rows of each; None: they are apart.
    pub(super) qkv: Option<(&'static str, usize)>,
    /// Tensors of what makes embeddings for the decoder's layers, and the layers of the tower that
    /// it comes from.
    pub(super) deep: (&'static str, Parts, Vec<u64>),
    /// Shape of the weights of patches of two frames, which the file has apart.
    pub(super) frames: Option<Vec<usize>>,
    /// Columns of the weights of patches, as a matrix.
    pub(super) patch_columns: Option<Order>,
    /// Rows of q and k: rotary pairs were made neighbours.
    pub(super) pairs: Option<Order>,
    /// The two products of MLPs have each other's names.
    pub(super) is_swapped: bool,
    /// Norms that are stored with 1 added.
    pub(super) adds_one: &'static [&'static str],
    /// Tensors of more dimensions than the file's, which are 1.
    pub(super) is_of_rank_3: &'static [&'static str],
    /// Tensors that the text model's file has too.
    pub(super) repeated: &'static [&'static str],
}

impl ProjectorNames {
    /// What a tensor of the file is in a folder.
    ///
    /// # Errors
    /// It has no name of this kind of projectors.
    pub fn translate(&self, tensor: &TensorInfo) -> Result<Vec<Translated>, String> {
        let name = tensor.name.as_str();
        if self.repeated.contains(&name) {
            return Ok(Vec::new());
        }
        let sound = SOUNDS.iter().find_map(|(own, other)| Some((other, name.strip_prefix(own)?)));
        if let Some((prefix, rest)) = sound {
            return Ok(vec![Translated::named(format!("{prefix}{rest}"), tensor)]);
        }
        if let Some(frames) = &self.frames
            && let Some(index) = PATCHES.iter().position(|frame| *frame == name)
        {
            let known = self.outer(PATCHES[0]).ok_or_else(|| unknown(name))?;
            let run = frames.iter().rev().take(2).product();
            let piece = Piece { index, count: 2, shape: frames.clone(), run: Some(run) };
            return Ok(vec![Translated { piece: Some(piece), ..Translated::named(known, tensor) }]);
        }
        let found = match (name.strip_prefix(LAYERS), name.strip_prefix(DEEP)) {
            (Some(inner), _) => return self.of_layer(inner, tensor),
            (_, Some(inner)) => self.of_deep(inner),
            _ => self.outer(name),
        };
        let mut translated = Translated::named(found.ok_or_else(|| unknown(name))?, tensor);
        if self.adds_one.contains(&name) {
            translated.change = Change::Plus(-1.0);
        }
        if self.is_of_rank_3.contains(&name) {
            while translated.shape.len() < 3 {
                translated.shape.insert(0, 1);
            }
        }
        if name == PATCHES[0]
            && let Some(columns) = &self.patch_columns
        {
            translated.shape = vec![tensor.shape.first().copied().unwrap_or(1), columns.len()];
            translated.columns = Some(Arc::clone(columns));
        }
        Ok(vec![translated])
    }

    fn outer(&self, name: &str) -> Option<String> {
        if let Some(parameter) = find(self.outer, name) {
            return Some(parameter.to_owned());
        }
        let (stem, suffix) = name.rsplit_once('.')?;
        Some(format!("{}.{suffix}", find(self.outer, stem)?))
    }

    fn of_deep(&self, inner: &str) -> Option<String> {
        let (prefix, parts, layers) = &self.deep;
        let (number, rest) = inner.split_once('.')?;
        let number: u64 = number.parse().ok()?;
        let index = layers.iter().position(|layer| *layer == number)?;
        let (part, suffix) = rest.rsplit_once('.')?;
        Some(format!("{prefix}.{index}.{}.{suffix}", find(parts, part)?))
    }

    fn of_layer(&self, inner: &str, tensor: &TensorInfo) -> Result<Vec<Translated>, String> {
        let parse = || {
            let (number, rest) = inner.split_once('.')?;
            let number: usize = number.parse().ok()?;
            let (part, suffix) = rest.rsplit_once('.')?;
            Some((number, part, suffix))
        };
        let (number, part, suffix) = parse().ok_or_else(|| unknown(&tensor.name))?;
        let part = match (self.is_swapped, part) {
            (true, "ffn_up") => "ffn_down",
            (true, "ffn_down") => "ffn_up",
            (_, part) => part,
        };
        let layer = format!("{}.{number}", self.layers);
        if let Some((known, rows)) = self.qkv
            && let Some(index) = QKV.iter().position(|qkv| *qkv == part)
        {
            let mut shape = tensor.shape.clone();
            *shape.first_mut().ok_or_else(|| unknown(&tensor.name))? = 3 * rows;
            let piece = Piece { index, count: 3, shape, run: None };
            let named = Translated::named(format!("{layer}.{known}.{suffix}"), tensor);
            return Ok(vec![Translated { piece: Some(piece), ..named }]);
        }
        let whole = format!("{part}.{suffix}");
        let known = match find(self.inner, &whole) {
            Some(parameter) => parameter.to_owned(),
            None => {
                let known = find(self.inner, part).ok_or_else(|| unknown(&tensor.name))?;
                format!("{known}.{suffix}")
            }
        };
        let mut translated = Translated::named(format!("{layer}.{known}"), tensor);
        if BOUNDS.contains(&suffix) {
            // Of the module around the product; a single number.
            translated.name = translated.name.replace(".linear.", ".");
            translated.shape = Vec::new();
        }
        if ["attn_q", "attn_k"].contains(&part) {
            translated.rows.clone_from(&self.pairs);
        }
        Ok(vec![translated])
    }
}

fn find(parts: Parts, name: &str) -> Option<&'static str> {
    parts.iter().find(|(file, _)| *file == name).map(|(_, known)| *known)
}

fn unknown(name: &str) -> String {
    format!("tensor {} is none of this kind of projector", quoted(name))
}
