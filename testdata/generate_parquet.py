"""Writes testdata/parquet: small files by pyarrow, DuckDB, pandas and fastparquet, each with the JSON
lines that its rows are. The lines are written here by hand, not by a reader.

    pip install pyarrow==26.0.1 duckdb==2.0.0 fastparquet==2026.9.0 pandas==3.1.1
    python testdata/generate_parquet.py
"""

import datetime as dt
import decimal
import json
import pathlib
import uuid

import duckdb
import fastparquet
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent / "parquet"
UTC = dt.timezone.utc


def lines(name, rows):
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")


def write(name, table, rows, **options):
    pq.write_table(table, HERE / f"{name}.parquet", **options)
    lines(name, rows)


def types():
    """Every type of Arrow's that Parquet has, with its largest and smallest values."""
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 250000)
    columns = {
        "bool": (pa.bool_(), [True, None, False], None),
        "int8": (pa.int8(), [-128, None, 127], None),
        "uint8": (pa.uint8(), [0, None, 255], None),
        "int16": (pa.int16(), [-32768, None, 32767], None),
        "uint16": (pa.uint16(), [0, None, 65535], None),
        "int32": (pa.int32(), [-(2**31), None, 2**31 - 1], None),
        "uint32": (pa.uint32(), [0, None, 2**32 - 1], None),
        "int64": (pa.int64(), [-(2**63), None, 2**53 + 1], None),
        "uint64": (pa.uint64(), [0, None, 2**64 - 1], None),
        "half": (pa.float16(), [np.float16(0.5), None, np.float16("nan")], [0.5, None, "NaN"]),
        "float": (pa.float32(), [0.5, None, float("-inf")], [0.5, None, "-Infinity"]),
        "double": (pa.float64(), [0.1, None, 1e300], None),
        "decimal": (
            pa.decimal128(38, 4),
            [decimal.Decimal("-0.0001"), None, decimal.Decimal("1234567890123456789012345678901234.5600")],
            ["-0.0001", None, "1234567890123456789012345678901234.5600"],
        ),
        "decimal256": (
            pa.decimal256(76, 2),
            [decimal.Decimal("0.00"), None, decimal.Decimal("-" + "9" * 74 + ".99")],
            ["0.00", None, "-" + "9" * 74 + ".99"],
        ),
        "date": (pa.date32(), [dt.date(1969, 12, 31), None, dt.date(9999, 12, 31)], ["1969-12-31", None, "9999-12-31"]),
        "time_ms": (pa.time32("ms"), [dt.time(0, 0), None, dt.time(23, 59, 59, 999000)], ["00:00:00", None, "23:59:59.999"]),
        "time_ns": (pa.time64("ns"), [1, None, 0], ["00:00:00.000000001", None, "00:00:00"]),
        "stamp_ms": (pa.timestamp("ms"), [moment, None, moment], ["2024-02-29T12:30:15.25"] * 1 + [None, "2024-02-29T12:30:15.25"]),
        "stamp_us": (
            pa.timestamp("us", "Europe/Berlin"),
            [moment.replace(tzinfo=UTC), None, dt.datetime(1960, 1, 1, tzinfo=UTC)],
            ["2024-02-29T12:30:15.25Z", None, "1960-01-01T00:00:00Z"],
        ),
        "stamp_ns": (pa.timestamp("ns", "UTC"), [1, None, -1], ["1970-01-01T00:00:00.000000001Z", None, "1969-12-31T23:59:59.999999999Z"]),
        "string": (pa.string(), ["", None, "\u4e2d\n\"\u2028"], None),
        "large": (pa.large_string(), ["a", None, "b"], None),
        "view": (pa.string_view(), ["a", None, "b"], None),
        "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["x", None, "x"], None),
        "binary": (pa.binary(), [b"", None, b"\xff\x00"], ["", None, "/wA="]),
        "fixed": (pa.binary(3), [b"abc", None, b"\x00\x01\x02"], ["YWJj", None, "AAEC"]),
        "nothing": (pa.null(), [None, None, None], None),
        "list": (pa.list_(pa.int64()), [[1, None], None, []], None),
        "fixed_list": (pa.list_(pa.float32(), 2), [[0.5, 1.0], None, [2.0, 0.25]], None),
        "lists": (pa.list_(pa.list_(pa.string())), [[["a"], [], None], None, [[None, "b"]]], None),
        "struct": (
            pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(pa.string()))]))]),
            [{"a": 1, "b": {"c": ["x"]}}, None, {"a": None, "b": None}],
            None,
        ),
        "map": (pa.map_(pa.string(), pa.int64()), [[("x", 1), ("y", None)], None, []], [{"x": 1, "y": None}, None, {}]),
        "int_map": (pa.map_(pa.int32(), pa.string()), [[(-1, "a")], None, [(2, None)]], [{"-1": "a"}, None, {"2": None}]),
        "uuid": (pa.uuid(), [uuid.UUID(int=1).bytes, None, uuid.UUID(int=2**128 - 1).bytes],
                 ["00000000-0000-0000-0000-000000000001", None, "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
        "json": (pa.json_(), ['{"a": [1,\n2]}', None, "no json"], None),
    }
    arrays, rows = {}, [{}, {}, {}]
    for name, (kind, values, shown) in columns.items():
        if isinstance(kind, pa.BaseExtensionType):
            arrays[name] = pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
        else:
            arrays[name] = pa.array(values, kind)
        for row, value in zip(rows, shown or values):
            row[name] = value
    table = pa.table(arrays)
    write("types", table, rows)
    # An object is what its JSON says; what is white in it stays, but for line ends.
    path = HERE / "types.jsonl"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(json.dumps('{"a": [1,\n2]}'), '{"a": [1, 2]}'), encoding="utf-8")
    return table


def main():
    HERE.mkdir(exist_ok=True)
    types()
    prompts = [
        {"prompt": f"{row}+{row % 9}=", "number": 2**60 + row, "price": f"{row}.50",
         "at": f"2024-01-{row % 28 + 1:02}T00:00:00Z", "tags": ["a"] * (row % 3), "notes": None if row % 4 else {"n": row}}
        for row in range(40)
    ]
    table = pa.table({
        "prompt": [row["prompt"] for row in prompts],
        "number": pa.array([row["number"] for row in prompts], pa.int64()),
        "price": pa.array([decimal.Decimal(row["price"]) for row in prompts], pa.decimal128(9, 2)),
        "at": pa.array([dt.datetime.fromisoformat(row["at"]) for row in prompts], pa.timestamp("us", "UTC")),
        "tags": [row["tags"] for row in prompts],
        "notes": pa.array([row["notes"] for row in prompts], pa.struct([("n", pa.int32())])),
    })
    write("prompts", table, prompts, row_group_size=7, compression="none", use_dictionary=False,
          write_page_checksum=True)
    chat = [
        {"id": 2**60 + row, "messages": [{"role": "user", "content": f"{row} + {row} ="}][: row % 3 or None]}
        for row in range(40)
    ]
    table = pa.Table.from_pylist(chat)
    write("chat", table, chat, row_group_size=7, compression="zstd")
    for codec in ["none", "gzip", "lz4"]:
        write(f"chat_{codec}", table, chat, row_group_size=16, compression=codec, data_page_version="2.0",
              data_page_size=64, write_page_checksum=True)
    write("delta", pa.table({"n": [row * row for row in range(100)], "text": [f"row {row}" for row in range(100)],
                             "half": [row / 8 for row in range(100)]}),
          [{"n": row * row, "text": f"row {row}", "half": row / 8} for row in range(100)],
          use_dictionary=False, compression="snappy",
          column_encoding={"n": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "half": "BYTE_STREAM_SPLIT"})
    write("int96", pa.table({"at": pa.array([0, None, 1_700_000_000_123_456_789], pa.timestamp("ns"))}),
          [{"at": "1970-01-01T00:00:00"}, {"at": None}, {"at": "2023-11-14T22:13:20.123456789"}],
          use_deprecated_int96_timestamps=True)
    duckdb.sql(f"""copy (select i::int as id, 'text ' || i as prompt, [i, null] as list, {{'a': i}} as object,
        map {{'k': i}} as map, (i / 4)::decimal(9, 2) as price, i::hugeint as huge, interval (i) day as span,
        i % 2 = 0 as even from range(3) t(i)) to '{HERE / "duckdb.parquet"}' (format parquet)""")
    lines("duckdb", [
        {"id": i, "prompt": f"text {i}", "list": [i, None], "object": {"a": i}, "map": {"k": i},
         "price": f"{i / 4:.2f}", "huge": float(i), "span": f"P0M{i}DT0.000S", "even": i % 2 == 0}
        for i in range(3)
    ])
    frame = pd.DataFrame({"prompt": ["a", "b", None], "n": [1, 2, 3], "x": [0.5, None, 1.5]})
    fastparquet.write(str(HERE / "fastparquet.parquet"), frame, compression="SNAPPY")
    lines("fastparquet", [{"prompt": "a", "n": 1, "x": 0.5}, {"prompt": "b", "n": 2, "x": None},
                          {"prompt": None, "n": 3, "x": 1.5}])


if __name__ == "__main__":
    main()
