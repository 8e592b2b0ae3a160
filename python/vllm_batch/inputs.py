"""Prompts as vLLM takes them, and the fields of a row that ask the same."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, TypedDict, Union

from .images import image_url
from .kinds import is_list, is_mapping, is_sequence, path_of
from .rows import Row


class TextPrompt(TypedDict, total=False):
    """A prompt of text. The fields besides `prompt` are refused where they are not empty."""

    prompt: str
    multi_modal_data: Dict[str, Any] | None
    mm_processor_kwargs: Dict[str, Any] | None
    multi_modal_uuids: Dict[str, Any] | None
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt of token ids; `prompt` is its text, where it is known."""

    prompt_token_ids: List[int]
    prompt: str
    token_type_ids: List[int]
    multi_modal_data: Dict[str, Any] | None
    mm_processor_kwargs: Dict[str, Any] | None
    multi_modal_uuids: Dict[str, Any] | None
    cache_salt: str


PromptType = Union[str, List[int], TextPrompt, TokensPrompt]
Message = Dict[str, Any]

# What a prompt's mapping may have. The value of a cache's salt changes no answer.
_KNOWN = {"prompt", "prompt_token_ids", "cache_salt", "type"}
_REMEDIES = {
    "multi_modal_data": "ask with llm.chat: a part {'type': 'image_url', 'image_url': "
    "{'url': PATH}} or {'type': 'image_pil', 'image_pil': IMAGE}",
    "prompt_embeds": "give a text or token ids",
    "encoder_prompt": "models that hear are run by vllm_batch.run_file",
    "decoder_prompt": "models that hear are run by vllm_batch.run_file",
}


def prompts_of(prompts: Any) -> Iterable[Any]:
    """The prompts of what a caller gives: one in the place of several is a list of it.

    Raises TypeError for a frame, which has columns and no prompts.
    """
    if isinstance(prompts, str) or is_mapping(prompts) or _is_token_ids(prompts):
        return [prompts]
    if hasattr(prompts, "columns") or hasattr(prompts, "column_names"):
        kind = type(prompts).__name__
        raise TypeError(f"prompts are a {kind}: give one of its columns, as list(frame['prompt'])")
    if not hasattr(prompts, "__iter__"):
        kind = type(prompts).__name__
        raise TypeError(f"prompts are a {kind}: give a text, token ids, or a list of prompts")
    items: Iterable[Any] = prompts
    return items


def conversations_of(messages: Any) -> Iterable[Any]:
    """The conversations of what a caller gives: one in the place of several is a list of it."""
    if isinstance(messages, str) or is_mapping(messages):
        kind = type(messages).__name__
        raise TypeError(f"messages are a {kind}: give a list of messages with role and content")
    if is_sequence(messages) and messages and is_mapping(messages[0]):
        return [messages]
    items: Iterable[Any] = messages
    return items


def _is_token_ids(prompt: Any) -> bool:
    return (
        is_list(prompt)
        and len(prompt) > 0
        and isinstance(prompt[0], int)
        and not isinstance(prompt[0], bool)
    )


def text_of(prompt: Any) -> str | None:
    """The text of a prompt, None of token ids."""
    if is_mapping(prompt):
        text = prompt.get("prompt")
        return text if isinstance(text, str) else None
    return prompt if isinstance(prompt, str) else None


def prompt_field(prompt: Any, index: int) -> str | list[int]:
    """A row's `prompt`: a text or token ids.

    Raises TypeError for what is no prompt, and NotImplementedError for parts of one that would be
    left out.
    """
    if isinstance(prompt, str):
        return prompt
    if is_mapping(prompt):
        for name, value in prompt.items():
            if name not in _KNOWN and value is not None and value != {} and value != []:
                remedy = _REMEDIES.get(name, "leave it out")
                raise NotImplementedError(f"prompt {index}: {name} is not supported here: {remedy}")
        ids = prompt.get("prompt_token_ids")
        found = prompt.get("prompt") if ids is None else ids
        if found is None:
            raise TypeError(f"prompt {index} has neither `prompt` nor `prompt_token_ids`")
        return found if isinstance(found, str) else [int(token_id) for token_id in found]
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    if is_list(prompt) and all(isinstance(item, int) for item in prompt):
        return list(prompt)
    kind = type(prompt).__name__
    raise TypeError(f"prompt {index} is a {kind}: give a text, token ids, or a mapping of one")


def messages_field(conversation: Any, index: int) -> list[Message]:
    """A row's `messages`. Images of Pillow become PNG in the text of the row."""
    if not is_sequence(conversation):
        kind = type(conversation).__name__
        raise TypeError(f"conversation {index} is a {kind}: give a list of messages")
    return [_message(message, index) for message in conversation]


def _message(message: Any, index: int) -> Message:
    if not is_mapping(message):
        if not hasattr(message, "model_dump"):
            kind = type(message).__name__
            raise TypeError(f"a message of conversation {index} is a {kind}: give a mapping")
        message = message.model_dump(exclude_none=True)
    found: Row = dict(message)
    if is_list(found.get("content")):
        found["content"] = [_part(part) for part in found["content"]]
    return found


def _part(part: Any) -> Any:
    if is_mapping(part) and part.get("type") == "image_pil":
        return {"type": "image_url", "image_url": {"url": image_url(part["image_pil"])}}
    if is_mapping(part) and part.get("type") == "image_url":
        image = part.get("image_url")
        url = image.get("url") if is_mapping(image) else image
        if hasattr(url, "__fspath__"):
            return {"type": "image_url", "image_url": {"url": path_of(url)}}
    return part
