"""Greedy tokens of a real model: transformers' in float32 against vllm-batch's.

    python scripts/against_transformers.py MODEL_DIR [--gguf FILE] [--binary target/release/vllm-batch]
        [--work DIR]

MODEL_DIR is a folder that both load (config.json, tokenizer, safetensors); with --gguf transformers
alone loads it, and vllm-batch the GGUF file that it was dequantized from. Sends 28 texts, and 26
chats if it has a chat template, 64 tokens each. Prints each row that differs with the gap of the two
likeliest tokens there; exit 1 if any differs. transformers' tokens are kept in DIR/reference.json
and used again. Needs torch and transformers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

NUM_TOKENS = 64

TEXTS = [
    "The tallest mountain in the world is",
    "My grandmother used to say that",
    "Photosynthesis is the process by which",
    "The three laws of thermodynamics are",
    "In the year 2050, cities will",
    "She opened the letter, read it twice, and",
    "The recipe needs 2 cups of flour, 3 eggs and",
    "7 x 8 = 56, 7 x 9 =",
    "1, 1, 2, 3, 5, 8, 13,",
    "Le petit chat dort sur",
    "Les trois couleurs du drapeau français sont",
    "Berlin ist die Hauptstadt von",
    "Am Morgen trinke ich gern",
    "La ciudad de Madrid está en",
    "Il sole sorge a",
    "吾輩は猫である。名前は",
    "def is_prime(n):\n    \"\"\"Return True if n is prime.\"\"\"\n",
    "fn main() {\n    let numbers = vec![1, 2, 3];\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "for (let i = 0; i < 10; i++) {\n\t",
    "SELECT title, year FROM books WHERE author =",
    "<html>\n\t<head>\n\t\t<title>",
    "{\"name\": \"Ada\", \"born\": 1815, \"field\":",
    "# Heading\n\n- first item\n- second item\n-",
    "I love pizza 🍕 and ice cream 🍦 because",
    "  \t two spaces and a tab come before this",
    "THE END OF THE STORY WAS",
    "control\x04characters\x1dhere, and then",
]
QUESTIONS = [
    "What is the largest ocean?",
    "Explain gravity to a child.",
    "Translate 'good morning' to Spanish.",
    "Write a Python function that adds two numbers.",
    "List five animals.",
    "What is 12 + 30?",
    "Who wrote Hamlet?",
    "Give me a title for a story about a robot.",
    "What does HTTP stand for?",
    "How do I boil an egg?",
    "Is a tomato a fruit?",
    "Write one sentence about autumn.",
    "Name the planets of the solar system.",
    "What is the opposite of 'brave'?",
    "Summarise: The cat sat on the mat. It was tired.",
    "Wie heißt die Hauptstadt von Italien?",
    "Qu'est-ce que la photosynthèse ?",
    "What is a linked list?",
    "Count from 1 to 10.",
    "Make this polite: give me the salt",
    "Why do leaves fall? 🍂",
    "Fix the grammar: he go to school yesterday",
]
CHATS = [[{"role": "user", "content": question}] for question in QUESTIONS] + [
    [
        {"role": "system", "content": "You are a pirate. Answer in one sentence."},
        {"role": "user", "content": "Where is the treasure?"},
    ],
    [
        {"role": "system", "content": "You only answer with one word."},
        {"role": "user", "content": "What colour is the sky?"},
    ],
    [
        {"role": "user", "content": "I have two dogs."},
        {"role": "assistant", "content": "That is lovely! What are their names?"},
        {"role": "user", "content": "Max and Bella. How many pets do I have?"},
    ],
    [
        {"role": "user", "content": "Tell me a joke."},
        {"role": "assistant", "content": "Why did the chicken cross the road?"},
        {"role": "user", "content": "I don't know, why?"},
    ],
]


def reference(model_dir):
    """transformers' prompt ids, tokens and gaps of the two likeliest tokens, for each row."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    end = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])}
    rows = []
    for prompt in TEXTS + (CHATS if tokenizer.chat_template else []):
        if isinstance(prompt, str):
            ids = tokenizer(prompt)["input_ids"]
        else:
            ids = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_dict=True
            )["input_ids"]
        out, gaps, cache, new = [], [], None, torch.tensor([ids])
        with torch.no_grad():
            while len(out) < NUM_TOKENS and not (out and out[-1] in ends):
                step = model(new, past_key_values=cache, use_cache=True)
                cache, logits = step.past_key_values, step.logits[0, -1]
                best, second = torch.topk(logits, 2).values.tolist()
                out.append(int(logits.argmax()))
                gaps.append(best - second)
                new = torch.tensor([[out[-1]]])
        rows.append({"prompt_token_ids": list(ids), "token_ids": out, "gaps": gaps})
    return rows


def ours(binary, model_dir, work, num_rows):
    """The same of the first rows from vllm-batch."""
    lines = [{"prompt": text} for text in TEXTS] + [{"messages": chat} for chat in CHATS]
    lines = lines[:num_rows]
    source, out = work / "rows.jsonl", work / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--temperature", "0", "--max-tokens", str(NUM_TOKENS), "--dtype", "float32"]
    flags += ["--output-format", "full", "--overwrite", "-q"]
    command = [binary, "run", "-m", model_dir, "-i", source, "-o", out, *flags]
    subprocess.run([str(part) for part in command], check=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return [
        {"prompt_token_ids": row["prompt_token_ids"], "token_ids": row["outputs"][0]["token_ids"]}
        for row in rows
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--binary", default="target/release/vllm-batch")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp())
    work.mkdir(exist_ok=True)
    kept = work / "reference.json"
    if not kept.exists():
        kept.write_text(json.dumps(reference(args.model_dir)))
    wanted = json.loads(kept.read_text())
    got = ours(args.binary, args.gguf or args.model_dir, work, len(wanted))
    assert len(wanted) == len(got)
    num_equal = 0
    for index, (want, have) in enumerate(zip(wanted, got)):
        if want["prompt_token_ids"] != have["prompt_token_ids"]:
            print(f"row {index + 1}: other prompt ids: {want['prompt_token_ids']} here")
            print(f"  {have['prompt_token_ids']} ours")
        elif want["token_ids"] != have["token_ids"]:
            pairs = zip(want["token_ids"], have["token_ids"])
            at = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
            gap = "one is longer" if at is None else f"gap {want['gaps'][at]:.6f}"
            print(f"row {index + 1}: differs at token {at}, {gap}")
        else:
            num_equal += 1
    num_tokens = sum(len(row["token_ids"]) for row in wanted)
    print(f"{num_equal} of {len(wanted)} prompts have the same {num_tokens} tokens")
    return 0 if num_equal == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
