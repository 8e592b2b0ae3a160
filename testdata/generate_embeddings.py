#!/usr/bin/env python3
"""Make the tiny random encoders under testdata/golden_embeddings/ with Hugging Face transformers.

Every folder is a complete checkpoint (config, tokenizer, weights) plus golden.json: for a few texts
the token ids, the state of the first token and the mean of all states, in float32. Rows are run one
by one, so no padding is in them.

    nice python testdata/generate_embeddings.py            # all, a minute on one core

Versions: transformers 5.23.0, torch 2.15.0, tokenizers as transformers brings it.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = Path(__file__).parent / "golden_embeddings"
TEXTS = [
    "",
    "a",
    "The cat sits outside.",
    "A man is playing guitar, and nobody listens to him: it is late!",
    "Ärger über 東京 and naïve café prices, 12.50 euros.",
    "vectors of texts are compared by their angle, and rows of one file by nothing at all " * 3,
]
# The tokenizers are made of the text above: it stays as it is.
CORPUS = [*TEXTS, __doc__]
SMALL = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=3)
POSITIONS = dict(max_position_embeddings=160)


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # The second is what RoBERTa and MPNet take for padding.
    special = ["[unused0]", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    # Real files have both, and nobody wants them here.
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    return tokenizer


def ending() -> Tokenizer:
    """As those of Qwen3-Embedding: one token ends a text, and none begins it."""
    tokenizer = word_piece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A $B [SEP]",
        special_tokens=[("[SEP]", tokenizer.token_to_id("[SEP]"))],
    )
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return tokenizer


GROUPED = dict(num_key_value_heads=2, head_dim=8)

# config.json as it was published with a model's own code, where that has other keys.
COMMON = dict(torch_dtype="float32", use_cache=True, vocab_size=None)
PUBLISHED = {
    "gte": dict(
        **COMMON, **SMALL, **POSITIONS, architectures=["NewModel"], model_type="new",
        attention_probs_dropout_prob=0.0, classifier_dropout=0.0, hidden_act="gelu",
        hidden_dropout_prob=0.1, initializer_range=0.02, layer_norm_eps=1e-12,
        layer_norm_type="layer_norm", logn_attention_clip1=False, logn_attention_scale=False,
        pack_qkv=True, pad_token_id=1, position_embedding_type="rope",
        rope_scaling=dict(factor=8.0, type="ntk"), rope_theta=20000, type_vocab_size=1,
        unpad_inputs=False, use_memory_efficient_attention=False,
    ),
    "jina": dict(
        **COMMON, **SMALL, **POSITIONS, architectures=["JinaBertForMaskedLM"], model_type="bert",
        model_max_length=160, attention_probs_dropout_prob=0.0, attn_implementation="torch",
        classifier_dropout=None, emb_pooler="mean", feed_forward_type="geglu",
        gradient_checkpointing=False, hidden_act="gelu", hidden_dropout_prob=0.1,
        initializer_range=0.02, layer_norm_eps=1e-12, pad_token_id=0,
        position_embedding_type="alibi", type_vocab_size=2,
    ),
    "nomic": dict(
        **COMMON, architectures=["NomicBertModel"], model_type="nomic_bert",
        activation_function="swiglu", attn_pdrop=0.0, bos_token_id=None, causal=False,
        dense_seq_output=True, embd_pdrop=0.0, eos_token_id=None, fused_bias_fc=True,
        fused_dropout_add_ln=True, initializer_range=0.02, layer_norm_epsilon=1e-12,
        max_trained_positions=160, mlp_fc1_bias=False, mlp_fc2_bias=False, n_embd=32, n_head=4,
        n_inner=48, n_layer=3, n_positions=640, pad_vocab_size_multiple=64, parallel_block=False,
        parallel_block_tied_norm=False, prenorm=False, qkv_proj_bias=False,
        reorder_and_upcast_attn=False, resid_pdrop=0.0, rotary_emb_base=1000,
        rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
        rotary_scaling_factor=None, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True,
        summary_activation=None, summary_first_dropout=0.0, summary_proj_to_labels=True,
        summary_type="cls_index", summary_use_proj=True, type_vocab_size=2, use_flash_attn=True,
        use_rms_norm=False, use_xentropy=True,
    ),
}


class Jina(torch.nn.Module):
    """What `JinaBertModel` of jina-embeddings-v2 computes, which is not in transformers: a BERT of
    transformers, whose attention adds -slope * distance to scores, and whose MLP has a gate."""

    def __init__(self, config):
        super().__init__()
        bert = transformers.BertModel(config, add_pooling_layer=False)
        self.config, hidden, inner = config, config.hidden_size, config.intermediate_size
        self.embeddings, self.encoder = bert.embeddings, bert.encoder
        del self.embeddings.position_embeddings
        for layer in self.encoder.layer:
            del layer.intermediate, layer.output
            layer.mlp = torch.nn.Module()
            layer.mlp.gated_layers = torch.nn.Linear(hidden, 2 * inner, bias=False)
            layer.mlp.wo = torch.nn.Linear(inner, hidden)
            layer.mlp.layernorm = torch.nn.LayerNorm(hidden, eps=config.layer_norm_eps)

    def save_pretrained(self, folder):
        folder.mkdir(exist_ok=True)
        save_file(self.state_dict(), folder / "model.safetensors", {"format": "pt"})

    def forward(self, ids):
        num_heads, places = self.config.num_attention_heads, torch.arange(ids.shape[1])
        slopes = 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)
        bias = -slopes[:, None, None] * (places[:, None] - places[None]).abs()
        x = self.embeddings.word_embeddings(ids[0]) + self.embeddings.token_type_embeddings.weight[0]
        x = self.embeddings.LayerNorm(x)
        for layer in self.encoder.layer:
            attention, output = layer.attention.self, layer.attention.output
            q, k, v = (
                linear(x).view(len(x), num_heads, -1).transpose(0, 1)
                for linear in (attention.query, attention.key, attention.value)
            )
            weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + bias).softmax(-1)
            x = output.LayerNorm(output.dense((weights @ v).transpose(0, 1).flatten(1)) + x)
            gate, up = layer.mlp.gated_layers(x).chunk(2, -1)
            x = layer.mlp.layernorm(layer.mlp.wo(torch.nn.functional.gelu(gate) * up) + x)
        return SimpleNamespace(last_hidden_state=x[None])


def ntk(model: torch.nn.Module) -> None:
    """The frequencies of GTE's own code, as in vLLM's `NTKScalingRotaryEmbedding`."""
    rope = PUBLISHED["gte"]["rope_scaling"]
    base, dim = PUBLISHED["gte"]["rope_theta"] * rope["factor"], 8
    frequencies = 1.0 / base ** (torch.arange(0, dim, 2) / dim) / rope["factor"] ** (2 / dim)
    model.rotary_emb.inv_freq = frequencies


# Their vectors are of the last token, unless their files say otherwise.
DECODERS = ("gemma3_bidirectional", "qwen2_bidirectional", "qwen3")
FAMILIES = {
    "gemma3_bidirectional": (
        transformers.Gemma3TextModel,
        transformers.Gemma3TextConfig(
            **SMALL, **POSITIONS, **GROUPED, sliding_window=16, use_bidirectional_attention=True,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        word_piece,
    ),
    "qwen2_bidirectional": (
        transformers.Qwen2Model,
        transformers.Qwen2Config(**SMALL, **POSITIONS, num_key_value_heads=2, is_causal=False),
        ending,
    ),
    "qwen3": (
        transformers.Qwen3Model, transformers.Qwen3Config(**SMALL, **POSITIONS, **GROUPED), ending
    ),
    "bert": (transformers.BertModel, transformers.BertConfig(**SMALL, **POSITIONS), word_piece),
    "eurobert": (
        transformers.EuroBertModel,
        transformers.EuroBertConfig(
            **SMALL, **POSITIONS, num_key_value_heads=2, mask_token_id=5, pad_token_id=1,
            bos_token_id=3, eos_token_id=4,
        ),
        word_piece,
    ),
    "gte": (transformers.GteModel, transformers.GteConfig(**SMALL, **POSITIONS), word_piece),
    "jina": (Jina, transformers.BertConfig(**SMALL, **POSITIONS), word_piece),
    "nomic": (
        transformers.NomicBertModel, transformers.NomicBertConfig(**SMALL, **POSITIONS), word_piece
    ),
    "distilbert": (
        transformers.DistilBertModel,
        transformers.DistilBertConfig(dim=32, hidden_dim=48, n_heads=4, n_layers=3, **POSITIONS),
        word_piece,
    ),
    "mpnet": (transformers.MPNetModel, transformers.MPNetConfig(**SMALL, **POSITIONS), word_piece),
    "modernbert": (
        transformers.ModernBertModel,
        transformers.ModernBertConfig(
            **{**SMALL, "num_hidden_layers": 5}, **POSITIONS, local_attention=16
        ),
        word_piece,
    ),
    "roberta": (
        transformers.RobertaModel, transformers.RobertaConfig(**SMALL, **POSITIONS), word_piece
    ),
    "xlm_roberta": (
        transformers.XLMRobertaModel,
        transformers.XLMRobertaConfig(**SMALL, **POSITIONS, type_vocab_size=1, hidden_act="gelu"),
        unigram,
    ),
}


def random_weights(model: torch.nn.Module) -> None:
    """Norms and biases that are not trivial, so that none of them can be left out unseen."""
    generator = torch.Generator().manual_seed(17)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + 0.2 * noise if is_norm else 0.25 * noise


def generate(name: str) -> None:
    model_class, config, make_tokenizer = FAMILIES[name]
    tokenizer = make_tokenizer()
    config.vocab_size = tokenizer.get_vocab_size()
    for key in ("cls_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id"):
        if (getattr(config, key, None) or 0) >= config.vocab_size:
            setattr(config, key, 1 if key == "pad_token_id" else None)
    config.architectures = [model_class.__name__]
    model = model_class(config).eval().float()
    random_weights(model)
    if name == "gte":
        ntk(model)
    folder = OUT / name
    model.save_pretrained(folder)
    if name in PUBLISHED:
        published = PUBLISHED[name] | dict(vocab_size=config.vocab_size)
        (folder / "config.json").write_text(json.dumps(published, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    records = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        vectors = dict(mean=states.mean(0), cls=states[0])
        if name in DECODERS:
            vectors["last"] = states[-1]
        vectors = {name: vector.tolist() for name, vector in vectors.items()}
        records.append({"text": text, "token_ids": ids, **vectors})
    golden = {"transformers": transformers.__version__, "texts": records}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in sys.argv[1:] or FAMILIES:
        generate(family)
        print(f"{family}: ok", flush=True)
