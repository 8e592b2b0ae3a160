"""Kimi K2.5 and Kimi-VL. Their text parts are checked here; `generate_images.py` adds what the
multimodal class makes of images. transformers has no class of Kimi-VL: its tower and projector are
those of Kimi K2.5 (vLLM's kimi_vl.py and moonvit.py beside kimi_k25_vit.py), under other names."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, with_experts_one_by_one, wrapped
from ..routing import biased_weights, unbiased
from .latent import EXPERTS, YARN, latent_eps, turning_first
from .towers import IMAGE_TOKEN, INNER, PATCH, WIDTH

HEADS, LAYERS = 2, 2
# Parts of the projector in Kimi K2.5, and in Kimi-VL.
PROJECTORS = [
    ("mm_projector.pre_norm", "multi_modal_projector.pre_norm"),
    ("mm_projector.proj.0", "multi_modal_projector.linear_1"),
    ("mm_projector.proj.2", "multi_modal_projector.linear_2"),
]


def tower(side: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """MoonViT of so many rows of positions, and what makes tokens of squares of 2 x 2 patches."""
    merged = 4 * WIDTH
    linears = {
        "vision_tower.patch_embed.proj": (WIDTH, 3, PATCH, PATCH),
        "vision_tower.encoder.final_layernorm": (WIDTH,),
        "mm_projector.pre_norm": (WIDTH,), "mm_projector.proj.0": (merged, merged),
        "mm_projector.proj.2": (hidden, merged),
    }
    for layer in (f"vision_tower.encoder.blocks.{index}." for index in range(LAYERS)):
        linears |= {
            f"{layer}norm0": (WIDTH,), f"{layer}norm1": (WIDTH,), f"{layer}wqkv": (3 * WIDTH, WIDTH),
            f"{layer}wo": (WIDTH, WIDTH), f"{layer}mlp.fc0": (INNER, WIDTH),
            f"{layer}mlp.fc1": (WIDTH, INNER),
        }
    shapes = {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    return shapes | {"vision_tower.patch_embed.pos_emb.weight": (side, side, WIDTH)}


def values(name: str, shape: tuple[int, ...]):
    """Random ones; those of positions are as large as patches."""
    return of_tower(name.replace("pos_emb", "position"), shape)


def text_of(config: dict, model_type: str) -> dict:
    """The text part in Moonshot's words."""
    dropped = ("architectures", "transformers_version", "qk_head_dim", "head_dim")
    return {k: v for k, v in config.items() if k not in dropped} | dict(
        model_type=model_type, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1,
        ep_size=1, seq_aux=True, aux_loss_alpha=0.001,
    )


def k25(config: dict) -> dict:
    """The text part in Moonshot's words, the rest in transformers'."""
    text = text_of(config, "kimi_k2") | dict(
        architectures=["DeepseekV3ForCausalLM"], num_nextn_predict_layers=0,
    )
    return dict(
        architectures=["Kimi_K25ForConditionalGeneration"], dtype="bfloat16",
        eos_token_id=config["eos_token_id"], image_token_id=IMAGE_TOKEN, model_type="kimi_k25",
        projection_hidden_size=WIDTH, projection_layer_norm_eps=1e-2, text_config=text,
        tie_word_embeddings=False, video_token_id=IMAGE_TOKEN + 1, vision_end_token_id=289,
        vision_start_token_id=289,
        vision_config=dict(
            hidden_size=WIDTH, intermediate_size=INNER, merge_kernel_size=[2, 2],
            model_type="kimi_k25_vision", num_attention_heads=HEADS, num_hidden_layers=LAYERS,
            patch_size=PATCH, pos_emb_height=5, pos_emb_time=2, pos_emb_width=5,
            rope_parameters=dict(rope_type="axial", rope_theta=100.0),
        ),
    )


def vl(config: dict) -> dict:
    """As in Kimi-VL's own files."""
    return dict(
        architectures=["KimiVLForConditionalGeneration"],
        auto_map={"AutoConfig": "configuration_kimi_vl.KimiVLConfig"}, ignore_index=-100,
        media_placeholder_token_id=IMAGE_TOKEN, model_type="kimi_vl",
        text_config=text_of(config, "deepseek_v3"), torch_dtype="bfloat16",
        transformers_version="4.50.3",
        vision_config=dict(
            hidden_size=WIDTH, init_pos_emb_height=4, init_pos_emb_width=4, intermediate_size=INNER,
            merge_kernel_size=[2, 2], model_type="moonvit", num_attention_heads=3,
            num_hidden_layers=LAYERS, patch_size=PATCH, torch_dtype="bfloat16",
        ),
    )


def vl_as_k25(config: dict) -> dict:
    """The same in the words of transformers' Kimi K2.5."""
    vision = dict(config["vision_config"], model_type="kimi_k25_vision")
    for side in ("height", "width"):
        vision[f"pos_emb_{side}"] = vision.pop(f"init_pos_emb_{side}")
    return dict(
        architectures=["Kimi_K25ForConditionalGeneration"], model_type="kimi_k25",
        image_token_id=config["media_placeholder_token_id"], projection_hidden_size=WIDTH,
        projection_layer_norm_eps=1e-5, text_config=config["text_config"],
        tie_word_embeddings=False, video_token_id=IMAGE_TOKEN + 1, vision_config=vision,
    )


def renamed_projector(names: list[tuple[str, str]], tensors: dict) -> dict:
    """The tensors of either, under the names of the other."""
    out = {}
    for name, tensor in tensors.items():
        for old, new in names:
            name = name.replace(old, new)
        out[name] = tensor
    return out


def of_k25(tensors: dict) -> dict:
    """Tensors of Kimi-VL under the names of Kimi K2.5."""
    return renamed_projector([(new, old) for old, new in PROJECTORS], tensors)


def deepseek(layout, text: dict, **more) -> Family:
    return small(
        "DeepseekV3Config",
        dims(
            32, 48, 2, 3, 3, rms_norm_eps=1e-2, n_group=1, topk_group=1, norm_topk_prob=True,
            n_shared_experts=1, **EXPERTS, **text,
        ),
        [unbiased, biased_weights, dict(routed_scaling_factor=1.0), turning_first, latent_eps(1e-2)],
        layout=with_experts_one_by_one(layout),
        oracle="transformers DeepseekV3ForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True, **more,
    )


MODEL, HEAD = "language_model.model.", "language_model.lm_head."
FAMILIES: dict[str, Family] = {
    "kimi_k25": deepseek(
        wrapped(MODEL, HEAD, tower(5, 32), k25, values),
        dict(q_lora_rank=20, rope_parameters=YARN),
    ),
    "kimi_vl": deepseek(
        wrapped(MODEL, HEAD, renamed_projector(PROJECTORS, tower(4, 32)), vl, values),
        dict(q_lora_rank=None, rope_parameters=rope(800000.0)),
        first_seed=4,  # by image prompts whose best tokens are apart
    ),
}
