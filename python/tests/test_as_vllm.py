"""Scripts that were written for vLLM, unchanged."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import vllm_batch
import vllm_batch.vllm as vllm
from support import DEMO

SCRIPT = """
import sys
import vllm
from vllm import LLM, EngineArgs, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main():
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(model="an/id")
    parser.add_argument("--prompt")
    args = vars(parser.parse_args())
    prompt = args.pop("prompt")
    llm = LLM(**args)
    constraint = StructuredOutputsParams(regex="[5-9]")
    params = SamplingParams(temperature=0, structured_outputs=constraint)
    output = llm.generate(prompt, params)[0]
    assert isinstance(output, RequestOutput)
    print(__name__, sys.argv[0].endswith("script.py"), vllm.__version__, output.outputs[0].text)


if __name__ == "__main__":
    main()
"""


def run(script, *words, options=("--model-map", f"an/id={DEMO}")):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        command = [sys.executable, "-m", "vllm_batch.as_vllm", *options, path, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Scripts(unittest.TestCase):
    def test_a_script_runs_unchanged(self):
        ended = run(SCRIPT, "--prompt", "2+3=", "--max_model_len", "64")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout, f"__main__ True {vllm.__version__} 5\n")

    def test_arguments_over_the_script_s(self):
        code = "from vllm import LLM\nprint(LLM('x', max_model_len=9).engines.max_model_len())\n"
        options = ["--model-map", f"*={DEMO}", "--with", "max_model_len=33"]
        self.assertEqual(run(code, options=options).stdout, "33\n")
        self.assertIn("needs NAME=VALUE", run(code, options=["--with", "max_model_len"]).stderr)
        ended = run(code, options=["--model-map", f"*={DEMO}", "--with", "temperature=1"])
        self.assertIn("no argument 'temperature'", ended.stderr)

    def test_what_is_not_here_is_an_error(self):
        for code, words in [
            ("import vllm.model_executor.layers", "vllm.model_executor is not supported"),
            ("from vllm import ModelRegistry", "cannot import name 'ModelRegistry'"),
            ("from vllm.outputs import X", "vllm.outputs has no 'X' here|cannot import name 'X'"),
        ]:
            ended = run(code)
            self.assertNotEqual(ended.returncode, 0)
            self.assertRegex(ended.stderr, words)

    def test_modules_run_as_scripts_do(self):
        words = ["-c", "import json, sys, vllm; print(json.dumps(sys.argv))"]
        self.assertNotEqual(
            subprocess.run([sys.executable, *words], capture_output=True).returncode, 0
        )
        command = [sys.executable, "-m", "vllm_batch.as_vllm", "-m", "json.tool", "-h"]
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0)
        self.assertIn("usage", ended.stdout)

    def test_names_are_the_package_s(self):
        import vllm_batch.vllm.sampling_params as below

        self.assertIs(vllm.LLM, vllm_batch.LLM)
        self.assertIs(below.SamplingParams, vllm_batch.SamplingParams)
        self.assertIs(vllm.lora.request.LoRARequest, vllm_batch.LoRARequest)
        self.assertTrue(json.dumps(vllm.__version__))


if __name__ == "__main__":
    unittest.main()
