"""litellm, as it talks to a vLLM server: `hosted_vllm/NAME`."""

import asyncio
import json
import os
import tempfile

# Prices are not fetched.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm.exceptions import BadRequestError, NotFoundError

from server import DEMO, ENCODER, Server, until

MESSAGES = [{"role": "user", "content": "What is 28 plus 94?"}]


def check(binary):
    litellm.suppress_debug_info = True
    with Server(binary) as server:
        asked = {
            "model": f"hosted_vllm/{server.name}",
            "api_base": server.base_url,
            "messages": MESSAGES,
            "temperature": 1.2,
            "seed": 7,
            "max_tokens": 24,
            "num_retries": 0,
        }
        whole = litellm.completion(**asked)
        text = whole.choices[0].message.content
        assert text and whole.usage.completion_tokens > 0, whole
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(litellm.completion(**asked, **options))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
        assert built.choices[0].message.content == text, built
        assert built.choices[0].finish_reason == whole.choices[0].finish_reason
        assert built.usage.total_tokens == whole.usage.total_tokens, (built.usage, whole.usage)

        async def ask():
            answer = await litellm.acompletion(**asked)
            stream = await litellm.acompletion(**asked, **options)
            parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            return answer.choices[0].message.content, "".join(parts)

        assert asyncio.run(ask()) == (text, text)
        completed = litellm.text_completion(
            model=f"hosted_vllm/{server.name}",
            api_base=server.base_url,
            prompt="the red bird",
            max_tokens=8,
        )
        assert completed.choices[0].text, completed
        for wrong, kind in (
            ({"model": "hosted_vllm/nobody"}, NotFoundError),
            ({"temperature": -1}, BadRequestError),
        ):
            try:
                litellm.completion(**{**asked, **wrong})
            except kind:
                continue
            raise AssertionError(f"{wrong}: {kind.__name__} was expected")
    with Server(binary, ENCODER) as server:
        found = litellm.embedding(
            model=f"hosted_vllm/{server.name}",
            api_base=server.base_url,
            input=["the red bird", "a"],
        )
        assert len(found.data) == 2 and len(found.data[0]["embedding"]) > 1, found
    with tempfile.TemporaryDirectory() as folder:
        check_batches(binary, os.path.join(folder, "batches"))


def check_batches(binary, folder):
    """Files and batches are the server's, which litellm passes on."""
    url = "/v1/completions"
    lines = [
        {"custom_id": name, "method": "POST", "url": url, "body": {"model": "demo", "prompt": name}}
        for name in "abc"
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with Server(binary, DEMO, "--batch-dir", folder) as server:
        for provider in ("openai", "hosted_vllm"):
            there = {"custom_llm_provider": provider, "api_base": server.base_url, "api_key": "none"}
            file = litellm.create_file(file=("in.jsonl", text), purpose="batch", **there)
            batch = litellm.create_batch(
                completion_window="24h", endpoint=url, input_file_id=file.id, **there
            )

            def state():
                return litellm.retrieve_batch(batch_id=batch.id, **there)

            until(lambda: state().status == "completed")
            output = litellm.file_content(file_id=state().output_file_id, **there).content
            assert [json.loads(line)["custom_id"] for line in output.splitlines()] == list("abc")
            assert litellm.list_batches(limit=1, **there).data[0].id == batch.id
