"""What Parquet costs beside JSON lines: rows per second and resident memory, for a number of rows and a
quarter of it. No row is completed (each has a temperature that no row may have), so that what is
measured is reading, journal and writing. Needs pyarrow, and Linux for /proc.

    pip install pyarrow
    cargo build --release
    python scripts/parquet_rows.py target/release/vllm-batch --model testdata/demo [--rows 1000000]
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = "the quick brown fox jumps over a lazy dog while seven small boats sail past the old pier".split()


def rows(count):
    """Rows of about 250 bytes of text each, the same every time."""
    choose = random.Random(7).choice
    for row in range(count):
        text = " ".join(choose(WORDS) for _ in range(45))
        yield {"id": row, "prompt": f"{row}: {text}", "source": "made up", "score": row / 8, "temperature": -1.0}


def write(folder, count):
    lines, table = folder / f"{count}.jsonl", folder / f"{count}.parquet"
    writer, batch = None, []
    with open(lines, "w", encoding="utf-8") as file:
        for row in rows(count):
            file.write(json.dumps(row) + "\n")
            batch.append(row)
            if len(batch) == 50_000 or row["id"] == count - 1:
                piece = pa.Table.from_pylist(batch)
                writer = writer or pq.ParquetWriter(table, piece.schema, compression="snappy")
                writer.write_table(piece)
                batch = []
    writer.close()
    return lines, table


def measured(command):
    """Seconds, and the most resident memory in MiB."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        found = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        peak = max([peak] + [int(line.split()[1]) for line in found])
        time.sleep(0.02)
    said = process.stderr.read()
    assert process.wait() in (0, 2, 3), said
    return time.monotonic() - started, peak / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        folder = pathlib.Path(folder)
        print(f"{'':32} {'rows/s':>10} {'MiB':>8}")
        for count in (args.rows // 4, args.rows):
            files = write(folder, count)
            sizes = ", ".join(f"{file.name} {file.stat().st_size / 2**20:.0f} MiB" for file in files)
            print(f"{count} rows: {sizes}")
            for file in files:
                seconds, peak = measured([args.binary, "check", "--max-errors", "1", str(file)])
                print(f"  {'check ' + file.suffix:30} {count / seconds:10.0f} {peak:8.0f}")
            for file in files:
                for suffix in (".jsonl", ".parquet"):
                    out = folder / f"out{suffix}"
                    command = [args.binary, "run", "--model", args.model, "-i", str(file), "-o", str(out)]
                    seconds, peak = measured(command + ["--overwrite", "--quiet"])
                    print(f"  {'run ' + file.suffix + ' to ' + suffix:30} {count / seconds:10.0f} {peak:8.0f}")
                    if suffix == ".parquet":
                        assert pq.ParquetFile(out).metadata.num_rows == count
                    out.unlink()


if __name__ == "__main__":
    main()
