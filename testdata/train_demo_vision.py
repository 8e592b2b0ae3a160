#!/usr/bin/env python3
"""Trains the demo model that sees, `testdata/demo-vision`, and draws its pictures.

A SmolVLM of under a million parameters that reads digits, six words, and shapes with their colours and counts: what is in
`pictures.jsonl`, and 92.8 % of 500 other drawings. All of its pictures and texts are made below.

    python -m venv .venv && .venv/bin/pip install torch torchvision transformers tokenizers safetensors pillow matplotlib
    .venv/bin/python testdata/train_demo_vision.py              # train, save, draw the pictures, evaluate
    .venv/bin/python testdata/train_demo_vision.py --eval       # evaluate what is saved, write nothing

It is trained in two stages, the second from what the first one saved (`--few` runs it alone): on longer numbers and many
words in all sizes and fonts, of which so small a model reads a third, then on those that it is to read.
Made with Python 3.11, torch 2.15.0, torchvision 0.29.2, transformers 5.24.0, tokenizers 0.23.3, safetensors 0.8.0,
Pillow 13.0.0 and matplotlib 3.11.2, whose fonts it draws with, on one CPU core, in an hour and a half. The first stage
of the saved weights took a font anew for each size that it tried; now there is one for a picture.
"""

import argparse
import functools
import json
import math
import random
import time
from pathlib import Path

import matplotlib
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration
from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor

HERE = Path(__file__).resolve().parent
OUT = HERE / "demo-vision"
SEED = 42
# Steps of all texts, from which its tower learns strokes; then of those that so small a model reads without fault.
STEPS = {"all": 5000, "few": 700}
BATCH = 48
PEAK_LR = 2e-3
SIDE = 64  # pixels of the square that the tower sees
NUM_TOKENS = 16  # of an image

# --------------------------------------------------------------------------------------------------------- pictures

COLOURS = {
    "red": (205, 30, 40), "green": (30, 150, 60), "blue": (40, 70, 210), "yellow": (240, 210, 30),
    "orange": (245, 135, 20), "purple": (135, 45, 160), "black": (15, 15, 15), "white": (250, 250, 250),
}
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "star": "stars", "cross": "crosses"}
WORDS = (
    "open stop exit push pull sale cafe hotel taxi bus park bank shop milk bread tea fish fruit salt sugar "
    "red hot cold new free left right up down yes no hello thanks please menu total page north south beach"
).split()
FEW_WORDS = "stop exit open sale taxi milk".split()
FONTS = ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold"]


@functools.cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / f"{name}.ttf"), size)


def canvas(rng: random.Random) -> tuple[Image.Image, str]:
    """A background with a little noise, and the name of a colour that is seen on it."""
    name, ink = rng.sample(sorted(COLOURS), 2)
    while sum(abs(a - b) for a, b in zip(COLOURS[name], COLOURS[ink])) < 220:
        name, ink = rng.sample(sorted(COLOURS), 2)
    if rng.random() < 0.5:
        name = "white" if ink not in ("white", "yellow") else "black"
    shade = tuple(min(255, max(0, value + rng.randint(-12, 12))) for value in COLOURS[name])
    width = rng.randint(56, 160)
    height = min(160, max(48, int(width * rng.uniform(0.65, 1.35))))
    return Image.new("RGB", (width, height), shade), ink


def ink_of(rng: random.Random, name: str) -> tuple[int, int, int]:
    return tuple(min(255, max(0, value + rng.randint(-14, 14))) for value in COLOURS[name])


def write(rng: random.Random, text: str, stage: str) -> tuple[Image.Image, str]:
    """A picture of a number or a word."""
    image, ink = canvas(rng)
    size = 80 if stage == "all" else 110
    name = rng.choice(FONTS if stage == "all" else FONTS[:2])
    while True:
        letters = font(name, size)
        left, top, right, bottom = letters.getbbox(text)
        room = image.width - (right - left), image.height - (bottom - top)
        if min(room) >= 4:
            break
        size -= 3
    if stage == "all" and rng.random() < 0.5:
        letters = letters.font_variant(size=max(int(size * rng.uniform(0.8, 1)), 8))
        left, top, right, bottom = letters.getbbox(text)
        room = image.width - (right - left), image.height - (bottom - top)
    low = 0.1 if stage == "all" else 0.3
    at = rng.uniform(low, 1 - low) * room[0] - left, rng.uniform(low, 1 - low) * room[1] - top
    ImageDraw.Draw(image).text(at, text, font=letters, fill=ink_of(rng, ink))
    return image, ink


def shape(draw: ImageDraw.ImageDraw, name: str, box: tuple[float, float, float], fill: tuple) -> None:
    """One shape in the circle of (x, y, radius)."""
    x, y, r = box
    if name == "circle":
        draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)
    elif name == "square":
        draw.rectangle((x - r * 0.85, y - r * 0.85, x + r * 0.85, y + r * 0.85), fill=fill)
    elif name == "cross":
        draw.rectangle((x - r * 0.3, y - r, x + r * 0.3, y + r), fill=fill)
        draw.rectangle((x - r, y - r * 0.3, x + r, y + r * 0.3), fill=fill)
    else:
        turns = [(0, 1), (1 / 3, 1), (2 / 3, 1)] if name == "triangle" else [(i / 10, 1 - i % 2 * 0.6) for i in range(10)]
        points = [(x + r * f * math.sin(math.tau * t), y - r * f * math.cos(math.tau * t)) for t, f in turns]
        draw.polygon(points, fill=fill)


def shapes(rng: random.Random, name: str, count: int) -> tuple[Image.Image, str]:
    """Shapes of one kind and colour: one of any size, or several in cells of their own."""
    image, ink = canvas(rng)
    draw, fill = ImageDraw.Draw(image), ink_of(rng, ink)
    if count == 1:
        r = min(image.size) * rng.uniform(0.22, 0.45)
        x, y = rng.uniform(r, image.width - r), rng.uniform(r, image.height - r)
        shape(draw, name, (x, y, r), fill)
        return image, ink
    cells = rng.sample([(column, row) for column in range(3) for row in range(2)], count)
    cell = image.width / 3, image.height / 2
    r = min(cell) * rng.uniform(0.36, 0.46)
    for column, row in cells:
        shape(draw, name, ((column + 0.5) * cell[0], (row + 0.5) * cell[1], r), fill)
    return image, ink


# ------------------------------------------------------------------------------------------------------------ texts

ASKS = {
    "number": ["What number is it?", "Which number do you see?", "Read the number.", "What is the number?"],
    "word": ["What does it say?", "What does the sign say?", "Read the word.", "What word is it?", "Read the text."],
    "shape": ["What shape is it?", "Which shape do you see?", "Name the shape."],
    "colour": ["What colour is it?", "Which colour do you see?", "Name the colour.", "What color is it?"],
    "count": ["How many are there?", "How many do you see?", "Count them."],
    "describe": ["Describe the image.", "What is it?", "What do you see?", "What is in the picture?", "Describe it.",
                 "Describe the picture.", "Write a caption.", "What is this?"],
    "each": ["What is in each picture?", "Describe each image.", "What are they?"],
}
BLIND = {
    "Who are you?": "I am a very small demo model that sees.",
    "What are you?": "I am a very small demo model that sees.",
    "What can you do?": "I read numbers, words and shapes in pictures.",
    "Hello!": "Hello! Show me a picture.",
    "Hi": "Hello! Show me a picture.",
}


def a(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def picture(rng: random.Random, stage: str = "few") -> tuple[Image.Image, dict[str, str]]:
    """A picture, and what is true of it by kind of question."""
    kind = rng.choice(["number", "number", "word", "word", "shape"])
    if kind == "number":
        digits = rng.randint(1, 3) if stage == "all" else 1
        text = str(rng.randint(0, 10**digits - 1))
        image, ink = write(rng, text, stage)
        return image, {"number": text, "colour": ink, "describe": f"the number {text} in {ink}"}
    if kind == "word":
        text = rng.choice(WORDS if stage == "all" else FEW_WORDS)
        image, ink = write(rng, text.upper() if rng.random() < 0.4 else text, stage)
        return image, {"word": text, "colour": ink, "describe": f"the word {text} in {ink}"}
    name, count = rng.choice(sorted(PLURALS)), rng.choice([1, 1, 1, 2, 3, 4, 5])
    image, ink = shapes(rng, name, count)
    said = a(f"{ink} {name}") if count == 1 else f"{count} {ink} {PLURALS[name]}"
    return image, {"shape": name, "colour": ink, "count": str(count), "describe": said}


def example(rng: random.Random, stage: str) -> tuple[list[Image.Image], str, str]:
    """(pictures, question, answer)"""
    kind = rng.random()
    if kind < 0.04:
        ask = rng.choice(sorted(BLIND))
        return [], ask, BLIND[ask]
    if kind < 0.06:
        return [], rng.choice(ASKS[rng.choice(sorted(ASKS))]), "I see no picture."
    if kind < 0.16:
        (one, first), (two, second) = picture(rng, stage), picture(rng, stage)
        return [one, two], rng.choice(ASKS["each"]), f"{first['describe']}; {second['describe']}"
    image, facts = picture(rng, stage)
    ask = rng.choice(sorted(facts)) if rng.random() < 0.5 else "describe"
    return [image], rng.choice(ASKS[ask]), facts[ask]


# -------------------------------------------------------------------------------------------------------- the model

BOS, END, IMAGE, FAKE, GLOBAL = "<|im_start|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>", "<global-img>"
CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'] is not string and message['content'][0]['type'] == 'image' %}{{ ':' }}"
    "{% else %}{{ ': ' }}{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
SHOWN = FAKE + GLOBAL + IMAGE * NUM_TOKENS + FAKE


def prompt(num_images: int, ask: str) -> str:
    return f"{BOS}User:{SHOWN * num_images or ' '}{ask}{END}\nAssistant:"


def build_tokenizer() -> Tokenizer:
    """Pieces of bytes, whole words of the texts above, digits one by one."""
    rng = random.Random(SEED)
    texts = [text for asks in ASKS.values() for text in asks] * 20 + [*BLIND, *BLIND.values()] * 20
    for _ in range(4000):
        name, count, ink = rng.choice(sorted(PLURALS)), rng.randint(2, 5), rng.choice(sorted(COLOURS))
        texts += [f"{a(f'{ink} {name}')}; the word {rng.choice(WORDS)} in {ink}", f" {count} {ink} {PLURALS[name]}",
                  f" {name}", f" {ink}", f" {rng.choice(WORDS)}", " I see no picture."]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in (BOS, END, IMAGE, FAKE, GLOBAL)]
    trainer = trainers.BpeTrainer(
        vocab_size=640, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def config(tokenizer: Tokenizer) -> dict:
    tokens = {"bos_token_id": tokenizer.token_to_id(BOS), "eos_token_id": tokenizer.token_to_id(END)}
    tokens["pad_token_id"] = tokens["eos_token_id"]
    return {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "image_token_id": tokenizer.token_to_id(IMAGE),
        "scale_factor": 2,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        **tokens,
        "text_config": {
            "model_type": "llama", "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 128, "intermediate_size": 320,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, **tokens,
        },
        "vision_config": {
            "model_type": "smolvlm_vision", "hidden_size": 96, "intermediate_size": 288, "num_hidden_layers": 4,
            "num_attention_heads": 4, "image_size": SIDE, "patch_size": 8, "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
    }


PREPROCESSOR = {
    "image_processor_type": "SmolVLMImageProcessor", "do_convert_rgb": True, "do_image_splitting": False, "do_resize": True,
    "do_rescale": True, "do_normalize": True, "do_pad": True, "resample": 1, "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE},
}


def pixels(processor: SmolVLMImageProcessor, images: list[Image.Image]) -> torch.Tensor:
    """(images, 3, SIDE, SIDE)"""
    return torch.cat([processor(image, return_tensors="pt")["pixel_values"][0] for image in images])


def batch_of(tokenizer: Tokenizer, processor: SmolVLMImageProcessor, examples: list) -> dict:
    """Rows padded on the right; images of rows that have fewer than two are zeros, which the model leaves out."""
    rows = []
    for images, ask, answer in examples:
        before = tokenizer.encode(prompt(len(images), ask)).ids
        after = tokenizer.encode(f" {answer}{END}").ids
        rows.append((before + after, [-100] * len(before) + after))
    longest = max(len(ids) for ids, _ in rows)
    pad = tokenizer.token_to_id(END)
    values = torch.zeros(len(rows), 2, 3, SIDE, SIDE)
    for at, (images, _, _) in enumerate(examples):
        if images:
            values[at, : len(images)] = pixels(processor, images)
    return {
        "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows]),
        "pixel_values": values,
    }


def initialize(model: SmolVLMForConditionalGeneration) -> None:
    """Weights by their number of inputs: those of transformers are for wide models, and learn slowly here."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            continue
        inputs = parameter[0].numel()
        scale = 0.5 if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "fc2.weight")) else 1.0
        std = {"position_embedding.weight": 0.5, "embed_tokens.weight": 0.06}
        std = next((value for end, value in std.items() if name.endswith(end)), scale / math.sqrt(inputs))
        torch.nn.init.normal_(parameter, std=std)


def load() -> SmolVLMForConditionalGeneration:
    """What is saved."""
    keys = json.loads((OUT / "config.json").read_text())
    model = SmolVLMForConditionalGeneration(SmolVLMConfig(**{k: v for k, v in keys.items() if k != "dtype"})).float()
    state = {name: tensor.float() for name, tensor in load_file(OUT / "model.safetensors").items()}
    missing = model.load_state_dict(state, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, missing
    model.tie_weights()
    return model


def fresh(tokenizer: Tokenizer) -> SmolVLMForConditionalGeneration:
    torch.manual_seed(SEED)
    keys = {k: v for k, v in config(tokenizer).items() if k not in ("architectures", "dtype")}
    model = SmolVLMForConditionalGeneration(SmolVLMConfig(**keys)).float()
    initialize(model)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    return model


def train(model: SmolVLMForConditionalGeneration, tokenizer: Tokenizer, stage: str) -> None:
    """A stage: a warm-up, then a cosine down to nothing."""
    steps, rng = STEPS[stage], random.Random(SEED)
    processor = SmolVLMImageProcessor(**{k: v for k, v in PREPROCESSOR.items() if k != "image_processor_type"})
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.98))
    begun, shown = time.time(), 0.0
    for step in range(steps):
        rate = PEAK_LR * min((step + 1) / 200, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(**batch_of(tokenizer, processor, [example(rng, stage) for _ in range(BATCH)])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown += loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1:5} loss {shown / 100:.4f} {time.time() - begun:.0f} s", flush=True)
            shown = 0.0


def save(model: SmolVLMForConditionalGeneration, tokenizer: Tokenizer) -> None:
    """The folder as the Hub has it, weights in bfloat16; the tied lm_head is not stored twice."""
    OUT.mkdir(exist_ok=True)
    state = {name: t.to(torch.bfloat16).contiguous() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, OUT / "model.safetensors", metadata={"format": "pt"})
    (OUT / "model.safetensors").chmod(0o644)
    tokenizer.save(str(OUT / "tokenizer.json"))
    written = config(tokenizer)
    tokens = {key: written[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    files = {
        "config.json": written,
        "generation_config.json": {**tokens, "do_sample": False, "temperature": 0.0},
        "preprocessor_config.json": PREPROCESSOR,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": END, "pad_token": END,
            "model_max_length": 2048, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (OUT / name).write_text(json.dumps(content, indent=2) + "\n")


# ------------------------------------------------------------------------------------------------------- evaluation

NUM_PICTURES = 12
NUM_EVALUATED = 500


def draw_pictures() -> None:
    """Pictures of another seed, with what is true of them."""
    rng, folder = random.Random(SEED + 1), OUT / "pictures"
    folder.mkdir(exist_ok=True)
    rows, kinds = [], []
    while len(rows) < NUM_PICTURES:
        image, facts = picture(rng)
        kind = next(iter(facts))
        if kinds.count(kind) * 3 >= NUM_PICTURES:
            continue
        kinds.append(kind)
        name = f"{len(rows) + 1:02}.png"
        image.save(folder / name, optimize=True)
        rows.append({"id": len(rows) + 1, "prompt": "Describe the image.", "image": f"pictures/{name}",
                     "answer": facts["describe"]})
    (OUT / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@torch.no_grad()
def evaluate() -> None:
    """Greedy answers to examples of another seed, by kind of picture."""
    tokenizer = Tokenizer.from_file(str(OUT / "tokenizer.json"))
    model = load().eval()
    processor = SmolVLMImageProcessor(**{k: v for k, v in PREPROCESSOR.items() if k != "image_processor_type"})
    rng, marks = random.Random(SEED + 2), {}
    for _ in range(NUM_EVALUATED):
        image, facts = picture(rng)
        ids = torch.tensor([tokenizer.encode(prompt(1, "Describe the image.")).ids])
        out = model.generate(
            input_ids=ids, pixel_values=pixels(processor, [image])[None], max_new_tokens=24, do_sample=False,
            eos_token_id=tokenizer.token_to_id(END), pad_token_id=tokenizer.token_to_id(END),
        )
        said = tokenizer.decode(out[0, ids.shape[1] :].tolist()).strip()
        marks.setdefault(next(iter(facts)), []).append(said == facts["describe"])
        if said != facts["describe"]:
            print(f"  wrong: {said!r}, not {facts['describe']!r}")
    for kind, right in sorted(marks.items()):
        print(f"{kind:10} {sum(right):3} of {len(right):3}")
    total = sum(marks.values(), [])
    print(f"total      {sum(total):3} of {len(total):3} = {sum(total) / len(total):.1%}")


def main() -> None:
    """Train and evaluate, or evaluate only."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eval", action="store_true", help="evaluate the saved model")
    parser.add_argument("--few", action="store_true", help="the second stage alone, from what is saved")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.eval:
        tokenizer = build_tokenizer()
        if not args.few:
            model = fresh(tokenizer)
            train(model, tokenizer, "all")
            save(model, tokenizer)
        model = load()
        train(model, tokenizer, "few")
        save(model, tokenizer)
        draw_pictures()
    evaluate()


if __name__ == "__main__":
    main()
