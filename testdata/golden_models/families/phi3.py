"""Phi-3: fused projections, and rotary embeddings with two lists of factors."""

from ..family import Family, dims, rope, small
from ..mistakes import rows_swapped
from ..ropes import fixed_at

SHORT = [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0]
LONG = [1.0, 1.3, 1.9, 2.8, 4.0, 5.5, 7.0, 8.0]
LONGROPE = rope(
    10000.0, "longrope", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=32
)
SMALL_LONGROPE = rope(
    10000.0, "longrope", short_factor=SHORT[:6], long_factor=LONG[:6],
    partial_rotary_factor=0.75, original_max_position_embeddings=256,
)


def old_scaling(parameters: dict) -> dict:
    """rope_scaling as the published files have it."""
    return dict(
        rope_scaling=dict(
            type="longrope", short_factor=parameters["short_factor"],
            long_factor=parameters["long_factor"],
        )
    )


FAMILIES: dict[str, Family] = {
    "phi3": small(
        "Phi3Config",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=False, rms_norm_eps=1e-5, sliding_window=40,
            original_max_position_embeddings=32, rope_parameters=LONGROPE,
        ),
        [
            dict(_fix=None, rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
            dict(_fix=fixed_at(20)), dict(sliding_window=39), dict(sliding_window=41),
            dict(
                rope_parameters=dict(LONGROPE, attention_factor=1.0, partial_rotary_factor=1.0)
            ),
            rows_swapped("gate_up_proj.weight", [64, 64]),
        ],
        fix=fixed_at(256), oracle="transformers Phi3ForCausalLM, long factors at every position",
        old_config=True, old_keys=old_scaling(LONGROPE), shared="sentencepiece",
    ),
    "phi4_mini": small(
        "Phi3Config",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=True, rms_norm_eps=1e-5, sliding_window=512,
            original_max_position_embeddings=256, rope_parameters=SMALL_LONGROPE,
        ),
        [
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=0.75)),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
            dict(_fix=fixed_at(257)),
        ],
        old_config=True, old_keys=old_scaling(SMALL_LONGROPE),
    ),
}
