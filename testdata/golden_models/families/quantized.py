"""Llama in the formats of quantized checkpoints. Each folder's file is packed; the oracle has the
same weights in f32."""

import torch

from ..family import Family, Mistake, dims, rope, small
from ..quantized import Format, Quantized, misread
from ..quantized.bytes import BnbInt8, Compressed, Native, Scaled
from ..quantized.integers import Awq, Gptq, Packed
from ..quantized.nibbles import Bnb, Fp4

LAYERS = "model.layers."


def llama(
    quantized: Quantized, mistakes: list[Mistake], tied: bool = True, **more
) -> Family:
    config = dims(
        32, 64, 2, 4, 2, head_dim=16, tie_word_embeddings=tied, rms_norm_eps=1e-5,
        rope_parameters=rope(10000.0), **more,
    )
    return small("LlamaConfig", config, mistakes, quantized=quantized, pad_vocab_to=32)


def all_layers(format: Format, config: dict, **more) -> Quantized:
    return Quantized([(LAYERS, format)], config, **more)


def compressed(format: str, weights: dict, inputs: dict | None = None, **more) -> dict:
    """A config of compressed-tensors with one group."""
    group = dict(targets=["Linear"], weights=weights, input_activations=inputs)
    return dict(
        quant_method="compressed-tensors", format=format, quantization_status="compressed",
        config_groups={"group_0": {**group, "output_activations": None}}, ignore=["lm_head"],
        kv_cache_scheme=None, **more,
    )


def weights(bits: int, kind: str, strategy: str, **more) -> dict:
    return dict(
        num_bits=bits, type=kind, symmetric=True, strategy=strategy, dynamic=False,
        observer="minmax", **more,
    )


PER_TOKEN = dict(num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True)
GPTQ = dict(
    bits=4, group_size=16, desc_act=True, sym=True, lm_head=False, quant_method="gptq",
    damp_percent=0.01, true_sequential=True, model_name_or_path=None, model_file_base_name="model",
)
ASYM = dict(
    bits=4, group_size=16, desc_act=False, sym=False, lm_head=True, quant_method="gptq",
    checkpoint_format="gptq", pack_dtype="int32", meta=dict(quantizer=["gptqmodel:1.0"]),
    dynamic={
        r"+:.*\.0\..*(q|down)_proj": dict(bits=3), r".*\.1\..*up_proj": dict(bits=8),
        r".*\.1\..*v_proj": dict(bits=2, group_size=-1), r"-:.*\.1\..*k_proj": {},
    },
)
NIBBLES = misread(reverse=True)
GPTQ_V2 = {**GPTQ, "checkpoint_format": "gptq_v2", "desc_act": False, "group_size": 32}
BLOCKS = dict(block=(24, 20), scale_name="weight_scale_inv")
KV = {
    f"model.layers.{layer}.self_attn.{part}_scale": torch.tensor(0.5)
    for layer in range(2) for part in "kv"
}

FAMILIES: dict[str, Family] = {
    "gptq": llama(
        # As AutoGPTQ wrote it at first: beside config.json, with biases of zeros.
        all_layers(Gptq(4, 16, act_order=True, bias=True), GPTQ, file="quantize_config.json"),
        [misread(zero_offset=0), misread(lists=False), NIBBLES],
    ),
    "gptq_v2": llama(
        all_layers(Gptq(4, 32, stored_offset=0, zero_offset=0), GPTQ_V2),
        [misread(zero_offset=1), NIBBLES],
        attention_bias=True,
    ),
    "gptq_asym": llama(
        Quantized(
            [
                ("0.self_attn.q_proj", Gptq(3, 16, sym=False)),
                ("0.mlp.down_proj", Gptq(3, 16, sym=False)),
                ("1.mlp.up_proj", Gptq(8, 16, sym=False)),
                ("1.self_attn.v_proj", Gptq(2, 32, sym=False)),
                ("1.self_attn.k_proj", None),
                ("", Gptq(4, 16, sym=False)),
            ],
            ASYM,
        ),
        [misread(zero_offset=0), misread(zeros_wrap=True)],
        tied=False,
    ),
    "awq": llama(
        all_layers(
            Awq(16),
            dict(
                quant_method="awq", bits=4, group_size=16, zero_point=True, version="gemm",
                modules_to_not_convert=None,
            ),
        ),
        [
            misread(zero_offset=1), misread(order=tuple(range(8))), misread(along_outputs=True),
        ],
    ),
    "ct_int4": llama(
        all_layers(
            Packed(4, 16), compressed("pack-quantized", weights(4, "int", "group", group_size=16))
        ),
        [misread(offset=7)],
    ),
    "ct_mixed": llama(
        Quantized(
            [("mlp", Packed(3, 16, sym=False)), ("v_proj", None), (LAYERS, Packed(6))],
            dict(
                quant_method="compressed-tensors", format="mixed-precision",
                quantization_status="compressed", ignore=["lm_head", "re:.*v_proj$"],
                config_groups={
                    "group_0": dict(
                        targets=["Linear"], format="pack-quantized",
                        weights=weights(6, "int", "channel"),
                    ),
                    "group_1": dict(
                        targets=[r"re:.*mlp\..*"], format="pack-quantized",
                        weights={
                            **weights(3, "int", "group", group_size=16), "symmetric": False,
                        },
                    ),
                },
            ),
        ),
        [misread(offset=4)],
    ),
    "ct_int8": llama(
        Quantized(
            [
                ("mlp", Compressed("int8", (1, None), sym=False, scale_dtype=torch.bfloat16)),
                (LAYERS, Compressed("int8", (1, None), scale_dtype=torch.bfloat16)),
            ],
            {
                **compressed("int-quantized", weights(8, "int", "channel")),
                "config_groups": {
                    "group_0": dict(
                        targets=["Linear"], weights=weights(8, "int", "channel"),
                        input_activations={**PER_TOKEN, "type": "int"},
                    ),
                    "group_1": dict(
                        targets=[r"re:.*\.mlp\."],
                        weights={**weights(8, "int", "channel"), "symmetric": False},
                        input_activations={**PER_TOKEN, "type": "int"},
                    ),
                },
            },
        ),
        [misread(divided=True), misread(zeros=False)],
    ),
    "ct_fp8": llama(
        Quantized(
            [
                ("0.", Compressed("fp8", (1, None), scale_dtype=torch.bfloat16)),
                (
                    "1.self_attn",
                    Compressed("fp8", (None, None), scale_shape=(1,), activations=("input_scale",)),
                ),
                ("1.mlp", Compressed("fp8", (16, 24))),
            ],
            {
                **compressed("float-quantized", weights(8, "float", "channel"), PER_TOKEN),
                "config_groups": {
                    "group_0": dict(
                        targets=[r"re:model\.layers\.0"], input_activations=PER_TOKEN,
                        weights=weights(8, "float", "channel"),
                    ),
                    "group_1": dict(
                        targets=[
                            f"model.layers.1.self_attn.{part}_proj" for part in ("q", "k", "v", "o")
                        ],
                        weights=weights(8, "float", "tensor"),
                        input_activations=dict(
                            num_bits=8, type="float", strategy="tensor", dynamic=False
                        ),
                    ),
                    "group_2": dict(
                        targets=["Linear"],
                        weights=weights(8, "float", "block", block_structure=[16, 24]),
                    ),
                },
            },
            extra=KV,
        ),
        [misread(divided=True)],
    ),
    "ct_nvfp4": llama(
        all_layers(
            Fp4("ct"),
            compressed(
                "nvfp4-pack-quantized", weights(4, "float", "tensor_group", group_size=16),
                dict(
                    num_bits=4, type="float", strategy="tensor_group", group_size=16,
                    dynamic="local",
                ),
            ),
        ),
        [misread(divided=False), misread(high_first=True)],
    ),
    "ct_mxfp4": llama(
        all_layers(
            Fp4("mx"),
            compressed("mxfp4-pack-quantized", weights(4, "float", "group", group_size=32)),
        ),
        [misread(high_first=True)],
    ),
    "fp8": llama(
        all_layers(
            Native("fp8", **BLOCKS),
            dict(
                quant_method="fp8", activation_scheme="dynamic", weight_block_size=[24, 20],
                fmt="e4m3", modules_to_not_convert=["lm_head"],
            ),
        ),
        [misread(divided=True), misread(transposed=True)],
    ),
    "fp8_ue8m0": llama(
        all_layers(
            Native("fp8", **BLOCKS, scale_dtype=torch.float8_e8m0fnu),
            dict(
                quant_method="fp8", activation_scheme="dynamic", weight_block_size=[24, 20],
                scale_fmt="ue8m0",
            ),
        ),
        [misread(divided=True)],
    ),
    "fp8_static": llama(
        Quantized(
            [
                ("1.mlp.down_proj", None),
                (LAYERS, Native("fp8", scale_shape=(), activations=("input_scale",))),
            ],
            dict(
                quant_method="fp8", activation_scheme="static",
                ignored_layers=["lm_head", "model.layers.1.mlp.down_proj"],
            ),
        ),
        [misread(divided=True)],
    ),
    "modelopt_fp8": llama(
        all_layers(
            Scaled("fp8", scale_shape=(), activations=("input_scale",)),
            dict(
                producer=dict(name="modelopt", version="0.37.0"),
                quantization=dict(
                    quant_algo="FP8", kv_cache_quant_algo="FP8", exclude_modules=["lm_head"]
                ),
            ),
            file="hf_quant_config.json", extra=KV,
        ),
        [misread(divided=True)],
    ),
    "modelopt_nvfp4": llama(
        Quantized(
            [("self_attn", None), (LAYERS, Fp4("modelopt"))],
            dict(
                quant_method="modelopt", quant_algo="NVFP4",
                producer=dict(name="modelopt", version="0.37.0"),
                ignore=["lm_head", "model.layers.*.self_attn*"],
                config_groups={"group_0": dict(targets=["Linear"])},
            ),
        ),
        [misread(divided=True), misread(high_first=True)],
    ),
    "bnb_nf4": llama(
        all_layers(
            Bnb("nf4", nested=True),
            dict(
                quant_method="bitsandbytes", _load_in_4bit=True, _load_in_8bit=False,
                load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="bfloat16",
                bnb_4bit_quant_storage="uint8", llm_int8_enable_fp32_cpu_offload=False,
                llm_int8_has_fp16_weight=False, llm_int8_skip_modules=None,
                llm_int8_threshold=6.0,
            ),
        ),
        [misread(high_first=False), misread(offset=False)],
    ),
    "bnb_fp4": llama(
        Quantized(
            [("1.self_attn", None), (LAYERS, Bnb("fp4"))],
            dict(
                quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="fp4",
                llm_int8_skip_modules=["lm_head", "model.layers.1.self_attn"],
            ),
        ),
        [misread(high_first=False)],
    ),
    "bnb_int8": llama(
        all_layers(
            BnbInt8(
                "int8", (1, None), scale_name="SCB", scale_shape=(-1,),
                factor=7.874015718698502e-3,
                metadata=(("weight_format", torch.tensor(0, dtype=torch.uint8)),),
            ),
            dict(quant_method="bitsandbytes", load_in_8bit=True, llm_int8_threshold=6.0),
        ),
        [misread(factor=None)],
    ),
}
