"""Tiny models of generate_hearing.py, family after family."""

import json
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import (
    AudioFlamingo3Config,
    AudioFlamingo3ForConditionalGeneration,
    AudioFlamingo3Processor,
    GlmAsrConfig,
    GlmAsrForConditionalGeneration,
    GlmAsrProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
    Qwen3OmniMoeProcessor,
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
    VoxtralProcessor,
    WhisperFeatureExtractor,
)

MEDIA = Path(__file__).parent / "media"
RATE = 16_000
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN2 = dict(
    model_type="qwen2", hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
)


def samples(kind: int) -> np.ndarray:
    """16-bit samples: a sweep and beats; the last is exactly a chunk of two seconds."""
    length = [12_000, 16_000, 5_000, 36_000, 161, 32_000][kind]
    at = np.arange(length, dtype=np.int64)
    sweep = (at * at * (kind + 1) // 977 + at * 13) % 2001 - 1000
    beat = np.where((at // (400 + 150 * kind)) % 2 == 0, 9, 2)
    return (sweep * beat).astype(np.int16)


def recording(kind: int) -> np.ndarray:
    return samples(kind).astype(np.float32) / 32768.0


def messages(parts: list[str]) -> list[dict]:
    content = []
    for part in parts:
        if re.fullmatch("<[0-9]>", part):
            content.append({"type": "audio", "audio": recording(int(part[1:-1]))})
        elif re.fullmatch(r"<[a-z0-9_]+\.png>", part):
            content.append({"type": "image", "image": Image.open(MEDIA / part[1:-1])})
        else:
            content.append({"type": "text", "text": part})
    return [{"role": "user", "content": content}]


def flat_preprocessor(folder: Path):
    """Writes the feature extractor of processor_config.json as repositories have it."""
    path = folder / "processor_config.json"
    processor = json.loads(path.read_text())
    path.unlink()
    extractor = {**processor["feature_extractor"], "processor_class": processor["processor_class"]}
    extractor["n_samples"] = extractor["chunk_length"] * RATE
    extractor["nb_max_frames"] = extractor["n_samples"] // extractor["hop_length"]
    write_json(folder / "preprocessor_config.json", dict(sorted(extractor.items())))


def template_in_tokenizer(folder: Path):
    path = folder / "chat_template.jinja"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = path.read_text()
    path.unlink()
    write_json(folder / "tokenizer_config.json", config)


def write_json(path: Path, value: dict):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def old_spelling(config: dict, without: list[str]) -> dict:
    """rope_theta and torch_dtype as before 5, and without keys that have their defaults."""
    config = {key: value for key, value in config.items() if key not in without}
    if "rope_parameters" in config:
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    return config


class Family:
    cases: list[str]
    special_tokens: tuple[list[str], list[str]]
    has_published = True
    is_read_as_published = True

    def inputs(self, processor, parts: list[str]) -> dict:
        inputs = processor.apply_chat_template(
            messages(parts), add_generation_prompt=True, tokenize=True, return_dict=True,
            return_tensors="pt",
        )
        return dict(inputs)

    def processor_of(self, folder: Path):
        return self.processor_class.from_pretrained(folder)

    @staticmethod
    def is_norm(name: str) -> bool:
        return "norm" in name or ".ln_" in name

    def published_weights(self, weights: dict) -> dict:
        return weights

    def fast_tokenizer(self, tokens: Tokenizer, end: str, **special) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast(
            tokenizer_object=tokens, eos_token=end, pad_token=self.special_tokens[0][0], **special
        )


class Qwen2Audio(Family):
    cases = ["one", "text", "two", "alone", "twice", "short", "behind"]
    special_tokens = (CHATML, ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    model_class = Qwen2AudioForConditionalGeneration
    processor_class = Qwen2AudioProcessor

    def processor(self, tokens: Tokenizer):
        return Qwen2AudioProcessor(
            WhisperFeatureExtractor(feature_size=16, chunk_length=1, return_attention_mask=True),
            self.fast_tokenizer(tokens, "<|im_end|>"),
        )

    def config(self, processor):
        tokenizer = processor.tokenizer
        return Qwen2AudioConfig(
            text_config=dict(
                **QWEN2, vocab_size=len(tokenizer), rms_norm_eps=1e-5, bos_token_id=0,
                eos_token_id=2,
            ),
            audio_config=dict(
                model_type="qwen2_audio_encoder", num_mel_bins=16, encoder_layers=2,
                encoder_attention_heads=2, encoder_ffn_dim=48, d_model=24, max_source_positions=50,
            ),
            audio_token_index=processor.audio_token_id,
        )

    def published_config(self, config: dict) -> dict:
        text = old_spelling(config["text_config"], [
            "attention_dropout", "hidden_act", "initializer_range", "layer_types",
            "max_window_layers", "pad_token_id", "tie_word_embeddings", "use_cache",
            "use_sliding_window",
        ])
        text |= {"sliding_window": 32768, "use_mrope": False, "torch_dtype": "float32"}
        audio = {**config["audio_config"], "init_std": 0.02}
        del audio["initializer_range"]
        return {
            "architectures": config["architectures"], "audio_config": audio,
            "audio_token_index": config["audio_token_index"], "ignore_index": -100,
            "model_type": "qwen2_audio", "text_config": text, "torch_dtype": "float32",
            "transformers_version": "4.38.1", "vocab_size": text["vocab_size"],
        }

    def published_processor(self, folder: Path):
        """With the template of before 4.50, which takes only a part that has a recording's key."""
        flat_preprocessor(folder)
        path = folder / "chat_template.jinja"
        path.write_text(path.read_text().replace(" or content['type'] == 'audio'", ""))
        template_in_tokenizer(folder)


class AudioFlamingo3(Family):
    """A recording is cut into windows of a second; a sample has one recording."""

    cases = ["one", "text", "alone", "long", "short", "behind"]
    special_tokens = (CHATML, ["<sound>"])
    model_class = AudioFlamingo3ForConditionalGeneration
    processor_class = AudioFlamingo3Processor
    # The published folder is one that transformers 5 has saved.
    has_published = is_read_as_published = False
    # One mark for all recordings of a message, before its texts.
    template = """\
{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages if message['content'] is not none -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- set seen = namespace(audio=false, text='') -%}
        {%- for part in message['content'] -%}
            {%- if part.get('type') == 'audio' or 'audio' in part -%}
                {%- set seen.audio = true -%}
            {%- elif 'text' in part -%}
                {%- set seen.text = seen.text + part['text'] -%}
            {%- endif -%}
        {%- endfor -%}
        {{- ('<sound>' if seen.audio else '') + seen.text -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

    def processor(self, tokens: Tokenizer):
        return AudioFlamingo3Processor(
            WhisperFeatureExtractor(feature_size=20, chunk_length=1, return_attention_mask=True),
            self.fast_tokenizer(tokens, "<|im_end|>"), chat_template=self.template,
        )

    def config(self, processor):
        return AudioFlamingo3Config(
            text_config=dict(
                **QWEN2, vocab_size=len(processor.tokenizer), bos_token_id=0, eos_token_id=2
            ),
            audio_config=dict(
                model_type="audioflamingo3_encoder", num_mel_bins=20, num_hidden_layers=2,
                num_attention_heads=2, intermediate_size=48, hidden_size=24,
                max_source_positions=50,
            ),
            audio_token_id=processor.audio_token_id,
        )


TEKKEN = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]", *(f"<SPECIAL_{id}>" for id in range(20, 24)), "[AUDIO]", "[BEGIN_AUDIO]",
    *(f"<SPECIAL_{id}>" for id in range(26, 34)), "[TRANSCRIBE]",
]


class Voxtral(Family):
    """The prompt is that of mistral-common's InstructTokenizerV7, written by hand.

    A chunk has two seconds, as four positions make one embedding.
    """

    cases = ["one", "text", "two", "alone", "twice", "long", "short", "chunk"]
    special_tokens = (TEKKEN, [])
    model_class = VoxtralForConditionalGeneration
    seconds = 2
    template = """\
{{- '<s>' -}}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}{{- '[SYSTEM_PROMPT]' -}}{%- endif -%}
    {%- if message['role'] == 'user' -%}{{- '[INST]' -}}{%- endif -%}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'text' -%}
                {{- part['text'] -}}
            {%- elif part['type'] == 'audio' or 'audio' in part -%}
                {{- '[BEGIN_AUDIO][AUDIO]' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {%- if message['role'] == 'system' -%}{{- '[/SYSTEM_PROMPT]' -}}{%- endif -%}
    {%- if message['role'] == 'user' -%}{{- '[/INST]' -}}{%- endif -%}
    {%- if message['role'] == 'assistant' -%}{{- '</s>' -}}{%- endif -%}
{%- endfor -%}
"""

    def processor(self, tokens: Tokenizer):
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokens, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
            pad_token="<pad>",
        )
        tokenizer.chat_template = self.template
        return VoxtralProcessor(
            WhisperFeatureExtractor(feature_size=16, chunk_length=self.seconds), tokenizer
        )

    def processor_of(self, folder: Path):
        return VoxtralProcessor(
            WhisperFeatureExtractor.from_pretrained(folder),
            PreTrainedTokenizerFast.from_pretrained(folder),
        )

    def inputs(self, processor, parts: list[str]) -> dict:
        tokenizer, chunk = processor.tokenizer, self.seconds * RATE
        ids, sounds = [TEKKEN.index("<s>"), TEKKEN.index("[INST]")], []
        for part in messages(parts)[0]["content"]:
            if part["type"] == "text":
                ids += tokenizer.encode(part["text"], add_special_tokens=False)
                continue
            sounds.append(part["audio"])
            count = -(-len(part["audio"]) // chunk) * self.seconds * 50 // 4
            ids += [TEKKEN.index("[BEGIN_AUDIO]"), *[processor.audio_token_id] * count]
        ids.append(TEKKEN.index("[/INST]"))
        text = tokenizer.apply_chat_template(messages(parts), tokenize=False)
        mark = processor.audio_token_id
        once = [id for at, id in enumerate(ids) if id != mark or ids[at - 1] != mark]
        assert tokenizer.encode(text, add_special_tokens=False) == once
        ids = torch.tensor([ids])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if sounds:
            inputs["input_features"] = processor._retrieve_input_features(
                sounds, 2 * self.seconds * 50, sampling_rate=RATE, padding=True, truncation=False,
                pad_to_multiple_of=chunk, return_tensors="pt",
            )
        return inputs

    def config(self, processor):
        return VoxtralConfig(
            text_config=dict(
                model_type="llama", vocab_size=len(processor.tokenizer), hidden_size=32,
                intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=12, max_position_embeddings=512,
                rope_theta=1_000_000.0, bos_token_id=1, eos_token_id=2,
            ),
            audio_config=dict(
                model_type="voxtral_encoder", num_mel_bins=16, num_hidden_layers=2,
                num_attention_heads=2, intermediate_size=96, hidden_size=24,
                max_source_positions=50 * self.seconds,
            ),
            audio_token_id=processor.audio_token_id,
        )

    def published_config(self, config: dict) -> dict:
        text = old_spelling(config["text_config"], ["layer_types", "pad_token_id"])
        text |= {"rope_scaling": None, "sliding_window": None}
        audio = config["audio_config"]
        heads = audio["num_attention_heads"]
        audio |= {"num_key_value_heads": heads, "head_dim": audio["hidden_size"] // heads}
        return {
            "architectures": config["architectures"], "audio_config": audio,
            "audio_token_id": config["audio_token_id"], "hidden_size": text["hidden_size"],
            "model_type": "voxtral", "projector_hidden_act": "gelu", "text_config": text,
            "torch_dtype": "float32", "transformers_version": "4.54.0.dev0",
            "vocab_size": text["vocab_size"],
        }

    def published_processor(self, folder: Path):
        flat_preprocessor(folder)


class GlmAsr(Family):
    """Windows have two seconds, as four positions make one embedding."""

    cases = ["one", "text", "alone", "long", "short", "chunk", "behind"]
    special_tokens = (
        ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"],
        ["<|pad|>", "<|begin_of_audio|>", "<|end_of_audio|>"],
    )
    model_class = GlmAsrForConditionalGeneration
    processor_class = GlmAsrProcessor
    # The published folder is one that transformers 5 has saved.
    has_published = is_read_as_published = False
    # What is behind a recording begins with the user's mark once more, and ends are trimmed.
    template = """\
{%- for message in messages -%}
    {%- set all = namespace(text='') -%}
    {%- if message['content'] is string -%}
        {%- set all.text = message['content'] -%}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part is string -%}
                {%- set all.text = all.text + part -%}
            {%- elif part['type'] == 'text' -%}
                {%- set all.text = all.text + part['text'] -%}
            {%- elif part['type'] == 'audio' or 'audio' in part -%}
                {%- set heard = '<|begin_of_audio|><|pad|><|end_of_audio|><|user|>\\n' -%}
                {%- set all.text = all.text + heard -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|' + message['role'] + '|>\\n' + all.text | trim -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

    def processor(self, tokens: Tokenizer):
        return GlmAsrProcessor(
            WhisperFeatureExtractor(feature_size=16, chunk_length=2),
            self.fast_tokenizer(tokens, "<|endoftext|>"), chat_template=self.template,
        )

    def config(self, processor):
        return GlmAsrConfig(
            text_config=dict(
                model_type="llama", vocab_size=len(processor.tokenizer), hidden_size=32,
                intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=512, eos_token_id=0,
            ),
            audio_config=dict(
                model_type="glmasr_encoder", num_mel_bins=16, num_hidden_layers=2,
                num_attention_heads=2, intermediate_size=96, hidden_size=24,
                max_position_embeddings=100,
            ),
            audio_token_id=processor.audio_token_id,
        )


class Qwen3Asr(Family):
    """Chunks of a second, attended two at a time; the template leaves texts of a user out."""

    cases = ["one", "text", "alone", "long", "short", "behind"]
    special_tokens = (
        CHATML,
        ["<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<asr_text>", "<timestamp>"],
    )
    model_class = Qwen3ASRForConditionalGeneration
    processor_class = Qwen3ASRProcessor
    is_read_as_published = False
    template = """\
{%- set all = namespace(system='', audio='') -%}
{%- for message in messages -%}
    {%- if message['content'] is string -%}
        {%- if message['role'] == 'system' -%}
            {%- set all.system = all.system + message['content'] -%}
        {%- endif -%}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'audio' or 'audio' in part or 'audio_url' in part -%}
                {%- set all.audio = all.audio + '<|audio_start|><|audio_pad|><|audio_end|>' -%}
            {%- elif message['role'] == 'system' and 'text' in part -%}
                {%- set all.system = all.system + part['text'] -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>system\\n' + all.system + '<|im_end|>\\n' -}}
{{- '<|im_start|>user\\n' + all.audio + '<|im_end|>\\n' -}}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

    def processor(self, tokens: Tokenizer):
        marks = {
            "audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        }
        return Qwen3ASRProcessor(
            Qwen3ASRFeatureExtractor(feature_size=20),
            self.fast_tokenizer(tokens, "<|im_end|>", extra_special_tokens=marks),
            chat_template=self.template,
        )

    def inputs(self, processor, parts: list[str]) -> dict:
        if any(part["type"] == "audio" for part in messages(parts)[0]["content"]):
            return super().inputs(processor, parts)
        text = processor.apply_chat_template(
            messages(parts), add_generation_prompt=True, tokenize=False
        )
        return dict(processor.tokenizer(text, return_tensors="pt"))

    def config(self, processor):
        return Qwen3ASRConfig(
            text_config=dict(
                model_type="qwen3", vocab_size=len(processor.tokenizer), hidden_size=32,
                intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=12, max_position_embeddings=512,
                rope_parameters={"rope_theta": 1_000_000.0, "rope_type": "default"},
                tie_word_embeddings=True,
            ),
            audio_config=dict(
                model_type="qwen3_asr_encoder", num_mel_bins=20, encoder_layers=2,
                encoder_attention_heads=2, encoder_ffn_dim=48, d_model=24, n_window=50,
                n_window_infer=200, output_dim=32, downsample_hidden_size=6,
            ),
            audio_token_id=processor.audio_token_id, pad_token_id=2, eos_token_id=[0, 2],
            timestamp_token_id=len(processor.tokenizer) - 1,
        )

    def published_config(self, config: dict) -> dict:
        """As the repositories without `-hf`: all of it in `thinker_config`."""
        text = old_spelling(config["text_config"], ["layer_types"])
        text["rope_scaling"] = {
            "interleaved": True, "mrope_interleaved": True, "mrope_section": [2, 2, 2],
            "rope_type": "default", "type": "default",
        }
        text |= {"decoder_sparse_step": 1, "norm_topk_prob": True, "num_experts": 128}
        audio = {**config["audio_config"], "conv_chunksize": 500, "max_source_positions": 1500}
        del audio["max_position_embeddings"]
        audio["model_type"] = "qwen3_asr_audio_encoder"
        thinker = {
            "audio_config": audio, "audio_end_token_id": config["audio_token_id"] - 1,
            "audio_start_token_id": config["audio_token_id"] - 2,
            "audio_token_id": config["audio_token_id"], "dtype": "float32",
            "initializer_range": 0.02, "model_type": "qwen3_asr_thinker", "text_config": text,
        }
        return {
            "architectures": config["architectures"], "model_type": "qwen3_asr",
            "support_languages": ["Chinese", "English"], "thinker_config": thinker,
            "transformers_version": "4.57.6",
        }

    def published_weights(self, weights: dict) -> dict:
        """The projector is in the tower, and what is tied is stored twice."""
        renamed = {}
        for name, weight in weights.items():
            for new, old in [
                ("model.multi_modal_projector.linear_1", "thinker.audio_tower.proj1"),
                ("model.multi_modal_projector.linear_2", "thinker.audio_tower.proj2"),
                ("model.audio_tower", "thinker.audio_tower"),
                ("model.language_model", "thinker.model"),
            ]:
                name = name.replace(new, old)
            renamed[name] = weight
        renamed["thinker.lm_head.weight"] = renamed["thinker.model.embed_tokens.weight"].clone()
        return renamed

    def published_processor(self, folder: Path):
        flat_preprocessor(folder)
        path = folder / "preprocessor_config.json"
        extractor = json.loads(path.read_text())
        for key in ["min_length", "n_window"]:
            extractor.pop(key, None)
        write_json(path, {**extractor, "feature_extractor_type": "WhisperFeatureExtractor"})
        path = folder / "chat_template.jinja"
        write_json(folder / "chat_template.json", {"chat_template": path.read_text()})
        path.unlink()


class Qwen25Omni(Family):
    """The thinker: sounds in chunks of 20 frames, and images as Qwen2.5-VL sees them."""

    cases = ["one", "text", "two", "alone", "twice", "long", "short", "behind", "seen"]
    special_tokens = (
        CHATML,
        ["<|AUDIO|>", "<|IMAGE|>", "<|VIDEO|>", "<|audio_bos|>", "<|audio_eos|>", "<|vision_bos|>",
         "<|vision_eos|>"],
    )
    model_class = Qwen2_5OmniThinkerForConditionalGeneration
    processor_class = Qwen2_5OmniProcessor
    template = """\
{%- for message in messages -%}
    {%- if loop.first and message['role'] != 'system' -%}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
    {%- endif -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
                {{- '<|vision_bos|><|IMAGE|><|vision_eos|>' -}}
            {%- elif part['type'] == 'audio' or 'audio' in part or 'audio_url' in part -%}
                {{- '<|audio_bos|><|AUDIO|><|audio_eos|>' -}}
            {%- elif 'text' in part -%}
                {{- part['text'] -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

    def processor(self, tokens: Tokenizer):
        marks = {
            "audio_token": "<|AUDIO|>", "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>",
            "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
            "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
        }
        sizes = dict(
            patch_size=8, merge_size=2, temporal_patch_size=2,
            size={"shortest_edge": 2048, "longest_edge": 8192},
        )
        return Qwen2_5OmniProcessor(
            Qwen2VLImageProcessor(**sizes), Qwen2VLVideoProcessor(**sizes),
            WhisperFeatureExtractor(feature_size=16, chunk_length=3, return_attention_mask=True),
            self.fast_tokenizer(tokens, "<|im_end|>", extra_special_tokens=marks),
            chat_template=self.template,
        )

    def config(self, processor):
        id_of = processor.tokenizer.convert_tokens_to_ids
        text = dict(
            QWEN2, model_type="qwen2_5_omni_text", vocab_size=len(processor.tokenizer),
            rope_parameters={
                "mrope_section": [2, 1, 1], "rope_theta": 1_000_000.0, "rope_type": "default"
            },
        )
        return Qwen2_5OmniThinkerConfig(
            text_config=text,
            audio_config=dict(
                model_type="qwen2_5_omni_audio_encoder", num_mel_bins=16, encoder_layers=2,
                encoder_attention_heads=2, encoder_ffn_dim=48, d_model=24,
                max_source_positions=50, n_window=10, output_dim=32,
            ),
            vision_config=dict(
                model_type="qwen2_5_omni_vision_encoder", depth=2, hidden_size=16,
                intermediate_size=24, num_heads=2, out_hidden_size=32, patch_size=8,
                window_size=48, fullatt_block_indexes=[1],
            ),
            audio_token_index=id_of("<|AUDIO|>"), image_token_index=id_of("<|IMAGE|>"),
            video_token_index=id_of("<|VIDEO|>"), audio_start_token_id=id_of("<|audio_bos|>"),
            audio_end_token_id=id_of("<|audio_eos|>"),
            vision_start_token_id=id_of("<|vision_bos|>"),
            vision_end_token_id=id_of("<|vision_eos|>"), bos_token_id=0, eos_token_id=2,
            pad_token_id=0,
        )

    def published_config(self, config: dict) -> dict:
        thinker = {key: value for key, value in config.items() if key != "transformers_version"}
        thinker["architectures"] = ["Qwen2OmniNaViTThinkerForConditionalGeneration"]
        text = old_spelling(thinker["text_config"], [
            "layer_types", "tie_word_embeddings", "initializer_range", "pad_token_id",
            "bos_token_id", "eos_token_id",
        ])
        text |= {"init_std": 0.02, "sliding_window": 32768, "rope_scaling": {
            "mrope_section": [2, 1, 1], "rope_type": "default", "type": "default",
        }}
        vision = old_spelling(thinker["vision_config"], ["rope_parameters"])
        vision |= {
            "embed_dim": 16, "in_chans": 3, "spatial_patch_size": 8, "tokens_per_second": 25
        }
        thinker |= {"text_config": text, "vision_config": vision, "ignore_index": -100}
        del thinker["tie_word_embeddings"]
        return {
            "architectures": ["Qwen2_5OmniModel"], "enable_audio_output": True,
            "enable_talker": True, "model_type": "qwen2_5_omni", "thinker_config": thinker,
            "torch_dtype": "float32", "transformers_version": "4.50.0.dev0",
        }

    def published_weights(self, weights: dict) -> dict:
        """With something of the parts that speak, which a reader must pass by."""
        renamed = {f"thinker.{name}": weight for name, weight in weights.items()}
        return {**renamed, "talker.codec_head.weight": torch.ones(2, 3)}

    def published_processor(self, folder: Path):
        """Keys of the image's and of the sound's in one object."""
        path = folder / "processor_config.json"
        processor = json.loads(path.read_text())
        path.unlink()
        extractor, image = processor["feature_extractor"], processor["image_processor"]
        extractor["n_samples"] = extractor["chunk_length"] * RATE
        extractor["nb_max_frames"] = extractor["n_samples"] // extractor["hop_length"]
        size = image.pop("size")
        image |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        both = {**image, **extractor, "processor_class": processor["processor_class"]}
        write_json(folder / "preprocessor_config.json", dict(sorted(both.items())))
        path = folder / "chat_template.jinja"
        write_json(folder / "chat_template.json", {"chat_template": path.read_text()})
        path.unlink()


class Qwen3Omni(Qwen25Omni):
    """The thinker: Qwen3-ASR's tower, Qwen3-VL's eyes and experts.

    The processor pads recordings of one sample to the longest, which changes their ends. Here each
    has its own features; the tower pads chunks to the longest of all, so that those of one case
    have all a whole second or all the same length.
    """

    cases = ["one", "text", "both", "alone", "twice", "long", "behind", "seen"]
    special_tokens = (
        CHATML,
        ["<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<|vision_start|>",
         "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    )
    model_class = Qwen3OmniMoeThinkerForConditionalGeneration
    processor_class = Qwen3OmniMoeProcessor
    template = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part['type'] == 'audio' or 'audio' in part or 'audio_url' in part -%}
                {{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
            {%- elif 'text' in part -%}
                {{- part['text'] -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

    def processor(self, tokens: Tokenizer):
        marks = {
            "audio_token": "<|audio_pad|>", "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>", "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>", "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        }
        sizes = dict(
            patch_size=8, merge_size=2, temporal_patch_size=2, image_mean=[0.5] * 3,
            image_std=[0.5] * 3, size={"shortest_edge": 2048, "longest_edge": 8192},
        )
        return Qwen3OmniMoeProcessor(
            Qwen2VLImageProcessor(**sizes), Qwen2VLVideoProcessor(**sizes),
            WhisperFeatureExtractor(feature_size=20, chunk_length=3, return_attention_mask=True),
            self.fast_tokenizer(tokens, "<|im_end|>", extra_special_tokens=marks),
            chat_template=self.template,
        )

    def inputs(self, processor, parts: list[str]) -> dict:
        inputs = super().inputs(processor, parts)
        content = messages(parts)[0]["content"]
        sounds = [part["audio"] for part in content if part["type"] == "audio"]
        if sounds:
            each = [
                processor.feature_extractor(
                    sound, sampling_rate=RATE, padding=True, truncation=False,
                    return_attention_mask=True, return_tensors="pt",
                )
                for sound in sounds
            ]
            frames = max(one["attention_mask"].shape[1] for one in each)
            for name, key in [
                ("input_features", "input_features"), ("feature_attention_mask", "attention_mask")
            ]:
                rows = [one[key] for one in each]
                rows = [torch.nn.functional.pad(row, (0, frames - row.shape[-1])) for row in rows]
                inputs[name] = torch.cat(rows)
        return inputs

    def config(self, processor):
        id_of = processor.tokenizer.convert_tokens_to_ids
        return Qwen3OmniMoeThinkerConfig(
            text_config=dict(
                model_type="qwen3_omni_moe_text", vocab_size=len(processor.tokenizer),
                hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_experts=4,
                num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
                rope_parameters={
                    "mrope_interleaved": True, "mrope_section": [2, 1, 1],
                    "rope_theta": 1_000_000.0, "rope_type": "default",
                },
            ),
            audio_config=dict(
                model_type="qwen3_omni_moe_audio_encoder", num_mel_bins=20, encoder_layers=2,
                encoder_attention_heads=2, encoder_ffn_dim=48, d_model=24,
                max_source_positions=50, n_window=50, n_window_infer=200, output_dim=32,
                downsample_hidden_size=6,
            ),
            vision_config=dict(
                model_type="qwen3_omni_moe_vision_encoder", depth=2, hidden_size=16,
                intermediate_size=24, num_heads=2, out_hidden_size=32, patch_size=8,
                num_position_embeddings=25, deepstack_visual_indexes=[0],
            ),
            audio_token_id=id_of("<|audio_pad|>"), image_token_id=id_of("<|image_pad|>"),
            video_token_id=id_of("<|video_pad|>"), audio_start_token_id=id_of("<|audio_start|>"),
            audio_end_token_id=id_of("<|audio_end|>"),
            vision_start_token_id=id_of("<|vision_start|>"),
            vision_end_token_id=id_of("<|vision_end|>"), bos_token_id=0, eos_token_id=2,
            pad_token_id=0,
        )

    def published_config(self, config: dict) -> dict:
        thinker = {key: value for key, value in config.items() if key != "transformers_version"}
        thinker["architectures"] = ["Qwen3OmniMoeThinkerForConditionalGeneration"]
        text = old_spelling(thinker["text_config"], ["layer_types"])
        text["rope_scaling"] = {
            "interleaved": True, "mrope_interleaved": True, "mrope_section": [2, 1, 1],
            "rope_type": "default", "type": "default",
        }
        vision = old_spelling(thinker["vision_config"], ["rope_parameters"])
        thinker |= {"text_config": text, "vision_config": vision}
        return {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "dtype": "float32",
            "enable_audio_output": True, "model_type": "qwen3_omni_moe",
            "thinker_config": thinker, "transformers_version": "4.57.0.dev0",
        }


FAMILIES = {
    "qwen2_audio": Qwen2Audio(),
    "audio_flamingo3": AudioFlamingo3(),
    "voxtral": Voxtral(),
    "glm_asr": GlmAsr(),
    "qwen3_asr": Qwen3Asr(),
    "qwen2_5_omni": Qwen25Omni(),
    "qwen3_omni": Qwen3Omni(),
}
