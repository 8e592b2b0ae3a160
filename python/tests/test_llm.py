"""`LLM`: vLLM's names, and the program's bytes."""

import itertools
import os
import shutil
import tempfile
import threading
import unittest

from support import DEMO, ROOT, plain_run
from vllm_batch import (
    LLM,
    BeamSearchParams,
    EngineArgs,
    EngineError,
    Logprob,
    LoRARequest,
    RowError,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm_batch.flags import FLAGS

LLAMA = os.path.join(ROOT, "testdata", "golden", "llama2")
ADAPTERS = os.path.join(ROOT, "testdata", "golden_adapters")
PROMPTS = [f"{index % 10}+{index % 7}=" for index in range(40)] + ["The capital of France is"]
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "max_tokens": 16,
}


def plain(prompts, model=DEMO, **fields):
    """`outputs` of one run of the program over the same prompts."""
    rows = [
        {"id": str(i), "prompt": prompt, **NEUTRAL, **fields} for i, prompt in enumerate(prompts)
    ]
    words = ["--model", model, "--threads", "1", "--output-format", "full"]
    return plain_run(rows, *words)


def shown(output):
    """An output as the program writes it, without log-probabilities."""
    return [
        (
            one.index,
            one.text,
            one.token_ids,
            one.cumulative_logprob,
            one.finish_reason,
            one.stop_reason,
        )
        for one in output.outputs
    ]


def written(row):
    names = ("index", "text", "token_ids", "cumulative_logprob", "finish_reason", "stop_reason")
    return [tuple(one[name] for name in names) for one in row["outputs"]]


class Same(unittest.TestCase):
    """What the program writes for the same rows is what `LLM` returns."""

    def same(self, **parameters):
        fields = {name: value for name, value in parameters.items() if value is not None}
        if "structured_outputs" in fields:
            parameters["structured_outputs"] = StructuredOutputsParams(
                **fields["structured_outputs"]
            )
        with LLM(DEMO, threads=1) as llm:
            outputs = llm.generate(PROMPTS, SamplingParams(**parameters), use_tqdm=False)
        rows = plain(PROMPTS, **fields)
        self.assertEqual([shown(output) for output in outputs], [written(row) for row in rows])
        self.assertEqual([output.prompt for output in outputs], PROMPTS)
        self.assertEqual(
            [output.prompt_token_ids for output in outputs],
            [row["prompt_token_ids"] for row in rows],
        )
        self.assertTrue(all(output.finished and output.error is None for output in outputs))
        return outputs, rows

    def test_greedy(self):
        outputs, _ = self.same(temperature=0.0)
        self.assertEqual(outputs[5].outputs[0].text, "10")

    def test_sampled_by_the_name_of_the_request(self):
        outputs, _ = self.same(temperature=2.0)
        self.assertGreater(len({output.outputs[0].text for output in outputs}), 10)
        self.assertEqual([output.request_id for output in outputs][:3], ["0", "1", "2"])

    def test_sampled_by_a_seed(self):
        self.same(temperature=2.0, seed=7, top_k=50, top_p=0.95, min_p=0.01)

    def test_several(self):
        outputs, _ = self.same(n=3, temperature=2.0, max_tokens=5)
        self.assertEqual([one.index for one in outputs[0].outputs], [0, 1, 2])

    def test_stops(self):
        outputs, _ = self.same(temperature=0.0, stop=["5", "is"], stop_token_ids=[27])
        reasons = {output.outputs[0].stop_reason for output in outputs}
        self.assertEqual(reasons, {None, "5", "is", 27})
        self.same(temperature=0.0, stop=["5"], include_stop_str_in_output=True)

    def test_penalties_biases_and_words(self):
        self.same(
            temperature=1.0,
            presence_penalty=0.5,
            frequency_penalty=0.3,
            repetition_penalty=1.2,
            logit_bias={26: 2.5},
            bad_words=["1"],
            min_tokens=2,
            ignore_eos=True,
        )
        self.same(temperature=1.0, allowed_token_ids=[21, 22, 23])

    def test_structured_outputs(self):
        self.same(temperature=1.0, structured_outputs={"choice": ["yes", "no"]})
        self.same(temperature=1.0, structured_outputs={"regex": "[a-c]{3}"})
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        options = {"json": schema, "disable_any_whitespace": True}
        self.same(temperature=1.0, max_tokens=40, structured_outputs=options)

    def test_log_probabilities(self):
        outputs, rows = self.same(temperature=1.0, logprobs=2, max_tokens=4)
        position = outputs[0].outputs[0].logprobs[0]
        entry = rows[0]["outputs"][0]["logprobs"][0]
        self.assertEqual(
            len(outputs[0].outputs[0].logprobs), len(rows[0]["outputs"][0]["logprobs"])
        )
        # The token that was drawn is first.
        self.assertEqual(next(iter(position)), outputs[0].outputs[0].token_ids[0])
        for rank, one in enumerate(entry["top_logprobs"], 1):
            found = position[one["token_id"]]
            self.assertEqual((found.rank, found.decoded_token), (rank, one["token"]))
            self.assertAlmostEqual(found.logprob, one["logprob"], delta=abs(one["logprob"]) * 1e-6)
        sums = sum(
            found[token_id].logprob
            for found, token_id in zip(
                outputs[0].outputs[0].logprobs, outputs[0].outputs[0].token_ids
            )
        )
        self.assertAlmostEqual(outputs[0].outputs[0].cumulative_logprob, sums, delta=1e-9)

    def test_log_probabilities_of_prompts(self):
        with LLM(DEMO, threads=1) as llm, self.assertLogs("vllm_batch"):
            params = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1)
            (output,) = llm.generate("2+3=", params, use_tqdm=False)
            flat = SamplingParams(
                temperature=0, prompt_logprobs=1, logprobs=2, max_tokens=1, flat_logprobs=True
            )
            (same,) = llm.generate("2+3=", flat, use_tqdm=False)
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        for token_id, position in list(zip(output.prompt_token_ids, output.prompt_logprobs))[1:]:
            self.assertIsInstance(position[token_id], Logprob)
            self.assertEqual(sorted({1} | {one.rank for one in position.values()})[0], 1)
        self.assertEqual(list(same.prompt_logprobs)[1:], output.prompt_logprobs[1:])
        self.assertEqual(len(same.outputs[0].logprobs[0]), 2)
        self.assertEqual(same.outputs[0].logprobs[:1][0], same.outputs[0].logprobs[0])


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(DEMO, threads=1)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def texts(self, prompts, **parameters):
        params = SamplingParams(temperature=0, **parameters)
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [output.outputs[0].text for output in outputs]

    def test_prompts_of_every_kind(self):
        ids = [0, 23, 16, 24, 34]
        prompts = ["2+3=", ids, {"prompt": "2+3="}, {"prompt_token_ids": ids}, tuple(ids)]
        self.assertEqual(self.texts(prompts), ["5"] * 5)
        for prompt in prompts:
            self.assertEqual(self.texts(prompt), ["5"])
        self.assertEqual(self.texts([]), [])
        self.assertEqual(self.texts(f"{i}+1=" for i in range(3)), ["1", "2", "3"])

    def test_what_is_no_prompt_is_refused_before_any_is_answered(self):
        class Frame:
            columns = ["prompt"]

        for prompts, error, words in [
            (Frame(), TypeError, "one of its columns"),
            (7, TypeError, "prompts are a int"),
            (["a", 7], TypeError, "prompt 1 is a int"),
            (["a", {}], TypeError, "prompt 1 has neither"),
            (
                ["a", {"prompt": "b", "multi_modal_data": {"image": "x"}}],
                NotImplementedError,
                "prompt 1: multi_modal_data .* llm.chat",
            ),
            ([{"prompt_embeds": [1.0]}], NotImplementedError, "prompt_embeds"),
            ([{"encoder_prompt": "a"}], NotImplementedError, "encoder_prompt is not .*run_file"),
        ]:
            with self.assertRaisesRegex(error, words):
                self.llm.generate(prompts, use_tqdm=False)

    def test_parameters_of_each_prompt(self):
        params = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 2, 3)]
        outputs = self.llm.generate(["a", "a", "a"], params, use_tqdm=False)
        self.assertEqual([len(output.outputs[0].token_ids) for output in outputs], [1, 2, 3])
        with self.assertRaisesRegex(ValueError, "2 prompts and 3 sampling_params"):
            self.llm.generate(["a", "a"], params, use_tqdm=False)
        with self.assertRaisesRegex(ValueError, "more prompts than the 3"):
            self.llm.generate((text for text in "aaaa"), params, use_tqdm=False)

    def test_no_limit_is_the_rest_of_the_context(self):
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        (output,) = self.llm.generate("a", params, use_tqdm=False)
        self.assertEqual(len(output.outputs[0].token_ids) + len(output.prompt_token_ids), 512)
        self.assertEqual(output.outputs[0].finish_reason, "length")

    def test_without_parameters_the_model_says_them(self):
        # generation_config.json of the model: a temperature of 0.
        first, second = (self.llm.generate(["a"] * 5, use_tqdm=False) for _ in range(2))
        self.assertEqual([shown(one) for one in first], [shown(one) for one in second])
        self.assertLessEqual(len(first[0].outputs[0].token_ids), 16)
        params = self.llm.get_default_sampling_params()
        self.assertEqual((params.temperature, params.max_tokens), (0.0, 16))
        # And parameters that say nothing of it are vLLM's, not the model's.
        sampled = self.llm.generate(["a"] * 20, SamplingParams(temperature=2.0), use_tqdm=False)
        self.assertGreater(len({one.outputs[0].text for one in sampled}), 5)
        with LLM(DEMO, override_generation_config={"max_new_tokens": 3, "top_k": 5}) as llm:
            params = llm.get_default_sampling_params()
            self.assertEqual((params.temperature, params.max_tokens), (0.0, 3))
            self.assertEqual(len(llm.generate("a", use_tqdm=False)[0].outputs[0].token_ids), 3)
        with LLM(DEMO, generation_config="vllm") as llm:
            self.assertEqual(llm.get_default_sampling_params(), SamplingParams())

    def test_a_prompt_that_cannot_be_answered(self):
        prompts = ["1+1=", "a" * 3000, "2+2="]
        with self.assertRaises(RowError) as caught:
            self.llm.generate(prompts, use_tqdm=False)
        error = caught.exception
        self.assertEqual((error.index, error.code), (1, "context_length"))
        self.assertRegex(str(error), "prompt 1: prompt has 3001 tokens")
        self.assertIsInstance(error, ValueError)
        outputs = self.llm.generate(prompts, use_tqdm=False, errors="return")
        self.assertEqual(
            [one.outputs[0].finish_reason for one in outputs], ["stop", "error", "stop"]
        )
        self.assertEqual(outputs[1].error.code, "context_length")
        self.assertIsNone(outputs[0].error)
        with self.assertRaisesRegex(ValueError, "errors is 'x'"):
            self.llm.generate(prompts, use_tqdm=False, errors="x")

    def test_outputs_one_by_one_are_the_same_and_held_by_nobody(self):
        taken = []

        def prompts():
            for index in range(30000):
                taken.append(index)
                yield f"{index % 10}+1="

        params = SamplingParams(temperature=0, max_tokens=2)
        outputs = self.llm.generate_iter(prompts(), params)
        first = list(itertools.islice(outputs, 12))
        self.assertEqual([one.outputs[0].text for one in first][:3], ["1", "2", "3"])
        outputs.close()
        self.assertLess(len(taken), 10000)

    def test_cut_prompts(self):
        options = {"truncate_prompt_tokens": 3}
        (output,) = self.llm.generate("2+3=", use_tqdm=False, tokenization_kwargs=options)
        self.assertEqual(output.prompt_token_ids, [16, 24, 34])
        with self.assertRaisesRegex(NotImplementedError, "add_special_tokens"):
            self.llm.generate(
                "a", use_tqdm=False, tokenization_kwargs={"add_special_tokens": False}
            )

    def test_chats(self):
        messages = [{"role": "user", "content": "2+3="}]
        for given, count in [(messages, 1), ([messages, messages], 2)]:
            outputs = self.llm.chat(given, SamplingParams(temperature=0), use_tqdm=False)
            self.assertEqual([one.outputs[0].text for one in outputs], ["5"] * count)
        rows = [{"id": "0", "messages": messages}]
        (row,) = plain_run(rows, "--model", DEMO, "--output-format", "full")
        self.assertEqual(outputs[0].prompt_token_ids, row["prompt_token_ids"])
        turn = [*messages, {"role": "assistant", "content": "The sum is "}]
        (whole,) = self.llm.chat(turn, use_tqdm=False)
        (begun,) = self.llm.chat(
            turn, use_tqdm=False, add_generation_prompt=False, continue_final_message=True
        )
        self.assertGreater(len(whole.prompt_token_ids), len(begun.prompt_token_ids))
        with self.assertRaisesRegex(ValueError, "add_generation_prompt=False"):
            self.llm.chat(turn, continue_final_message=True)
        template = "{{ messages[0].content }}"
        (bare,) = self.llm.chat(messages, use_tqdm=False, chat_template=template)
        self.assertEqual(bare.prompt_token_ids, [23, 16, 24, 34])
        for wrong in ("2+3=", {"role": "user", "content": "a"}):
            with self.assertRaisesRegex(TypeError, "give a list of messages"):
                self.llm.chat(wrong)

    def test_tools_are_shown_and_calls_stay_text(self):
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "template.jinja")
            with open(path, "w", encoding="utf-8") as file:
                file.write("{{ tools[0].function.name }}{{ mark }}={{ messages[0].content }}")
            with LLM(DEMO, chat_template=path) as llm:
                (output,) = llm.chat(
                    [{"role": "user", "content": "7"}],
                    SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
                    use_tqdm=False,
                    tools=[tool],
                    chat_template_kwargs={"mark": "+1"},
                )
                (same,) = llm.generate("add+1=7", use_tqdm=False)
        # A text has the token that begins it, and what a template writes has not.
        self.assertEqual(output.prompt_token_ids, same.prompt_token_ids[1:])
        self.assertEqual(output.outputs[0].finish_reason, "length")

    def test_beams(self):
        (output,) = self.llm.beam_search(["2+3="], BeamSearchParams(beam_width=2, max_tokens=3))
        first, second = output.sequences
        self.assertEqual((first.text, first.tokens[-2:], first.stop_reason), ("2+3=5", [26, 1], 1))
        self.assertGreater(first.cum_logprob, second.cum_logprob)
        self.assertEqual(len(first.logprobs), 2)
        self.assertEqual(len(first.logprobs[0]), 4)
        params = BeamSearchParams(2, 3, structured_outputs=StructuredOutputsParams(regex="a"))
        with self.assertRaisesRegex(NotImplementedError, "structured_outputs"):
            self.llm.beam_search(["2+3="], params)

    def test_threads_ask_at_once(self):
        expected, found = self.texts(PROMPTS), {}

        def ask(thread):
            found[thread] = self.texts(PROMPTS)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(list(found.values()), [expected] * 4)

    def test_what_is_not_here_is_refused_by_name(self):
        for name in ("apply_model", "collective_rpc", "sleep", "get_metrics", "start_profile"):
            with self.assertRaisesRegex(NotImplementedError, f"LLM.{name} is not supported: "):
                getattr(self.llm, name)
        with self.assertRaisesRegex(AttributeError, "no attribute 'x'"):
            self.llm.x
        for name, value in [
            ("logprob_token_ids", [1]),
            ("extra_args", {"a": 1}),
            ("spaces_between_special_tokens", False),
            ("watermarking", True),
            ("trace_decode_token_ids", [1]),
            ("prompt_logprob_token_ids", [[1]]),
        ]:
            with self.assertRaisesRegex(NotImplementedError, f"SamplingParams.{name} is not"):
                self.llm.generate("a", SamplingParams(**{name: value}), use_tqdm=False)
        # As in vLLM, it changes nothing without its policy.
        self.assertEqual(len(self.llm.generate("a", priority=1, use_tqdm=False)), 1)
        with self.assertRaisesRegex(ValueError, "1 prompts and 2 priority"):
            self.llm.generate(["a"], priority=[1, 2], use_tqdm=False)
        with self.assertRaisesRegex(ValueError, "1 prompts and 2 priority"):
            self.llm.chat([{"role": "user", "content": "a"}], priority=[1, 2], use_tqdm=False)
        with LLM(DEMO, scheduling_policy="priority") as llm:
            with self.assertRaisesRegex(NotImplementedError, "priority is not supported"):
                llm.generate("a", priority=1, use_tqdm=False)
        with self.assertRaisesRegex(ValueError, "makes text"):
            self.llm.embed("a")
        with self.assertRaisesRegex(TypeError, "give SamplingParams"):
            self.llm.generate("a", {"max_tokens": 3}, use_tqdm=False)

    def test_text_that_nobody_asked_for(self):
        params = SamplingParams(temperature=0, detokenize=False)
        (output,) = self.llm.generate("2+3=", params, use_tqdm=False)
        self.assertEqual((output.outputs[0].text, output.outputs[0].token_ids), ("", [26, 1]))

    def test_bars(self):
        class Bar:
            format_dict = {"elapsed": 2.0}

            def __init__(self, **options):
                self.options, self.count, self.postfix, self.closed = options, 0, "", False
                bars.append(self)

            def update(self, number):
                self.count += number

            def close(self):
                self.closed = True

        bars = []
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        self.llm.generate(["2+3=", "3+4="], params, use_tqdm=Bar)
        self.assertEqual(
            (bars[0].options["total"], bars[0].options["desc"]), (2, "Processed prompts")
        )
        self.assertEqual((bars[0].count, bars[0].closed), (2, True))
        self.assertEqual(bars[0].postfix, "est. speed input: 5.00 toks/s, output: 1.00 toks/s")


class Models(unittest.TestCase):
    def test_arguments(self):
        with LLM(
            DEMO,
            dtype="float",
            max_model_len=100,
            trust_remote_code=True,
            swap_space=9,
            gpu_memory_utilization=0.5,
            enforce_eager=True,
            quantization=None,
        ) as llm:
            self.assertEqual(llm.engines.max_model_len(), 100)
        for name, value in [
            ("cpu_offload_gb", 4),
            ("logits_processors", ["x"]),
            ("tokenizer_mode", "mistral"),
            ("skip_tokenizer_init", True),
            ("mm_processor_kwargs", {"a": 1}),
            ("quantization", "awq"),
        ]:
            with self.assertRaisesRegex(NotImplementedError, name):
                LLM(DEMO, **{name: value})
        with self.assertRaisesRegex(TypeError, "no argument 'temperature': it is a parameter"):
            LLM(DEMO, temperature=0)
        with self.assertRaisesRegex(TypeError, "no argument 'tenser_parallel_size'$"):
            LLM(DEMO, tenser_parallel_size=2)
        with self.assertLogs("vllm_batch"), self.assertRaises(EngineError):
            LLM(DEMO, max_model_len=10**9)

    def test_arguments_are_flags_of_every_command(self):
        args = EngineArgs.of(DEMO, {"seed": 3, "threads": 2, "max_num_seqs": 4})
        self.assertEqual(args.flags("run"), {"seed": 3, "threads": 2, "max_num_seqs": 4})
        # Nothing is drawn there.
        self.assertEqual(args.flags("embed"), {"threads": 2, "max_num_seqs": 4})
        for command in ("run", "embed", "classify", "score"):
            self.assertLessEqual(set(args.flags(command)), FLAGS[command])
        with self.assertRaisesRegex(ValueError, "normalize is no flag of `vllm-batch run`"):
            EngineArgs.of(DEMO, {"normalize": True}).flags("run")

    def test_adapters(self):
        sql = LoRARequest("sql", 1, os.path.join(ADAPTERS, "rank_8"))
        other = LoRARequest("other", 2, os.path.join(ADAPTERS, "rank_1"))
        params = SamplingParams(temperature=0, max_tokens=4)
        prompts = ["List all users", "2+3="]
        with LLM(LLAMA, enable_lora=True) as llm:
            base = llm.generate(prompts, params, use_tqdm=False)
            both = llm.generate(prompts, params, use_tqdm=False, lora_request=[sql, None])
            others = llm.generate(prompts, params, use_tqdm=False, lora_request=other)
            again = llm.generate(prompts, params, use_tqdm=False, lora_request=sql)
            moved = LoRARequest("sql", 1, os.path.join(ADAPTERS, "rank_1"))
            with self.assertRaisesRegex(ValueError, "another name"):
                llm.generate(prompts, params, use_tqdm=False, lora_request=moved)
        text = lambda output: output.outputs[0].text  # noqa: E731
        self.assertEqual(text(both[1]), text(base[1]))
        self.assertEqual(text(again[0]), text(both[0]))
        self.assertEqual(len({text(one[0]) for one in (base, both, others)}), 3)
        self.assertEqual(both[0].lora_request, sql)
        self.assertIsNone(both[1].lora_request)
        with LLM(DEMO) as llm, self.assertRaisesRegex(ValueError, "enable_lora"):
            llm.generate("a", lora_request=sql)

    def test_ids_of_the_hub_that_are_in_the_cache(self):
        with tempfile.TemporaryDirectory() as cache:
            repository = os.path.join(cache, "models--tests--demo")
            os.makedirs(os.path.join(repository, "refs"))
            with open(os.path.join(repository, "refs", "main"), "w", encoding="utf-8") as file:
                file.write("a" * 40)
            shutil.copytree(DEMO, os.path.join(repository, "snapshots", "a" * 40))
            with LLM("tests/demo", download_dir=cache, env={"HF_HUB_OFFLINE": "1"}) as llm:
                self.assertEqual(llm.get_default_sampling_params().temperature, 0.0)
                (output,) = llm.generate("2+3=", use_tqdm=False)
                self.assertEqual(output.outputs[0].text, "5")


if __name__ == "__main__":
    unittest.main()
