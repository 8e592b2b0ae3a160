#!/usr/bin/env python3
"""Random models that hear and random recordings, answered by transformers and by `vllm-batch run`.

    python testdata/sweep_hearing.py --num 5                    # five configs of each family
    python testdata/sweep_hearing.py qwen3_asr --seed 40 --num 1 --keep DIR

Each config has other sizes than the golden ones (sweep_hearing_cases.py) and random weights.
transformers saves it as it does; some keys that have their defaults are left out, some are spelt as
before 5.0, and some folders are spelt as the published repositories are. It answers chats with
recordings among text greedily, in float32; `run` answers the same. A line says of each config how
many rows are `ok` (ids, and log-probabilities within 1e-4), `refused` by both or by us alone (then
why), or `DIFF`. What differs is asked again in float64: `noise` is ours within 1e-4 of that.
Rows have the same bytes alone, all at once, and in steps of eight tokens without a cache, or the
line says `BYTES`. Needs what generate_hearing.py needs, and the program (--program).
"""

import argparse
import base64
import io
import json
import random
import re
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path
from types import SimpleNamespace

import generate_hearing
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import WhisperFeatureExtractor

import hearing_families
import sweep_hearing_cases as cases
from hearing_families import FAMILIES, MEDIA, RATE, TEKKEN, flat_preprocessor

ROOT = Path(__file__).resolve().parent.parent
NEW_TOKENS = 6
MIN_GAP = 1e-3
MAX_DISTANCE = 1e-4
NUM_RECORDINGS = 6
NUM_CHATS = 9
VOXTRAL_TURNS = {
    "user": (["[INST]"], ["[/INST]"]), "assistant": ([], ["</s>"]),
    "system": (["[SYSTEM_PROMPT]"], ["[/SYSTEM_PROMPT]"]),
}
PLAIN_MESSAGES = hearing_families.messages
PLACEHOLDERS = {"qwen3_asr": "<|audio_pad|>", "qwen3_omni": "<|audio_pad|>"}


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return out.getvalue()


@torch.no_grad()
def randomise(model, seed: int):
    """Weights whose outputs are of the size of their inputs, and norms that are not ones."""
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape)
        if weight.dim() == 1:
            is_norm = "norm" in name or ".ln_" in name
            centre = 1.0 if is_norm and name.endswith("weight") else 0.0
            weight.copy_(centre + 0.2 * noise)
        elif "embed" in name:
            weight.copy_(0.5 * noise)
        else:
            is_conv = weight.dim() > 2 and "experts" not in name
            inputs = weight[0].numel() if is_conv else weight.shape[-1]
            weight.copy_(1.4 / inputs**0.5 * noise)


def same_config(cls, folder: Path, expected: dict) -> bool:
    try:
        return cls.from_pretrained(folder).to_dict() == expected
    except Exception:
        return False


def respell(cls, folder: Path, rng: random.Random) -> list[str]:
    """Leaves out keys that have their defaults, and spells others another way."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    expected, done = cls.from_pretrained(folder).to_dict(), []
    defaults = cls(text_config={"model_type": config["text_config"]["model_type"]}).to_dict()

    def tried(change, what: str):
        nonlocal config
        before = path.read_text()
        changed = json.loads(before)
        change(changed)
        path.write_text(json.dumps(changed, indent=2))
        if same_config(cls, folder, expected):
            config = changed
            done.append(what)
        else:
            path.write_text(before)

    for part in ("text_config", "audio_config", "vision_config", None):
        keys = config.get(part, {}) if part else config
        usual = defaults.get(part, {}) if part else defaults
        for key in list(keys):
            is_usual = key in usual and usual[key] == keys[key] and not isinstance(keys[key], dict)
            is_tie = key == "tie_word_embeddings" and not part
            if is_usual and key != "model_type" and rng.random() < (0.1 if is_tie else 0.5):
                tried(lambda c: (c[part] if part else c).pop(key), f"-{key}")
    names = {
        "audio_config": [
            *cases.WHISPER.items(), *((new, old) for old, new in cases.WHISPER.items()),
        ],
        None: [("audio_token_index", "audio_token_id"), ("audio_token_id", "audio_token_index"),
               ("dtype", "torch_dtype")],
    }
    for part, pairs in names.items():
        for old, new in pairs:
            keys = config[part] if part else config
            if old in keys and rng.random() < 0.3:
                def change(c, part=part, old=old, new=new):
                    keys = c[part] if part else c
                    keys[new] = keys.pop(old)
                tried(change, f"{old}>{new}")
    rope = config["text_config"].get("rope_parameters", {})
    if set(rope) == {"rope_theta", "rope_type"} and rng.random() < 0.4:
        def theta(c):
            rope = c["text_config"].pop("rope_parameters")
            c["text_config"] |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
        tried(theta, "rope_theta")
    return done


def publish(family, source: Path, folder: Path):
    """The folder as the published repository is, with the sections of its own axes."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    section = config["text_config"].get("rope_parameters", {}).get("mrope_section")
    config = family.published_config(config)
    text = config.get("thinker_config", config)["text_config"]
    if section is not None:
        text["rope_scaling"]["mrope_section"] = section
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weights = load_file(source / "model.safetensors")
    save_file(family.published_weights(weights), folder / "model.safetensors", {"format": "pt"})
    family.published_processor(folder)


def features_in_64_bits(self, waveform, device="cpu"):
    waveform = torch.from_numpy(waveform).to(torch.float64)
    window = torch.hann_window(self.n_fft).double()
    stft = torch.stft(waveform, self.n_fft, self.hop_length, window=window, return_complex=True)
    power = stft[..., :-1].abs() ** 2
    spec = torch.from_numpy(self.mel_filters).float().double().T @ power
    spec = torch.clamp(spec, min=1e-10).log10()
    spec = torch.maximum(spec, spec.amax(dim=(-1, -2), keepdim=True) - 8.0)
    return ((spec + 4.0) / 4.0).numpy()


class Oracle:
    """transformers, over recordings of a config."""

    def __init__(self, name: str, family, processor, model, recordings: list[np.ndarray]):
        self.name, self.family, self.processor, self.model = name, family, processor, model
        self.is_double = False
        hearing_families.messages = messages
        hearing_families.recording = lambda kind: recordings[kind].astype(np.float32) / 32768.0
        inner = model.model
        if hasattr(inner, "get_audio_features"):
            plain = inner.get_audio_features

            def pooled(*args, **keys):
                out = plain(*args, **keys)
                if getattr(out, "pooler_output", None) is None:
                    out.pooler_output = out.last_hidden_state
                return out

            self.plain = pooled
            inner.get_audio_features = self.hear
        self.each = None

    def hear(self, *args, **keys):
        """One recording after another, so that none has the others' padding."""
        keys.pop("return_dict", None)
        if self.heard is None and self.each is None:
            self.heard = self.plain(*args, **keys)
        elif self.heard is None:
            all = torch.cat([self.plain(**self.typed(one)).pooler_output for one in self.each])
            self.heard = SimpleNamespace(pooler_output=all, last_hidden_state=all)
        return self.heard

    def typed(self, inputs: dict) -> dict:
        to = torch.float64 if self.is_double else torch.float32
        return {k: v.to(to) if v.is_floating_point() else v for k, v in inputs.items()}

    def inputs(self, chat: list) -> dict:
        self.each = None
        sounds = sounds_of(chat)
        if self.name == "qwen3_asr" and not sounds:
            return dict(self.processor.tokenizer(self.text(chat), return_tensors="pt"))
        if self.name in PLACEHOLDERS and len(sounds) > 1:
            return self.several(chat, sounds)
        if self.name == "voxtral":
            return self.of_voxtral(chat)
        # Not what its family has for recordings of the first message, and of several.
        skips = self.name in PLACEHOLDERS
        family = super(type(self.family), self.family) if skips else self.family
        return family.inputs(self.processor, chat)

    def text(self, chat: list) -> str:
        return self.processor.apply_chat_template(
            messages(chat), add_generation_prompt=True, tokenize=False
        )

    def of_voxtral(self, chat: list) -> dict:
        """As mistral-common's prompt, with the tokens of chunks of any length."""
        tokenizer, id_of = self.processor.tokenizer, TEKKEN.index
        heard, audio = self.processor.feature_extractor, self.model.config.audio_config
        states = audio.max_source_positions * audio.hidden_size // audio.intermediate_size
        ids, sounds = [id_of("<s>")], []
        for message in messages(chat):
            begin, end = VOXTRAL_TURNS[message["role"]]
            ids += [id_of(mark) for mark in begin]
            for part in message["content"]:
                if part["type"] == "text":
                    ids += tokenizer.encode(part["text"], add_special_tokens=False)
                    continue
                sounds.append(part["audio"])
                num = -(-len(part["audio"]) // heard.n_samples) * states
                ids += [id_of("[BEGIN_AUDIO]"), *[self.processor.audio_token_id] * num]
            ids += [id_of(mark) for mark in end]
        ids = torch.tensor([ids])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if sounds:
            inputs["input_features"] = self.processor._retrieve_input_features(
                sounds, heard.nb_max_frames, sampling_rate=RATE, padding=True, truncation=False,
                pad_to_multiple_of=heard.n_samples, return_tensors="pt",
            )
        return inputs

    @torch.no_grad()
    def several(self, chat: list, sounds: list[str]) -> dict:
        """Each recording with its own features and tokens."""
        mask = "feature_attention_mask" if self.name == "qwen3_omni" else "input_features_mask"
        mark, each, counts = PLACEHOLDERS[self.name], [], []
        id = self.model.config.audio_token_id
        for sound in sounds:
            one = self.inputs([("user", [sound])])
            each.append({"input_features": one["input_features"], mask: one[mask]})
            counts.append(int((one["input_ids"] == id).sum()))
        pieces = self.text(chat).split(mark)
        assert len(pieces) == len(counts) + 1
        text = pieces[0] + "".join(mark * n + piece for n, piece in zip(counts, pieces[1:]))
        images = [
            part["image"] for message in messages(chat) for part in message["content"]
            if part["type"] == "image"
        ]
        seen = {}
        if images:
            seen = dict(self.processor.image_processor(images=images, return_tensors="pt"))
            mark, pieces = "<|image_pad|>", text.split("<|image_pad|>")
            counts = [int(grid.prod()) // 4 for grid in seen["image_grid_thw"]]
            text = pieces[0] + "".join(mark * n + piece for n, piece in zip(counts, pieces[1:]))
        inputs = dict(self.processor.tokenizer(text, return_tensors="pt")) | seen
        self.each = each
        # Its places are counted by the mask; of its features `hear` has each alone.
        num = max(one[mask].shape[1] for one in each)
        rows = [torch.nn.functional.pad(one[mask], (0, num - one[mask].shape[1])) for one in each]
        return inputs | {"input_features": each[0]["input_features"], mask: torch.cat(rows)}

    @torch.no_grad()
    def answer(self, chat: list) -> dict:
        inputs = self.typed(self.inputs(chat))
        self.heard = None
        ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
        inputs.pop("token_type_ids", None)
        prompt = ids[0].tolist()
        config = self.model.config
        names = ["audio", "image", "video", "audio_start", "vision_start"]
        forbidden = {getattr(config, f"{name}_token_id", None) for name in names}
        tokens, logprobs = [], []
        for _ in range(NEW_TOKENS):
            logits = self.model(input_ids=ids, attention_mask=mask, **inputs).logits[0, -1]
            top = torch.log_softmax(logits.double(), -1).topk(2)
            if top.values[0] - top.values[1] < MIN_GAP:
                break
            tokens.append(int(top.indices[0]))
            logprobs.append(float(top.values[0]))
            if tokens[-1] in forbidden:
                break
            ids = torch.cat([ids, top.indices[:1][None]], 1)
            mask = torch.cat([mask, mask[:, -1:]], 1)
            if "mm_token_type_ids" in inputs:
                kinds = inputs["mm_token_type_ids"]
                inputs["mm_token_type_ids"] = torch.cat([kinds, torch.zeros_like(kinds[:, :1])], 1)
        return dict(prompt=prompt, tokens=tokens, logprobs=logprobs)

    def in_64_bits(self, chat: list) -> dict:
        classes = [WhisperFeatureExtractor, transformers.Qwen3ASRFeatureExtractor]
        plain = [cls._torch_extract_fbank_features for cls in classes]
        for cls in classes:
            cls._torch_extract_fbank_features = features_in_64_bits
        self.is_double = True
        self.model.double()
        try:
            return self.answer(chat)
        finally:
            self.is_double = False
            self.model.float()
            for cls, method in zip(classes, plain):
                cls._torch_extract_fbank_features = method


def messages(chat: list[tuple[str, list[str]]]) -> list[dict]:
    """In the place of those of hearing_families: of several turns."""
    return [
        {"role": role, "content": PLAIN_MESSAGES(parts)[0]["content"]} for role, parts in chat
    ]


def is_sound(part: str) -> bool:
    return len(part) == 3 and part[0] == "<" and part[1].isdigit()


def sounds_of(chat: list[tuple[str, list[str]]]) -> list[str]:
    return [part for _, parts in chat for part in parts if is_sound(part)]


def compared(expected: dict, row: dict) -> tuple[bool, str]:
    if row["prompt_token_ids"] != expected["prompt"]:
        ours, theirs = len(row["prompt_token_ids"]), len(expected["prompt"])
        return False, f"prompt: {ours} tokens, not {theirs}"
    output = row["outputs"][0]
    num = len(expected["tokens"])
    worst = 0.0
    for got, wanted in zip(output["logprobs"], expected["logprobs"]):
        worst = max(worst, abs(got["logprob"] - wanted))
    if output["token_ids"][:num] != expected["tokens"]:
        first = [output["logprobs"][0]["logprob"], expected["logprobs"][:1]]
        return False, f"tokens {output['token_ids']}, not {expected['tokens']}, first {first}"
    return worst < MAX_DISTANCE, f"{worst:.1e}"


def part_of_row(part: str, recordings: list[bytes], rng: random.Random) -> dict:
    if is_sound(part):
        kind = int(part[1])
        data = base64.b64encode(recordings[kind]).decode()
        return rng.choice([
            {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
            {"type": "audio", "audio": f"{kind}.wav"},
            {"type": "audio", "audio": f"data:audio/wav;base64,{data}"},
            {"type": "audio_url", "audio_url": {"url": f"{kind}.wav"}},
        ])
    if part.endswith(".png>"):
        return {"type": "image", "image": str(MEDIA / part[1:-1])}
    return {"type": "text", "text": part}


def messages_of_row(chat: list, recordings: list[bytes], rng: random.Random) -> list[dict]:
    return [
        {"role": role, "content": [part_of_row(part, recordings, rng) for part in parts]}
        for role, parts in chat
    ]


class Sweep:
    def __init__(self, asked):
        self.program, self.keep = asked.program, asked.keep
        self.counts: dict[str, dict[str, int]] = {}

    def run(self, model: Path, rows: Path, *flags) -> tuple[list[str], str, int]:
        command = [self.program, "run", "-q", "-m", model, "-i", rows, "--device", "cpu",
                   "--threads", 1, "--dtype", "float32", "--temperature", 0, "--max-tokens", NEW_TOKENS,
                   "--logprobs", 0, "--ignore-eos", "--allowed-local-media-path", MEDIA,
                   "--kv-cache-memory-bytes", "256MiB", *flags]
        command = [str(part) for part in command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return done.stdout.splitlines(), done.stderr, done.returncode

    def count(self, name: str, kind: str, num: int = 1):
        of = self.counts.setdefault(name, {})
        of[kind] = of.get(kind, 0) + num

    def say(self, *texts):
        print(*texts, flush=True)

    def config(self, name: str, seed: int):
        rng = random.Random(f"{name} {seed}")
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(self.keep) / f"{name}-{seed}" if self.keep else Path(folder)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                self.of_config(name, seed, rng, folder)
            except subprocess.TimeoutExpired:
                self.count(name, "HANG")
                self.say(name, seed, "HANG")

    def of_config(self, name: str, seed: int, rng: random.Random, folder: Path):
        family, model_folder = FAMILIES[name], folder / "model"
        tokens = generate_hearing.tokenizer(*family.special_tokens)
        family.base_processor = family.processor(tokens)
        config, heard = cases.config_of(name, family, rng)
        model = family.model_class(config)
        randomise(model, seed)
        model.tie_weights()
        model.save_pretrained(model_folder)
        weights = load_file(model_folder / "model.safetensors")
        save_file(weights, model_folder / "model.safetensors", {"format": "pt"})
        processor = family.base_processor
        processor.feature_extractor = heard
        processor.save_pretrained(model_folder)
        what = respell(type(config), model_folder, rng)
        more = {"experts_implementation": "eager"} if name == "qwen3_omni" else {}
        more["attn_implementation"] = "eager"
        model = family.model_class.from_pretrained(model_folder, **more)
        if family.has_published and rng.random() < 0.3:
            if not what:
                publish(family, model_folder, folder / "published")
                model_folder = folder / "published"
                what = ["published"]
        elif rng.random() < 0.3 and "omni" not in name:
            flat_preprocessor(model_folder)
            what.append("flat")
        lengths = [cases.num_samples(rng, heard, name) for _ in range(NUM_RECORDINGS)]
        recordings = [cases.recording(rng, length) for length in lengths]
        files = [wav(samples) for samples in recordings]
        for kind, data in enumerate(files):
            (folder / f"{kind}.wav").write_bytes(data)
        for rate in (8000, 44_100):
            (folder / f"{rate}.wav").write_bytes(wav(cases.recording(rng, rate // 2), rate))
        chats = [cases.chat(rng, name, NUM_RECORDINGS) for _ in range(NUM_CHATS)]
        oracle = Oracle(name, family, processor, model.float().eval(), recordings)
        rows = [json.dumps({"messages": messages_of_row(chat, files, rng)}) for chat in chats]
        rates = [
            json.dumps({"messages": [{"role": "user", "content": [
                {"type": "audio", "audio": f"{rate}.wav"}, {"type": "text", "text": "Hm?"}
            ]}]})
            for rate in (8000, 44_100)
        ]
        (folder / "rows.jsonl").write_text("\n".join([*rows, *rates]) + "\n")
        lines, said, code = self.run(model_folder, folder / "rows.jsonl")
        audio = config.audio_config.to_dict()
        act = audio.get("activation_function", audio.get("hidden_act"))
        turned = (audio.get("rope_parameters") or {}).get("partial_rotary_factor", 0)
        turned *= audio.get("hidden_size", 0) / audio.get("num_attention_heads", 1)
        title = f"{name} {seed} {act} {turned or ''} [{' '.join(what)}]"
        if code not in (0, 3):
            kind = "refused (model)" if code in (2, 7) else "CRASH"
            self.count(name, kind)
            self.say(title, kind, code, " ".join(said.split())[:400])
            return
        self.of_rows(title, name, oracle, list(zip(chats, lines)), lengths)
        for line in lines[len(rows):]:
            if "error" in json.loads(line):
                self.say(title, "RATES", line[-300:])
                self.count(name, "RATES")
        self.of_bytes(title, name, model_folder, folder, lines)

    def of_rows(self, title: str, name: str, oracle: Oracle, rows: list, lengths: list[int]):
        found: dict[str, int] = {}
        for chat, line in rows:
            row = json.loads(line)
            try:
                expected = oracle.answer(chat)
            except Exception as error:
                expected = None
                refusal = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            about = f"{chat} {[lengths[int(sound[1])] for sound in sounds_of(chat)]}"
            if "error" in row:
                text = re.sub(r"[0-9.]+", "N", row["error"]["message"])[:100]
                kind = f"both refuse: {text}" if expected is None else f"refused: {text}"
            elif expected is None:
                kind = "ORACLE"
                self.say(title, kind, about, refusal)
            else:
                is_equal, text = compared(expected, row)
                kind = "ok"
                if not is_equal:
                    is_equal, text64 = compared(oracle.in_64_bits(chat), row)
                    kind = "noise" if is_equal else "DIFF"
                    self.say(title, kind, about, text, "| in 64 bits:", text64)
            found[kind] = found.get(kind, 0) + 1
            self.count(name, kind)
        self.say(title, ", ".join(f"{num} {kind}" for kind, num in sorted(found.items())))

    def of_bytes(self, title: str, name: str, model: Path, folder: Path, lines: list[str]):
        rows = folder / "rows.jsonl"
        texts = rows.read_text().splitlines()
        small = ["--max-num-batched-tokens", 8, "--no-enable-prefix-caching"]
        for what, flags in [
            ("eight", small), ("two", ["--max-num-seqs", 2, "--mm-processor-cache-gb", 0]),
        ]:
            again, said, code = self.run(model, rows, *flags)
            if again != lines:
                bad = [n for n, pair in enumerate(zip(again, lines)) if pair[0] != pair[1]]
                self.count(name, "BYTES")
                self.say(title, "BYTES", what, code, bad, " ".join(said.split())[-300:])
        for index, text in enumerate(texts):
            one = folder / "one.jsonl"
            one.write_text(text + "\n")
            again, said, code = self.run(model, one)
            if again != lines[index:index + 1]:
                self.count(name, "BYTES")
                self.say(title, "BYTES alone", index, code, " ".join(said.split())[-300:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num", type=int, default=5)
    parser.add_argument("--keep", help="folder for models and rows")
    parser.add_argument("--program", default=ROOT / "target/debug/vllm-batch")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    sweep = Sweep(asked)
    for seed in range(asked.seed, asked.seed + asked.num):
        for name in asked.families or FAMILIES:
            sweep.config(name, seed)
    bad = 0
    for name, counts in sweep.counts.items():
        print(f"{name:16}", ", ".join(f"{num} {kind}" for kind, num in sorted(counts.items())))
        bad += sum(num for kind, num in counts.items() if kind.isupper())
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
