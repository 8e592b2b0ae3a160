#!/usr/bin/env python3
"""Make the tiny random classifiers under testdata/golden_classifiers/ with Hugging Face transformers.

Every folder is a complete checkpoint but for its tokenizer, which is that of
testdata/golden_embeddings (the folder is named in golden.json), plus golden.json: for a few texts
the token ids and the logits in float32, of the text or of each of its tokens or steps. Rows are run
one by one, so no padding is in them.

Classes that transformers has not are written here, after the code that their models are published
with. A language model is a classifier of the tokens that golden.json names.

    nice python testdata/generate_classifiers.py           # all, a minute on one core
    nice python testdata/generate_classifiers.py llama     # one

Versions: transformers 5.23.0, torch 2.15.0, tokenizers as transformers brings it.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from generate_embeddings import POSITIONS, PUBLISHED, TEXTS, Jina, random_weights
from generate_embeddings import OUT as EMBEDDINGS
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

OUT = Path(__file__).parent / "golden_classifiers"
SMALL = dict(hidden_size=24, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1)
MOODS = dict(id2label={0: "sad", 1: "glad", 2: "neither"})
ENTITIES = dict(id2label={0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"})

DISTILBERT = dict(dim=24, hidden_dim=32, n_heads=2, n_layers=1)
MODERNBERT = {**SMALL, "num_hidden_layers": 2, "local_attention": 16}
# Of decoders. There is no padding token, so the last token is the last one.
DECODER = {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 12}

QWEN2 = {k: v for k, v in DECODER.items() if k != "head_dim"}
# Words of the tokenizer that language models are asked for.
CLASS_TOKENS = ["no", "nice"]
# What ends a step of a text, and a tokenizer that has it.
STEP_TOKEN = "<extra_0>"


class JinaClassifier(torch.nn.Module):
    """`JinaBertForSequenceClassification` of jina-reranker-v1: a pooler and a classifier; and
    `JinaBertForTokenClassification`: a classifier of each token."""

    def __init__(self, config):
        super().__init__()
        self.bert = Jina(config)
        if "Sequence" in config.architectures[0]:
            self.bert.pooler = torch.nn.Module()
            self.bert.pooler.dense = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = torch.nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, ids):
        states = self.bert(ids).last_hidden_state
        if hasattr(self.bert, "pooler"):
            states = self.bert.pooler.dense(states[:, 0]).tanh()
        return SimpleNamespace(logits=self.classifier(states))


class RewardModel(torch.nn.Module):
    """`Qwen2ForRewardModel` and `Qwen2ForProcessRewardModel` of Qwen2.5-Math: two layers, over the
    last token or over each token that ends a step."""

    def __init__(self, config):
        super().__init__()
        hidden, is_of_steps = config.hidden_size, "Process" in config.architectures[0]
        self.model, self.step_id = transformers.Qwen2Model(config), None
        self.score = torch.nn.Sequential(
            torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
            torch.nn.Linear(hidden, 2 if is_of_steps else 1),
        )

    def forward(self, ids):
        logits = self.score(self.model(ids).last_hidden_state)
        steps = [-1] if self.step_id is None else ids[0] == self.step_id
        logits = logits[:, steps]
        return SimpleNamespace(logits=logits if self.step_id else logits[:, 0])


class InternLm2Reward(torch.nn.Module):
    """`InternLM2ForRewardModel` of internlm2-reward: a Llama under other names, and a value of the
    last token, which is put there."""

    def __init__(self, config):
        super().__init__()
        keys = dict(config.to_dict(), attention_bias=False)
        self.model = transformers.LlamaModel(transformers.LlamaConfig(**keys))
        self.v_head = torch.nn.Linear(config.hidden_size, 1, bias=False)
        self.end = config.reward_token_id

    def forward(self, ids):
        ids = torch.cat([ids, torch.tensor([[self.end]])], 1)
        return SimpleNamespace(logits=self.v_head(self.model(ids).last_hidden_state[:, -1]))

    def state_dict(self):
        """With one K and V head q, k and v lie one after the other."""
        own, out = super().state_dict(), {}
        names = {
            "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
            "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
            "embed_tokens": "tok_embeddings",
        }
        for name, tensor in own.items():
            if "q_proj" in name:
                parts = [own[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
                out[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts)
            elif "k_proj" not in name and "v_proj" not in name:
                for old, new in names.items():
                    name = name.replace(old, new)
                out[name] = tensor.clone()
        return out


# Classes that transformers has not: what they compute, and whose config they have.
OWN = {
    "InternLM2ForRewardModel": (InternLm2Reward, transformers.LlamaConfig),
    "JinaBertForSequenceClassification": (JinaClassifier, transformers.BertConfig),
    "JinaBertForTokenClassification": (JinaClassifier, transformers.BertConfig),
    "Qwen2ForRewardModel": (RewardModel, transformers.Qwen2Config),
    "Qwen2ForProcessRewardModel": (RewardModel, transformers.Qwen2Config),
}
# config.json as it was published with a model's own code, over what transformers writes.
JINA = PUBLISHED["jina"] | SMALL
NEW = {k: v for k, v in PUBLISHED["gte"].items() if k != "rope_scaling"} | SMALL
OWN_CONFIGS = {
    "jina": JINA,
    "jina_tokens": JINA,
    "internlm2_reward": {
        **QWEN2, **POSITIONS, "bias": False, "hidden_act": "silu", "model_type": "internlm2",
        "pad_token_id": 2, "reward_token_id": 9, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 10000, "torch_dtype": "float32",
    },
    "new": NEW,
    "new_tokens": NEW,
}

NEW_KEYS = dict(type_vocab_size=1, rope_parameters=dict(rope_type="default", rope_theta=20000))

# Class, keys of its config, folder of its tokenizer.
CLASSIFIERS = {
    "bert": ("BertForSequenceClassification", {**SMALL, **MOODS}, "bert"),
    "bert_tokens": ("BertForTokenClassification", {**SMALL, **ENTITIES}, "bert"),
    # Two labels without names, and a problem that has an activation of its own.
    "distilbert": (
        "DistilBertForSequenceClassification",
        {**DISTILBERT, "problem_type": "multi_label_classification"}, "distilbert",
    ),
    "distilbert_tokens": ("DistilBertForTokenClassification", {**DISTILBERT, **ENTITIES},
                          "distilbert"),
    # Its outputs are pooled, not its states.
    "eurobert": (
        "EuroBertForSequenceClassification",
        {**QWEN2, **MOODS, "classifier_pooling": "late", "mask_token_id": 5}, "bert",
    ),
    "eurobert_mean": (
        "EuroBertForSequenceClassification",
        {**QWEN2, **MOODS, "classifier_pooling": "mean", "mask_token_id": 5}, "bert",
    ),
    "eurobert_tokens": (
        "EuroBertForTokenClassification", {**QWEN2, **ENTITIES, "mask_token_id": 5}, "bert",
    ),
    # Language models as rerankers: of two tables and of one, with a bound on logits too.
    "gemma_words": ("GemmaForCausalLM", {**DECODER, "tie_word_embeddings": True}, "bert"),
    "gemma2_words": (
        "Gemma2ForCausalLM",
        {**DECODER, "query_pre_attn_scalar": 12, "sliding_window": 16,
         "final_logit_softcapping": 1.5},
        "bert",
    ),
    "qwen2_words": ("Qwen2ForCausalLM", {**QWEN2, "tie_word_embeddings": True}, "bert"),
    "qwen3_words": ("Qwen3ForCausalLM", {**DECODER, "tie_word_embeddings": False}, "bert"),
    # As transformers writes it; "new" is the same class as its own code writes it.
    "gte": ("GteForSequenceClassification", {**SMALL, **MOODS}, "gte"),
    "gte_tokens": ("GteForTokenClassification", {**SMALL, **ENTITIES}, "gte"),
    "internlm2_reward": ("InternLM2ForRewardModel", {**QWEN2, "reward_token_id": 9}, "bert"),
    "jina": ("JinaBertForSequenceClassification", {**SMALL, **MOODS}, "jina"),
    "jina_tokens": ("JinaBertForTokenClassification", {**SMALL, **ENTITIES}, "jina"),
    "modernbert": (
        "ModernBertForSequenceClassification",
        {**MODERNBERT, **MOODS, "classifier_pooling": "mean", "classifier_bias": True}, "modernbert",
    ),
    "modernbert_tokens": ("ModernBertForTokenClassification", {**MODERNBERT, **ENTITIES},
                          "modernbert"),
    "gemma2": (
        "Gemma2ForSequenceClassification",
        {**DECODER, **MOODS, "query_pre_attn_scalar": 12, "sliding_window": 16}, "bert",
    ),
    "llama": ("LlamaForSequenceClassification", {**DECODER, **MOODS}, "bert"),
    "mpnet": ("MPNetForSequenceClassification", {**SMALL, **MOODS}, "mpnet"),
    "mpnet_tokens": ("MPNetForTokenClassification", {**SMALL, **ENTITIES}, "mpnet"),
    "new": ("GteForSequenceClassification", {**SMALL, **MOODS, **NEW_KEYS}, "gte"),
    "new_tokens": ("GteForTokenClassification", {**SMALL, **ENTITIES, **NEW_KEYS}, "gte"),
    "nomic": ("NomicBertForSequenceClassification", {**SMALL, **MOODS}, "nomic"),
    "nomic_tokens": ("NomicBertForTokenClassification", {**SMALL, **ENTITIES}, "nomic"),
    "qwen2_reward": ("Qwen2ForRewardModel", QWEN2, "bert"),
    "qwen2_steps": ("Qwen2ForProcessRewardModel", QWEN2, "../golden_classifiers/qwen2_steps"),
    "qwen2_tokens": ("Qwen2ForTokenClassification", {**QWEN2, **ENTITIES}, "bert"),
    # A reward model has one class.
    "qwen3": (
        "Qwen3ForSequenceClassification", {**DECODER, "id2label": {0: "LABEL_0"}}, "bert"
    ),
    "roberta": ("RobertaForSequenceClassification", {**SMALL, **MOODS}, "roberta"),
    "roberta_tokens": ("RobertaForTokenClassification", {**SMALL, **ENTITIES}, "roberta"),
    # A cross-encoder has one class.
    "xlm_roberta": (
        "XLMRobertaForSequenceClassification",
        {**SMALL, "type_vocab_size": 1, "hidden_act": "gelu", "id2label": {0: "LABEL_0"}},
        "xlm_roberta",
    ),
}


def tokenizer_of(folder: str) -> Tokenizer:
    """The tokenizer of a folder; that of steps is made here."""
    path = EMBEDDINGS / folder / "tokenizer.json"
    if folder.startswith(".."):
        tokenizer = Tokenizer.from_file(str(EMBEDDINGS / "qwen3" / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(STEP_TOKEN, special=True)])
        path.parent.mkdir(exist_ok=True)
        tokenizer.save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def config_of(class_name: str, keys: dict, vocab_size: int):
    config_class = OWN[class_name][1] if class_name in OWN else (
        getattr(transformers, class_name).config_class
    )
    config = config_class(**keys, **POSITIONS, vocab_size=vocab_size)
    for key in ("cls_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id"):
        if (getattr(config, key, None) or 0) >= config.vocab_size:
            setattr(config, key, 1 if key == "pad_token_id" else None)
    if getattr(config, "num_key_value_heads", None):
        config.pad_token_id = None
    config.architectures = [class_name]
    return config


def save(model, config, folder: Path, name: str) -> None:
    if type(model).__name__ in dir(transformers):
        model.save_pretrained(folder)
    else:
        folder.mkdir(exist_ok=True)
        config.dtype = "float32"
        config.save_pretrained(folder)
        save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    if name.startswith("new"):
        # Its own code calls the body so.
        path = folder / "model.safetensors"
        renamed = {f"new.{k}".replace("new.gte.", "new.").replace("new.classifier", "classifier"): v
                   for k, v in load_file(path).items()}
        save_file(renamed, path, {"format": "pt"})
    if name in OWN_CONFIGS:
        published = OWN_CONFIGS[name] | dict(vocab_size=config.vocab_size)
        published["architectures"] = [config.architectures[0].replace("Gte", "New")]
        if config.num_labels != 2:
            published["id2label"] = config.id2label
        (folder / "config.json").write_text(json.dumps(published, indent=2) + "\n")


def generate(name: str) -> None:
    class_name, keys, tokenizer_folder = CLASSIFIERS[name]
    tokenizer = tokenizer_of(tokenizer_folder)
    config = config_of(class_name, keys, tokenizer.get_vocab_size())
    model_class = OWN[class_name][0] if class_name in OWN else getattr(transformers, class_name)
    model = model_class(config).eval().float()
    random_weights(model)
    folder = OUT / name
    save(model, config, folder, name)
    is_of_steps, is_of_words = "Process" in class_name, class_name.endswith("ForCausalLM")
    if is_of_steps:
        model.step_id = tokenizer.token_to_id(STEP_TOKEN)
    records = []
    for text in TEXTS:
        text = text.replace(",", STEP_TOKEN) + STEP_TOKEN if is_of_steps else text
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        if is_of_words:
            logits = logits[-1, [tokenizer.token_to_id(token) for token in CLASS_TOKENS]]
        records.append({"text": text, "token_ids": ids, "logits": logits.tolist()})
    golden = {
        "transformers": transformers.__version__, "tokenizer": tokenizer_folder,
        **({"tokens": CLASS_TOKENS} if is_of_words else {}), "texts": records,
    }
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for classifier in sys.argv[1:] or CLASSIFIERS:
        generate(classifier)
        print(f"{classifier}: ok", flush=True)
