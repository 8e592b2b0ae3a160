"""`StructuredOutputsParams`: what every answer must match. docs/STRUCTURED_OUTPUT.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from .exceptions import VLLMValidationError

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass
class StructuredOutputsParams:
    """Exactly one constraint, and how it is read.

    `json`: a JSON schema, as an object or its text; a class of pydantic is its schema.
    `regex`: matches the whole answer. `choice`: one of these texts. `grammar`: EBNF or Lark.
    `json_object`: any JSON object. `structural_tag`: free text with tags, as JSON text.

    Raises VLLMValidationError for no constraint and for several.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise VLLMValidationError(
                f"structured outputs have one constraint of {', '.join(CONSTRAINTS)}: {found}"
            )

    def all_constraints_none(self) -> bool:
        """Whether every constraint was taken away since."""
        return all(getattr(self, name) is None for name in CONSTRAINTS)

    def fields(self) -> dict[str, Any]:
        """The object of a row's `structured_outputs`."""
        found = {name: value for name, value in vars(self).items() if value}
        if self.choice is not None:
            found["choice"] = list(self.choice)
        if hasattr(self.json, "model_json_schema"):
            found["json"] = self.json.model_json_schema()  # type: ignore[union-attr]
        return found


class GuidedDecodingParams(StructuredOutputsParams):
    """vLLM's older name of `StructuredOutputsParams`."""

    def __init__(self, *arguments: Any, backend: str | None = None, **options: Any) -> None:
        del backend  # One engine finds the tokens, whatever is asked for.
        super().__init__(*arguments, **options)

    @staticmethod
    def from_optional(**options: Any) -> GuidedDecodingParams | None:
        """None where no constraint is given."""
        if all(options.get(name) is None for name in CONSTRAINTS):
            return None
        return GuidedDecodingParams(**options)


def guided_of(fields: Mapping[str, Any]) -> StructuredOutputsParams:
    """The parameters of a mapping, as scripts give it in their place."""
    return StructuredOutputsParams(**fields)
