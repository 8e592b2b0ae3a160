"""The cases of sweep_texts.py: name, class of transformers, its config, and what is changed of it.
`family` has the first case of a class, and `case` one with other keys."""

CASES: list[tuple[str, str, dict, dict]] = []
BASES: dict[str, tuple[str, dict]] = {}


def family(base: str, cls: str, **keys) -> None:
    sizes = dict(
        vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    BASES[base] = (cls, sizes | keys)
    case(base, "first")


def case(base: str, what: str, **changes) -> None:
    """Changed keys; a part of another in a key's name is behind two underscores."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    CASES.append((f"{base}-{what}", *BASES[base], changes))


def rope(theta: float, kind: str = "default", **more) -> dict:
    return dict(rope_type=kind, rope_theta=theta, **more)


YARN = rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = rope(
    1e4, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
FULL, SLIDING = "full_attention", "sliding_attention"

family(
    "afmoe", "AfmoeForCausalLM", head_dim=16, num_experts=6, num_experts_per_tok=2,
    moe_intermediate_size=16, num_shared_experts=1, num_dense_layers=1, route_scale=2.5,
    sliding_window=8, mup_enabled=True, num_hidden_layers=5,
)
case("afmoe", "plain", mup_enabled=False, route_scale=1.0, num_shared_experts=2)
case("afmoe", "all-dense", num_dense_layers=5)
case("afmoe", "all-sparse", num_dense_layers=0, num_experts_per_tok=6)
case("afmoe", "pattern", global_attn_every_n_layers=2, sliding_window=3)
case("afmoe", "types", layer_types=[FULL, SLIDING, FULL, FULL, SLIDING])
case("afmoe", "tied", tie_word_embeddings=True)
case("afmoe", "bias", attention_bias=True)
case("afmoe", "act", hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-2)
case("afmoe", "kv", num_key_value_heads=None, head_dim=24)
case("afmoe", "yarn", rope_parameters=YARN)
case("afmoe", "llama3", rope_parameters=LLAMA3, num_key_value_heads=1)
