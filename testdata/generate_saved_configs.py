"""What transformers writes as config.json: the default config of every architecture that the engine
has and transformers too, and the configs of the golden models, loaded and saved again.

    python testdata/generate_saved_configs.py [--check]

Writes testdata/saved_configs.jsonl, one config a line: {"architecture": .., "config": {..}} of a
default, {"folder": .., "over": {..}} of a golden model: what saving changes in its config.json, as
`--hf-overrides` would (null: the key is gone; nested configs key by key).
`tests/engine/saved_configs.rs` reads it.
"""

import argparse
import json
import pathlib
import re
import tempfile

import transformers

TESTDATA = pathlib.Path(__file__).resolve().parent
MODEL = TESTDATA.parent / "src" / "engine" / "checkpoint"
OUT = TESTDATA / "saved_configs.jsonl"
REGISTRIES = ["families/registry.rs", "encoders/mod.rs", "encoders/classifiers.rs",
              "encoders/decoder_classifiers.rs"]
FOLDERS = ["golden", "golden_classifiers", "golden_embeddings", "golden_scores", "golden_sparse"]
NESTED = ["attn_config", "audio_config", "ffn_config", "text_config", "vision_config"]
# No engine computes with these, and they are long.
LEFT_OUT = ["vision_config", "audio_config", "transformers_version"]


def architectures():
    """The names of all registries."""
    ending = r"\"([A-Za-z0-9_]+(?:ForCausalLM|LMHeadModel|ForConditionalGeneration|ForMaskedLM|Model"
    ending += r"|ForSequenceClassification|ForTokenClassification|ForProcessRewardModel))\""
    texts = [(MODEL / name).read_text() for name in REGISTRIES]
    return sorted({name for text in texts for name in re.findall(ending, text)})


def saved(config):
    """The keys of the file that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        keys = json.loads((pathlib.Path(folder) / "config.json").read_text())
    return {key: value for key, value in keys.items() if key not in LEFT_OUT}


def defaults():
    for name in architectures():
        model = getattr(transformers, name, None)
        if model is None or getattr(model, "config_class", None) is None:
            continue
        yield {"architecture": name, "config": saved(model.config_class()) | {"architectures": [name]}}


def over(old, new):
    """What has to be laid over the old keys to have the new ones."""
    found = {key: None for key in old if key not in new and key not in LEFT_OUT}
    for key, value in new.items():
        if key in NESTED and isinstance(value, dict) and isinstance(old.get(key), dict):
            inner = over(old[key], value)
            found |= {key: inner} if inner else {}
        elif key not in old or old[key] != value:
            found[key] = value
    return found


def goldens():
    for path in sorted(path for folder in FOLDERS for path in (TESTDATA / folder).glob("*/config.json")):
        old = json.loads(path.read_text())
        if old.get("model_type") not in transformers.CONFIG_MAPPING:
            continue
        if old["model_type"] == "nomic_bert" and "n_embd" in old:
            # A published file, which is read by code of its own.
            continue
        if "vit_config" in old:
            # Saving it names the tower otherwise, which is left out here (Molmo 2).
            continue
        try:
            config = transformers.CONFIG_MAPPING[old["model_type"]].from_pretrained(path.parent)
        except Exception as error:  # its class is another one's
            print(f"{path.parent.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        folder = str(path.parent.relative_to(TESTDATA))
        yield {"folder": folder, "over": over(old, saved(config))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file")
    check = parser.parse_args().check
    lines = [json.dumps(line, sort_keys=True, separators=(",", ":")) for line in [*defaults(), *goldens()]]
    text = "".join(line + "\n" for line in lines)
    if check:
        assert OUT.read_text() == text, f"{OUT.name} differs from what transformers writes"
    else:
        OUT.write_text(text)
    print(f"{len(lines)} configs by transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
