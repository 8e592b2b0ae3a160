#!/usr/bin/env python3
"""Makes golden_vision: tiny models whose vectors are of a text or of an image, or which have classes
of images, with what transformers makes.

    python testdata/generate_vision.py            # writes testdata/golden_vision
    python testdata/generate_vision.py --check    # writes nothing: compares
    python testdata/generate_vision.py --only clip

`golden.json` of each folder has vectors of texts and of files of testdata/media, of a length of 1, in
float32; of a classifier its logits and its scores, as its pipeline has them. The image processor is
that of torchvision.

Made with the versions of generate_images.py.
"""

import argparse
import json
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor
from transformers.models.siglip2.image_processing_siglip2 import Siglip2ImageProcessor
from transformers.models.vit.image_processing_vit import ViTImageProcessor

OUT = Path(__file__).parent / "golden_vision"
MEDIA = Path(__file__).parent / "media"
MAX_DISTANCE = 2e-5
TEXTS = [
    "a photo of a cat", "A Photo of TWO dogs,  beside a car.", "", "naïve café 12:30",
    "what is this? " * 4,
]
IMAGES = ["rgb.png", "wide2.png", "thin.png", "rgba.png", "palette8.png", "exif6.jpg", "cmyk.tiff"]
SIDE = 24
SMALL = dict(num_hidden_layers=3, num_attention_heads=4)


def clip_tokenizer() -> Tokenizer:
    """As that of openai/clip-vit-large-patch14, trained on a few lines."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase(),
    ])
    pattern = (
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|"
        r"[^\s\p{L}\p{N}]+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=620, end_of_word_suffix="</w>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([*TEXTS, __doc__], trainer)
    # Behind all others, and words of the vocabulary too.
    keys = json.loads(tokenizer.to_str())
    names = ["<|startoftext|>", "<|endoftext|>"]
    keys["model"]["vocab"] |= {name: tokenizer.get_vocab_size() + i for i, name in enumerate(names)}
    keys["model"]["unk_token"] = names[1]
    tokenizer = Tokenizer.from_str(json.dumps(keys))
    tokenizer.add_special_tokens(names)
    begin, end = ((name, tokenizer.token_to_id(name)) for name in names)
    tokenizer.post_processor = processors.RobertaProcessing(
        end, begin, trim_offsets=False, add_prefix_space=False
    )
    return tokenizer


def random_weights(model: torch.nn.Module) -> None:
    """Norms and biases that are not trivial, so that none of them can be left out unseen."""
    generator = torch.Generator().manual_seed(17)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + 0.2 * noise if is_norm else 0.2 * noise


def clip(folder: Path, is_published: bool) -> None:
    tokenizer = clip_tokenizer()
    num_tokens = tokenizer.get_vocab_size()
    text = dict(SMALL, hidden_size=32, intermediate_size=64, vocab_size=num_tokens,
                max_position_embeddings=77)
    vision = dict(SMALL, hidden_size=40, intermediate_size=48, image_size=SIDE, patch_size=8)
    if not is_published:
        text.update(bos_token_id=num_tokens - 2, eos_token_id=num_tokens - 1)
    else:
        # As files from before 2023 say it, wrong ids included.
        text.update(bos_token_id=0, eos_token_id=2, pad_token_id=1, hidden_act="gelu")
    config = transformers.CLIPConfig(
        text_config=text, vision_config=vision, projection_dim=24,
    )
    model = transformers.CLIPModel(config)
    random_weights(model)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    keys = dict(model_max_length=77, tokenizer_class="CLIPTokenizer")
    (folder / "tokenizer_config.json").write_text(json.dumps(keys, indent=2) + "\n")
    CLIPImageProcessor(
        size=dict(shortest_edge=SIDE), crop_size=dict(height=SIDE, width=SIDE)
    ).save_pretrained(folder)
    if not is_published:
        return
    saved = json.loads((folder / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        own = saved[part]
        # Of the same values: what it lacks would be the class's default.
        saved[f"{part}_dict"] = {key: own[key] for key in own if key != "attention_dropout"}
        own.update(model_type=f"clip_{part.split('_')[0]}_model", projection_dim=24, top_k=50,
                   bad_words_ids=None, add_cross_attention=False, initializer_factor=1.0)
    # Defaults of the class, which files may leave out.
    del saved["vision_config"]["hidden_act"], saved["text_config"]["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(saved, indent=2) + "\n")
    tensors = load_file(folder / "model.safetensors")
    for part, count in (("text", 77), ("vision", 10)):
        tensors[f"{part}_model.embeddings.position_ids"] = torch.arange(count)[None]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    keys = dict(crop_size=SIDE, do_center_crop=True, do_normalize=True, do_resize=True,
                feature_extractor_type="CLIPFeatureExtractor",
                image_mean=[0.48145466, 0.4578275, 0.40821073],
                image_std=[0.26862954, 0.26130258, 0.27577711], resample=3, size=SIDE)
    (folder / "preprocessor_config.json").write_text(json.dumps(keys, indent=2) + "\n")


def siglip_tokenizer() -> Tokenizer:
    """As that of google/siglip-base-patch16-224: lower case, no punctuation, `</s>` behind."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"), ""),
        normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(),
    ])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "</s>"]
    trainer = UnigramTrainer(vocab_size=300, special_tokens=special, unk_token=special[0])
    tokenizer.train_from_iterator([*TEXTS, __doc__], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def siglip(folder: Path, is_second: bool) -> None:
    """`is_second`: keys as files of SigLIP 2 have them, and another token of padding."""
    tokenizer = siglip_tokenizer()
    pad_token = "</s>"
    if is_second:
        pad_token = "<pad>"
        tokenizer.add_special_tokens([pad_token])
    text = dict(SMALL, hidden_size=32, intermediate_size=64, projection_size=40,
                vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64)
    vision = dict(SMALL, hidden_size=40, intermediate_size=48, image_size=SIDE, patch_size=8)
    if is_second:
        text.update(hidden_size=40, projection_size=None)
    model = transformers.SiglipModel(
        transformers.SiglipConfig(text_config=text, vision_config=vision)
    )
    random_weights(model)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    keys = dict(model_max_length=64, pad_token=pad_token, eos_token="</s>",
                tokenizer_class="GemmaTokenizer" if is_second else "SiglipTokenizer")
    (folder / "tokenizer_config.json").write_text(json.dumps(keys, indent=2) + "\n")
    resample = 2 if is_second else 3
    SiglipImageProcessor(
        size=dict(height=SIDE, width=SIDE), resample=resample
    ).save_pretrained(folder)


@torch.no_grad()
def vectors_of_siglip(folder: Path) -> dict:
    """Texts are filled up without a mask, as `padding="max_length"` gives them to the model."""
    model = transformers.SiglipModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pad_token = json.loads((folder / "tokenizer_config.json").read_text())["pad_token"]
    padding = [tokenizer.token_to_id(pad_token)] * 64
    texts = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        filled = torch.tensor([(ids + padding)[:64]])
        vector = model.get_text_features(input_ids=filled).pooler_output[0]
        texts.append(dict(text=text, token_ids=ids, vector=unit(vector)))
    processor = SiglipImageProcessor.from_pretrained(folder)
    return dict(texts=texts, images=vectors_of_images(model, processor))


def naflex_tokenizer() -> Tokenizer:
    """As that of google/siglip2-base-patch16-naflex, whose class in transformers lowers case."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = BpeTrainer(vocab_size=400, special_tokens=special)
    tokenizer.train_from_iterator([text.lower() for text in [*TEXTS, __doc__]], trainer)
    tokenizer.decoder = decoders.Replace("▁", " ")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", pair="$A <eos> $B <eos>", special_tokens=[("<eos>", 1)]
    )
    return tokenizer


def naflex(folder: Path) -> None:
    tokenizer = naflex_tokenizer()
    text = dict(SMALL, hidden_size=40, intermediate_size=64, vocab_size=tokenizer.get_vocab_size(),
                max_position_embeddings=64)
    vision = dict(SMALL, hidden_size=40, intermediate_size=48, num_patches=16, patch_size=8)
    model = transformers.Siglip2Model(
        transformers.Siglip2Config(text_config=text, vision_config=vision)
    )
    random_weights(model)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    keys = dict(model_max_length=64, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
                unk_token="<unk>", tokenizer_class="GemmaTokenizer")
    (folder / "tokenizer_config.json").write_text(json.dumps(keys, indent=2) + "\n")
    Siglip2ImageProcessor(patch_size=8, max_num_patches=20).save_pretrained(folder)


@torch.no_grad()
def vectors_of_naflex(folder: Path) -> dict:
    model = transformers.Siglip2Model.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        filled = torch.tensor([(ids + [tokenizer.pad_token_id] * 64)[:64]])
        vector = model.get_text_features(input_ids=filled).pooler_output[0]
        texts.append(dict(text=text, token_ids=ids, vector=unit(vector)))
    processor = Siglip2ImageProcessor.from_pretrained(folder)
    return dict(texts=texts, images=vectors_of_images(model, processor))


def vit_classes(folder: Path) -> None:
    """As google/vit-base-patch16-224: no tokenizer, and a processor of an older version's keys."""
    names = {index: f"thing {index}, some of it" for index in range(5)}
    config = transformers.ViTConfig(
        **SMALL, hidden_size=40, intermediate_size=48, image_size=SIDE, patch_size=8,
        id2label=names, label2id={name: index for index, name in names.items()},
    )
    model = transformers.ViTForImageClassification(config)
    random_weights(model)
    model.save_pretrained(folder)
    keys = dict(do_normalize=True, do_resize=True, feature_extractor_type="ViTFeatureExtractor",
                image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=2, size=SIDE)
    (folder / "preprocessor_config.json").write_text(json.dumps(keys, indent=2) + "\n")


def siglip_classes(folder: Path) -> None:
    """Several labels at once, and a head that makes vectors, which nothing reads."""
    names = {0: "indoors", 1: "night", 2: "people"}
    vision = dict(SMALL, hidden_size=40, intermediate_size=48, image_size=SIDE, patch_size=8)
    config = transformers.SiglipConfig(
        vision_config=vision, problem_type="multi_label_classification", id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    model = transformers.SiglipForImageClassification(config)
    random_weights(model)
    model.save_pretrained(folder)
    SiglipImageProcessor(size=dict(height=SIDE, width=SIDE), resample=2).save_pretrained(folder)


@torch.no_grad()
def classes(folder: Path) -> dict:
    """Logits of the model, and scores of the pipeline, in the order of the labels."""
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    processor_class = ViTImageProcessor if model.config.model_type == "vit" else SiglipImageProcessor
    processor = processor_class.from_pretrained(folder)
    pipeline = transformers.pipeline(
        "image-classification", model=model, image_processor=processor, device="cpu",
    )
    images = []
    for file in IMAGES:
        picture = rgb(file)
        logits = model(**processor(images=picture, return_tensors="pt")).logits[0]
        scores = {row["label"]: row["score"] for row in pipeline(picture, top_k=len(logits))}
        scores = [scores[model.config.id2label[index]] for index in range(len(logits))]
        rounded = [[round(float(value), 7) for value in row] for row in (logits, scores)]
        images.append(dict(image=file, vector=rounded[0], scores=rounded[1]))
    return dict(images=images)


@torch.no_grad()
def vectors_of_clip(folder: Path) -> dict:
    model = transformers.CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    processor = CLIPImageProcessor.from_pretrained(folder)
    texts = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        vector = model.get_text_features(input_ids=torch.tensor([ids])).pooler_output[0]
        texts.append(dict(text=text, token_ids=ids, vector=unit(vector)))
    return dict(texts=texts, images=vectors_of_images(model, processor))


def rgb(file: str) -> Image.Image:
    """A file of testdata/media, upright and on white."""
    picture = ImageOps.exif_transpose(Image.open(MEDIA / file)).convert("RGB")
    if file == "rgba.png":
        rgba = Image.open(MEDIA / file).convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        picture = picture.convert("RGB")
    return picture


def vectors_of_images(model, processor) -> list[dict]:
    images = []
    for file in IMAGES:
        picture = rgb(file)
        pixels = processor(images=picture, return_tensors="pt")
        vector = model.get_image_features(**pixels).pooler_output[0]
        images.append(dict(image=file, vector=unit(vector)))
    return images


def unit(vector: torch.Tensor) -> list[float]:
    vector = torch.nn.functional.normalize(vector, dim=0)
    return [round(float(value), 7) for value in vector]


MODELS = {
    "clip": (lambda folder: clip(folder, False), vectors_of_clip),
    "siglip": (lambda folder: siglip(folder, False), vectors_of_siglip),
    "siglip2": (lambda folder: siglip(folder, True), vectors_of_siglip),
    "siglip2_naflex": (naflex, vectors_of_naflex),
    "siglip_classes": (siglip_classes, classes),
    "vit_classes": (vit_classes, classes),
    "clip_published": (lambda folder: clip(folder, True), vectors_of_clip),
}


def check(name: str, old: dict, new: dict) -> None:
    for kind in new:
        for before, now in zip(old[kind], new[kind], strict=True):
            for key in ("vector", "scores"):
                pairs = zip(before.pop(key, []), now.pop(key, []), strict=True)
                far = max((abs(a - b) for a, b in pairs), default=0)
                assert far < MAX_DISTANCE, (name, far, now)
            assert before == now, (name, now)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="NAME", default=MODELS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in args.only:
        make, vectors_of = MODELS[name]
        folder = OUT / name
        if not args.check:
            folder.mkdir(parents=True, exist_ok=True)
            make(folder)
        made = vectors_of(folder)
        path = folder / "golden.json"
        if args.check:
            check(name, json.loads(path.read_text()), made)
        else:
            lines = [f'  "transformers": "{transformers.__version__}"']
            for kind, rows in made.items():
                rows = ",\n".join(f"    {json.dumps(row)}" for row in rows)
                lines.append(f'  "{kind}": [\n{rows}\n  ]')
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{name}: ok")


if __name__ == "__main__":
    main()
