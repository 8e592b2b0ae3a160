"""Inspect AI through its provider for OpenAI's API: one task, whole, sampled and with logprobs."""

import os
import tempfile

from server import DEMO, Server

QUESTIONS = [("What is 28 plus 94?", "122"), ("What is 45 + 45?", "90"), ("What is 2 plus 3?", "5")]


def check(binary):
    os.environ.setdefault("INSPECT_DISPLAY", "none")
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig
    from inspect_ai.scorer import exact
    from inspect_ai.solver import generate

    with tempfile.TemporaryDirectory() as logs, Server(binary) as server:
        os.environ.update(VLLMBATCH_BASE_URL=server.base_url, VLLMBATCH_API_KEY="none")

        def evaluated(model="demo", epochs=1, **config):
            task = inspect_ai.Task(
                dataset=[Sample(input=asked, target=answer) for asked, answer in QUESTIONS],
                solver=generate(),
                scorer=exact(),
                config=GenerateConfig(max_tokens=24, **config),
            )
            name = f"openai-api/vllmbatch/{model}"
            (log,) = inspect_ai.eval(
                task, model=name, epochs=epochs, log_dir=logs, log_level="warning"
            )
            return log

        log = evaluated(temperature=0, logprobs=True, top_logprobs=2)
        assert log.status == "success", log.error
        score = log.results.scores[0].metrics["mean"].value
        assert score == 1, log.results
        for sample in log.samples:
            choice = sample.output.choices[0]
            assert choice.stop_reason == "stop" and len(choice.logprobs.content[0].top_logprobs) == 2
            assert sample.output.usage.output_tokens > 0
        # Epochs of one question are answers of their own.
        log = evaluated(epochs=6, temperature=2.0)
        assert log.status == "success", log.error
        texts = {sample.output.completion for sample in log.samples}
        assert len(log.samples) == 18 and len(texts) > 3, texts
        assert evaluated(model="nobody", temperature=0).status == "error"
    check_batch(binary)


def check_batch(binary):
    """`--batch`: its provider for OpenAI sends a file of requests, and waits for the batch."""
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import BatchConfig, GenerateConfig
    from inspect_ai.scorer import exact
    from inspect_ai.solver import generate

    with tempfile.TemporaryDirectory() as folder:
        with Server(binary, DEMO, "--batch-dir", os.path.join(folder, "batches")) as server:
            os.environ.update(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="none")
            task = inspect_ai.Task(
                dataset=[Sample(input=asked, target=answer) for asked, answer in QUESTIONS],
                solver=generate(),
                scorer=exact(),
                config=GenerateConfig(
                    max_tokens=24, temperature=0, batch=BatchConfig(send_delay=1, tick=1)
                ),
            )
            (log,) = inspect_ai.eval(
                task,
                model="openai/demo",
                model_args={"responses_api": False},
                log_dir=folder,
                log_level="warning",
            )
            assert log.status == "success", log.error
            assert log.results.scores[0].metrics["mean"].value == 1, log.results
