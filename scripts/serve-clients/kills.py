"""Servers that are killed, 300 times, at any moment of their batches: nothing is lost, nothing is
there twice, and results are those of `run`, byte for byte. Uses the standard library alone."""

import collections
import http.client
import json
import os
import random
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from server import DEMO, Server

KILLS = int(os.environ.get("VLLM_BATCH_KILLS", "300"))
ENDED = ("completed", "failed", "expired", "cancelled")
EPOCH = "1711652795"
PATH = "/v1/completions"
# Batches that have not ended, at a time.
MAX_OPEN = 4


def lines_of(batch, rng):
    """Few short rows, or more that take longer; some are wrong."""
    long = rng.random() < 0.5
    rows = []
    for place in range(rng.choice((1, 7, 40)) if long else rng.choice((3, 200))):
        body = {"prompt": f"{batch} {place}", "max_tokens": 60 if long else 3, "ignore_eos": True}
        body["temperature"] = -1 if rng.random() < 0.1 else 1.0
        row = {"custom_id": f"{batch}-{place}", "method": "POST", "url": PATH, "body": body}
        rows.append(json.dumps(row) + "\n")
    return "".join(rows)


class Client:
    """Asks a server."""

    def __init__(self, url):
        self._url = url

    def ask(self, path, data=None, method=None, **headers):
        asked = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            if error.code == 409:
                return error.read()
            raise AssertionError(f"{path}: {error.code} {error.read()}") from error
        except http.client.HTTPException as error:
            raise OSError("the answer broke off") from error

    def json(self, *asked, **headers):
        return json.loads(self.ask(*asked, **headers))

    def upload(self, text):
        form = (
            '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            f"{text}\r\n--x--\r\n"
        )
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        return self.json("/v1/files", form.encode(), **kind)["id"]

    def begin(self, file):
        asked = {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"}
        return self.json("/v1/batches", json.dumps(asked).encode())["id"]

    def cancel(self, batch):
        self.ask(f"/v1/batches/{batch}/cancel", b"", "POST")

    def batch(self, batch):
        return self.json(f"/v1/batches/{batch}")

    def content(self, file):
        return self.ask(f"/v1/files/{file}/content").decode() if file else ""


class Told:
    """What a server has answered, which it must know after any kill."""

    def __init__(self, rng):
        self.rng = rng
        self.files = {}
        self.batches = {}
        self.cancelled = set()
        self.faults = []

    def act(self, client, open_batches):
        """Something that a client does; the server may be gone in the middle of it."""
        try:
            self._act(client, open_batches)
        except OSError:
            pass
        except AssertionError as error:
            self.faults.append(error)

    def _act(self, client, open_batches):
        if len(open_batches) < MAX_OPEN and (not open_batches or self.rng.random() < 0.7):
            text = lines_of(len(self.files), self.rng)
            file = client.upload(text)
            self.files[file] = text
            self.batches[client.begin(file)] = file
        elif self.rng.random() < 0.5:
            batch = self.rng.choice(sorted(open_batches))
            self.cancelled.add(batch)
            client.cancel(batch)


def states(folder):
    """What the records say, as they lie there."""
    found = {}
    kept = os.path.join(folder, "batches")
    for name in os.listdir(kept):
        if name.endswith(".json"):
            with open(os.path.join(kept, name)) as record:
                found[name.removesuffix(".json")] = json.load(record)["status"]
    return found


def whole(binary, folder, text):
    """What `run` makes of lines: those of its output, and those of its errors."""
    paths = [os.path.join(folder, name) for name in ("in.jsonl", "out.jsonl", "err.jsonl")]
    with open(paths[0], "w") as lines:
        lines.write(text)
    command = [binary, "run", "-qq", "--overwrite", "--model", DEMO, "-i", paths[0]]
    done = subprocess.run([*command, "-o", paths[1], "--errors", paths[2]], check=False)
    assert done.returncode in (0, 3), done
    return [open(path).read() if os.path.exists(path) else "" for path in paths[1:]]


def check_batch(client, told, batch, expected):
    found = client.batch(batch)
    results = [client.content(found[name]) for name in ("output_file_id", "error_file_id")]
    if found["status"] == "completed":
        assert results == expected, batch
        return
    assert found["status"] == "cancelled" and batch in told.cancelled, found
    if found["in_progress_at"] is None:
        assert results == ["", ""], found
        return
    known = set("".join(expected).splitlines())
    lines = "".join(results).splitlines()
    ids = sorted(json.loads(line)["custom_id"] for line in lines)
    text = told.files[told.batches[batch]]
    assert ids == sorted(json.loads(line)["custom_id"] for line in text.splitlines()), batch
    rest = [json.loads(line) for line in lines if line not in known]
    assert all(line["error"]["code"] == "batch_cancelled" for line in rest), batch
    counts = found["request_counts"]
    assert counts["completed"] + counts["failed"] + len(rest) == counts["total"] == len(ids)


def check(binary):
    os.environ["SOURCE_DATE_EPOCH"] = EPOCH
    rng = random.Random(7)
    told, killed_in = Told(rng), collections.Counter()
    with tempfile.TemporaryDirectory() as home:
        folder = os.path.join(home, "batches")
        flags = ("--batch-dir", folder, "--max-num-seqs", "8")
        for _ in range(KILLS):
            server = Server(binary, DEMO, *flags)
            open_batches = {b for b, state in states(folder).items() if state not in ENDED}
            acting = threading.Thread(target=told.act, args=(Client(server.url), open_batches))
            acting.start()
            time.sleep(rng.choice((0.01, 0.05, 0.2, 0.5)) * rng.random())
            server.kill()
            acting.join()
            killed_in.update(state for state in states(folder).values() if state not in ENDED)
        assert not told.faults, told.faults
        with Server(binary, DEMO, *flags) as server:
            client = Client(server.url)
            while any(state not in ENDED for state in states(folder).values()):
                time.sleep(0.1)
            listed = {file["id"] for file in client.json("/v1/files?purpose=batch")["data"]}
            assert listed >= set(told.files), set(told.files) - listed
            assert set(states(folder)) >= set(told.batches)
            for file, text in told.files.items():
                assert client.content(file) == text, file
            for batch, file in told.batches.items():
                check_batch(client, told, batch, whole(binary, home, told.files[file]))
    print(f"{KILLS} kills, {len(told.batches)} batches, {len(told.cancelled)} cancels;", end=" ")
    print("batches that had not ended, by state:", dict(killed_in), flush=True)
