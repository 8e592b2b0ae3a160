"""Clients that hang up, are too slow, or are too many: nothing of them is left in the server, and what
is asked then is answered as before."""

import contextlib
import json
import os
import random
import resource
import select
import socket
import threading
import time
import urllib.request
from urllib.parse import urlsplit

from server import Server, real_model, until

HANG_UPS = 1000
AT_A_TIME = 40
IDLE = 10_000
# A cache that is soon full, so that it does not grow for as long as it is looked at.
SMALL = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "100MiB")
# What the server waits for a head, and for more of a body.
PATIENCE = 30
ASKED = {"prompt": "The quick brown fox", "max_tokens": 24, "ignore_eos": True, "seed": 3}


def request(body, path="/v1/completions"):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode(), data


def connect(server):
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=120)


def answer(server):
    data = json.dumps(ASKED).encode()
    with urllib.request.urlopen(f"{server.base_url}/completions", data) as response:
        return json.load(response)["choices"]


def files_of(server):
    return len(os.listdir(f"/proc/{server.id}/fd"))


def memory_of(server):
    with open(f"/proc/{server.id}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def hang_up(server, chosen):
    """Leaves in the middle of the head, of the body, of the prompt, of the answer; often by a reset."""
    words = " ".join(chosen.choice(["red", "blue", "bird", "7"]) for _ in range(chosen.randint(1, 120)))
    body = {"prompt": words, "max_tokens": 300, "ignore_eos": True, "temperature": 1}
    body |= {"stream": chosen.random() < 0.6, "n": chosen.choice([1, 1, 3])}
    if chosen.random() < 0.2:
        body["prompt"] = [words, words + " a", "b"]
        body["stream"] = False
    head, data = request(body)
    with connect(server) as connection:
        if chosen.random() < 0.5:
            # Closing resets the connection.
            linger = b"\1\0\0\0\0\0\0\0"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        point = chosen.randrange(6)
        if point == 0:
            connection.sendall(head[: chosen.randrange(len(head))])
        elif point == 1:
            connection.sendall(head + data[: chosen.randrange(len(data))])
        else:
            connection.sendall(head + data)
            if point == 3:
                select.select([connection], [], [], chosen.random() * 0.2)
            elif point >= 4 and body["stream"]:
                for _ in range(chosen.randint(1, 20)):
                    connection.recv(512)


def check_hang_ups(server):
    before, files, seed = answer(server), files_of(server), random.Random(11)
    chosen = [random.Random(seed.random()) for _ in range(HANG_UPS)]
    failed, memory = [], []

    def some(part):
        try:
            for each in part:
                hang_up(server, each)
        except OSError as error:
            failed.append(error)

    for half in (chosen[: HANG_UPS // 2], chosen[HANG_UPS // 2 :]):
        threads = [threading.Thread(target=some, args=(half[at::AT_A_TIME],)) for at in range(AT_A_TIME)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            until(lambda: server.metric(f"vllm:{name}") == 0, 120)
        assert answer(server) == before
        memory.append(memory_of(server))
    until(lambda: files_of(server) <= files + 2)
    # The second half takes what the first has given back.
    assert memory[1] < memory[0] * 1.1 + 32, memory
    aborted = server.metric('vllm:request_success_total{finished_reason="abort"}')
    assert aborted > HANG_UPS / 4, aborted
    print(f"  {HANG_UPS} hang-ups, {aborted:.0f} aborted, {memory[0]:.0f} then {memory[1]:.0f} MiB", flush=True)


def check_slow(server):
    """A head that drips, a head that stops, and a body that stops, are ended; a body that drips goes on."""
    head, data = request(ASKED)
    started = time.monotonic()
    with contextlib.ExitStack() as open_ones:
        drips, stops, half, body = (open_ones.enter_context(connect(server)) for _ in range(4))
        stops.sendall(head[:20])
        half.sendall(head + data[:5])
        body.sendall(head)
        sent, is_open = 0, True
        while time.monotonic() - started < PATIENCE + 15:
            if is_open:
                try:
                    drips.sendall(head[sent % 40 : sent % 40 + 1] if sent < 40 else b"a")
                except OSError:
                    is_open = False
            if sent < len(data):
                body.sendall(data[sent : sent + 1])
            sent += 1
            assert answer_of_health(server)
            time.sleep(1)
        assert stops.recv(1000)[:12] in (b"", b"HTTP/1.1 408")
        assert half.recv(1000).startswith(b"HTTP/1.1 408")
        drips.settimeout(1)
        with contextlib.suppress(ConnectionError):
            assert drips.recv(1000)[:12] in (b"", b"HTTP/1.1 408"), "a head drips for ever"
        body.sendall(data[sent:])
        assert body.recv(100).startswith(b"HTTP/1.1 200")
    print("  slow heads and bodies end in time", flush=True)


def answer_of_health(server):
    with urllib.request.urlopen(f"{server.url}/health", timeout=20) as response:
        return response.status == 200


def check_idle(binary):
    """So many sockets that say nothing: those who ask are answered between them, and after them."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(IDLE, limit[1] - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    # Of the second most wait to be accepted, until those before them have been idle for too long.
    for most in (number + 100, 256):
        with Server(binary, real_model(), "--max-connections", str(most)) as server:
            idle = []
            for _ in range(number if most > 256 else 600):
                idle.append(connect(server))
            started = time.monotonic()
            data = json.dumps(ASKED).encode()
            with urllib.request.urlopen(f"{server.base_url}/completions", data, timeout=150) as response:
                assert response.status == 200
            seconds = time.monotonic() - started
            assert most == 256 or seconds < 20, seconds
            print(f"  {len(idle)} idle of {most}: answered after {seconds:.1f} s", flush=True)
            for connection in idle:
                connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def check(binary):
    with Server(binary, real_model(), *SMALL) as server:
        check_hang_ups(server)
        check_slow(server)
    check_idle(binary)
