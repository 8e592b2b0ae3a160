//! Names of tensors: from llama.cpp's to transformers', with what undoes llama.cpp's conversion.
//!
//! Source: llama.cpp's `gguf-py/gguf/tensor_mapping.py` and `conversion/`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::spec::RowOrder;
use crate::weights::gguf::{Change, TensorInfo, Translated};
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::QkvHeads;

/// Parts of names, the file's and transformers'.
pub(super) type Parts = &'static [(&'static str, &'static str)];

/// Rows or columns of what is stored, in the order of what is wanted.
pub(super) type Order = Arc<[u32]>;

/// How the tensor of a part differs from transformers', where that takes sizes of the model.
#[derive(Clone, Debug)]
pub(super) enum Moved {
    /// In its rows.
    Rows(Order),
    /// In its columns.
    Columns(Order),
    /// It is several: their names, and the rows of each.
    Split(Vec<(&'static str, Order)>),
}

/// What is known of the tensors of a file beside their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// By part.
    pub moved: BTreeMap<&'static str, Moved>,
    /// Layers from this one on predict further tokens.
    pub num_layers: Option<usize>,
}

/// How an architecture's tensors are named.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameTable {
    /// Tensors that are no layer's.
    pub outer: Parts,
    /// What stands before the number of a layer.
    pub layers: &'static str,
    /// Tensors of a layer; of two entries the first counts. One with its suffix is no module's.
    pub inner: &'static [Parts],
    /// What was done to q and k, or to all of them.
    pub qkv: Qkv,
    /// Weights of norms are stored with 1 added.
    pub adds_one: bool,
    /// What stands before the number of a layer that predicts further tokens; empty: it is left
    /// out.
    pub further: Option<&'static str>,
}

/// How rows of q, k and v were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Qkv {
    /// They are where transformers has them.
    AsTheyWere,
    /// In q and in k: rotary pairs were made neighbours.
    Pairs,
    /// In one tensor: heads were sorted, q first, that transformers has in groups.
    Sorted,
}

impl Qkv {
    /// Where rows of such heads go.
    pub(super) fn orders(self, heads: QkvHeads) -> Vec<(&'static str, Moved)> {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
        let pairs = |num_heads| RowOrder::heads_in_pairs(num_heads, head_dim, head_dim);
        let orders = match self {
            Qkv::AsTheyWere => Vec::new(),
            Qkv::Pairs => vec![("attn_q", pairs(num_heads)), ("attn_k", pairs(num_kv_heads))],
            Qkv::Sorted => vec![("attn_qkv", RowOrder::grouped_qkv(heads).inverse())],
        };
        let moved = |(part, order): (_, RowOrder)| Some((part, Moved::Rows(order.rows()?.clone())));
        orders.into_iter().filter_map(moved).collect()
    }
}

/// The names of a model's tensors.
#[derive(Clone, Debug)]
pub struct Names {
    table: NameTable,
    layout: Layout,
}

impl Names {
    pub(super) fn new(table: NameTable, layout: Layout) -> Self {
        Self { table, layout }
    }

    /// What a tensor of the file is in a folder: nothing, where it says how positions are rotated.
    ///
    /// # Errors
    /// It has no name of this architecture.
    pub fn translate(&self, tensor: &TensorInfo) -> Result<Vec<Translated>, String> {
        let name = tensor.name.as_str();
        if ROPE_VECTORS.contains(&name) {
            return Ok(Vec::new());
        }
        if let Some(unused) = self.of_further_layer(name) {
            let named = (!unused.is_empty()).then(|| Translated::named(unused, tensor));
            return Ok(named.into_iter().collect());
        }
        let Some((part, known)) = self.find(name) else {
            return Err(format!("tensor {} is none of this architecture", quoted(name)));
        };
        if let Some((before, after)) = known.split_once(ALL) {
            return Translated::parts(tensor, |index| format!("{before}{index}{after}"));
        }
        let is_larger = self.table.adds_one && known.ends_with("norm.weight") && part != STATE_NORM;
        let change = match is_larger {
            true => Change::Plus(-1.0),
            false if known.ends_with(".A_log") => Change::LogOfNegated,
            false => Change::None,
        };
        let mut translated = Translated { change, ..Translated::named(known, tensor) };
        let shape = &mut translated.shape;
        match part {
            // A matrix of one row.
            GATE_OF_ALL if shape.len() == 1 => shape.insert(0, 1),
            // A channel has one input.
            "shortconv.conv" | "ssm_conv1d" if shape.len() == 2 => shape.insert(1, 1),
            // A matrix of each head.
            "attn_k_b" | "attn_v_b" if shape.len() == 3 => {
                let num_heads = shape.remove(0);
                shape[0] *= num_heads;
            }
            // One of each head.
            "ssm_a" | "ssm_d" if shape.len() == 2 && shape[1] == 1 => shape.truncate(1),
            // By groups.
            STATE_NORM if shape.len() == 2 => *shape = vec![shape[0] * shape[1]],
            _ => {}
        }
        Ok(match self.layout.moved.get(part) {
            None => vec![translated],
            Some(Moved::Rows(rows)) => vec![Translated { rows: Some(rows.clone()), ..translated }],
            Some(Moved::Columns(columns)) => {
                vec![Translated { columns: Some(columns.clone()), ..translated }]
            }
            Some(Moved::Split(pieces)) => pieces
                .iter()
                .map(|(piece, rows)| {
                    let mut translated = translated.clone();
                    translated.name = translated.name.replace(PIECE, piece);
                    translated.shape[0] = rows.len();
                    translated.rows = Some(rows.clone());
                    translated
                })
                .collect(),
        })
    }

    /// The name of a tensor that predicts further tokens.
    fn of_further_layer(&self, name: &str) -> Option<String> {
        let (prefix, num_layers) = (self.table.further?, self.layout.num_layers?);
        let inner = name.strip_prefix("blk.")?;
        let number: usize = inner.split_once('.')?.0.parse().ok()?;
        let inner = if prefix.is_empty() { "" } else { inner };
        (number >= num_layers).then(|| format!("{prefix}{inner}"))
    }

    /// The file's name of a part, and transformers' name of the tensor.
    fn find<'n>(&self, name: &'n str) -> Option<(&'n str, String)> {
        let Some(inner) = name.strip_prefix("blk.") else {
            let (stem, suffix) = name.rsplit_once('.')?;
            let known = find(&[self.table.outer], stem)?;
            return Some((stem, format!("{known}.{suffix}")));
        };
        let (number, rest) = inner.split_once('.')?;
        let number: usize = number.parse().ok()?;
        let layer = format!("{}.{number}", self.table.layers);
        // A parameter of a block is no module's.
        if let Some(parameter) = find(self.table.inner, rest) {
            return Some((rest, format!("{layer}.{parameter}")));
        }
        let (part, suffix) = rest.rsplit_once('.')?;
        let known = find(self.table.inner, part)?;
        Some((part, format!("{layer}.{known}.{suffix}")))
    }
}

fn find(tables: &[Parts], part: &str) -> Option<&'static str> {
    let mut entries = tables.iter().flat_map(|parts| parts.iter());
    entries.find(|(file, _)| *file == part).map(|(_, known)| *known)
}

/// Tensors that say how positions are rotated; they are no weights.
pub const ROPE_VECTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// In a name of transformers: the file has all experts in one tensor.
const ALL: &str = "*";

/// The gate of the expert of all tokens.
pub(super) const GATE_OF_ALL: &str = "ffn_gate_inp_shexp";

/// In a name of transformers: where the name of a piece of the tensor stands.
const PIECE: &str = "{}";

/// The norm of what a state gives: stored as it is, always.
const STATE_NORM: &str = "ssm_norm";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::tables::{BLOOM, GEMMA, GEMMA_2, LLAMA, PLAIN};
    use crate::weights::gguf::GgmlType;

    const HEADS: QkvHeads = QkvHeads { num_heads: 2, num_kv_heads: 1, head_dim: 4 };

    fn layout(table: NameTable, heads: QkvHeads) -> Layout {
        let moved = table.qkv.orders(heads).into_iter().collect();
        Layout { moved, ..Layout::default() }
    }

    fn translated(table: NameTable, name: &str) -> Result<Vec<Translated>, String> {
        let (ty, range) = (GgmlType::F32, 0..32);
        let tensor = TensorInfo { name: name.to_owned(), ty, shape: vec![8], range };
        Names::new(table, layout(table, HEADS)).translate(&tensor)
    }

    /// Name, rows and offset.
    fn one(table: NameTable, name: &str) -> (String, Option<Vec<u32>>, Change) {
        let [tensor] = &translated(table, name).unwrap()[..] else { panic!("{name}") };
        (tensor.name.clone(), tensor.rows.as_ref().map(|rows| rows.to_vec()), tensor.change)
    }

    #[test]
    fn llama_has_its_rotary_pairs_taken_apart() {
        let q = Some(vec![0, 2, 1, 3, 4, 6, 5, 7]);
        for (part, name, rows) in [
            ("attn_q.weight", "self_attn.q_proj.weight", q.clone()),
            ("attn_q.bias", "self_attn.q_proj.bias", q),
            ("attn_k.weight", "self_attn.k_proj.weight", Some(vec![0, 2, 1, 3])),
            ("attn_v.weight", "self_attn.v_proj.weight", None),
        ] {
            let found = one(LLAMA, &format!("blk.11.{part}"));
            assert_eq!(found, (format!("model.layers.11.{name}"), rows, Change::None));
        }
        assert_eq!(one(LLAMA, "output.weight").0, "lm_head.weight");
        assert_eq!(translated(LLAMA, "rope_freqs.weight"), Ok(Vec::new()));
        for unknown in ["attn_q", "blk.x.attn_q.weight", "blk.1.ffn_up_exps.weight", "a.weight"] {
            assert!(translated(LLAMA, unknown).unwrap_err().contains(unknown), "{unknown}");
        }
        assert_eq!(one(PLAIN, "blk.0.attn_q.weight").1, None);
    }

    #[test]
    fn gemma_has_one_taken_from_its_norms() {
        for (part, name) in [
            ("attn_norm", "input_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("attn_q_norm", "self_attn.q_norm"),
        ] {
            let expected = (format!("model.layers.0.{name}.weight"), None, Change::Plus(-1.0));
            assert_eq!(one(GEMMA_2, &format!("blk.0.{part}.weight")), expected);
        }
        let outer = one(GEMMA_2, "output_norm.weight");
        assert_eq!(outer, ("model.norm.weight".to_owned(), None, Change::Plus(-1.0)));
        assert_eq!(one(GEMMA_2, "blk.0.attn_q.weight").2, Change::None);
        let gemma_1 = one(GEMMA, "blk.0.ffn_norm.weight").0;
        assert_eq!(gemma_1, "model.layers.0.post_attention_layernorm.weight");
    }

    #[test]
    fn sorted_heads_go_back_to_their_groups() {
        // The file: q0 q1 k v, of 4 rows each; transformers has one group, which is the same. With
        // as many K heads: q0 q1 k0 k1 v0 v1, and q0 k0 v0 q1 k1 v1.
        assert_eq!(one(BLOOM, "blk.0.attn_qkv.weight").1, None);
        let heads = QkvHeads { num_heads: 2, num_kv_heads: 2, head_dim: 1 };
        let names = Names::new(BLOOM, layout(BLOOM, heads));
        for suffix in ["weight", "bias"] {
            let (name, range) = (format!("blk.0.attn_qkv.{suffix}"), 0..24);
            let tensor = TensorInfo { name, ty: GgmlType::F32, shape: vec![6], range };
            let found = names.translate(&tensor).unwrap();
            assert_eq!(found[0].rows.as_deref(), Some(&[0, 2, 4, 1, 3, 5][..]));
        }
    }
}
