//! Names of tensors by architecture: llama.cpp's parts, and transformers' modules.
//!
//! Source: llama.cpp's `gguf-py/gguf/tensor_mapping.py`.

use super::latent::LATENT;
use super::names::{GATE_OF_ALL, NameTable, Parts, Qkv};

/// Scores of attention without a value.
const SINKS: &str = "attn_sinks.weight";

/// What is added to the scores of experts where they are chosen.
pub(super) const CHOICE_BIAS: &str = "exp_probs_b.bias";

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

/// An MLP or experts, as Jamba and Llama 4 call them.
pub(super) const FEED_FORWARD: Parts = &[
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
    ("ffn_gate_inp", "feed_forward.router"),
    ("ffn_gate_exps", "feed_forward.experts.*.gate_proj"),
    ("ffn_up_exps", "feed_forward.experts.*.up_proj"),
    ("ffn_down_exps", "feed_forward.experts.*.down_proj"),
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
