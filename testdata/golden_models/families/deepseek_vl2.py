"""DeepSeek-VL2. Its text parts are checked here; `generate_images.py` adds what the model makes of
images, by `deepseek_vl2_oracle.py`: transformers has no class of it."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, with_experts_one_by_one, wrapped
from ..routing import biased_weights, unbiased
from .latent import EXPERTS, turning_first
from .renamed import of_first_deepseek, without_choice_biases
from .towers import PATCH, WIDTH

# Tiles of 3 x 3 patches and two pixels in none: squares of 2 x 2 patches stand out over the edge.
TILE, LAYERS, HEADS, MLP_RATIO = 26, 2, 3, 1.7


def tower(config: dict) -> dict[str, tuple[int, ...]]:
    """SigLIP under timm's names, and what makes tokens of squares of 2 x 2 patches."""
    vision, projector = config["vision_config"], config["projector_config"]
    width, patch, hidden = vision["width"], vision["patch_size"], projector["n_embed"]
    inner = int(width * vision["mlp_ratio"])
    linears = {"vision.patch_embed.proj": (width, 3, patch, patch), "vision.norm": (width,)}
    for layer in (f"vision.blocks.{index}." for index in range(vision["layers"])):
        linears |= {
            f"{layer}norm1": (width,), f"{layer}norm2": (width,),
            f"{layer}attn.qkv": (3 * width, width), f"{layer}attn.proj": (width, width),
            f"{layer}mlp.fc1": (inner, width), f"{layer}mlp.fc2": (width, inner),
        }
    between = hidden * projector.get("mlp_ratio", 1)
    sizes = [4 * width, *[between] * (projector.get("depth", 2) - 1), hidden]
    for index, (k, n) in enumerate(zip(sizes, sizes[1:])):
        linears[f"projector.layers.{2 * index}"] = (n, k)
    shapes = {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    side = vision["image_size"] // patch
    return shapes | {
        "vision.pos_embed": (1, side * side, width), "vision.attn_pool.latent": (1, 1, width),
        "image_newline": (hidden,), "view_seperator": (hidden,),
    }


def values(name: str, shape: tuple[int, ...]):
    """Random ones; those of positions are as large as patches."""
    return of_tower(name.replace("pos_embed", "position"), shape)


def vl2(language: dict, projector: dict) -> dict:
    """As in DeepSeek-VL2's own files."""
    sides = [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3], [3, 1]]
    return dict(
        architectures=["DeepseekVLV2ForCausalLM"],
        candidate_resolutions=[[TILE * width, TILE * height] for width, height in sides],
        global_view_pos="head", language_config=language, model_type="deepseek_vl_v2",
        projector_config=dict(
            input_dim=WIDTH, model_type="mlp_projector", n_embed=language["hidden_size"], **projector
        ),
        tile_tag="2D", torch_dtype="bfloat16", transformers_version="4.38.2",
        vision_config=dict(
            heads=HEADS, image_size=TILE, layers=LAYERS, mlp_ratio=MLP_RATIO,
            model_name="siglip_so400m_patch14_384", model_type="vision", patch_size=PATCH,
            width=WIDTH,
        ),
    )


def text_of(config: dict, dropped: tuple[str, ...], **keys) -> dict:
    names = ("architectures", "transformers_version", "head_dim", *dropped)
    return {k: v for k, v in config.items() if k not in names} | dict(
        architectures=["DeepseekV2ForCausalLM"], auto_map=dict(AutoConfig="DeepseekV2Config"),
        lm_head=True, model_type="deepseek_v2", rm_head=False, **keys,
    )


def base(config: dict) -> dict:
    """Latent attention, and V3's choice of experts."""
    dropped = ("qk_head_dim", "rope_interleave")
    language = text_of(config, dropped, topk_method="noaux_tc", scoring_func="sigmoid")
    return vl2(language, dict(depth=3, mlp_ratio=2))


def tiny(config: dict) -> dict:
    """Llama's attention, and V2's choice of experts."""
    language = text_of(
        config, (), topk_method="greedy", use_mla=False, kv_lora_rank=None, q_lora_rank=None,
        qk_nope_head_dim=0, qk_rope_head_dim=0, v_head_dim=0,
    )
    return vl2(language, {})


MODEL, HEAD = "language.model.", "language.lm_head."
FAMILIES: dict[str, Family] = {
    "deepseek_vl2": small(
        "DeepseekV3Config",
        dims(
            32, 48, 2, 2, 2, rms_norm_eps=1e-6, q_lora_rank=None, n_group=1, topk_group=1,
            norm_topk_prob=True, n_shared_experts=2, rope_parameters=rope(10000.0), **EXPERTS,
        ),
        [unbiased, biased_weights, dict(routed_scaling_factor=1.0), turning_first],
        layout=with_experts_one_by_one(
            wrapped(MODEL, HEAD, tower(base(dict(hidden_size=32))), base, values)
        ),
        oracle="transformers DeepseekV3ForCausalLM, inside of a multimodal checkpoint",
        shared="paligemma_images", old_config=True,
    ),
    "deepseek_vl2_tiny": of_first_deepseek(
        2,
        with_experts_one_by_one(
            without_choice_biases(
                wrapped(MODEL, HEAD, tower(tiny(dict(hidden_size=32))), tiny, values)
            )
        ),
        "transformers Dots1ForCausalLM with a softmax and without norms of q and k, inside of a "
        "multimodal checkpoint",
        shared="paligemma_images",
    ),
}
