"""anthropic: messages whole and in pieces, their tokens counted, and errors in its form."""

import json

import anthropic
from anthropic.types import Message, MessageTokensCount

from server import DEMO, Server

MESSAGES = [{"role": "user", "content": "What is 28 plus 94?"}]
# What the newest SDK knows of the beta endpoint alone.
SAMPLING = {"temperature": 1.0, "top_k": 5, "top_p": 0.9}
TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


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


def check_streams(client):
    """What the SDK joins of pieces is the whole message, but its name."""
    for asked in ({}, {"max_tokens": 1}, {"stop_sequences": ["a"]}, {"tools": [TOOL]}):
        asked = {"model": "demo", "max_tokens": 24, "messages": MESSAGES, **asked}
        whole = message(client, **asked)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            joined = stream.get_final_message()
        assert text == "".join(block.text for block in whole.content), (text, whole)
        dumped = [block.model_dump(exclude={"parsed_output"}) for block in joined.content]
        assert dumped == [block.model_dump() for block in whole.content], (joined, whole)
        for name in ("type", "role", "model", "stop_reason", "stop_sequence", "usage"):
            assert getattr(joined, name) == getattr(whole, name), (name, joined, whole)
        kinds = [event.type for event in client.messages.create(stream=True, **asked)]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop"), kinds
    hung_up = client.messages.create(model="demo", max_tokens=400, messages=MESSAGES, stream=True)
    next(iter(hung_up))
    hung_up.close()


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
        check_streams(client)
        check_errors(client)
    with Server(binary, DEMO, "--api-key", "right") as server:
        refused(
            lambda: message(client_of(server, api_key="wrong")),
            anthropic.AuthenticationError,
            "authentication_error",
        )
        assert message(client_of(server, api_key="right"), max_tokens=2).content
