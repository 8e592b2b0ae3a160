"""Parameters and outputs that need no model, and keywords that are the program's flags."""

import dataclasses
import os
import pickle
import subprocess
import sys
import unittest

from support import ROOT
from vllm_batch import (
    BeamSearchParams,
    EngineArgs,
    GuidedDecodingParams,
    Logprob,
    LoRARequest,
    RowError,
    SamplingParams,
    StructuredOutputsParams,
    VLLMValidationError,
    find_binary,
)
from vllm_batch.engine_args import OPTIONS, FlexibleArgumentParser
from vllm_batch.engine_options import EngineOptions
from vllm_batch.flags import FLAGS
from vllm_batch.logprobs import FlatLogprobs
from vllm_batch.models import command_of
from vllm_batch.requests import sampling_fields
from vllm_batch.sampling_params import SamplingType


class Sampling(unittest.TestCase):
    def test_defaults_are_vllm_s(self):
        params = SamplingParams()
        self.assertEqual((params.n, params.temperature, params.max_tokens), (1, 1.0, 16))
        self.assertEqual((params.stop, params.stop_token_ids, params.bad_words), ([], [], []))
        self.assertEqual(params.sampling_type, SamplingType.RANDOM)
        self.assertEqual(SamplingParams(seed=3).sampling_type, SamplingType.RANDOM_SEED)
        self.assertEqual(SamplingParams(temperature=0).sampling_type, SamplingType.GREEDY)
        self.assertIsNone(SamplingParams(seed=-1).seed)

    def test_values_out_of_range(self):
        for name, value in [
            ("n", 0),
            ("n", "2"),
            ("n", 16385),
            ("presence_penalty", 2.1),
            ("frequency_penalty", -2.1),
            ("repetition_penalty", 0.0),
            ("repetition_penalty", float("inf")),
            ("temperature", -0.1),
            ("temperature", 2.1),
            ("temperature", float("nan")),
            ("top_p", 0.0),
            ("top_p", 1.1),
            ("top_k", -2),
            ("top_k", 1.5),
            ("min_p", 1.1),
            ("max_tokens", 0),
            ("min_tokens", -1),
            ("logprobs", -2),
            ("prompt_logprobs", -2),
            ("stop", [""]),
            ("bad_words", [""]),
            ("stop_token_ids", ["a"]),
            ("thinking_token_budget", -2),
            ("stream_interval", 0),
        ]:
            with self.assertRaisesRegex(ValueError, f"^{name} ") as caught:
                SamplingParams(**{name: value})
            self.assertIsInstance(caught.exception, VLLMValidationError)
            self.assertEqual(caught.exception.parameter, name)
        for wrong in (
            {"min_tokens": 9, "max_tokens": 5},
            {"stop": "a", "detokenize": False},
            {"n": 2, "temperature": 0},
        ):
            with self.assertRaises(VLLMValidationError):
                SamplingParams(**wrong)
        with self.assertRaises(VLLMValidationError):
            BeamSearchParams(beam_width=0, max_tokens=1)

    def test_what_is_changed_on_the_way(self):
        with self.assertLogs("vllm_batch"):
            self.assertEqual(SamplingParams(temperature=0.001).temperature, 0.01)
        params = SamplingParams(temperature=0, top_p=0.5, top_k=3, stop="a", logprobs=True)
        self.assertEqual(
            (params.top_p, params.top_k, params.stop, params.logprobs), (1, 0, ["a"], 1)
        )
        params = SamplingParams.from_optional(
            temperature=None, max_tokens=None, logit_bias={"7": 200}
        )
        self.assertEqual((params.temperature, params.max_tokens), (1.0, None))
        self.assertEqual(params.logit_bias, {7: 100.0})
        with self.assertRaisesRegex(VLLMValidationError, "no token ids"):
            SamplingParams.from_optional(logit_bias={"x": 1})
        copy = params.clone()
        copy.stop.append("b")
        self.assertEqual(params.stop, [])

    def test_fields_of_a_row(self):
        fields = sampling_fields(SamplingParams(temperature=0, max_tokens=None), lambda: 99)
        self.assertEqual((fields["temperature"], fields["max_tokens"]), (0, 99))
        self.assertNotIn("n", fields)
        self.assertNotIn("min_tokens", fields)
        fields = sampling_fields(SamplingParams(n=2, seed=0, logprobs=0, stop=["x"]), lambda: 99)
        self.assertEqual((fields["n"], fields["seed"], fields["logprobs"]), (2, 0, 0))
        # Every parameter is asked of a row, is refused by name, or changes nothing there.
        changes_nothing = {
            "flat_logprobs",
            "detokenize",
            "output_kind",
            "stream_interval",
            "skip_clone",
            "skip_reading_prefix_cache",
            "guided_decoding",
        }
        values = {
            "n": 2,
            "presence_penalty": 1.0,
            "frequency_penalty": 1.0,
            "max_tokens": 3,
            "repetition_penalty": 1.5,
            "temperature": 0.5,
            "top_p": 0.5,
            "top_k": 5,
            "min_p": 0.5,
            "seed": 5,
            "stop": "a",
            "stop_token_ids": [5],
            "min_tokens": 2,
            "logprobs": 3,
            "prompt_logprobs": 3,
            "logit_bias": {5: 1.0},
            "prompt_logprob_start": 1,
            "allowed_token_ids": [5],
            "bad_words": ["a"],
            "thinking_token_budget": 5,
            "routed_experts_prompt_start": 1,
            "structured_outputs": StructuredOutputsParams(regex="a"),
        }
        default = sampling_fields(SamplingParams(), lambda: 99)
        for field in dataclasses.fields(SamplingParams):
            if field.name in changes_nothing:
                continue
            value = values.get(field.name, not field.default)
            params = SamplingParams(**{field.name: value})
            try:
                self.assertNotEqual(sampling_fields(params, lambda: 99), default, field.name)
            except NotImplementedError as error:
                self.assertIn(f"SamplingParams.{field.name} is not supported", str(error))

    def test_constraints(self):
        with self.assertRaisesRegex(VLLMValidationError, "none is given"):
            StructuredOutputsParams()
        with self.assertRaisesRegex(VLLMValidationError, "json and regex are given"):
            StructuredOutputsParams(json={}, regex="a")
        guided = GuidedDecodingParams(choice=["a", "b"], backend="xgrammar")
        params = SamplingParams(guided_decoding=guided)
        self.assertEqual(sampling_fields(params, int)["structured_outputs"], {"choice": ["a", "b"]})
        self.assertIsNone(GuidedDecodingParams.from_optional(json=None))
        self.assertEqual(StructuredOutputsParams(json_object=True).fields(), {"json_object": True})

        class Model:
            @staticmethod
            def model_json_schema():
                return {"type": "object"}

        self.assertEqual(StructuredOutputsParams(json=Model).fields(), {"json": {"type": "object"}})


class Objects(unittest.TestCase):
    def test_adapters(self):
        self.assertEqual(LoRARequest("a", 1, "x"), LoRARequest("a", 2, "y"))
        self.assertEqual(len({LoRARequest("a", 1, "x"), LoRARequest("a", 2, "y")}), 1)
        for wrong in (("a", 0, "x"), ("a", 1, "")):
            with self.assertRaises(ValueError):
                LoRARequest(*wrong)

    def test_flat_log_probabilities(self):
        flat = FlatLogprobs()
        positions = [{1: Logprob(-1.0, 1, "a"), 2: Logprob(-2.0, 2, "b")}, {3: Logprob(-3.0)}]
        flat.extend(positions)
        self.assertEqual((len(flat), list(flat)), (2, positions))
        self.assertEqual((flat[1], list(flat[1:])), (positions[1], positions[1:]))
        self.assertEqual(flat[-1], positions[1])

    def test_errors_go_through_pickle(self):
        error = pickle.loads(pickle.dumps(RowError(3, "7", "context_length", "too long")))
        self.assertEqual((error.index, error.code), (3, "context_length"))

    def test_commands_of_classes(self):
        for name, runner, convert, command in [
            ("LlamaForCausalLM", "auto", "auto", "run"),
            ("LlamaForCausalLM", "pooling", "auto", "embed"),
            ("LlamaForCausalLM", "auto", "classify", "classify"),
            ("Qwen3VLForConditionalGeneration", "auto", "auto", "run"),
            ("BertModel", "auto", "auto", "embed"),
            ("BertForSequenceClassification", "auto", "auto", "classify"),
            ("Qwen2ForProcessRewardModel", "pooling", "auto", "classify"),
        ]:
            self.assertEqual(command_of({"architectures": [name]}, runner, convert), command)
        self.assertEqual(command_of(None, "auto", "auto"), "run")
        self.assertIsNone(command_of(None, "pooling", "auto"))


class Keywords(unittest.TestCase):
    def test_keywords_are_the_program_s_flags(self):
        script = os.path.join(ROOT, "scripts", "python-flags")
        words = [sys.executable, script, find_binary(), "--check"]
        checked = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_arguments_of_a_model(self):
        fields = {field.name for field in dataclasses.fields(EngineArgs)} - {"model", "options"}
        self.assertEqual(set(EngineOptions.__annotations__), fields | set(OPTIONS))
        flags = [
            field.name
            for field in dataclasses.fields(EngineArgs)
            if field.metadata["how"] == "flag"
        ]
        self.assertLessEqual(set(flags), FLAGS["run"])
        self.assertEqual(set(flags) & set(OPTIONS), set())

    def test_command_lines(self):
        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        parser.set_defaults(model="x")
        words = ["--max_model_len", "9", "--no-enforce-eager", "--hf-overrides", '{"a": 1}']
        args = EngineArgs.from_cli_args(parser.parse_args([*words, "--threads=2"]))
        self.assertEqual((args.model, args.max_model_len, args.hf_overrides), ("x", 9, {"a": 1}))
        self.assertEqual(
            args.flags("run"), {"max_model_len": 9, "hf_overrides": {"a": 1}, "threads": 2}
        )


if __name__ == "__main__":
    unittest.main()
