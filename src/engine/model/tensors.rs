//! Every tensor that a model has, by name and shape: what a checkpoint is held against before
//! anything of it is read.

use super::spec::{DecoderSpec, NormPlacement};
use crate::engine::ops::NormKind;

/// A tensor's name and shape.
pub type NamedShape = (String, Vec<usize>);

/// The tensors that `loading` asks for. A list that lacks one, or has one too many, refuses every
/// checkpoint of its family.
pub fn tensors(spec: &DecoderSpec) -> Vec<NamedShape> {
    let mut list = List { spec, tensors: Vec::new() };
    let prefix = spec.names.prefix;
    let embed_dim = spec.embedding.projected_from.unwrap_or(spec.hidden_size);
    let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
    list.linear(format!("{prefix}embed_tokens"), vocab, embed_dim, false);
    if let Some(positions) = spec.embedding.positions {
        list.linear(format!("{prefix}embed_positions"), positions.num_rows, hidden, false);
    }
    if spec.embedding.projected_from.is_some() {
        list.linear(format!("{prefix}project_in"), hidden, embed_dim, false);
        list.linear(format!("{prefix}project_out"), embed_dim, hidden, false);
    }
    for index in 0..spec.layers.len() {
        list.layer(index);
    }
    if spec.has_final_norm {
        list.norm(format!("{prefix}{}", spec.names.final_norm), hidden);
    }
    if !spec.tie_word_embeddings {
        list.linear("lm_head".to_owned(), vocab, embed_dim, false);
    }
    list.tensors
}

struct List<'a> {
    spec: &'a DecoderSpec,
    tensors: Vec<NamedShape>,
}

impl List<'_> {
    fn linear(&mut self, name: String, rows: usize, columns: usize, bias: bool) {
        if bias {
            self.tensors.push((format!("{name}.bias"), vec![rows]));
        }
        self.tensors.push((format!("{name}.weight"), vec![rows, columns]));
    }

    fn norm(&mut self, name: String, width: usize) {
        if self.spec.norm.kind == NormKind::Layer {
            self.tensors.push((format!("{name}.bias"), vec![width]));
        }
        self.tensors.push((format!("{name}.weight"), vec![width]));
    }

    fn layer(&mut self, index: usize) {
        let (attention, mlp, names) = (self.spec.attention, self.spec.mlp, self.spec.names);
        let (hidden, inner) = (self.spec.hidden_size, self.spec.intermediate_size);
        let head_dim = attention.head_dim;
        let (q, kv) = (attention.num_heads * head_dim, attention.num_kv_heads * head_dim);
        let name = |part: &str| format!("{}layers.{index}.{part}", names.prefix);
        let attn = |part: &str| name(&format!("self_attn.{part}"));
        for (part, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            self.linear(attn(part), rows, hidden, attention.qkv_bias);
        }
        if attention.qk_norm {
            self.norm(attn("q_norm"), head_dim);
            self.norm(attn("k_norm"), head_dim);
        }
        self.linear(name(names.out_proj), hidden, q, attention.out_bias);
        if mlp.gated {
            self.linear(name(names.gate_proj), inner, hidden, mlp.bias);
        }
        self.linear(name(names.up_proj), inner, hidden, mlp.bias);
        self.linear(name(names.down_proj), hidden, inner, mlp.bias);
        self.norm(name(names.attention_norm), hidden);
        self.norm(name(names.mlp_norm), hidden);
        if self.spec.norm_placement == NormPlacement::Sandwich {
            self.norm(name(names.attention_post_norm), hidden);
            self.norm(name(names.mlp_post_norm), hidden);
        }
    }
}
