"""Ray Data: rows of JSON lines or Parquet through actors, each with a model of its own.

    pip install 'vllm-batch[ray]'
    python examples/ray_data.py --model ./model --input prompts.jsonl --output answers --workers 2

Rows need a column `id`. An actor or a process that dies loses and doubles no row: its block runs
again. The answers are those of one run over the same rows.
"""

import argparse

import ray

from vllm_batch.ray import process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True, help="file or folder of .jsonl or .parquet")
    parser.add_argument("--output", required=True, help="folder for .parquet")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus", type=float, help="of each worker; nothing: CPUs")
    parser.add_argument("--threads", type=int, help="of each worker on CPUs")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--max-tokens", type=int)
    args = parser.parse_args()

    ray.init(ignore_reinit_error=True)
    read = ray.data.read_json if args.input.endswith(".jsonl") else ray.data.read_parquet
    rows = read(args.input)
    answers = process(
        rows,
        args.model,
        workers=args.workers,
        num_gpus=args.gpus,
        threads=args.threads,
        temperature=args.temperature,
        max_tokens=args.max_tokens,
    )
    answers.write_parquet(args.output)


if __name__ == "__main__":
    main()
