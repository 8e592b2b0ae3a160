#!/usr/bin/env python3
"""Makes golden_late: tiny models that compare texts and pictures token by token (ColPali, ColQwen,
ColSmol), with the vectors and scores that transformers, or colpali-engine's arithmetic, makes.

    python testdata/generate_late_interaction.py            # writes testdata/golden_late
    python testdata/generate_late_interaction.py --check    # writes nothing: compares
    python testdata/generate_late_interaction.py --only colqwen2

ColPali and ColQwen2 are transformers' classes with their processors. The classes of colpali-engine
0.3.18 (`ColQwen2`, `ColQwen2_5`, `ColIdefics3`) are a model of transformers and a linear layer behind
its last states, in the names of tensors that their `_checkpoint_conversion_mapping` reads; rows are
written as `process_images` and `process_queries` of its processors write them.

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
from generate_vision import random_weights, rgb
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast
from transformers.models.colmodernvbert.processing_colmodernvbert import ColModernVBertProcessor
from transformers.models.colpali.processing_colpali import ColPaliProcessor
from transformers.models.colqwen2.processing_colqwen2 import ColQwen2Processor
from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor

OUT = Path(__file__).parent / "golden_late"
SHARED = Path(__file__).parent / "golden/.shared/images/tokenizer.json"
MAX_DISTANCE = 2e-5
TEXTS = ["a red door", "What is the TOTAL of 12:30?\nnaïve café", ""]
IMAGES = ["rgb.png", "wide2.png", "thin.png", "rgba.png"]
WIDTH = 12
TOKENS = ["<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<bos>", "<pad>"]
QWEN_PROMPT = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>"
    "<|endoftext|>"
)
SMOL_PROMPT = "<|im_start|>User:<image>Describe the image.<end_of_utterance>\nAssistant:"


def save_tokenizer(folder: Path) -> None:
    keys = json.loads(SHARED.read_text())
    first = 1 + max(token["id"] for token in keys["added_tokens"])
    like = keys["added_tokens"][-1]
    keys["added_tokens"] += [
        like | dict(content=content, id=first + place) for place, content in enumerate(TOKENS)
    ]
    shared = folder.parent / "tokenizer.json"
    shared.write_text(json.dumps(keys, indent=1, ensure_ascii=False) + "\n")
    link = folder / "tokenizer.json"
    link.unlink(missing_ok=True)
    link.symlink_to("../tokenizer.json")
    config = dict(
        tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=False,
        model_max_length=512, bos_token="<bos>", eos_token="<|im_end|>", pad_token="<pad>",
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<bos>", eos_token="<|im_end|>",
        pad_token="<pad>", clean_up_tokenization_spaces=False,
    )


def ids_of(folder: Path) -> dict[str, int]:
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return {token["content"]: token["id"] for token in tokens}


def text_of_qwen(ids: dict[str, int]) -> dict:
    return dict(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=max(ids.values()) + 1, max_position_embeddings=512,
        rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3]),
    )


def vision_of_qwen(is_second_half: bool) -> dict:
    sizes = dict(depth=2, num_heads=3, patch_size=8, spatial_merge_size=2, temporal_patch_size=2)
    if is_second_half:
        return sizes | dict(hidden_size=24, out_hidden_size=32, intermediate_size=40,
                            window_size=48, fullatt_block_indexes=[1])
    return sizes | dict(embed_dim=24, hidden_size=32, mlp_ratio=2)


def tokens_of_qwen(ids: dict[str, int]) -> dict:
    return dict(
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|endoftext|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )


def images_of_qwen(folder: Path) -> None:
    Qwen2VLImageProcessor(
        patch_size=8, merge_size=2, temporal_patch_size=2,
        size=dict(shortest_edge=1024, longest_edge=8192),
    ).save_pretrained(folder)


def colqwen2(folder: Path) -> None:
    ids = ids_of(folder)
    vlm = dict(model_type="qwen2_vl", text_config=text_of_qwen(ids),
               vision_config=vision_of_qwen(False), **tokens_of_qwen(ids))
    config = transformers.ColQwen2Config(vlm_config=vlm, embedding_dim=WIDTH)
    model = transformers.ColQwen2ForRetrieval(config)
    random_weights(model)
    model.bfloat16().save_pretrained(folder)
    images_of_qwen(folder)
    words = dict(processor_class="ColQwen2Processor", query_prefix="Query: ",
                 visual_prompt_prefix=QWEN_PROMPT.replace("Describe", "Tell about"))
    (folder / "processor_config.json").write_text(json.dumps(words, indent=2) + "\n")


def of_colqwen2(folder: Path) -> tuple:
    model = transformers.ColQwen2ForRetrieval.from_pretrained(folder, dtype=torch.float32).eval()
    words = json.loads((folder / "processor_config.json").read_text())
    processor = ColQwen2Processor(
        Qwen2VLImageProcessor.from_pretrained(folder), tokenizer_of(folder),
        visual_prompt_prefix=words["visual_prompt_prefix"], query_prefix=words["query_prefix"],
    )
    return model_and(model, processor)


def colpali(folder: Path) -> None:
    ids = ids_of(folder)
    num_tokens = max(ids.values()) + 1
    text = dict(model_type="gemma", hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=1, head_dim=16, vocab_size=num_tokens,
                max_position_embeddings=256, bos_token_id=ids["<bos>"], pad_token_id=ids["<pad>"],
                eos_token_id=ids["<|im_end|>"])
    vision = dict(model_type="siglip_vision_model", hidden_size=24, intermediate_size=40,
                  num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8,
                  projection_dim=32, vision_use_head=False)
    vlm = dict(model_type="paligemma", text_config=text, vision_config=vision, projection_dim=32,
               hidden_size=32, image_token_index=ids["<image>"])
    model = transformers.ColPaliForRetrieval(
        transformers.ColPaliConfig(vlm_config=vlm, embedding_dim=WIDTH)
    )
    random_weights(model)
    model.bfloat16().save_pretrained(folder)
    images = SiglipImageProcessor(size=dict(height=32, width=32), resample=3)
    images.image_seq_length = 16
    images.save_pretrained(folder)


def of_colpali(folder: Path) -> tuple:
    model = transformers.ColPaliForRetrieval.from_pretrained(folder, dtype=torch.float32).eval()
    images = SiglipImageProcessor.from_pretrained(folder)
    return model_and(model, ColPaliProcessor(images, tokenizer_of(folder)))


@torch.no_grad()
def model_and(model, processor) -> tuple:
    def vectors(inputs) -> tuple:
        inputs.pop("labels", None)
        return inputs["input_ids"][0].tolist(), model(**inputs).embeddings[0]

    return (
        lambda text: vectors(processor.process_queries(text=[text])),
        lambda picture: vectors(processor.process_images(images=[picture])),
    )


def colmodernvbert(folder: Path) -> None:
    ids = ids_of(folder)
    num_tokens = max(ids.values()) + 1
    text = dict(model_type="modernbert", hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                num_attention_heads=2, vocab_size=num_tokens, max_position_embeddings=512,
                local_attention=16, global_attn_every_n_layers=2, bos_token_id=ids["<bos>"],
                cls_token_id=ids["<bos>"], sep_token_id=ids["<|im_end|>"], pad_token_id=ids["<pad>"],
                eos_token_id=ids["<|im_end|>"])
    vision = dict(model_type="siglip_vision_model", hidden_size=24, intermediate_size=40,
                  num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8)
    vlm = dict(model_type="modernvbert", text_config=text, vision_config=vision,
               pixel_shuffle_factor=2, image_token_id=ids["<image>"])
    model = transformers.ColModernVBertForRetrieval(
        transformers.ColModernVBertConfig(vlm_config=vlm, embedding_dim=WIDTH)
    )
    random_weights(model)
    model.bfloat16().save_pretrained(folder)
    Idefics3ImageProcessor(
        size=dict(longest_edge=64), max_image_size=dict(longest_edge=32)
    ).save_pretrained(folder)
    words = dict(processor_class="ColModernVBertProcessor", query_prefix="Find: ")
    (folder / "processor_config.json").write_text(json.dumps(words, indent=2) + "\n")


def of_colmodernvbert(folder: Path) -> tuple:
    model = transformers.ColModernVBertForRetrieval.from_pretrained(folder, dtype=torch.float32)
    words = json.loads((folder / "processor_config.json").read_text())
    processor = ColModernVBertProcessor(
        Idefics3ImageProcessor.from_pretrained(folder), tokenizer_of(folder), image_seq_len=4,
        query_prefix=words["query_prefix"],
    )
    return model_and(model.eval(), processor)


def engine_names(model, projection: torch.nn.Linear, name: str, renamed) -> dict:
    tensors = {renamed(key): value for key, value in model.state_dict().items()}
    for part in ("weight", "bias"):
        tensors[f"{name}.{part}"] = getattr(projection, part).data
    return {key: value.bfloat16().contiguous() for key, value in tensors.items()}


def engine_qwen(folder: Path, is_second_half: bool) -> None:
    """Keys of the text at the top, as files of transformers 4.49 have them."""
    ids = ids_of(folder)
    text, vision = text_of_qwen(ids), vision_of_qwen(is_second_half)
    kind = "Qwen2_5_VL" if is_second_half else "Qwen2VL"
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=vision, **tokens_of_qwen(ids)
    )
    model = getattr(transformers, f"{kind}Model")(config)
    projection = torch.nn.Linear(32, 128)
    random_weights(model)
    random_weights(projection)
    save_file(
        engine_names(model, projection, "custom_text_proj",
                     lambda key: key.replace("language_model.", "model.")),
        folder / "model.safetensors", metadata={"format": "pt"},
    )
    rope = text.pop("rope_parameters")
    keys = dict(
        architectures=["ColQwen2_5" if is_second_half else "ColQwen2"], hidden_act="silu",
        model_type="qwen2_5_vl" if is_second_half else "qwen2_vl", torch_dtype="bfloat16",
        rope_theta=rope["rope_theta"], use_cache=True, use_sliding_window=False,
        rope_scaling=dict(type="mrope", mrope_section=rope["mrope_section"]),
        vision_config=vision, **text, **tokens_of_qwen(ids),
    )
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    images_of_qwen(folder)


def loaded(folder: Path, model, name: str, renamed) -> torch.nn.Linear:
    tensors = load_file(folder / "model.safetensors")
    weight, bias = (tensors.pop(f"{name}.{part}") for part in ("weight", "bias"))
    model.float().load_state_dict({renamed(key): value.float() for key, value in tensors.items()})
    model.eval()
    projection = torch.nn.Linear(weight.shape[1], weight.shape[0])
    projection.load_state_dict(dict(weight=weight.float(), bias=bias.float()))
    return projection


def of_engine_qwen(folder: Path) -> tuple:
    keys = json.loads((folder / "config.json").read_text())
    kind = "Qwen2_5_VL" if keys["model_type"] == "qwen2_5_vl" else "Qwen2VL"
    keys.pop("architectures")
    config = getattr(transformers, f"{kind}Config")(**keys)
    model = getattr(transformers, f"{kind}Model")(config)
    projection = loaded(
        folder, model, "custom_text_proj",
        lambda key: "language_" + key if key.startswith("model.") else key,
    )
    processor = Qwen2VLProcessor(
        Qwen2VLImageProcessor.from_pretrained(folder), tokenizer_of(folder),
        video_processor=Qwen2VLVideoProcessor(patch_size=8),
    )
    return engine_model_and(model, projection, processor, QWEN_PROMPT, "<|endoftext|>")


def colidefics3(folder: Path) -> None:
    ids = ids_of(folder)
    text = dict(model_type="llama", hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                vocab_size=max(ids.values()) + 1, max_position_embeddings=512,
                tie_word_embeddings=False, bos_token_id=None, eos_token_id=ids["<|im_end|>"],
                pad_token_id=ids["<pad>"])
    vision = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                  image_size=32, patch_size=8)
    config = transformers.Idefics3Config(
        text_config=text, vision_config=vision, scale_factor=2, image_token_id=ids["<image>"],
        pad_token_id=ids["<pad>"], tie_word_embeddings=False,
    )
    model = transformers.Idefics3Model(config)
    projection = torch.nn.Linear(32, 128)
    random_weights(model)
    random_weights(projection)
    config.architectures = ["ColIdefics3"]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    save_file(
        engine_names(model, projection, "linear", lambda key: f"model.{key}"),
        folder / "model.safetensors", metadata={"format": "pt"},
    )
    Idefics3ImageProcessor(
        size=dict(longest_edge=64), max_image_size=dict(longest_edge=32)
    ).save_pretrained(folder)


def of_colidefics3(folder: Path) -> tuple:
    config = transformers.Idefics3Config.from_pretrained(folder)
    model = transformers.Idefics3Model(config)
    projection = loaded(folder, model, "linear", lambda key: key.removeprefix("model."))
    processor = Idefics3Processor(
        Idefics3ImageProcessor.from_pretrained(folder), tokenizer_of(folder), image_seq_len=4
    )
    return engine_model_and(model, projection, processor, SMOL_PROMPT, "<end_of_utterance>")


@torch.no_grad()
def engine_model_and(model, projection, processor, prompt: str, token: str) -> tuple:
    def vectors(inputs) -> tuple:
        states = projection(model(**inputs).last_hidden_state)
        return inputs["input_ids"][0].tolist(), (states / states.norm(dim=-1, keepdim=True))[0]

    return (
        lambda text: vectors(processor(text=[text + token * 10], return_tensors="pt")),
        lambda picture: vectors(processor(text=[prompt], images=[picture], return_tensors="pt")),
    )


MODELS = {
    "colidefics3": (colidefics3, of_colidefics3),
    "colmodernvbert": (colmodernvbert, of_colmodernvbert),
    "colpali": (colpali, of_colpali),
    "colqwen2": (colqwen2, of_colqwen2),
    "colqwen2_engine": (lambda folder: engine_qwen(folder, False), of_engine_qwen),
    "colqwen2_5_engine": (lambda folder: engine_qwen(folder, True), of_engine_qwen),
}


@torch.no_grad()
def record(folder: Path) -> dict:
    of_text, of_picture = MODELS[folder.name][1](folder)
    texts = [(dict(text=text), *of_text(text)) for text in TEXTS]
    images = [(dict(image=file), *of_picture(rgb(file))) for file in IMAGES]
    scores = [
        [float((query @ page.T).max(dim=1).values.sum()) for _, _, page in images]
        for _, _, query in texts
    ]

    def rows(made) -> list[dict]:
        return [
            name | dict(token_ids=ids, vectors=[
                [round(float(value), 6) for value in row[:WIDTH]] for row in vectors
            ])
            for name, ids, vectors in made
        ]

    return dict(texts=rows(texts), images=rows(images),
                scores=[[round(score, 5) for score in row] for row in scores])


def check(name: str, old: dict, new: dict) -> None:
    for kind in ("texts", "images"):
        for before, now in zip(old[kind], new[kind], strict=True):
            far = (torch.tensor(before.pop("vectors")) - torch.tensor(now.pop("vectors"))).abs()
            assert far.max() < MAX_DISTANCE and before == now, (name, now)
    far = (torch.tensor(old["scores"]) - torch.tensor(new["scores"])).abs().max()
    assert far < 1e-3, (name, far)


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
        folder = OUT / name
        if not args.check:
            folder.mkdir(parents=True, exist_ok=True)
            save_tokenizer(folder)
            torch.manual_seed(5)
            MODELS[name][0](folder)
        made = record(folder)
        path = folder / "golden.json"
        if args.check:
            check(name, json.loads(path.read_text()), made)
        else:
            lines = [f'  "transformers": "{transformers.__version__}"']
            for kind, rows in made.items():
                rows = ",\n".join(f"    {json.dumps(row)}" for row in rows)
                lines.append(f'  "{kind}": [\n{rows}\n  ]')
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{name}: ok", *[len(row["token_ids"]) for row in made["images"]])


if __name__ == "__main__":
    main()
