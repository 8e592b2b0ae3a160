"""openai-python. The SDK takes any JSON for its types; here each body and chunk is validated."""

import asyncio
import base64
import json
import struct
import urllib.request

import openai
import pydantic
from openai.pagination import SyncPage
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from server import DEMO, ENCODER, Server, until

MESSAGES = [{"role": "user", "content": "What is 28 plus 94?"}]
SAMPLED = {"temperature": 1.2, "seed": 7, "max_tokens": 24}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
# Whatever is sampled, the arguments are these.
ANSWER_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}, "unit": {"enum": ["m", "kg"]}},
    "required": ["sum", "unit"],
    "additionalProperties": False,
}


def client_of(server, **options):
    options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
    return openai.OpenAI(base_url=server.base_url, **options)


def body(kind, raw):
    """The answer as the SDK has it, of JSON that is strictly of its type."""
    value = json.loads(raw.http_response.read())
    return kind.model_validate(value, strict=True)


def whole_chat(client, **asked):
    create = client.chat.completions.with_raw_response.create
    return body(ChatCompletion, create(**{"model": "demo", "messages": MESSAGES, **asked}))


def whole_text(client, **asked):
    create = client.completions.with_raw_response.create
    return body(Completion, create(**{"model": "demo", **asked}))


def events(response):
    """The JSON of a stream, whose last line is the exact end."""
    lines = [line for line in response.http_response.read().decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]", lines[-1]
    assert all(line.startswith("data: ") for line in lines), lines
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def chat_chunks(client, **asked):
    create = client.chat.completions.with_raw_response.create
    asked = {"model": "demo", "messages": MESSAGES, "stream": True, **asked}
    chunks = events(create(**asked))
    return [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]


def joined(chunks, num_choices):
    """Text, logprobs and reason of each choice, of chunks in the order that clients count on."""
    texts, logprobs = [""] * num_choices, [[] for _ in range(num_choices)]
    reasons, roles = [None] * num_choices, []
    for chunk in chunks:
        for choice in chunk.choices:
            at = choice.index
            assert reasons[at] is None, "a chunk comes after the end of its choice"
            if choice.delta.role:
                assert choice.delta.content == "" and not texts[at]
                roles.append(at)
                continue
            assert at in roles, "a choice begins without a role"
            texts[at] += choice.delta.content or ""
            if choice.logprobs:
                logprobs[at] += choice.logprobs.content
            reasons[at] = choice.finish_reason
            assert not (choice.finish_reason and choice.delta.content), "the last delta is not empty"
    assert roles == list(range(num_choices)), roles
    return texts, logprobs, reasons


def check_chat(client):
    for n in (1, 2):
        asked = {**SAMPLED, "n": n, "logprobs": True, "top_logprobs": 2}
        whole, again = whole_chat(client, **asked), whole_chat(client, **asked)
        assert [c.message.content for c in whole.choices] == [
            c.message.content for c in again.choices
        ]
        assert whole.model == "demo" and whole.object == "chat.completion"
        assert [choice.index for choice in whole.choices] == list(range(n))
        for choice in whole.choices:
            assert choice.message.role == "assistant"
            assert all(len(known.top_logprobs) == 2 for known in choice.logprobs.content)
            tokens = "".join(known.token for known in choice.logprobs.content)
            assert tokens.startswith(choice.message.content), (tokens, choice.message.content)
        assert whole.usage.total_tokens == (
            whole.usage.prompt_tokens + whole.usage.completion_tokens
        )
        usage = {"include_usage": True}
        chunks = chat_chunks(client, **asked, stream_options=usage)
        texts, logprobs, reasons = joined(chunks, n)
        assert texts == [choice.message.content for choice in whole.choices], (texts, whole)
        assert reasons == [choice.finish_reason for choice in whole.choices], reasons
        assert logprobs == [choice.logprobs.content for choice in whole.choices]
        assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage, chunks[-1]
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        with client.chat.completions.stream(
            model="demo", messages=MESSAGES, stream_options=usage, **asked
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
        for ours, theirs in zip(whole.choices, final.choices, strict=True):
            assert ours.message.role == theirs.message.role, theirs
            assert ours.message.content == theirs.message.content, theirs
            assert ours.finish_reason == theirs.finish_reason
            assert ours.logprobs.content == theirs.logprobs.content
        assert final.usage == whole.usage
    wild = {"temperature": 2, "max_tokens": 24}
    answers = [whole_chat(client, **wild) for _ in range(4)]
    assert len({answer.id for answer in answers}) == 4, answers
    assert len({answer.choices[0].message.content for answer in answers}) > 1, answers


def check_odd_texts(server, client):
    """Samples of bytes that are no characters, and of what ends lines for some readers."""
    body = json.dumps({"prompt": "é\u0085\u2028日", "add_special_tokens": False}).encode()
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/tokenize", body, head)
    with urllib.request.urlopen(request) as response:
        of_bytes = sorted(set(json.load(response)["tokens"]))
    ends_lines = False
    for seed in range(12):
        asked = {"temperature": 2, "max_tokens": 48, "seed": seed}
        asked["extra_body"] = {"allowed_token_ids": of_bytes}
        whole = whole_chat(client, **asked, logprobs=True)
        texts, logprobs, reasons = joined(chat_chunks(client, **asked, logprobs=True), 1)
        (choice,) = whole.choices
        assert (texts, reasons) == ([choice.message.content], [choice.finish_reason])
        assert logprobs == [choice.logprobs.content]
        with client.chat.completions.stream(model="demo", messages=MESSAGES, **asked) as stream:
            for _ in stream:
                found = stream.current_completion_snapshot
        assert found.choices[0].message.content == texts[0]
        ends_lines |= len(texts[0].splitlines()) > 1
    assert ends_lines, "no text has what ends lines"


def check_usage_in_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chat_chunks(client, **SAMPLED, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] > 0, counts


def check_responses(client):
    """Each event is strictly of its type, and what the SDK joins is the whole response."""
    union = pydantic.TypeAdapter(ResponseStreamEvent)
    tool = {"type": "function", "strict": True, **{
        name: ANSWER_TOOL["function"][name] for name in ("name", "parameters")
    }}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    call = {"tools": [tool], "tool_choice": {"type": "function", "name": "add"}}
    for more in ({}, logprobs, {"max_output_tokens": 300, **call}):
        asked = {"model": "demo", "input": MESSAGES, "temperature": 1.2, "max_output_tokens": 60}
        asked |= {"extra_body": {"seed": 7}, **more}
        headers = {"extra_headers": {"X-Request-Id": "the-same"}}
        create = client.responses.with_raw_response.create
        whole = body(Response, create(**asked, **headers))
        raw = create(**asked, **headers, stream=True).http_response.read().decode()
        kinds, text, last = [], "", None
        for number, event in enumerate(raw.strip().split("\n\n")):
            name, data = event.split("\n")
            value = json.loads(data.removeprefix("data: "))
            last = union.validate_python(value, strict=True)
            assert last.type == name.removeprefix("event: ") and last.sequence_number == number
            kinds.append(last.type)
            text += last.delta if last.type == "response.output_text.delta" else ""
        assert kinds[:2] == ["response.created", "response.in_progress"], kinds
        assert text == whole.output_text, (text, whole.output_text)
        same = {"created_at": whole.created_at}
        assert last.response.model_copy(update=same) == whole
        with client.responses.stream(**{**asked, **headers}) as stream:
            joined = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            # The SDK has no final response of one that was cut off.
            final = stream.get_final_response() if whole.status == "completed" else whole
        assert joined == final.output_text == whole.output_text
        assert [item.type for item in final.output] == [item.type for item in whole.output]
        calls = [item for item in final.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"a": 1}] * ("tools" in asked)


def check_stop(client):
    whole = whole_chat(client, max_tokens=24).choices[0]
    assert whole.finish_reason == "stop" and len(whole.message.content) >= 2, whole
    stop = whole.message.content[1]
    expected = whole.message.content.split(stop)[0]
    cut = whole_chat(client, max_tokens=24, stop=[stop, "\n\n"])
    assert cut.choices[0].message.content == expected and cut.choices[0].finish_reason == "stop"
    texts, _, reasons = joined(chat_chunks(client, max_tokens=24, stop=stop), 1)
    assert texts == [expected] and reasons == ["stop"], (texts, reasons)
    short = whole_chat(client, max_completion_tokens=1)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 1


def check_tools(client):
    for choice in ("auto", "none"):
        asked = {**SAMPLED, "tools": [TOOL], "tool_choice": choice}
        whole = whole_chat(client, **asked)
        texts, _, reasons = joined(chat_chunks(client, **asked), 1)
        assert texts == [whole.choices[0].message.content], (texts, whole)
        assert reasons == [whole.choices[0].finish_reason]
    check_forced_call(client)
    history = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":28,"b":94}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "122"},
    ]
    refused(
        lambda: whole_chat(client, messages=history, tools=[TOOL], max_tokens=4),
        openai.BadRequestError,
    )


def check_forced_call(client):
    """The demo calls where it must: whole, and of one call in the SDK's joined stream."""
    name = {"type": "function", "function": {"name": "add"}}
    asked = {**SAMPLED, "max_tokens": 300, "tools": [ANSWER_TOOL], "tool_choice": name}
    whole = whole_chat(client, **asked).choices[0]
    (call,) = whole.message.tool_calls
    assert json.loads(call.function.arguments) == {"a": 1}, call
    with client.chat.completions.stream(model="demo", messages=MESSAGES, **asked) as stream:
        events = list(stream)
        (final,) = stream.get_final_completion().choices
    (joined_call,) = final.message.tool_calls
    assert (joined_call.type, joined_call.function.name) == ("function", "add"), joined_call
    assert joined_call.function.arguments == call.function.arguments, joined_call
    assert joined_call.id and final.finish_reason == whole.finish_reason, final
    assert any(event.type == "tool_calls.function.arguments.done" for event in events)


def check_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    asked = {"max_tokens": 200, "temperature": 1, "seed": 3, "response_format": form}
    whole = whole_chat(client, **asked)
    found = json.loads(whole.choices[0].message.content)
    assert isinstance(found["sum"], int) and found["unit"] in ("m", "kg"), found
    texts, _, _ = joined(chat_chunks(client, **asked), 1)
    assert texts == [whole.choices[0].message.content]
    form = {"type": "json_object"}
    whole = whole_chat(client, **{**asked, "response_format": form, "max_tokens": 400})
    if whole.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(whole.choices[0].message.content), dict)


def text_chunks(client, **asked):
    create = client.completions.with_raw_response.create
    chunks = events(create(**{"model": "demo", "stream": True, **asked}))
    for chunk in chunks:
        # The SDK has one type for both, whose reason is never null in the schema alone.
        for choice in chunk["choices"]:
            if choice["finish_reason"] is None:
                Completion.model_validate(
                    {**chunk, "choices": [{**choice, "finish_reason": "stop"}]}, strict=True
                )
            else:
                Completion.model_validate(chunk, strict=True)
    return chunks


def check_completions(client):
    asked = {"prompt": "the red bird", **SAMPLED, "n": 2, "logprobs": 2}
    whole = whole_text(client, **asked)
    chunks = text_chunks(client, **asked, stream_options={"include_usage": True})
    for choice in whole.choices:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice.index]
        assert "".join(c["text"] for c in mine) == choice.text, (mine, choice)
        reasons = [c["finish_reason"] for c in mine]
        assert reasons == [None] * (len(mine) - 1) + [choice.finish_reason], reasons
        known = choice.logprobs.to_dict()
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            parts = [c["logprobs"][name] for c in mine if c["logprobs"]]
            assert sum(parts, []) == known[name], (name, parts, known[name])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole.usage.to_dict()
    assert all(chunk.get("usage") is None for chunk in chunks[:-1])
    streamed = client.completions.create(model="demo", stream=True, **asked)
    texts = ["", ""]
    for chunk in streamed:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    several = whole_text(client, **{**asked, "prompt": ["the red bird", "2+3="], "logprobs": None})
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [c.text for c in several.choices[:2]] == [c.text for c in whole.choices]
    check_echo(client)


def check_echo(client):
    asked = {"prompt": "2+3=", "echo": True, "max_tokens": 1, "temperature": 0}
    # Nothing comes before the first token, which OpenAI's API says by null and the SDK's type has not.
    raw = client.completions.with_raw_response.create(model="demo", logprobs=1, **asked)
    value = json.loads(raw.http_response.read())
    known = value["choices"][0]["logprobs"]
    assert known["token_logprobs"][0] is None and known["top_logprobs"][0] is None, known
    for name in ("token_logprobs", "top_logprobs"):
        del known[name][0]
    echoed = Completion.model_validate(value, strict=True)
    assert echoed.choices[0].text.startswith("2+3="), echoed
    assert len(known["tokens"]) == echoed.usage.prompt_tokens + 1, echoed
    # The text leaves special tokens out.
    assert "".join(known["tokens"]) == "<|bos|>" + echoed.choices[0].text, known
    refused(lambda: whole_text(client, **asked, stream=True), openai.BadRequestError, "stream")


def refused(ask, kind, param=None, code=None):
    """Asks what the server refuses, in the SDK's exception."""
    try:
        ask()
    except openai.APIStatusError as error:
        assert type(error) is kind, (type(error), error)
        assert error.body["message"] and error.body["type"], error.body
        assert {"param", "code"} <= error.body.keys(), error.body
        assert param is None or error.param == param, (param, error.body)
        assert code is None or error.code == code, (code, error.body)
    else:
        raise AssertionError(f"{kind.__name__} was expected")


def check_errors(client):
    for stream in (False, True):
        refused(
            lambda: whole_chat(client, model="nobody", stream=stream),
            openai.NotFoundError,
            param="model",
        )
        for asked in (
            {"temperature": -1},
            {"top_p": 2},
            {"max_tokens": -1},
            {"n": 0},
            {"top_logprobs": 3},
            {"stop": 7},
            {"messages": "hello"},
            {"messages": []},
            {"logit_bias": {"x": 1}},
            {"response_format": {"type": "poem"}},
            {"seed": "x"},
        ):
            name = next(iter(asked))
            refused(
                lambda: whole_chat(client, **asked, stream=stream),
                openai.BadRequestError,
                param=name,
            )
    refused(
        lambda: whole_text(client, prompt="a", logprobs=-2), openai.BadRequestError, "logprobs"
    )
    refused(lambda: client.models.retrieve("nobody"), openai.NotFoundError, param="model")
    refused(lambda: client.embeddings.create(model="demo", input="a"), openai.NotFoundError)
    refused(lambda: client.files.list(), openai.NotFoundError)
    long = [{"role": "user", "content": "the red bird sings. " * 1000}]
    refused(lambda: whole_chat(client, messages=long), openai.BadRequestError)


def check_models(client, name="demo"):
    listed = body(SyncPage[Model], client.models.with_raw_response.list())
    assert name in [model.id for model in listed.data], listed
    assert body(Model, client.models.with_raw_response.retrieve(name)).id == name
    assert [model.id for model in client.models.list()] == [model.id for model in listed.data]


def check_closed_stream(server, client):
    """Whoever closes a stream frees its seat."""
    aborted = 'vllm:request_success_total{finished_reason="abort"}'
    before = server.metric(aborted)
    stream = client.completions.create(
        model="demo",
        prompt="the",
        stream=True,
        max_tokens=450,
        extra_body={"ignore_eos": True},
    )
    for _ in range(3):
        next(stream)
    stream.close()
    until(lambda: server.metric(aborted) == before + 1)
    until(lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:num_requests_waiting") == 0
    # So does whoever waits no longer for an answer that comes whole.
    long = {"max_tokens": 450, "temperature": 1, "n": 64, "extra_body": {"ignore_eos": True}}
    try:
        client.with_options(timeout=0.5).completions.create(model="demo", prompt="the", **long)
        raise AssertionError("the answer came too early to be left")
    except openai.APITimeoutError:
        pass
    until(lambda: server.metric(aborted) == before + 2)
    until(lambda: server.metric("vllm:num_requests_running") == 0)


def check_crowd(server, client):
    """Answers are what they are alone, while many are asked at a time and every third is left."""
    asked = [
        {"model": "demo", "messages": MESSAGES, "temperature": 2, "seed": seed, "max_tokens": length}
        for seed, length in enumerate([20, 90, 200] * 16)
    ]
    for request in asked:
        request["extra_body"] = {"ignore_eos": True}
    alone = [whole_chat(client, **request).choices[0].message.content for request in asked[:12]]

    async def streamed(many, request, is_left):
        text = ""
        async with await many.chat.completions.create(stream=True, **request) as stream:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if is_left and len(text) > 10:
                    return None
        return text

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as many:
            streams = [streamed(many, each, at % 3 == 2) for at, each in enumerate(asked)]
            return await asyncio.gather(*streams)

    aborted = 'vllm:request_success_total{finished_reason="abort"}'
    before = server.metric(aborted)
    texts = asyncio.run(all_of_them())
    for at, text in enumerate(alone):
        assert (text == texts[at]) if at % 3 != 2 else texts[at] is None, (at, text, texts[at])
    until(lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:kv_cache_usage_perc") < 1
    # Some may have ended before they were left.
    assert before < server.metric(aborted) <= before + 16


def check_end(binary):
    """A signal lets a stream come to its end."""
    asked = {"prompt": "the red bird", "max_tokens": 300, "extra_body": {"ignore_eos": True}}
    with Server(binary) as server, client_of(server) as client:
        whole = whole_text(client, **asked).choices[0].text
        stream = client.completions.create(model="demo", stream=True, **asked)
        text = next(stream).choices[0].text
        server.end()
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == whole, (text, whole)


def check_keys(binary):
    with Server(binary, DEMO, "--api-key", "right", "other") as server:
        refused(
            lambda: client_of(server, api_key="wrong").models.list(),
            openai.AuthenticationError,
            code="invalid_api_key",
        )
        refused(
            lambda: whole_chat(client_of(server, api_key="wrong"), stream=True),
            openai.AuthenticationError,
        )
        for key in ("right", "other"):
            assert whole_chat(client_of(server, api_key=key), max_tokens=2).choices


def check_embeddings(binary):
    with Server(binary, ENCODER) as server:
        client = client_of(server)
        check_models(client, server.name)
        inputs = ["the red bird", "a", "2 plus 3"]
        asked = {"model": server.name, "input": inputs}
        create = client.embeddings.with_raw_response.create
        floats = body(CreateEmbeddingResponse, create(**asked, encoding_format="float"))
        coded = json.loads(create(**asked, encoding_format="base64").http_response.read())
        assert [item.index for item in floats.data] == [0, 1, 2]
        default = client.embeddings.create(**asked)
        for number, text, sdk in zip(floats.data, coded["data"], default.data, strict=True):
            raw = base64.b64decode(text["embedding"], validate=True)
            values = list(struct.unpack(f"<{len(raw) // 4}f", raw))
            narrowed = struct.unpack(
                f"<{len(number.embedding)}f",
                struct.pack(f"<{len(number.embedding)}f", *number.embedding),
            )
            assert list(narrowed) == values == list(sdk.embedding)
        assert floats.usage.prompt_tokens == floats.usage.total_tokens > 0
        refused(
            lambda: client.embeddings.create(model="nobody", input="a"),
            openai.NotFoundError,
            param="model",
        )
        refused(
            lambda: client.embeddings.create(model=server.name, input=[]), openai.BadRequestError
        )
        refused(
            lambda: client.embeddings.create(model=server.name, input="a", dimensions=100000),
            openai.BadRequestError,
            param="dimensions",
        )


def check(binary):
    with Server(binary) as server, client_of(server) as client:
        check_models(client)
        check_chat(client)
        check_odd_texts(server, client)
        check_usage_in_every_chunk(client)
        check_responses(client)
        check_stop(client)
        check_tools(client)
        check_schema(client)
        check_completions(client)
        check_errors(client)
        check_closed_stream(server, client)
        check_crowd(server, client)
    check_end(binary)
    check_keys(binary)
    check_embeddings(binary)
