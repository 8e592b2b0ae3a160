"""Random sizes of models that hear, and random recordings, for sweep_hearing.py."""

import random

import numpy as np
import transformers

from hearing_families import RATE

ACTIVATIONS = ["gelu", "gelu", "gelu", "silu", "quick_gelu", "gelu_pytorch_tanh", "gelu_new"]
WORDS = "What is this? First, then later; both: 12 é 音 a song of beats.\nSay <it> {now}!".split(" ")
CONTEXT = 8192


def text_part(rng: random.Random, kind: str, vocab: int, makes_heads: bool) -> dict:
    """A text part of this class; its heads make its width, or have a key."""
    num_kv = rng.choice([1, 2, 3])
    heads, head_dim = num_kv * rng.choice([1, 2, 3, 4]), rng.choice([6, 8, 10, 12, 16, 20])
    part = dict(
        model_type=kind, vocab_size=vocab + rng.choice([0, 0, 1, 7, 30]),
        hidden_size=heads * (head_dim if makes_heads else rng.choice([6, 7, 8, 12, 14])),
        intermediate_size=rng.choice([20, 33, 48, 64, 96]), num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads, num_key_value_heads=num_kv, max_position_embeddings=CONTEXT,
        hidden_act=rng.choice(["silu", "silu", "silu", "gelu", "gelu_pytorch_tanh"]),
        rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3]), bos_token_id=0, eos_token_id=2,
        rope_parameters={
            "rope_theta": rng.choice([1e4, 1e5, 1e6]), "rope_type": "default",
        },
    )
    if not makes_heads:
        part["head_dim"] = head_dim
    if kind in ("llama", "qwen3") and rng.random() < 0.2:
        part["attention_bias"] = True
    if kind == "llama" and rng.random() < 0.2:
        part["mlp_bias"] = True
    if kind in ("llama", "qwen2") and rng.random() < 0.2:
        part["rope_parameters"] |= {"rope_type": "linear", "factor": 2.0}
    if kind == "llama" and rng.random() < 0.15:
        part["rope_parameters"] |= {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    if kind == "qwen2" and rng.random() < 0.15:
        part |= dict(use_sliding_window=True, sliding_window=20, max_window_layers=0)
    if "omni" in kind:
        half = head_dim // 2
        first = rng.randint(1, half - 2)
        second = rng.randint(1, half - first - 1)
        section = [first, second, half - first - second]
        if "moe" in kind:
            # Interleaved: the second and the third axis take every third number.
            third = rng.randint(1, max(1, half // 3))
            section = [half - 2 * third, third, third]
            part["rope_parameters"]["mrope_interleaved"] = True
        part["rope_parameters"]["mrope_section"] = section
    return part


def encoder(rng: random.Random) -> dict:
    """Keys of an encoder, under Whisper's names."""
    heads, head_dim = rng.choice([1, 2, 3]), rng.choice([4, 6, 8, 10, 16, 20])
    return dict(
        num_mel_bins=rng.choice([8, 13, 16, 20, 40, 80, 128]), encoder_layers=rng.randint(1, 3),
        encoder_attention_heads=heads, encoder_ffn_dim=rng.choice([12, 30, 48, 96]),
        d_model=heads * head_dim, activation_function=rng.choice(ACTIVATIONS),
    )


WHISPER = {
    "encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size", "d_model": "hidden_size",
}


def usual_activation(rng: random.Random, audio: dict):
    """Mostly the one that convolutions over squares have whatever the config says."""
    if rng.random() < 0.85:
        audio["activation_function"] = "gelu"


def renamed(keys: dict, names: dict) -> dict:
    return {names.get(key, key): value for key, value in keys.items()}


def extractor(rng: random.Random, mels: int, seconds: list[int], **more):
    """A feature extractor, whose hops fill its chunks."""
    hop = rng.choice([160, 160, 160, 200, 320])
    return transformers.WhisperFeatureExtractor(
        feature_size=mels, chunk_length=rng.choice(seconds), hop_length=hop,
        n_fft=rng.choice([400, 400, 400, 512, 320]), **more,
    )


def config_of(name: str, family, rng: random.Random):
    """A config, and the feature extractor for it, of a family whose tokenizer is made."""
    base = family.config(family.base_processor)
    dropped = ("text_config", "audio_config", "vision_config", "transformers_version")
    top = {key: value for key, value in base.to_dict().items() if key not in dropped}
    for key in ("architectures", "dtype", "model_type"):
        top.pop(key, None)
    audio, vocab = encoder(rng), len(family.base_processor.tokenizer)
    mels, parts = audio["num_mel_bins"], {}
    if name in ("qwen2_audio", "audio_flamingo3"):
        text = text_part(rng, "qwen2", vocab, True)
        text["tie_word_embeddings"] = rng.random() < 0.3
        heard = extractor(rng, mels, [1, 2, 3, 3, 30], return_attention_mask=True)
        while name == "audio_flamingo3" and heard.nb_max_frames // 2 % 2:
            # Windows of an odd number of states are refused by transformers.
            heard = extractor(rng, mels, [1, 2, 3], return_attention_mask=True)
        audio["max_source_positions"] = heard.nb_max_frames // 2
        if name == "audio_flamingo3":
            audio = renamed(audio, WHISPER)
            top["projector_bias"] = rng.random() < 0.5
            top["projector_hidden_act"] = rng.choice(ACTIVATIONS)
    elif name == "voxtral":
        text = text_part(rng, "llama", vocab, False)
        text["tie_word_embeddings"] = rng.random() < 0.3
        group = rng.choice([1, 2, 4, 4, 5])
        audio["encoder_ffn_dim"] = group * audio["d_model"]
        heard = extractor(rng, mels, [1, 2, 3, 4, 30])
        while heard.nb_max_frames // 2 % group:
            heard = extractor(rng, mels, [1, 2, 3, 4, 30])
        audio["max_source_positions"] = heard.nb_max_frames // 2
        audio = renamed(audio, WHISPER)
        top["projector_hidden_act"] = rng.choice(ACTIVATIONS)
        family.heard = heard
    elif name == "glm_asr":
        text = text_part(rng, "llama", vocab, rng.random() < 0.5)
        top["tie_word_embeddings"] = rng.random() < 0.7
        audio["encoder_ffn_dim"] = 4 * audio["d_model"]
        heard = extractor(rng, mels, [2, 4, 4, 30])
        while heard.nb_max_frames // 2 % 4:
            heard = extractor(rng, mels, [2, 4, 4, 30])
        audio = renamed(audio, WHISPER | {"activation_function": "hidden_act"})
        audio["max_position_embeddings"] = heard.nb_max_frames // 2
        audio["rope_parameters"] = {
            "rope_type": "default", "rope_theta": rng.choice([1e4, 1e3]),
            "partial_rotary_factor": rng.choice([0.5, 0.5, 0.25, 1.0]),
        }
        turned = audio["hidden_size"] // audio["num_attention_heads"]
        turned *= audio["rope_parameters"]["partial_rotary_factor"]
        if turned % 2 and rng.random() < 0.85:
            # An odd number of turned values is one more in transformers.
            audio["rope_parameters"]["partial_rotary_factor"] = 1.0
        top["projector_hidden_act"] = rng.choice(ACTIVATIONS)
    elif name == "qwen3_asr":
        text = text_part(rng, "qwen3", vocab, False)
        top["tie_word_embeddings"] = text["tie_word_embeddings"] = rng.random() < 0.7
        usual_activation(rng, audio)
        audio |= dict(
            n_window=50, n_window_infer=rng.choice([100, 200, 300, 800]),
            output_dim=text["hidden_size"], downsample_hidden_size=rng.choice([1, 3, 6, 16]),
        )
        heard = transformers.Qwen3ASRFeatureExtractor(feature_size=mels)
    elif name == "qwen2_5_omni":
        text = text_part(rng, "qwen2_5_omni_text", vocab, True)
        top["tie_word_embeddings"] = rng.random() < 0.2
        heard = transformers.WhisperFeatureExtractor(
            feature_size=mels, chunk_length=rng.choice([1, 3, 3, 5, 5, 30, 30, 300]),
            return_attention_mask=True,
        )
        audio |= dict(
            max_source_positions=rng.choice([100, 1500]), output_dim=text["hidden_size"],
            n_window=rng.choice([2, 6, 10, 20, 50, 100]),
        )
        sees = base.vision_config.to_dict() | dict(
            out_hidden_size=text["hidden_size"], rope_parameters=None,
            depth=rng.choice([1, 2, 3]), hidden_size=rng.choice([8, 16, 24, 40]),
            intermediate_size=rng.choice([10, 24, 33]),
        )
        sees["fullatt_block_indexes"] = [index for index in range(sees["depth"]) if index != 1]
        parts["vision_config"] = sees
    else:
        text = text_part(rng, "qwen3_omni_moe_text", vocab, False)
        text |= dict(
            num_experts=rng.choice([2, 4, 7, 8]), moe_intermediate_size=rng.choice([8, 12, 33]),
            norm_topk_prob=rng.random() < 0.95, decoder_sparse_step=rng.choice([1, 1, 2]),
            mlp_only_layers=rng.choice([[], [], [0]]),
        )
        text["num_experts_per_tok"] = rng.randint(1, text["num_experts"])
        top["tie_word_embeddings"] = rng.random() < 0.2
        heard = transformers.WhisperFeatureExtractor(
            feature_size=mels, chunk_length=3, return_attention_mask=True
        )
        usual_activation(rng, audio)
        audio |= dict(
            max_source_positions=50, n_window=50, n_window_infer=rng.choice([100, 200, 300, 800]),
            output_dim=text["hidden_size"], downsample_hidden_size=rng.choice([1, 3, 6, 16]),
        )
        parts["vision_config"] = base.vision_config.to_dict() | dict(
            out_hidden_size=text["hidden_size"], rope_parameters=None,
            depth=2, hidden_size=rng.choice([8, 16, 24, 40]),
            intermediate_size=rng.choice([10, 24, 33]),
            deepstack_visual_indexes=rng.choice([[0], [0, 1], [1]]),
        )
        if len(parts["vision_config"]["deepstack_visual_indexes"]) > text["num_hidden_layers"]:
            parts["vision_config"]["deepstack_visual_indexes"] = [0]
    cls = type(base)
    return cls(text_config=text, audio_config=audio, **parts, **top), heard


def num_samples(rng: random.Random, heard, name: str) -> int:
    """A length: any, or one at an edge."""
    hop, chunk = heard.hop_length, heard.n_samples
    if name in ("qwen3_asr", "qwen3_omni"):
        chunk = RATE
    longest = 1 if name in ("qwen2_audio", "qwen2_5_omni") else 3
    short = [1, 2, 160, 161, 199, 200, 201, 202, 320, 321, 322, 399, 400, 401, 641, 1120, 1121]
    edges = [rng.choice(short), 8000, 7999, 8001]
    edges += [hop * rng.randint(1, 90) + rng.choice([-1, 0, 1])]
    edges += [chunk * rng.randint(1, longest) + rng.choice([-1, 0, 0, 1])]
    edges += [8 * 160 * rng.randint(1, 30) + rng.choice([-1, 0, 1])]
    kinds = [rng.randint(1, chunk), rng.randint(1, chunk * longest), rng.choice(edges)]
    return min(rng.choice([*kinds, rng.choice(edges)]), 40 * RATE)


def recording(rng: random.Random, length: int) -> np.ndarray:
    """16-bit samples."""
    at = np.arange(length, dtype=np.float64)
    noise = np.random.default_rng(rng.randint(0, 1 << 30)).standard_normal(length)
    period = rng.choice([7, 40, 113, 900])
    kind = rng.choice(["noise", "noise", "sweep", "sweep", "silence", "square", "quiet", "click"])
    if kind == "silence":
        values = 0 * at
    elif kind == "square":
        values = np.where(at // period % 2 == 0, 32767, -32768)
    elif kind == "quiet":
        values = np.sign(noise) * (np.abs(noise) > 1)
    elif kind == "click":
        values = 20_000 * (at == length // 2)
    elif kind == "sweep":
        values = 9000 * np.sin(at * at / (period * 977)) + 40 * noise
    else:
        values = 5000 * noise
    return np.clip(np.round(values), -32768, 32767).astype(np.int16)


def words(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5)))


def parts(rng: random.Random, name: str, sounds: list[str]) -> list[str]:
    """Of a user's turn: texts, these recordings, and for some an image."""
    parts = [*sounds, *(words(rng) for _ in range(rng.choice([0, 1, 1, 2])))]
    if "omni" in name and rng.random() < 0.3:
        parts.append(rng.choice(["<wide2.png>", "<thin.png>", "<rgb.png>"]))
    rng.shuffle(parts)
    return parts or [words(rng)]


def chat(rng: random.Random, name: str, num_recordings: int) -> list[tuple[str, list[str]]]:
    """Messages: of a user, with recordings among texts, and some before it."""
    takes_one = name in ("audio_flamingo3", "glm_asr")
    num = rng.choice([0, *[1] * 8]) if takes_one else rng.choice([0, 1, 1, 1, 1, 1, 2, 2, 3])
    sounds = [f"<{rng.randrange(num_recordings)}>" for _ in range(num)]
    chat = []
    if rng.random() < 0.2:
        chat.append(("system", [words(rng)]))
    if rng.random() < 0.25:
        early = rng.randint(0, len(sounds))
        chat.append(("user", parts(rng, name, sounds[:early])))
        chat.append(("assistant", [words(rng)]))
        sounds = sounds[early:]
    return [*chat, ("user", parts(rng, name, sounds))]
