"""vllm-batch as a model of lm-evaluation-harness (`pip install 'vllm-batch[lm-eval]'`).

    python -m vllm_batch.lm_eval --model vllm-batch --model_args pretrained=./model --tasks arc_easy

or `import vllm_batch.lm_eval`, and then `lm_eval.simple_evaluate(model="vllm-batch", ...)`.

Tokens are made here, as the harness splits them into context and continuation, by the model's
`tokenizer.json`. Rows are sent as token ids. Log-likelihoods are those of `prompt_logprobs`.
"""

import json
import logging
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

# Beside this model the harness keeps its own.
import lm_eval.models  # noqa: F401
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from .engine import Engine

LOGGER = logging.getLogger("vllm_batch")

# What a task may ask of its samples, by the names of rows.
SAMPLING = frozenset(
    "temperature top_p top_k min_p seed presence_penalty frequency_penalty repetition_penalty "
    "min_tokens ignore_eos skip_special_tokens".split()
)
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class Chat(NamedTuple):
    """Messages, as JSON: the program has the chat template."""

    prompt: str

    def encode(self, encoding: str) -> bytes:
        """For the harness, which hashes prompts."""
        return self.prompt.encode(encoding)


@register_model("vllm-batch")
class VllmBatch(TemplateLM):
    """A model that vllm-batch runs.

    `pretrained`: folder or Hugging Face id. `tokenizer`: the same, or a `tokenizer.json`, where it
    is not the model's; a GGUF file needs one.
    `add_bos_token`: begins prompts with BOS where the tokenizer does so. The harness's other
    models do not unless they are told to.
    `max_gen_toks`: longest answer of a task that does not say it.
    `batch_size`, `max_batch_size`: ignored, as answers do not depend on them.
    `flags`: those of `vllm-batch run`.
    """

    def __init__(
        self,
        pretrained: str,
        tokenizer: Optional[str] = None,
        add_bos_token: bool = False,
        max_gen_toks: int = 256,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Optional[str] = None,
        **flags: Any,
    ) -> None:
        super().__init__()
        self._name = str(pretrained)
        self._tokens = _Tokens(str(tokenizer or pretrained))
        self._add_bos_token = add_bos_token
        self._max_gen_toks = int(max_gen_toks)
        if device is not None:
            flags["device"] = device
        self._engine = Engine(pretrained, **flags)

    @property
    def eot_token_id(self) -> int:
        return self._tokens.eos

    @property
    def prefix_token_id(self) -> int:
        return self._tokens.eos if self._tokens.bos is None else self._tokens.bos

    @property
    def max_length(self) -> int:
        """Longest prompt plus output, in tokens; longest prompt where nothing is generated."""
        return self._engine.max_model_len

    @property
    def tokenizer_name(self) -> str:
        return self._name.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: Optional[bool] = None, **kwargs: Any
    ) -> List[int]:
        if add_special_tokens is None:
            add_special_tokens = self._add_bos_token and not self._tokens.begins_with_bos(string)
        return self._tokens.encode(string, add_special_tokens)

    def apply_chat_template(
        self, chat_history: List[Dict[str, str]], add_generation_prompt: bool = True
    ) -> Any:
        chat = list(chat_history)
        if not add_generation_prompt:
            raise NotImplementedError(
                "vllm-batch: a chat that the model goes on with (gen_prefix) is not supported"
            )
        return Chat(json.dumps(chat, ensure_ascii=False))

    def chat_template(self, chat_template: Any = False) -> Optional[str]:
        """The program's own: the harness only writes it down."""
        return ""

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> List[str]:
        arguments = [request.args for request in requests]
        rows = [self._completion(index, *args) for index, args in enumerate(arguments)]
        texts = []
        for answer, args in zip(self._answers(rows), arguments):
            texts.append(answer["response"])
            self.cache_hook.add_partial("generate_until", args, answer["response"])
        return texts

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> List[float]:
        windows, owners = [], []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(_text(request.args[0]))
            # A window begins with a token that is not scored.
            longest = self.max_length - 1
            of_text = get_rolling_token_windows(tokens, self.prefix_token_id, longest, 1)
            for context, continuation in map(make_disjoint_window, of_text):
                windows.append((None, context, continuation))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows)):
            totals[index] += logprob
        for request, total in zip(requests, totals):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> List[Tuple[float, bool]]:
        for request in requests:
            _text(request.args[0])
        found: List[Tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, **kwargs: Any
    ) -> List[Tuple[float, bool]]:
        rows, num_scored = [], []
        for index, (_, context, continuation) in enumerate(requests):
            prompt = self._cut([*context, *continuation], self.max_length)
            num_scored.append(len(continuation))
            rows.append({
                "id": index,
                "prompt_token_ids": prompt,
                "prompt_logprobs": 0,
                # What is before them may come from the prefix cache.
                "prompt_logprobs_last": max(len(continuation), 1),
                "max_tokens": 0,
            })
        results = []
        for answer, count, (key, _, _) in zip(self._answers(rows), num_scored, requests):
            positions = answer["prompt_logprobs"][-count:] if count else []
            result = _sum(positions)
            results.append(result)
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)
        return results

    def _completion(self, index: int, context: Any, options: Dict[str, Any]) -> Dict[str, Any]:
        options = dict(options)
        until = options.pop("until", None) or []
        until = [until] if isinstance(until, str) else list(until)
        lengths = [int(options.pop(name)) for name in LENGTHS if options.get(name) is not None]
        max_tokens = lengths[0] if lengths else self._max_gen_toks
        samples = options.pop("do_sample", None)
        unknown = sorted(set(options) - SAMPLING - set(LENGTHS))
        if unknown:
            raise ValueError(f"vllm-batch: generation_kwargs {', '.join(unknown)} are not known")
        row = {name: value for name, value in options.items() if name in SAMPLING}
        if samples is False or (samples is None and not row.get("temperature")):
            row["temperature"] = 0
        row.update(id=index, max_tokens=max_tokens, stop=[text for text in until if text])
        if isinstance(context, Chat):
            row["messages"] = json.loads(context.prompt)
        else:
            tokens = self.tok_encode(context)
            row["prompt_token_ids"] = self._cut(tokens, self.max_length - max_tokens)
        return row

    def _cut(self, tokens: List[int], longest: int) -> List[int]:
        if longest < 1:
            raise ValueError(f"vllm-batch: no room for a prompt in {self.max_length} tokens")
        if len(tokens) > longest:
            LOGGER.warning("a prompt of %d tokens is cut to its last %d", len(tokens), longest)
        return tokens[-longest:]

    def _answers(self, rows: List[Dict[str, Any]]) -> Iterable[Dict[str, Any]]:
        for answer in self._engine.run(rows):
            if answer.get("error"):
                error = answer["error"]
                raise RuntimeError(
                    f"vllm-batch: request {answer['id']}: {error['code']}: {error['message']}"
                )
            yield answer


def _text(prompt: Any) -> str:
    if isinstance(prompt, Chat):
        raise NotImplementedError(
            "vllm-batch: log-likelihoods need texts: leave out --apply_chat_template, or give "
            "tasks that generate"
        )
    text: str = prompt
    return text


def _sum(positions: List[Dict[str, Any]]) -> Tuple[float, bool]:
    """Sum over the tokens, and whether each is the likeliest in its place."""
    # JSON has no minus infinity: the program writes null.
    logprobs = [position["logprob"] for position in positions]
    total = sum(float("-inf") if logprob is None else logprob for logprob in logprobs)
    return total, all(position["rank"] == 1 for position in positions)


class _Tokens:
    """A tokenizer, and its special tokens as transformers finds them."""

    def __init__(self, source: str) -> None:
        file = source if os.path.isfile(source) else os.path.join(source, "tokenizer.json")
        if source.endswith(".gguf"):
            raise ValueError("vllm-batch: a GGUF file needs tokenizer=FOLDER for the harness")
        if os.path.isdir(source) and not os.path.isfile(file):
            raise ValueError(f"vllm-batch: no tokenizer.json in {source}")
        if os.path.isfile(file):
            self._tokenizer = Tokenizer.from_file(file)
            settings = _json(os.path.join(os.path.dirname(file), "tokenizer_config.json"))
            special = _json(os.path.join(os.path.dirname(file), "special_tokens_map.json"))
        else:
            from huggingface_hub import hf_hub_download

            self._tokenizer = Tokenizer.from_pretrained(source)
            settings = _json(hf_hub_download(source, "tokenizer_config.json"))
            special = {}
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        named = {**special, **{name: value for name, value in settings.items() if value}}
        self._bos_text = _content(named.get("bos_token"))
        self.bos = self._id(self._bos_text)
        eos = self._id(_content(named.get("eos_token")))
        if eos is None:
            raise ValueError(f"vllm-batch: the tokenizer of {source} has no eos_token")
        self.eos: int = eos

    def encode(self, text: str, add_special_tokens: bool) -> List[int]:
        found = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        ids: List[int] = found.ids
        return ids

    def begins_with_bos(self, text: str) -> bool:
        return bool(self._bos_text) and text.startswith(self._bos_text or "")

    def _id(self, token: Optional[str]) -> Optional[int]:
        return None if token is None else self._tokenizer.token_to_id(token)


def _json(path: str) -> Dict[str, Any]:
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as file:
        found: Dict[str, Any] = json.load(file)
    return found


def _content(token: Any) -> Optional[str]:
    return token.get("content") if isinstance(token, dict) else token


def main() -> None:
    """The harness's command line, which knows this model too."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
