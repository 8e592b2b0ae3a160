"""Prompts as vLLM takes them, and the fields of a row that ask the same."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Mapping, Sequence, TypedDict, Union

from .images import image_url
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
    if isinstance(prompts, (str, Mapping)) or _is_token_ids(prompts):
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
    if isinstance(messages, (str, Mapping)):
        kind = type(messages).__name__
        raise TypeError(f"messages are a {kind}: give a list of messages with role and content")
    if isinstance(messages, Sequence) and messages and isinstance(messages[0], Mapping):
        return [messages]
    items: Iterable[Any] = messages
    return items


def _is_token_ids(prompt: Any) -> bool:
    return (
        isinstance(prompt, (list, tuple))
        and len(prompt) > 0
        and isinstance(prompt[0], int)
        and not isinstance(prompt[0], bool)
    )


def text_of(prompt: Any) -> str | None:
    """The text of a prompt, None of token ids."""
    if isinstance(prompt, Mapping):
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
    if isinstance(prompt, Mapping):
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
    if isinstance(prompt, (list, tuple)) and all(isinstance(item, int) for item in prompt):
        return list(prompt)
    kind = type(prompt).__name__
    raise TypeError(f"prompt {index} is a {kind}: give a text, token ids, or a mapping of one")


def messages_field(conversation: Any, index: int) -> list[Message]:
    """A row's `messages`. Images of Pillow become PNG in the text of the row."""
    if not isinstance(conversation, Sequence) or isinstance(conversation, (str, bytes)):
        kind = type(conversation).__name__
        raise TypeError(f"conversation {index} is a {kind}: give a list of messages")
    return [_message(message, index) for message in conversation]


def _message(message: Any, index: int) -> Message:
    if not isinstance(message, Mapping):
        if not hasattr(message, "model_dump"):
            kind = type(message).__name__
            raise TypeError(f"a message of conversation {index} is a {kind}: give a mapping")
        message = message.model_dump(exclude_none=True)
    found: Row = dict(message)
    if isinstance(found.get("content"), list):
        found["content"] = [_part(part) for part in found["content"]]
    return found


def _part(part: Any) -> Any:
    if isinstance(part, Mapping) and part.get("type") == "image_pil":
        return {"type": "image_url", "image_url": {"url": image_url(part["image_pil"])}}
    if isinstance(part, Mapping) and part.get("type") == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        if isinstance(url, os.PathLike):
            return {"type": "image_url", "image_url": {"url": os.fspath(url)}}
    return part
