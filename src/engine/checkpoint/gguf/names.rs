//! Names of tensors: from llama.cpp's to transformers', with what undoes llama.cpp's conversion.
//!
//! Source: llama.cpp's `gguf-py/gguf/tensor_mapping.py` and `conversion/`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::latent::{DEEPSEEK_EXPERTS, LATENT};
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
    /// What stands before the number of a layer that predicts further tokens.
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
            return Ok(vec![Translated::named(unused, tensor)]);
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
            "ssm_a" | "ssm_d" if shape.len() == 2 => shape.truncate(1),
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
const GATE_OF_ALL: &str = "ffn_gate_inp_shexp";

/// In a name of transformers: where the name of a piece of the tensor stands.
const PIECE: &str = "{}";

/// Scores of attention without a value.
const SINKS: &str = "attn_sinks.weight";

/// What is added to the scores of experts where they are chosen.
pub(super) const CHOICE_BIAS: &str = "exp_probs_b.bias";

/// The norm of what a state gives: stored as it is, always.
const STATE_NORM: &str = "ssm_norm";

pub(super) const OUTER: Parts =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

pub(super) const LLAMA_LAYER: Parts = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// As llama's, with rows where transformers has them.
pub(super) const PLAIN: NameTable = NameTable {
    outer: OUTER,
    layers: "model.layers",
    inner: &[LLAMA_LAYER],
    qkv: Qkv::AsTheyWere,
    adds_one: false,
    further: None,
};

pub(super) const EXPERTS: Parts = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
    ("ffn_up_exps", "mlp.experts.*.up_proj"),
    ("ffn_down_exps", "mlp.experts.*.down_proj"),
    (GATE_OF_ALL, "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// With experts, and perhaps one of all tokens.
pub(super) const WITH_EXPERTS: NameTable = NameTable { inner: &[EXPERTS, LLAMA_LAYER], ..PLAIN };

pub(super) const GPT_OSS: NameTable = NameTable {
    inner: &[
        &[
            (SINKS, "self_attn.sinks"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.router"),
        ],
        EXPERTS,
        LLAMA_LAYER,
    ],
    ..PLAIN
};

pub(super) const GRANITE_EXPERTS: Parts = &[
    ("ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("ffn_gate_exps", "block_sparse_moe.experts.*.gate_proj"),
    ("ffn_up_exps", "block_sparse_moe.experts.*.up_proj"),
    ("ffn_down_exps", "block_sparse_moe.experts.*.down_proj"),
    ("ffn_gate_shexp", "shared_mlp.gate_proj"),
    ("ffn_up_shexp", "shared_mlp.up_proj"),
    ("ffn_down_shexp", "shared_mlp.down_proj"),
];

pub(super) const GRANITE_MOE: NameTable =
    NameTable { inner: &[GRANITE_EXPERTS, LLAMA_LAYER], ..LLAMA };

/// DeepSeek's experts, and layers that predict further tokens.
pub(super) const GLM_4_MOE: NameTable = NameTable {
    inner: &[
        &[("post_attention_norm", "post_attention_layernorm")],
        DEEPSEEK_EXPERTS,
        EXPERTS,
        LLAMA_LAYER,
    ],
    further: Some("model.layers."),
    ..PLAIN
};

pub(super) const MINICPM_3: NameTable = NameTable { inner: &[LATENT, LLAMA_LAYER], ..PLAIN };

pub(super) const LFM_2: NameTable = NameTable {
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("token_embd_norm", "model.embedding_norm"),
        ("output_norm", "model.embedding_norm"),
        ("output", "lm_head"),
    ],
    inner: &[
        &[
            ("attn_norm", "operator_norm"),
            ("attn_q_norm", "self_attn.q_layernorm"),
            ("attn_k_norm", "self_attn.k_layernorm"),
            ("attn_output", "self_attn.out_proj"),
            ("shortconv.conv", "conv.conv"),
            ("shortconv.in_proj", "conv.in_proj"),
            ("shortconv.out_proj", "conv.out_proj"),
            ("ffn_norm", "ffn_norm"),
            ("ffn_gate", "feed_forward.w1"),
            ("ffn_up", "feed_forward.w3"),
            ("ffn_down", "feed_forward.w2"),
            ("ffn_gate_inp", "feed_forward.gate"),
            (CHOICE_BIAS, "feed_forward.expert_bias"),
            ("ffn_gate_exps", "feed_forward.experts.*.w1"),
            ("ffn_up_exps", "feed_forward.experts.*.w3"),
            ("ffn_down_exps", "feed_forward.experts.*.w2"),
        ],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

pub(super) const MIXTRAL: NameTable = NameTable {
    inner: &[
        &[
            ("ffn_gate_inp", "block_sparse_moe.gate"),
            ("ffn_gate_exps", "block_sparse_moe.experts.*.w1"),
            ("ffn_up_exps", "block_sparse_moe.experts.*.w3"),
            ("ffn_down_exps", "block_sparse_moe.experts.*.w2"),
        ],
        LLAMA_LAYER,
    ],
    ..LLAMA
};

pub(super) const LLAMA: NameTable = NameTable { qkv: Qkv::Pairs, ..PLAIN };

pub(super) const GEMMA: NameTable = NameTable { adds_one: true, ..PLAIN };

/// Norms before and after each block.
pub(super) const NORMS_AROUND: Parts = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

pub(super) const GEMMA_2: NameTable = NameTable { inner: &[NORMS_AROUND, LLAMA_LAYER], ..GEMMA };

/// Norms after each block.
pub(super) const OLMO_2: NameTable = NameTable {
    inner: &[
        &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

pub(super) const GLM_4: NameTable = NameTable {
    inner: &[
        &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

pub(super) const PHI_3: NameTable = NameTable {
    inner: &[&[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")], LLAMA_LAYER],
    ..PLAIN
};

pub(super) const PHI_2: NameTable = NameTable {
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.final_layernorm"),
        ("output", "lm_head"),
    ],
    inner: &[
        &[("attn_output", "self_attn.dense"), ("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

pub(super) const SEED_OSS: NameTable = NameTable {
    inner: &[&[("post_attention_norm", "post_attention_layernorm")], LLAMA_LAYER],
    ..PLAIN
};

pub(super) const HUNYUAN: NameTable = NameTable {
    inner: &[
        &[("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

pub(super) const EXAONE: NameTable = NameTable {
    outer: &[
        ("token_embd", "transformer.wte"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    layers: "transformer.h",
    inner: &[&[
        ("attn_norm", "ln_1"),
        ("attn_q", "attn.attention.q_proj"),
        ("attn_k", "attn.attention.k_proj"),
        ("attn_v", "attn.attention.v_proj"),
        ("attn_output", "attn.attention.out_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_gate", "mlp.c_fc_0"),
        ("ffn_up", "mlp.c_fc_1"),
        ("ffn_down", "mlp.c_proj"),
    ]],
    ..PLAIN
};

pub(super) const STARCODER_2: NameTable = NameTable {
    inner: &[&[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")], LLAMA_LAYER],
    ..PLAIN
};

pub(super) const GPT_2: NameTable = NameTable {
    outer: &[
        ("token_embd", "transformer.wte"),
        ("position_embd", "transformer.wpe"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    layers: "transformer.h",
    inner: &[&[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ]],
    qkv: Qkv::Sorted,
    adds_one: false,
    further: None,
};

const QUERY_KEY_VALUE: Parts = &[
    ("attn_norm", "input_layernorm"),
    ("attn_qkv", "self_attention.query_key_value"),
    ("attn_output", "self_attention.dense"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

pub(super) const BLOOM: NameTable = NameTable {
    outer: &[
        ("token_embd", "transformer.word_embeddings"),
        ("token_embd_norm", "transformer.word_embeddings_layernorm"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    layers: "transformer.h",
    inner: &[QUERY_KEY_VALUE],
    qkv: Qkv::Sorted,
    adds_one: false,
    further: None,
};

/// One norm for both blocks.
pub(super) const FALCON: NameTable = BLOOM;

/// A norm for each block.
pub(super) const FALCON_40B: NameTable = NameTable {
    inner: &[&[("attn_norm", "ln_mlp"), ("attn_norm_2", "ln_attn")], QUERY_KEY_VALUE],
    ..BLOOM
};

pub(super) const GPT_NEOX: NameTable = NameTable {
    outer: &[
        ("token_embd", "gpt_neox.embed_in"),
        ("output_norm", "gpt_neox.final_layer_norm"),
        ("output", "embed_out"),
    ],
    layers: "gpt_neox.layers",
    inner: &[
        &[("attn_qkv", "attention.query_key_value"), ("attn_output", "attention.dense")],
        QUERY_KEY_VALUE,
    ],
    qkv: Qkv::Sorted,
    adds_one: false,
    further: None,
};

pub(super) const MPT: NameTable = NameTable {
    outer: &[
        ("token_embd", "transformer.wte"),
        ("output_norm", "transformer.norm_f"),
        ("output", "lm_head"),
    ],
    layers: "transformer.blocks",
    inner: &[&[
        ("attn_norm", "norm_1"),
        ("attn_qkv", "attn.Wqkv"),
        ("attn_output", "attn.out_proj"),
        ("ffn_norm", "norm_2"),
        ("ffn_up", "ffn.up_proj"),
        ("ffn_down", "ffn.down_proj"),
    ]],
    qkv: Qkv::AsTheyWere,
    adds_one: false,
    further: None,
};

#[cfg(test)]
mod tests {
    use super::*;
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
