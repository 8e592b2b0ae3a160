"""Models of 2025 and after for make_models.py: configs, and mistakes that a reader could make.

Delta nets, latent attention, Gemma 4, Mamba 2 beside attention. llama.cpp's converter moves rows, heads
and columns of these, and changes values: each mistake leaves one of that as the file has it.
"""

import copy
import json

import torch
import transformers
from safetensors.torch import load_file, save_file

PLAIN = {"rope_type": "default", "rope_theta": 20000.0}
SHAPE = {"hidden_size": 32, "intermediate_size": 24, "max_position_embeddings": 256,
         "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL = {**SHAPE, "hidden_size": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GRANITE = {"embedding_multiplier": 2.0, "attention_multiplier": 0.25, "residual_multiplier": 0.5,
           "logits_scaling": 2.0, "tie_word_embeddings": False}
LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"


def delta(kind, num_v_heads, layers, **more):
    rope = {**PLAIN, "partial_rotary_factor": 0.5}
    return kind(
        **SMALL, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=num_v_heads,
        linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4,
        rope_parameters=rope, num_hidden_layers=len(layers), layer_types=layers,
        tie_word_embeddings=False, **more)


def latent(kind, **more):
    sizes = {**SMALL, "num_key_value_heads": 4, "intermediate_size": 40}
    return kind(
        **sizes, num_hidden_layers=2, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
        v_head_dim=12, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5, **more)


def gemma4(layers, **more):
    ropes = {FULL: {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.25},
             SLIDING: {"rope_type": "default", "rope_theta": 100.0}}
    return transformers.Gemma4TextConfig(
        **SMALL, head_dim=8, global_head_dim=16, num_hidden_layers=len(layers), layer_types=layers,
        sliding_window=6, rope_parameters=ropes, final_logit_softcapping=8.0,
        tie_word_embeddings=True, **more)


def mamba(**more):
    sizes = {"n_heads": 4, "d_head": 8, "n_groups": 2, "d_state": 8, "chunk_size": 8}
    return {**{f"mamba_{key}": value for key, value in sizes.items()}, **more}


def configs():
    """Name: (folder of the tokenizer, config)."""
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 64, "mscale": 0.707,
            "mscale_all_dim": 0.707}
    shared = {"shared_expert_intermediate_size": 24}
    return {
        "qwen3next": ("qwen3", delta(
            transformers.Qwen3NextConfig, 4, [LINEAR, LINEAR, FULL], **EXPERTS, **shared)),
        "qwen35": ("qwen3", delta(
            transformers.Qwen3_5TextConfig, 6, [LINEAR, FULL, LINEAR])),
        "qwen35moe": ("qwen3", delta(
            transformers.Qwen3_5MoeTextConfig, 4, [LINEAR, FULL], **EXPERTS, **shared)),
        "deepseek2": ("qwen3", latent(
            transformers.DeepseekV2Config, q_lora_rank=None, n_group=1, topk_group=1,
            topk_method="greedy", norm_topk_prob=False, scoring_func="softmax",
            rope_parameters=yarn)),
        "deepseek3": ("qwen3", latent(
            transformers.DeepseekV3Config, q_lora_rank=20, n_group=2, topk_group=1,
            norm_topk_prob=True, scoring_func="sigmoid", rope_parameters=PLAIN)),
        "mamba2": ("qwen3", transformers.Mamba2Config(
            hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16, n_groups=2, state_size=8,
            chunk_size=8, expand=2, tie_word_embeddings=False)),
        "granitehybrid": ("qwen3", transformers.GraniteMoeHybridConfig(
            **SMALL, **mamba(), mamba_expand=2, num_hidden_layers=3,
            layer_types=[LINEAR, FULL, LINEAR], num_local_experts=4, num_experts_per_tok=2,
            shared_intermediate_size=16, position_embedding_type=None, **GRANITE)),
        "granitedense": ("qwen3", transformers.GraniteMoeHybridConfig(
            **SMALL, **mamba(), mamba_expand=2, num_hidden_layers=2, layer_types=[LINEAR, FULL],
            num_local_experts=0, shared_intermediate_size=24, position_embedding_type=None,
            **GRANITE)),
        "gemma4": ("gemma3", gemma4(
            [SLIDING, FULL, SLIDING, SLIDING, FULL], num_kv_shared_layers=2,
            use_double_wide_mlp=True, hidden_size_per_layer_input=4)),
        "gemma4moe": ("gemma3", gemma4(
            [SLIDING, FULL], num_kv_shared_layers=0, attention_k_eq_v=True,
            num_global_key_value_heads=1, hidden_size_per_layer_input=0, enable_moe_block=True,
            num_experts=4, top_k_experts=2, moe_intermediate_size=16)),
    }


# Norms of these are around 0, and have 1 added.
ADDS_ONE = ("gemma2", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe")


def as_published(name, folder):
    """What llama.cpp's converter wants of a folder, which transformers 5 writes otherwise."""
    config = json.loads((folder / "config.json").read_text())
    if name.startswith("granite"):
        kinds = {LINEAR: "mamba", FULL: "attention"}
        config["layer_types"] = [kinds[kind] for kind in config["layer_types"]]
    if name in ["qwen3next", "qwen35", "qwen35moe"]:
        predict_further(folder / "model.safetensors", config)
    (folder / "config.json").write_text(json.dumps(config))


def predict_further(path, config):
    """A layer that predicts further tokens, as published files have it; llama.cpp counts it."""
    tensors, hidden = load_file(path), config["hidden_size"]
    last = f"model.layers.{config['layer_types'].index(FULL)}."
    layer = {name: tensor for name, tensor in tensors.items() if name.startswith(last)}
    tensors |= {name.replace(last, "mtp.layers.0."): t.clone() for name, t in layer.items()}
    for name in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"]:
        tensors[f"mtp.{name}.weight"] = torch.ones(hidden)
    tensors["mtp.fc.weight"] = torch.zeros(hidden, 2 * hidden)
    save_file(tensors, path, metadata={"format": "pt"})
    config["mtp_num_hidden_layers"] = 1


def nets(model):
    return [layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn")]


def by_turns(rows, num_k_heads, width):
    """V heads as files of Qwen3.5 have them."""
    heads = rows.reshape(num_k_heads, -1, width, *rows.shape[1:])
    return heads.transpose(0, 1).reshape(rows.shape)


def changed(model, change):
    """A copy of the model with that."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        change(other)
    return other


def of_delta_nets(name, model):
    config = model.config
    num_k, width = config.linear_num_key_heads, config.linear_value_head_dim
    first_v = 2 * num_k * config.linear_key_head_dim

    def add_one(other):
        for key, value in other.named_parameters():
            if key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
                value.add_(1)

    def negated(other):
        for net in nets(other):
            net.A_log.copy_(-net.A_log.exp())

    yield "norm + 1 left in", changed(model, add_one)
    yield "A left as it is", changed(model, negated)
    if name == "qwen3next":
        def halves(other):
            for net in nets(other):
                weight = net.in_proj_ba.weight
                weight.copy_(weight.roll(2, 0))

        yield "b and a exchanged", changed(model, halves)

        def runs(other):
            for net in nets(other):
                weight = net.in_proj_qkvz.weight
                parts = weight.view(num_k, -1, weight.shape[1])
                sizes = [8, 8, 2 * width, 2 * width]
                parts = [part.flatten(0, 1) for part in parts.split(sizes, 1)]
                weight.copy_(torch.cat(parts))

        yield "q, k, v and z left in runs", changed(model, runs)
        return

    moves = {
        "in_proj_qkv": lambda net: net.in_proj_qkv.weight[first_v:],
        "in_proj_z": lambda net: net.in_proj_z.weight,
        "in_proj_a": lambda net: net.in_proj_a.weight,
        "in_proj_b": lambda net: net.in_proj_b.weight,
        "conv1d": lambda net: net.conv1d.weight[first_v:],
        "A_log": lambda net: net.A_log, "dt_bias": lambda net: net.dt_bias,
        "out_proj": lambda net: net.out_proj.weight.T,
    }
    for part, rows in moves.items():
        def move(other):
            for net in nets(other):
                of_head = 1 if part in ["in_proj_a", "in_proj_b", "A_log", "dt_bias"] else width
                rows(net).copy_(by_turns(rows(net).clone(), num_k, of_head))

        yield f"V heads of {part} by turns", changed(model, move)


def of_latents(name, model, rebuilt):
    def transposed(other):
        for layer in other.model.layers:
            heads = layer.self_attn.kv_b_proj.weight.view(4, 28, 16)
            heads[:, :16] = heads[:, :16].transpose(1, 2).clone()

    yield "K not transposed", changed(model, transposed)

    def exchanged(other):
        for layer in other.model.layers:
            weight = layer.self_attn.kv_b_proj.weight
            heads = weight.view(4, 28, 16)
            weight.copy_(torch.cat([heads[:, :16].reshape(-1, 16), heads[:, 16:].reshape(-1, 16)]))

    yield "all of K, then all of V", changed(model, exchanged)
    if name == "deepseek2":
        rope = {**model.config.rope_parameters, "mscale": 0.0, "mscale_all_dim": 0.0}
        yield "no factor of scores", rebuilt(model, rope_parameters=rope)
        yield "shares", rebuilt(model, routed_scaling_factor=1.0)
    else:
        yield "no groups", rebuilt(model, n_group=1)
        yield "no shares", rebuilt(model, norm_topk_prob=False)

        def unbiased(other):
            for key, value in other.named_buffers():
                if key.endswith("e_score_correction_bias"):
                    value.zero_()

        yield "no bias of the choice", changed(model, unbiased)


def of_scans(name, model, rebuilt):
    def negated(other):
        for key, value in other.named_parameters():
            if key.endswith("A_log"):
                value.copy_(-value.exp())

    def without(part):
        def change(other):
            for key, value in other.named_parameters():
                if key.endswith(part):
                    value.zero_()

        return change

    yield "A left as it is", changed(model, negated)
    for part in [".D", "dt_bias", "conv1d.bias"]:
        yield f"no {part}", changed(model, without(part))
    if name.startswith("granite"):
        yield "what no key says turns", rebuilt(
            model, position_embedding_type="rope", rope_parameters=PLAIN)
        yield "no factor of residuals", rebuilt(model, residual_multiplier=1.0)


def of_gemma4(name, model, rebuilt):
    ropes = model.config.to_dict()["rope_parameters"]
    whole = {**ropes, FULL: {"rope_type": "default", "rope_theta": 1000.0}}
    yield "global heads turn whole", rebuilt(model, rope_parameters=whole)
    one = {kind: {**rope, "rope_theta": 1000.0} for kind, rope in ropes.items()}
    yield "one base", rebuilt(model, rope_parameters=one)
    yield "no window", rebuilt(model, sliding_window=256)
    yield "no cap", rebuilt(model, final_logit_softcapping=None)

    def unscaled(other):
        for layer in other.model.layers:
            layer.layer_scalar.fill_(1.0)

    yield "no scale of layers", changed(model, unscaled)
    if name == "gemma4":
        def without(other):
            other.model.per_layer_projection_norm.weight.zero_()

        yield "no inputs of layers", changed(model, without)
        return

    def flat(other):
        for layer in other.model.layers:
            layer.router.per_expert_scale.fill_(1.0)

    yield "no scale of experts", changed(model, flat)

    def up_first(other):
        for layer in other.model.layers:
            weight = layer.experts.gate_up_proj
            weight.copy_(weight.roll(weight.shape[1] // 2, 1))

    yield "up before gate", changed(model, up_first)


def mistakes(name, model, rebuilt):
    """(what, the model with it)."""
    if name.startswith("qwen3"):
        yield from of_delta_nets(name, model)
    elif name.startswith("deepseek"):
        yield from of_latents(name, model, rebuilt)
    elif name in ["mamba2", "granitehybrid", "granitedense"]:
        yield from of_scans(name, model, rebuilt)
    elif name.startswith("gemma4"):
        yield from of_gemma4(name, model, rebuilt)
