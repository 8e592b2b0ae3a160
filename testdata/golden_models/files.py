"""The files of a golden folder."""

import copy
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from . import quantized
from .family import Family
from .published import old_style
from .tokenizer_kinds import SHARED

SHARED_FOLDER = ".shared"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write_json(path: Path, data) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_golden(path: Path, head: dict, records: list[dict]) -> None:
    """One line per field of a prompt: readable, and small."""

    def lines(record: dict) -> str:
        pairs = (
            f"      {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}"
            for k, v in record.items()
        )
        return "    {\n" + ",\n".join(pairs) + "\n    }"

    top = "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    prompts = ",\n".join(lines(record) for record in records)
    path.write_text("{\n" + top + '  "prompts": [\n' + prompts + "\n  ]\n}\n", encoding="utf-8")


def raw_tokenizer(family: Family) -> Tokenizer:
    return SHARED[family.shared][0]() if family.shared else family.tokenizer()


def write_tokenizer(folder: Path, family: Family, tokenizer: Tokenizer) -> None:
    if family.shared:
        for file in TOKENIZER_FILES:
            (folder / file).symlink_to(Path("..") / SHARED_FOLDER / family.shared / file)
        return
    tokenizer.save(str(folder / "tokenizer.json"))
    added = json.loads(tokenizer.to_str())["added_tokens"]
    config = dict(family.tokenizer_config)
    config["added_tokens_decoder"] = {
        str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added
    }
    if family.chat_template and family.chat_in_config:
        config["chat_template"] = family.chat_template
    elif family.chat_template:
        file = folder / "chat_template.jinja"
        file.write_text(family.chat_template, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", config)
    if family.slow_files:
        tokenizer.model.save(str(folder))


def make_readable(folder: Path) -> None:
    for file in folder.iterdir():
        if not file.is_symlink():
            file.chmod(0o644)


def write_model(folder: Path, family: Family, model, tokenizer: Tokenizer) -> None:
    stored = copy.deepcopy(model).to(family.dtype)
    stored.config.dtype = family.dtype
    stored.save_pretrained(folder, max_shard_size=family.shard_size or "5GB")
    config = json.loads((folder / "config.json").read_text())
    if family.quantized:
        file = folder / "model.safetensors"
        save_file(quantized.stored(load_file(file), model), file, metadata={"format": "pt"})
        quantized.write_config(folder, config, family.quantized)
    elif family.layout:
        publish(folder, family, config)
    elif family.published:
        file = folder / "model.safetensors"
        keys, tensors = family.published(config, load_file(file))
        save_file(tensors, file, metadata={"format": "pt"})
        write_json(folder / "config.json", keys)
    elif family.old_config:
        write_json(folder / "config.json", old_style(config, family))
    if family.both_configs:
        write_json(folder / "config_v4.json", old_style(config, family))
    write_generation_config(folder, family, config, tokenizer)


def publish(folder: Path, family: Family, config: dict) -> None:
    """Replace what save_pretrained wrote by the published form."""
    file = folder / "model.safetensors"
    tensors = family.layout.publish(load_file(file))
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    if family.old_config:
        config = old_style(config, family)
    write_json(folder / "config.json", family.layout.config(config))


def restored(folder: Path, family: Family, exactly: bool = True) -> dict[str, torch.Tensor]:
    """The oracle's tensors, read back from the published ones."""
    if family.quantized:
        tensors = load_file(folder / "model.safetensors")
        return quantized.unpacked(tensors, family.quantized, check=exactly)
    return family.layout.restore(load_file(folder / "model.safetensors"))


def write_generation_config(
    folder: Path, family: Family, config: dict, tokenizer: Tokenizer
) -> None:
    generation = {
        k: ids_of(tokenizer, v) if k == "eos_token_id" else v
        for k, v in family.generation_config.items()
    }
    if family.shared:
        generation = {"eos_token_id": config["eos_token_id"]}
    ids = {k: config.get(k) for k in ("bos_token_id", "pad_token_id")}
    ids = {k: v for k, v in ids.items() if v is not None}
    version = {"transformers_version": transformers.__version__}
    write_json(folder / "generation_config.json", {**ids, **generation, **version})


def ids_of(tokenizer: Tokenizer, tokens: str | list[str]) -> int | list[int]:
    if isinstance(tokens, list):
        return [tokenizer.token_to_id(t) for t in tokens]
    return tokenizer.token_to_id(tokens)
