"""The batches of openai-python and of Anthropic's client: whole cycles, cancels, kills, pages.

The SDKs take any JSON for their types; here each body and each line of a result is validated.
"""

import io
import json
import os
import tempfile
import urllib.request

import anthropic
import openai
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from openai.pagination import SyncCursorPage
from openai.types import Batch, CreateEmbeddingResponse, FileDeleted, FileObject
from openai.types.chat import ChatCompletion

from server import DEMO, ENCODER, Server, until

ENDED = ("completed", "failed", "expired", "cancelled")
CHAT = "/v1/chat/completions"


def client_of(server):
    return openai.OpenAI(
        base_url=server.base_url, api_key="none", max_retries=0, timeout=120
    )


def body(kind, raw):
    """The answer as the SDK has it, of JSON that is strictly of its type."""
    return kind.model_validate(json.loads(raw.http_response.read()), strict=True)


def line(name, url, **asked):
    return {"custom_id": name, "method": "POST", "url": url, "body": asked}


def chat_lines(number):
    messages = [{"role": "user", "content": "What is 28 plus 94?\u2028"}]
    more = {"messages": messages, "temperature": 1.2, "max_tokens": 16}
    return [line(f"row-{place}", CHAT, model="demo", **more) for place in range(number)]


def sent(client, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = client.files.with_raw_response.create(
        file=io.BytesIO(text.encode()),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    file = body(FileObject, file)
    assert file.bytes == len(text.encode()) and file.expires_at == file.created_at + 7200, file
    return file


def begun(client, lines, endpoint=CHAT, **options):
    created = client.batches.with_raw_response.create(
        input_file_id=sent(client, lines).id,
        endpoint=endpoint,
        completion_window="24h",
        metadata={"who": "tests"},
        **options,
    )
    batch = body(Batch, created)
    assert batch.status == "validating" and batch.metadata == {"who": "tests"}, batch
    return batch


def state(client, batch):
    return body(Batch, client.batches.with_raw_response.retrieve(batch.id))


def ended(client, batch):
    until(lambda: state(client, batch).status in ENDED, seconds=120)
    return state(client, batch)


def results(client, name):
    """Lines of a result, by the names of their requests."""
    if name is None:
        return {}
    # As its readers do that know more ends of lines than one.
    text = client.files.content(name).read().decode()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


def check_cycle(client):
    lines = chat_lines(12)
    lines[5]["body"]["temperature"] = -1
    batch = ended(client, begun(client, lines))
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (12, 11, 1), counts
    output = results(client, batch.output_file_id)
    errors = results(client, batch.error_file_id)
    assert list(errors) == ["row-5"] and errors["row-5"]["error"] is None
    assert errors["row-5"]["response"]["status_code"] == 400
    answers = [
        ChatCompletion.model_validate(line["response"]["body"], strict=True)
        for line in output.values()
    ]
    assert len({answer.choices[0].message.content for answer in answers}) > 1
    total = sum(answer.usage.completion_tokens for answer in answers)
    assert batch.usage.output_tokens == total, batch.usage
    # A download that goes on where it broke off.
    raw = client.files.content(batch.output_file_id)
    whole, tag = raw.read(), raw.response.headers["etag"]
    url = f"{client.base_url}files/{batch.output_file_id}/content"
    asked = urllib.request.Request(url, headers={"Range": "bytes=100-", "If-Range": tag})
    with urllib.request.urlopen(asked) as rest:
        assert rest.status == 206 and rest.read() == whole[100:]


def check_lists(client):
    ids = [batch.id for batch in client.batches.list(limit=1)]
    assert len(ids) == len(set(ids)) >= 1, ids
    page = client.batches.with_raw_response.list(limit=1)
    body(SyncCursorPage[Batch], page)
    newest = client.files.list(purpose="batch_output", order="desc", limit=2)
    names = [file.filename for file in newest]
    assert names and all(name.startswith("batch_") for name in names), names
    first = client.files.list(purpose="batch", limit=1).data[0]
    deleted = client.files.with_raw_response.delete(first.id)
    assert body(FileDeleted, deleted).deleted
    try:
        client.files.retrieve(first.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a file that was deleted is there")


def check_wrong_lines(client):
    lines = [*chat_lines(2), *chat_lines(1), line("x", "/v1/completions", prompt="a")]
    batch = ended(client, begun(client, lines))
    assert batch.status == "failed" and batch.output_file_id is None, batch
    codes = [(error.code, error.line) for error in batch.errors.data]
    assert codes == [("duplicate_custom_id", 3), ("url_mismatch", 4)], codes


def check_cancel(client):
    lines = [
        line(f"row-{place}", "/v1/completions", prompt="a", max_tokens=300, ignore_eos=True)
        for place in range(2000)
    ]
    batch = begun(client, lines, "/v1/completions")
    until(lambda: state(client, batch).request_counts.completed > 3, seconds=120)
    told = body(Batch, client.batches.with_raw_response.cancel(batch.id))
    assert told.status in ("cancelling", "cancelled"), told
    batch = ended(client, batch)
    assert batch.status == "cancelled", batch
    output = results(client, batch.output_file_id)
    rest = results(client, batch.error_file_id)
    assert len(output) == batch.request_counts.completed and not set(output) & set(rest)
    assert len(output) + len(rest) == 2000
    assert {line["error"]["code"] for line in rest.values()} == {"batch_cancelled"}
    try:
        client.batches.cancel(batch.id)
    except openai.ConflictError:
        return
    raise AssertionError("a batch was cancelled that had ended")


def check_embeddings(binary, folder):
    with Server(binary, ENCODER, "--batch-dir", folder) as server, client_of(server) as client:
        url = "/v1/embeddings"
        lines = [line(f"v{place}", url, model=server.name, input=["a", "b"]) for place in range(5)]
        batch = ended(client, begun(client, lines, url))
        assert batch.status == "completed", batch
        for found in results(client, batch.output_file_id).values():
            answer = CreateEmbeddingResponse.model_validate(found["response"]["body"], strict=True)
            assert len(answer.data) == 2


def check_kill(binary, folder):
    """A server that is killed in a batch: the next one goes on, and nothing is lost or twice."""
    lines = [
        line(f"row-{place}", "/v1/completions", prompt="a", max_tokens=200, ignore_eos=True)
        for place in range(300)
    ]
    server = Server(binary, DEMO, "--batch-dir", folder, "--max-num-seqs", "8")
    with client_of(server) as client:
        batch = begun(client, lines, "/v1/completions")
        until(lambda: state(client, batch).request_counts.completed > 20, seconds=120)
        done = state(client, batch).request_counts.completed
    server.kill()
    with Server(binary, DEMO, "--batch-dir", folder, "--max-num-seqs", "8") as server:
        with client_of(server) as client:
            batch = ended(client, batch)
            assert batch.status == "completed", batch
            assert batch.request_counts.completed == 300 > done, batch
            assert len(results(client, batch.output_file_id)) == 300


def check_messages(binary, folder):
    with Server(binary, DEMO, "--batch-dir", folder) as server:
        client = anthropic.Anthropic(
            base_url=server.url, api_key="none", max_retries=0, timeout=120
        )
        batches = client.messages.batches
        params = {
            "model": "demo",
            "max_tokens": 16,
            "messages": [{"role": "user", "content": "What is 28 plus 94?"}],
        }
        requests = [{"custom_id": f"m{place}", "params": params} for place in range(6)]
        requests[2] = {"custom_id": "m2", "params": {**params, "temperature": -1}}
        created = batches.create(requests=requests)
        assert created.processing_status == "in_progress", created
        until(lambda: batches.retrieve(created.id).processing_status == "ended", seconds=120)
        raw = batches.with_raw_response.retrieve(created.id)
        batch = MessageBatch.model_validate_json(raw.http_response.read(), strict=True)
        counts = batch.request_counts
        assert (counts.succeeded, counts.errored, counts.processing) == (5, 1, 0), counts
        kinds = {}
        for found in batches.results(created.id):
            found = MessageBatchIndividualResponse.model_validate(found.to_dict(), strict=True)
            kinds[found.custom_id] = found.result.type
        assert kinds == {f"m{p}": "errored" if p == 2 else "succeeded" for p in range(6)}, kinds
        assert [batch.id for batch in batches.list(limit=1)] == [created.id]
        assert batches.delete(created.id).type == "message_batch_deleted"
        long = {**params, "max_tokens": 450, "temperature": 1.0}
        many = [{"custom_id": f"m{place}", "params": long} for place in range(3000)]
        created = batches.create(requests=many)
        assert batches.cancel(created.id).processing_status in ("canceling", "ended")
        until(lambda: batches.retrieve(created.id).processing_status == "ended", seconds=120)
        counts = batches.retrieve(created.id).request_counts
        assert counts.canceled > 0 and counts.canceled + counts.succeeded == 3000, counts


def check(binary):
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "batches")
        with Server(binary, DEMO, "--batch-dir", place) as server, client_of(server) as client:
            check_cycle(client)
            check_wrong_lines(client)
            check_lists(client)
            check_cancel(client)
        check_embeddings(binary, place)
        check_kill(binary, place)
        check_messages(binary, place)
