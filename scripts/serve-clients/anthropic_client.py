"""anthropic: messages whole, their tokens counted, and errors in its form."""

import json

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from server import DEMO, Server

MESSAGES = [{"role": "user", "content": "What is 28 plus 94?"}]
# What the newest SDK knows of the beta endpoint alone.
SAMPLING = {"temperature": 1.0, "top_k": 5, "top_p": 0.9}
TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


# Whatever is sampled, the arguments are these.
FORCED = {
    "name": "add",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
EVENT = TypeAdapter(RawMessageStreamEvent)


def client_of(server, **options):
    options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
    return anthropic.Anthropic(base_url=server.url, **options)


def body(kind, raw):
    """The answer as the SDK has it, of JSON that is strictly of its type."""
    return kind.model_validate(json.loads(raw.http_response.read()), strict=True)


def message(client, **asked):
    create = client.messages.with_raw_response.create
    asked = {"model": "demo", "max_tokens": 24, "messages": MESSAGES, **asked}
    return body(Message, create(**asked))


def check_messages(client):
    whole = message(client)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", "demo"), whole
    assert whole.stop_reason == "end_turn" and whole.content[0].text, whole
    assert whole.usage.input_tokens > 0 and whole.usage.output_tokens > 0
    assert message(client, max_tokens=1).stop_reason == "max_tokens"
    stop = whole.content[0].text[1]
    cut = message(client, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop), cut
    assert cut.content[0].text == whole.content[0].text.split(stop)[0]
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    assert message(client, messages=parts).content == whole.content
    asked = {"model": "demo", "max_tokens": 2, "messages": MESSAGES}
    assert client.messages.create(**asked, extra_headers={"x-request-id": "mine"})._request_id == "mine"
    with_system = message(client, system="Answer with a number.")
    assert with_system.usage.input_tokens > whole.usage.input_tokens
    assert message(client, tools=[TOOL], extra_body=SAMPLING).content
    count = client.messages.with_raw_response.count_tokens
    for asked in ({}, {"system": "Answer with a number."}):
        counted = body(MessageTokensCount, count(model="demo", messages=MESSAGES, **asked))
        assert counted.input_tokens == message(client, **asked).usage.input_tokens, asked


def check_pieces(client):
    """Events in the order that the SDK counts on, and its joined message."""
    hot = {"extra_body": {"temperature": 1.0, "seed": 5}, "max_tokens": 48}
    forced = {"tools": [FORCED], "tool_choice": {"type": "tool", "name": "add"}, "max_tokens": 300}
    for asked in ({}, {"max_tokens": 1}, {"stop_sequences": ["2"]}, hot, forced):
        asked = {"model": "demo", "max_tokens": 24, "messages": MESSAGES, **asked}
        whole = message(client, **asked)
        if asked.get("tools"):
            assert [(b.type, b.input) for b in whole.content] == [("tool_use", {"a": 1})], whole
        raw = client.messages.with_raw_response.create(stream=True, **asked)
        kinds = []
        for event in raw.http_response.read().decode().strip("\n").split("\n\n"):
            name, data = event.split("\n")
            data = json.loads(data.removeprefix("data: "))
            assert name == f"event: {data['type']}", event
            if data["type"] != "ping":
                EVENT.validate_python(data, strict=True)
                kinds.append(data["type"])
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
        blocks = [kind.removeprefix("content_block_") for kind in kinds[1:-2]]
        assert blocks.count("start") == blocks.count("stop") == len(whole.content), kinds
        with client.messages.stream(**asked) as stream:
            for _ in stream:
                pass
            final = stream.get_final_message()
        assert shown(final) == shown(whole), (final, whole)
        assert final.usage.output_tokens == whole.usage.output_tokens, (final, whole)
        assert final.usage.input_tokens == whole.usage.input_tokens, (final, whole)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
        assert text == "".join(block.text for block in whole.content if block.type == "text")


def shown(answer):
    """What is equal of two answers to one request: names of calls are their own."""
    blocks = [(b.type, b.text if b.type == "text" else (b.name, b.input)) for b in answer.content]
    return blocks, answer.stop_reason, answer.stop_sequence, answer.role, answer.model


def refused(ask, kind, name):
    """Asks what the server refuses, in the SDK's exception and by the API's name of the error."""
    try:
        ask()
    except anthropic.APIStatusError as error:
        assert type(error) is kind, (type(error), error)
        assert error.body["type"] == "error" and error.body["error"]["message"], error.body
        assert error.body["error"]["type"] == name, error.body
    else:
        raise AssertionError(f"{kind.__name__} was expected")


def check_errors(client):
    for asked in (
        {"extra_body": {"temperature": -1}},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "a"}]},
        {"stop_sequences": "a"},
    ):
        refused(
            lambda: message(client, **asked), anthropic.BadRequestError, "invalid_request_error"
        )
    nobody = "nobody"
    refused(lambda: message(client, model=nobody), anthropic.NotFoundError, "not_found_error")
    count = client.messages.count_tokens
    refused(
        lambda: count(model=nobody, messages=MESSAGES),
        anthropic.NotFoundError,
        "not_found_error",
    )
    refused(
        lambda: count(model="demo", messages=[]),
        anthropic.BadRequestError,
        "invalid_request_error",
    )


def check(binary):
    with Server(binary) as server, client_of(server) as client:
        check_messages(client)
        check_pieces(client)
        check_errors(client)
    with Server(binary, DEMO, "--api-key", "right") as server:
        refused(
            lambda: message(client_of(server, api_key="wrong")),
            anthropic.AuthenticationError,
            "authentication_error",
        )
        assert message(client_of(server, api_key="right"), max_tokens=2).content
