"""OpenVINO GenAI's continuous batching, as a process of scripts/bench-peers.

Runs in a virtual environment with openvino-genai. --dtype is the inference precision (f32, bf16),
the folder says what the weights are. Cache precision and the rest are OpenVINO's own choice.
"""

import time

import numpy as np
import openvino as ov
import openvino_genai as og
import protocol


def config(max_tokens):
    config = og.GenerationConfig()
    config.max_new_tokens = max_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def tensor(ids):
    return ov.Tensor(np.array([ids], dtype=np.int64))


def pipeline(args, request):
    scheduler = og.SchedulerConfig()
    scheduler.cache_size = args.kv_gib
    scheduler.max_num_batched_tokens = args.max_num_batched_tokens
    scheduler.max_num_seqs = 64
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = request["shares_prefix"]
    properties = {
        "INFERENCE_PRECISION_HINT": args.dtype,
        "INFERENCE_NUM_THREADS": args.threads,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "NUM_STREAMS": 1,
    }
    if args.kv_cache_precision:
        properties["KV_CACHE_PRECISION"] = args.kv_cache_precision
    return og.ContinuousBatchingPipeline(args.model_dir, scheduler, "CPU", properties)


def run(args, request):
    rows = protocol.rows(request["dataset"])
    prompts = [tensor(row["prompt_token_ids"]) for row in rows]
    configs = [config(row["max_tokens"]) for row in rows]
    pipe = pipeline(args, request)
    if request["warm_up"]:
        pipe.generate([tensor(range(5, 13))] * 2, [config(4)] * 2)
    # Blocks of a prompt that is still being computed are not shared, so the first row goes alone:
    # four times as fast on `shared` as all rows at once.
    first = 1 if request["shares_prefix"] else 0
    start = time.perf_counter()
    outputs = pipe.generate(prompts[:first], configs[:first]) if first else []
    outputs += pipe.generate(prompts[first:], configs[first:])
    seconds = time.perf_counter() - start
    ids = [output.m_generation_ids[0] for output in outputs]
    return {
        "seconds": seconds,
        "num_output_tokens": [len(row) for row in ids],
        "first_ids": [int(token) for token in ids[0][:8]],
    }


def main():
    parser = protocol.arguments(__doc__)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--kv-cache-precision", default="")
    args = parser.parse_args()
    protocol.reply(args, {"version": f"openvino-genai {og.__version__.split('-')[0]}"})
    for request in protocol.requests():
        protocol.reply(args, run(args, request))


main()
