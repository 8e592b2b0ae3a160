"""Spark: every partition goes through a process of the program, as lines.

    pip install pyspark target/wheels/vllm_batch-*.whl   # docs/SCALE_OUT.md: the wheel
    python examples/spark_pipe.py --model ./model --input prompts.jsonl --output answers \
        --partitions 4 -- --temperature 0 --max-tokens 64

What follows `--` are flags of `vllm-batch run`. Every row needs an `id`: a task that fails runs
again, and a row's answer must not depend on its place in the partition. The lines of the output are
those of one run over the same rows. A process loads the model once for each partition, so few large
partitions cost least.
"""

import argparse
import os
import shlex

from pyspark.sql import SparkSession

# Exit codes of a process that answered all its rows: also with error rows, and of no row at all.
COMPLETE = "0|3|4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True, help="JSON lines, as Spark names files")
    parser.add_argument("--output", required=True, help="folder for lines")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--master", help="as of spark-submit")
    parser.add_argument("--binary", default="vllm-batch")
    parser.add_argument("flags", nargs="*", help="of vllm-batch run")
    args = parser.parse_args()

    builder = SparkSession.builder.appName("vllm-batch")
    spark = (builder.master(args.master) if args.master else builder).getOrCreate()
    words = [args.binary, "run", "-m", args.model, "--format", "jsonl", "-qq", *args.flags]
    script = f"{shlex.join(words)}; case $? in {COMPLETE}) ;; *) exit 1 ;; esac"
    rows = spark.sparkContext.textFile(args.input).repartition(args.partitions)
    # Spark gives the processes no variables unless it is told to.
    env = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    answers = rows.pipe(shlex.join(["sh", "-c", script]), env=env, checkCode=True)
    answers.saveAsTextFile(args.output)
    spark.stop()


if __name__ == "__main__":
    main()
