#!/usr/bin/env python3
"""Make the tiny GGUF models beside this file, with what transformers computes for them.

    python testdata/gguf/make_models.py LLAMA_CPP           # a folder with llama.cpp's conversion/
    python testdata/gguf/make_models.py LLAMA_CPP bloom     # of these only

The weights are random and fit in f16. llama.cpp's own converter writes the files (PyPI's sdist
llama-cpp-python 0.3.36 has it in vendor/llama.cpp), but for the vocabulary, which it only takes of
tokenizers that it knows: those are of testdata/golden. `models.json` has prompts, transformers'
greedy tokens and their logprobs, by full forward passes in float32. Each of the mistakes below is
tried: it has to change the logprobs.
"""

import json
import sys
from pathlib import Path

import latest
import newer
import torch
import transformers

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
NUM_TOKENS = 12
TEXTS = ["Hello world", "The 42 cats of Bologna,\n\tand 7 dogs!", "naïve café 日本 🍕 ok"]
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 256}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def configs():
    """Name: (folder of the tokenizer, config)."""
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    llama = transformers.LlamaConfig(
        **{**SHAPE, "max_position_embeddings": 16384}, **HEADS, num_hidden_layers=2,
        rope_parameters=rope, tie_word_embeddings=True)
    qwen3 = transformers.Qwen3Config(**SHAPE, **HEADS, num_hidden_layers=2)
    gemma3 = transformers.Gemma3TextConfig(
        **SHAPE, **HEADS, num_hidden_layers=7, sliding_window=6, query_pre_attn_scalar=8,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
    factors = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}
    phi3 = transformers.Phi3Config(
        **SHAPE, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        original_max_position_embeddings=64, pad_token_id=0,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors,
                         "original_max_position_embeddings": 64})
    falcon = transformers.FalconConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True, num_ln_in_parallel_attn=2, alibi=False, bias=False)
    plain = {"rope_type": "default", "rope_theta": 20000.0}
    wide = {**SHAPE, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    gemma2 = transformers.Gemma2Config(
        **SHAPE, **HEADS, num_hidden_layers=4, sliding_window=6, query_pre_attn_scalar=8,
        attn_logit_softcapping=4.0, final_logit_softcapping=8.0)
    cohere2 = transformers.Cohere2Config(
        **wide, num_hidden_layers=4, sliding_window=6, logit_scale=0.25, rope_parameters=plain,
        rotary_pct=1.0)
    hunyuan = transformers.HunYuanDenseV1Config(
        **SHAPE, **HEADS, num_hidden_layers=2, rope_parameters=plain, tie_word_embeddings=True)
    nemotron = transformers.NemotronConfig(
        **wide, num_hidden_layers=2, head_dim=8,
        rope_parameters={**plain, "partial_rotary_factor": 0.5})
    smollm3 = transformers.SmolLM3Config(
        **wide, num_hidden_layers=4, no_rope_layer_interval=4, pad_token_id=None,
        rope_parameters=plain)
    starcoder2 = transformers.Starcoder2Config(
        **wide, num_hidden_layers=2, sliding_window=None, rope_parameters=plain)
    bloom = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, seq_length=256)
    experts = {"num_experts_per_tok": 2, "rope_parameters": plain, "num_hidden_layers": 2}
    qwen3moe = transformers.Qwen3MoeConfig(
        **SHAPE, **HEADS, **experts, num_experts=4, moe_intermediate_size=16, norm_topk_prob=True)
    qwen2moe = transformers.Qwen2MoeConfig(
        **SHAPE, **experts, num_attention_heads=2, num_key_value_heads=1, num_experts=4,
        moe_intermediate_size=16, shared_expert_intermediate_size=24)
    mixtral = transformers.MixtralConfig(**SHAPE, **HEADS, **experts, num_local_experts=3)
    gpt_oss = transformers.GptOssConfig(
        **SHAPE, **HEADS, **experts, num_local_experts=3, sliding_window=6)
    glm4moe = transformers.Glm4MoeConfig(
        **SHAPE, **HEADS, num_hidden_layers=3, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, n_shared_experts=1, n_group=1, topk_group=1,
        routed_scaling_factor=2.5, first_k_dense_replace=1, norm_topk_prob=True, use_qk_norm=True,
        attention_bias=True, rms_norm_eps=1e-5,
        rope_parameters={**plain, "partial_rotary_factor": 0.5})
    granitemoe = transformers.GraniteMoeSharedConfig(
        **{**wide, "intermediate_size": 16}, **experts, num_local_experts=4,
        shared_intermediate_size=24, tie_word_embeddings=True, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6,
        logits_scaling=2.5)
    short, long = [1.0, 1.25, 1.5, 2.0], [1.0, 2.0, 3.0, 4.0]
    minicpm3 = transformers.MiniCPM3Config(
        **SHAPE, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2, q_lora_rank=12,
        kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, scale_emb=12,
        scale_depth=1.4, dim_model_base=256,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short,
                         "long_factor": long, "original_max_position_embeddings": 256})
    lfm2 = transformers.Lfm2Config(
        **wide, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"],
        conv_L_cache=3, rope_parameters=plain, block_auto_adjust_ff_dim=False)
    lfm2moe = transformers.Lfm2MoeConfig(
        **wide, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"],
        conv_L_cache=3, rope_parameters=plain, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, num_dense_layers=1)
    return {
        **newer.configs(), **latest.configs(),
        "glm4moe": ("qwen3", glm4moe), "granitemoe": ("llama3", granitemoe),
        "minicpm3": ("llama3", minicpm3),
        "lfm2": ("llama3", lfm2), "lfm2moe": ("llama3", lfm2moe),
        "gpt-oss": ("qwen3", gpt_oss),
        "qwen3moe": ("qwen3", qwen3moe), "qwen2moe": ("qwen3", qwen2moe),
        "mixtral": ("llama3", mixtral),
        "gemma2": ("gemma2", gemma2), "cohere2": ("llama3", cohere2),
        "hunyuan": ("llama3", hunyuan), "nemotron": ("llama3", nemotron),
        "smollm3": ("llama3", smollm3), "starcoder2": ("qwen3", starcoder2),
        "bloom": ("qwen3", bloom), "llama": ("llama3", llama), "qwen3": ("qwen3", qwen3), "gemma3": ("gemma3", gemma3),
        "phi3": ("phi3", phi3), "falcon": ("falcon_40b", falcon),
    }


def build(name, tokenizer, config, seed):
    vocab = json.loads((tokenizer / "tokenizer.json").read_text())
    ids = [*vocab["model"]["vocab"].values(), *(token["id"] for token in vocab["added_tokens"])]
    config.vocab_size = max(ids) + 1
    if hasattr(config, "vocab_size_per_layer_input"):
        config.vocab_size_per_layer_input = config.vocab_size
    config.torch_dtype = torch.float32
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            scale = 0.25 if value.dim() > 1 else 0.4
            # Of so few digits that 1 can be added and taken away.
            new = (torch.randn(value.shape) * scale * 256).round() / 256
            adds_one = name in newer.ADDS_ONE and not key.endswith("linear_attn.norm.weight")
            is_plain_norm = value.dim() == 1 and not adds_one and key.endswith("weight")
            value.copy_(new + 1 if is_plain_norm else new)
        for key, value in model.named_buffers():
            if key.endswith(("e_score_correction_bias", "expert_bias")):
                value.copy_((torch.randn(value.shape) * 64).round() / 256)
            if key.endswith("layer_scalar"):
                value.copy_(((1 + torch.rand(value.shape)) * 128).round() / 256)
    return model


def computed(model, prompts):
    """Greedy tokens and their logprobs, by full passes; None where two tokens are near."""
    found = []
    for ids in prompts:
        ids, tokens, logprobs = list(ids), [], []
        with torch.no_grad():
            for _ in range(NUM_TOKENS):
                # A cache would be cut to the window.
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
                best = logits.topk(2)
                if best.values[0] - best.values[1] < 1e-3:
                    return None
                tokens.append(int(best.indices[0]))
                logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
                ids.append(tokens[-1])
        found.append((tokens, logprobs))
    return found


def vocabulary(name, folder):
    """What replaces the converter's `set_vocab`."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    model, pre = tokenizer["model"], json.dumps(tokenizer["pre_tokenizer"])
    has_merges = name.startswith("gemma4")

    def set_vocab(self):
        writer, size = self.gguf_writer, self.hparams["vocab_size"]
        tokens, kinds = [f"[PAD{index}]" for index in range(size)], [5] * size
        for token, index in model["vocab"].items():
            is_byte = model.get("byte_fallback") and len(token) == 6 and token[:3] == "<0x"
            tokens[index], kinds[index] = token, 6 if is_byte else 1
        for token in tokenizer["added_tokens"]:
            tokens[token["id"]], kinds[token["id"]] = token["content"], 3 if token["special"] else 4
        if model.get("byte_fallback"):
            ranks = {}
            for rank, (left, right) in enumerate(model["merges"]):
                ranks.setdefault(left + right, rank)
            gemma = "gemma" in folder.name
            writer.add_tokenizer_model("gemma4" if has_merges else "llama")
            if has_merges:
                writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
            writer.add_tokenizer_pre("default")
            writer.add_token_scores([-1000.0 if gemma else -float(ranks.get(token, 1e6))
                                     for token in tokens])
            writer.add_add_space_prefix(not gemma)
        else:
            writer.add_tokenizer_model("gpt2")
            names = [("{1,3}", "llama-bpe"), ('"Regex"', "qwen2"), ("", "gpt-2")]
            writer.add_tokenizer_pre(next(name for part, name in names if part in pre))
            writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        post = json.dumps(tokenizer["post_processor"])
        for name in ["bos", "eos", "unk"]:
            token = config.get(f"{name}_token")
            token = token["content"] if isinstance(token, dict) else token
            if token in tokens:
                getattr(writer, f"add_{name}_token_id")(tokens.index(token))
                if name == "bos":
                    writer.add_add_bos_token(f'"{token}"' in post)

    return set_vocab


def write(name, model, tokenizer, folder):
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    model.save_pretrained(folder)
    newer.as_published(name, folder)
    for file in ["tokenizer.json", "tokenizer_config.json"]:
        (folder / file).write_text((tokenizer / file).read_text())
    hparams = ModelBase.load_hparams(folder, False) | latest.PUBLISHED.get(name, {})
    converter = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    converter.set_vocab = vocabulary(name, tokenizer)
    path = HERE / f"{name}.gguf"
    with torch.inference_mode():
        converter(folder, gguf.LlamaFileType.MOSTLY_F16, path, eager=True, hparams=hparams).write()
    assert path.stat().st_size < 130_000, path.stat().st_size


def permute(model, parts):
    """Rows of q and k as llama.cpp has them, of heads of 8."""
    for layer in model.model.layers:
        for part in parts:
            weight = getattr(layer.self_attn, part).weight
            rows = weight.reshape(-1, 2, 4, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            weight.copy_(rows)


def add_one(model):
    for key, value in model.named_parameters():
        if key.endswith("norm.weight"):
            value.add_(1)


def rebuilt(model, **changes):
    config = model.config.__class__.from_dict({**model.config.to_dict(), **changes})
    other = transformers.AutoModelForCausalLM.from_config(config).eval()
    other.load_state_dict(model.state_dict())
    return other


def mistakes(name, model):
    """(what, the model with it)."""
    import copy

    yield from newer.mistakes(name, model, rebuilt)
    yield from latest.mistakes(name, model, rebuilt)
    rope = model.config.to_dict().get("rope_parameters")
    other = copy.deepcopy(model)
    with torch.no_grad():
        if name == "llama":
            permute(other, ["q_proj", "k_proj"])
            yield "permutation left in", other
            yield "no llama3", rebuilt(model, rope_parameters={**rope, "rope_type": "default"})
        if name in ["gemma2", "nemotron"]:
            add_one(other)
            yield "norm + 1 left in", other
        if name in ["gemma2", "cohere2"]:
            kinds = model.config.layer_types
            yield "no window", rebuilt(model, layer_types=["full_attention"] * len(kinds))
            yield "pattern", rebuilt(model, layer_types=[kinds[-1], *kinds[:-1]])
        if name == "gemma2":
            yield "scale", rebuilt(model, query_pre_attn_scalar=256)
            yield "no caps", rebuilt(
                model, attn_logit_softcapping=None, final_logit_softcapping=None)
        if name == "cohere2":
            yield "no scale of logits", rebuilt(model, logit_scale=1.0)
        if name == "smollm3":
            yield "rope everywhere", rebuilt(model, no_rope_layers=[1] * 4)
        if name in ["smollm3", "hunyuan", "starcoder2"]:
            permute(other, ["q_proj", "k_proj"])
            yield "permuted", other
        if name == "nemotron":
            both = {**rope, "partial_rotary_factor": 1.0}
            yield "all rotated", rebuilt(model, rope_parameters=both)
        if name == "bloom":
            for layer in other.transformer.h:
                weight = layer.self_attention.query_key_value.weight
                weight.copy_(weight.view(4, 3, 8, 32).transpose(0, 1).reshape(weight.shape))
            yield "heads left sorted", other
        if name == "gpt-oss":
            for key, value in other.named_parameters():
                if "gate_up_proj" in key:
                    value.copy_(value.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
            yield "up before gate", other
            yield "no window", rebuilt(model, layer_types=["full_attention"] * 2)
            for layer in model.model.layers:
                layer.self_attn.sinks.fill_(-1e9)
            yield "no sinks", model
        if name in ["qwen3moe", "qwen2moe", "mixtral", "glm4moe", "granitemoe", "lfm2moe"]:
            for key, weight in other.named_parameters():
                if key.endswith(("experts.gate_up_proj", "moe.input_linear.weight")):
                    weight.copy_(weight.roll(weight.shape[1] // 2, 1))
            yield "up before gate", other
        if name in ["glm4moe", "lfm2moe"]:
            plain = copy.deepcopy(model)
            for key, value in plain.named_buffers():
                if key.endswith(("e_score_correction_bias", "expert_bias")):
                    value.zero_()
            yield "no bias of the choice", plain
        if name == "granitemoe":
            permuted = copy.deepcopy(model)
            permute(permuted, ["q_proj", "k_proj"])
            yield "permutation left in", permuted
        if name == "minicpm3":
            plain = {"rope_type": "default", "rope_theta": 10000.0}
            yield "no factors", rebuilt(model, rope_parameters=plain)
            yield "no scale of embeddings", rebuilt(model, scale_emb=1)
        if name == "lfm2":
            for layer in other.model.layers:
                if hasattr(layer, "conv"):
                    layer.conv.conv.weight.copy_(layer.conv.conv.weight.flip(-1))
            yield "taps in another order", other
        if name in ["qwen3moe", "qwen2moe"]:
            is_share = model.config.norm_topk_prob
            yield "shares of a sum", rebuilt(model, norm_topk_prob=not is_share)
        if name == "mixtral":
            permute(other, ["q_proj", "k_proj"])
            yield "permutation left in", other
        if name == "qwen3":
            permute(other, ["q_proj", "k_proj"])
            yield "permuted", other
        if name == "gemma3":
            add_one(other)
            yield "norm + 1 left in", other
            kinds = model.config.layer_types
            full = ["full_attention"] * len(kinds)
            yield "no window", rebuilt(model, layer_types=full)
            yield "pattern", rebuilt(model, layer_types=[kinds[-1], *kinds[:-1]])
            both = {kind: rope["full_attention"] for kind in rope}
            yield "one base", rebuilt(model, rope_parameters=both)
            yield "scale", rebuilt(model, query_pre_attn_scalar=256)
        if name == "phi3":
            plain = {"rope_type": "default", "rope_theta": 10000.0}
            yield "no factors", rebuilt(model, rope_parameters=plain)
            for layer in other.model.layers:
                weight = layer.mlp.gate_up_proj.weight
                weight.copy_(weight.roll(weight.shape[0] // 2, 0))
            yield "up before gate", other
        if name == "falcon":
            for layer in other.transformer.h:
                weight = layer.self_attention.query_key_value.weight
                groups = weight.view(2, 4, 8, 32)
                sort = [groups[:, :2], groups[:, 2], groups[:, 3]]
                weight.copy_(torch.cat([part.reshape(-1, 32) for part in sort]))
            yield "heads left sorted", other
            for layer in model.transformer.h:
                layer.ln_attn, layer.ln_mlp = layer.ln_mlp, layer.ln_attn
            yield "norms exchanged", model


def main():
    import tempfile

    sys.path[:0] = [f"{sys.argv[1]}/gguf-py", sys.argv[1]]
    torch.set_num_threads(1)
    path, names = HERE / "models.json", sys.argv[2:]
    records = json.loads(path.read_text())
    for name, (tokenizer, config) in configs().items():
        if names and name not in names:
            continue
        tokenizer = GOLDEN / tokenizer
        text = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tokenizer / "tokenizer.json"))
        prompts = [text(prompt).input_ids for prompt in TEXTS]
        tried = (build(name, tokenizer, config, seed) for seed in range(100))
        model, found = next((m, f) for m in tried if (f := computed(m, prompts)))
        with tempfile.TemporaryDirectory() as folder:
            write(name, model, tokenizer, Path(folder))
        records[name] = [
            {"text": prompt, "prompt_token_ids": ids, "token_ids": tokens,
             "logprobs": [round(logprob, 6) for logprob in logprobs]}
            for prompt, ids, (tokens, logprobs) in zip(TEXTS, prompts, found)
        ]
        for what, wrong in mistakes(name, model):
            with torch.no_grad():
                moved = max(
                    abs(float(wrong(torch.tensor([[*ids, *tokens]]), use_cache=False)
                              .logits[0, len(ids) - 1 + at].log_softmax(-1)[token]) - logprob)
                    for ids, (tokens, logprobs) in zip(prompts, found)
                    for at, (token, logprob) in enumerate(zip(tokens, logprobs)))
            assert moved > 1e-2, (name, what, moved)
            print(f"{name}: {what} moves logprobs by {moved:.3f}")
    path.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
