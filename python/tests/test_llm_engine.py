"""Requests one by one: `LLMEngine`, and `AsyncLLM` of many tasks."""

import asyncio
import os
import signal
import threading
import unittest

from support import DEMO
from vllm_batch import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    EngineArgs,
    EngineError,
    LLMEngine,
    RowError,
    SamplingParams,
)

GREEDY = SamplingParams(temperature=0)
# Under way for longer than any test waits.
LONG = SamplingParams(temperature=2.0, n=200, max_tokens=400, ignore_eos=True)


class Steps(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = LLMEngine.from_engine_args(EngineArgs(model=DEMO))

    @classmethod
    def tearDownClass(cls):
        cls.engine.shutdown()

    def finish(self):
        found = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                found[output.request_id] = output.outputs[0].text
        return found

    def test_every_request_is_answered_once(self):
        self.assertEqual(self.engine.step(), [])
        for name, prompt in [("a", "1+1="), ("b", [0, 23, 16, 24, 34])]:
            self.assertEqual(self.engine.add_request(name, prompt, GREEDY), name)
        self.assertEqual(self.engine.get_num_unfinished_requests(), 2)
        self.assertEqual(self.finish(), {"a": "2", "b": "5"})
        # The process is the same, and other requests find it.
        self.engine.add_request("a", "2+2=", GREEDY)
        self.assertEqual(self.finish(), {"a": "4"})

    def test_requests_are_added_between_steps(self):
        prompts, found = [f"{i}+1=" for i in range(9)], {}
        while prompts or self.engine.has_unfinished_requests():
            if prompts:
                self.engine.add_request(f"r{len(prompts)}", prompts.pop(), GREEDY)
            found.update({one.request_id: one.outputs[0].text for one in self.engine.step()})
        self.assertEqual(found, {f"r{i}": str(i) for i in range(1, 10)})

    def test_a_request_is_under_way_once(self):
        engine = LLMEngine.from_engine_args(EngineArgs(model=DEMO))
        engine.add_request("a", "x", LONG)
        with self.assertRaisesRegex(ValueError, "'a' is under way already"):
            engine.add_request("a", "x", GREEDY)
        engine.abort_request(["a"])
        self.assertFalse(engine.has_unfinished_requests())
        self.assertEqual(engine.step(), [])
        engine.add_request("b", "1+1=", GREEDY)
        self.assertEqual([one.outputs[0].text for one in engine.step()], ["2"])
        engine.shutdown()

    def test_the_name_of_a_request_that_was_dropped_is_free(self):
        self.engine.add_request("a", "1+1=", GREEDY)
        self.engine.abort_request("a")
        self.engine.add_request("a", "2+2=", GREEDY)
        self.assertEqual(self.finish(), {"a": "4"})

    def test_errors_are_of_their_requests(self):
        self.engine.add_request("bad", "a" * 3000, GREEDY)
        with self.assertRaises(RowError) as caught:
            self.engine.step()
        self.assertEqual(caught.exception.request_id, "bad")
        self.assertFalse(self.engine.has_unfinished_requests())
        with self.assertRaisesRegex(TypeError, "request_id is 7"):
            self.engine.add_request(7, "a", GREEDY)

    def test_what_is_known_of_the_model(self):
        config = self.engine.vllm_config.model_config
        self.assertEqual((config.max_model_len, config.hf_config.num_hidden_layers), (512, 5))
        with LLM(DEMO) as llm:
            self.assertIs(llm.llm_engine, llm.llm_engine)
            llm.llm_engine.add_request("a", "1+1=", GREEDY)
            (output,) = llm.llm_engine.step()
            self.assertEqual(output.outputs[0].text, "2")
            self.assertEqual(llm.generate("2+2=", GREEDY, use_tqdm=False)[0].outputs[0].text, "4")


class Tasks(unittest.TestCase):
    def run_with(self, scenario):
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=DEMO))
        try:
            return asyncio.run(scenario(engine))
        finally:
            engine.shutdown()

    @staticmethod
    async def ask(engine, prompt, name, params=GREEDY):
        outputs = [one async for one in engine.generate(prompt, params, request_id=name)]
        return [(one.outputs[0].text, one.finished) for one in outputs]

    def test_many_tasks(self):
        async def scenario(engine):
            await engine.check_health()
            names = [f"{i}+{j}=" for i in range(5) for j in range(4)]
            return await asyncio.gather(*(self.ask(engine, name, name) for name in names))

        expected = [[(str(i + j), True)] for i in range(5) for j in range(4)]
        self.assertEqual(self.run_with(scenario), expected)

    def test_an_error_is_of_one_task(self):
        async def scenario(engine):
            tasks = [self.ask(engine, prompt, prompt[:5]) for prompt in ("1+1=", "a" * 3000)]
            return await asyncio.gather(*tasks, return_exceptions=True)

        good, bad = self.run_with(scenario)
        self.assertEqual(good, [("2", True)])
        self.assertIsInstance(bad, RowError)

    def test_requests_are_aborted_and_left(self):
        async def scenario(engine):
            aborted = asyncio.ensure_future(self.reason(engine, "a", LONG))
            left = asyncio.ensure_future(self.reason(engine, "b", LONG))
            # Both are under way as soon as a third one is answered.
            await self.ask(engine, "1+1=", "c")
            await engine.abort("a")
            left.cancel()
            reasons = [await aborted]
            with self.assertRaises(asyncio.CancelledError):
                await left
            return reasons, await self.ask(engine, "2+2=", "d")

        self.assertEqual(self.run_with(scenario), (["abort"], [("4", True)]))

    @staticmethod
    async def reason(engine, name, params):
        async for output in engine.generate("x", params, request_id=name):
            return output.outputs[0].finish_reason

    def test_a_process_that_ends_ends_all_of_them(self):
        async def scenario(engine):
            task = asyncio.ensure_future(self.ask(engine, "x", "a", LONG))
            await self.ask(engine, "1+1=", "b")
            with engine.engines.use("run") as process:
                os.kill(process.pid, signal.SIGKILL)
            with self.assertRaises(EngineError):
                await task
            return await self.ask(engine, "1+1=", "c")

        self.assertEqual(self.run_with(scenario), [("2", True)])

    def test_no_thread_is_left(self):
        before = threading.active_count()

        async def scenario(engine):
            return await self.ask(engine, "1+1=", "a")

        self.run_with(scenario)
        self.assertLessEqual(threading.active_count(), before)


if __name__ == "__main__":
    unittest.main()
