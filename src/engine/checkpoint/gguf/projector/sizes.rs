//! Sizes of a projector's tower, as config.json calls them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Sight;
use crate::spec::RowOrder;

/// More than any tower has; orders of rows and columns are made of these.
const MAX_WIDTH: u64 = 1 << 16;
const MAX_PATCH: u64 = 1 << 8;

/// What keys of a `vision_config` are called.
pub(super) struct SizeNames {
    /// Layers and heads.
    pub counts: [&'static str; 2],
    /// The width of the stream.
    pub width: &'static str,
}

/// Those of most classes.
pub(super) const USUAL: SizeNames =
    SizeNames { counts: ["num_hidden_layers", "num_attention_heads"], width: "hidden_size" };

/// Those of Qwen's.
pub(super) const QWEN: SizeNames =
    SizeNames { counts: ["depth", "num_heads"], width: "hidden_size" };

/// Sizes that other numbers follow from.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub width: u64,
    pub num_heads: u64,
    pub patch: u64,
}

impl Sight<'_> {
    /// A key of `vision_config`.
    pub(super) fn see(&mut self, key: &str, value: impl Into<Value>) {
        self.vision.insert(key.to_owned(), value.into());
    }

    /// A key of the top.
    pub(super) fn say(&mut self, key: &str, value: impl Into<Value>) {
        self.root.insert(key.to_owned(), value.into());
    }

    /// Layers, heads, widths and patches, where heads make up the width.
    pub(super) fn sizes(&mut self, names: &SizeNames) -> Result<Sizes, String> {
        let num_heads = self.keys.size("vision.attention.head_count")?;
        let width = self.keys.size("vision.embedding_length")?;
        self.sizes_of_heads(names, [num_heads, width / num_heads.max(1)])
    }

    /// The same of so many K and V heads, and of this width of heads.
    pub(super) fn sizes_of_heads(
        &mut self,
        names: &SizeNames,
        heads: [u64; 2],
    ) -> Result<Sizes, String> {
        let size = |key: &str| self.keys.size(&format!("vision.{key}"));
        let (num_layers, num_heads) = (size("block_count")?, size("attention.head_count")?);
        let (width, patch) = (size("embedding_length")?, size("patch_size")?);
        self.keys.ignore(&["vision.feed_forward_length"]);
        for (key, usual) in ["attention.head_count_kv", "attention.head_dim"].into_iter().zip(heads)
        {
            let given = self.keys.optional_size(&format!("vision.{key}"))?;
            if given.is_some_and(|given| given != usual) {
                return Err(format!("`clip.vision.{key}` of another number than {usual}"));
            }
        }
        let is_sensible = |number: u64, most: u64| (1..=most).contains(&number);
        if !is_sensible(width, MAX_WIDTH) || !is_sensible(num_heads, width) {
            return Err(format!("a tower of width {width} with {num_heads} heads"));
        }
        if !is_sensible(patch, MAX_PATCH) {
            return Err(format!("patches of {patch} pixels are not supported"));
        }
        self.find_swapped(width)?;
        let [layers_key, heads_key] = names.counts;
        self.see(layers_key, num_layers);
        self.see(heads_key, num_heads);
        self.see(names.width, width);
        self.see("patch_size", patch);
        Ok(Sizes { width, num_heads, patch })
    }

    /// Old files call the first product of an MLP `ffn_down`.
    fn find_swapped(&mut self, width: u64) -> Result<(), String> {
        let up = self.keys.shape("v.blk.0.ffn_up.weight")?;
        self.names.is_swapped = up.last().is_some_and(|columns| *columns as u64 != width);
        Ok(())
    }

    /// Width within MLPs.
    pub(super) fn inner_width(&self) -> Result<u64, String> {
        let shape = self.keys.shape("v.blk.0.ffn_up.weight")?;
        let inner = if self.names.is_swapped { shape.last() } else { shape.first() };
        Ok(inner.copied().unwrap_or(0) as u64)
    }

    /// The side of the square that the tower was made for.
    pub(super) fn image_size(&mut self) -> Result<u64, String> {
        let side = self.keys.size("vision.image_size")?;
        self.see("image_size", side);
        Ok(side)
    }

    /// Epsilon of norms, under this name.
    pub(super) fn eps(&mut self, name: &str) -> Result<(), String> {
        let eps = self.keys.float("vision.attention.layer_norm_epsilon")?;
        let eps = eps.ok_or("`clip.vision.attention.layer_norm_epsilon` is missing")?;
        self.see(name, eps);
        Ok(())
    }

    /// What MLPs are activated by: one of these two if the file says that it is GELU, or SiLU, else
    /// the third.
    pub(super) fn activation(&mut self, [gelu, other]: [&str; 2]) -> Result<(), String> {
        let flag = |key| Ok::<_, String>(self.keys.flag(key)?.unwrap_or(false));
        let name = match (flag("use_gelu")?, flag("use_silu")?) {
            (true, true) => return Err("use_gelu and use_silu are both true".to_owned()),
            (true, false) => gelu,
            (false, true) => "silu",
            (false, false) => other,
        };
        self.see("hidden_act", json!(name));
        Ok(())
    }

    /// Weights of patches of two frames, where the file has both.
    pub(super) fn set_frames(&mut self, sizes: Sizes) {
        let has_two = self.keys.has("v.patch_embd.weight.1");
        self.see("temporal_patch_size", if has_two { 2 } else { 1 });
        self.process("temporal_patch_size", if has_two { 2 } else { 1 });
        let side = sizes.patch as usize;
        self.names.frames = has_two.then(|| vec![sizes.width as usize, 3, 2, side, side]);
    }

    /// Samples of a pixel stand beside each other in transformers, and in the file those of a band.
    pub(super) fn set_patch_columns(&mut self, sizes: Sizes) {
        let area = (sizes.patch * sizes.patch) as u32;
        let column = |place: u32| place % 3 * area + place / 3;
        self.names.patch_columns = Some((0..3 * area).map(column).collect::<Arc<[u32]>>());
    }

    /// q, k and v are one tensor in transformers.
    pub(super) fn join_qkv(&mut self, name: &'static str, sizes: Sizes) {
        self.names.qkv = Some((name, sizes.width as usize));
    }

    /// Rows of q and k were moved.
    pub(super) fn set_pairs(&mut self, sizes: Sizes) -> Result<(), String> {
        let (num_heads, head_dim) =
            (sizes.num_heads as usize, (sizes.width / sizes.num_heads) as usize);
        if num_heads.saturating_mul(head_dim) as u64 != sizes.width {
            return Err(format!("a tower of width {} has no {num_heads} equal heads", sizes.width));
        }
        self.names.pairs = RowOrder::heads_in_pairs(num_heads, head_dim, head_dim).rows().cloned();
        Ok(())
    }

    /// Rows of a tensor.
    pub(super) fn rows(&self, tensor: &str) -> Result<u64, String> {
        Ok(self.keys.shape(tensor)?[0] as u64)
    }
}
