"""A server of its own for each check: `vllm-batch serve` on a free port, ended by SIGTERM."""

import os
import re
import subprocess
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "testdata", "demo")
ENCODER = os.path.join(ROOT, "testdata", "golden_embeddings", "bert")
SERVING = re.compile(r"Serving (\S+) at (http://\S+)")


class Missing(Exception):
    """A tool is not there; the check is left out."""


def tool(variable, what):
    """The path that a variable names."""
    path = os.environ.get(variable, "")
    if not os.path.exists(path):
        raise Missing(f"{variable} names no {what}")
    return os.path.abspath(path)


def real_model():
    """The model that load is put on."""
    folder = os.environ.get("VLLM_BATCH_TEST_REAL_DIR", "")
    path = os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
    return path if os.path.exists(path) else DEMO


class Server:
    """Serves a model for the length of a `with`."""

    def __init__(self, binary, model=DEMO, *flags):
        command = [binary, "serve", "--model", model, "--port", "0", *flags]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._is_told = False
        said = []
        for line in self._process.stderr:
            said.append(line)
            found = SERVING.search(line)
            if found:
                self.name, self.url = found.groups()
                break
        else:
            raise RuntimeError(f"{command} has ended: {''.join(said)}")

    @property
    def id(self):
        """Of the process."""
        return self._process.pid

    @property
    def base_url(self):
        """What OpenAI's clients are given."""
        return f"{self.url}/v1"

    def metric(self, name, key="none"):
        """A value of /metrics, by its name and the labels beside the model's."""
        request = urllib.request.Request(f"{self.url}/metrics", headers={"x-api-key": key})
        with urllib.request.urlopen(request) as response:
            for line in response.read().decode().splitlines():
                text = re.sub(r'\{model_name="[^"]*",?', "{", line).replace("{}", "")
                if text.startswith(f"{name} "):
                    return float(text.rsplit(" ", 1)[1])
        raise KeyError(name)

    def end(self):
        """Tells it to end, which takes as long as requests that are under way."""
        self._process.terminate()
        self._is_told = True

    def kill(self):
        """Ends it as a machine that loses its power does."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self._is_told:
            self.end()
        said = self._process.communicate(timeout=60)[1]
        code = self._process.returncode
        assert code == 0, f"the server ended with {code}: {said}"
        assert "panicked" not in said, said


def until(holds, seconds=20):
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "a condition did not come true in time"
        time.sleep(0.02)
