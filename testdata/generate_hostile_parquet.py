"""Writes testdata/hostile_parquet: small files whose pages become large, or say that they do; row
groups without rows; encrypted columns. Pages are put together by hand, since no writer makes them.

    pip install pyarrow==26.0.1
    python testdata/generate_hostile_parquet.py
"""

import base64
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

OUT = pathlib.Path(__file__).resolve().parent / "hostile_parquet"
MIB = 1 << 20
PLAIN, DELTA_LENGTHS, DELTA_PREFIXES, DICTIONARY = 0, 6, 7, 8


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def zigzag(number):
    return varint((number << 1) ^ (number >> 63))


class Struct:
    """A struct in thrift's compact protocol."""

    def __init__(self):
        self.bytes, self.last = b"", 0

    def field(self, number, kind, value):
        delta, self.last = number - self.last, number
        self.bytes += bytes([delta << 4 | kind]) + value
        return self

    def i32(self, number, value):
        return self.field(number, 5, zigzag(value))

    def i64(self, number, value):
        return self.field(number, 6, zigzag(value))

    def text(self, number, value):
        return self.field(number, 8, varint(len(value)) + value)

    def struct(self, number, value):
        return self.field(number, 12, value.end())

    def list(self, number, kind, items):
        return self.field(number, 9, bytes([len(items) << 4 | kind]) + b"".join(items))

    def end(self):
        return self.bytes + b"\0"


def page(data, num_values, encoding=PLAIN):
    stored = pa.compress(data, codec="zstd", asbytes=True)
    of_page = Struct().i32(1, num_values).i32(2, encoding).i32(3, 3).i32(4, 3)
    return Struct().i32(1, 0).i32(2, len(data)).i32(3, len(stored)).struct(5, of_page).end() + stored


def dictionary(data, num_values):
    stored = pa.compress(data, codec="zstd", asbytes=True)
    of_page = Struct().i32(1, num_values).i32(2, PLAIN)
    return Struct().i32(1, 2).i32(2, len(data)).i32(3, len(stored)).struct(7, of_page).end() + stored


def write(name, pages, num_rows, words=b"", encoding=PLAIN):
    """A file of one required column of texts, `prompt`."""
    data = words + b"".join(pages)
    schema = [
        Struct().text(4, b"root").i32(5, 1).end(),
        Struct().i32(1, 6).i32(3, 0).text(4, b"prompt").i32(6, 0).end(),
    ]
    column = Struct().i32(1, 6).list(2, 5, [zigzag(PLAIN), zigzag(encoding)])
    column.list(3, 8, [varint(6) + b"prompt"]).i32(4, 6).i64(5, num_rows)
    column.i64(6, len(data)).i64(7, len(data)).i64(9, 4 + len(words))
    if words:
        column.i64(11, 4)
    chunk = Struct().i64(2, 4).struct(3, column).end()
    group = Struct().list(1, 12, [chunk]).i64(2, len(data)).i64(3, num_rows).end()
    footer = Struct().i32(1, 1).list(2, 12, schema).i64(3, num_rows).list(4, 12, [group]).end()
    end = len(footer).to_bytes(4, "little") + b"PAR1"
    (OUT / f"{name}.parquet").write_bytes(b"PAR1" + data + footer + end)


def plain(text):
    return len(text).to_bytes(4, "little") + text


def packed(values):
    """DELTA_BINARY_PACKED, blocks of 128 in four parts."""
    out = varint(128) + varint(4) + varint(len(values)) + zigzag(values[0])
    deltas = [after - before for before, after in zip(values, values[1:])]
    for start in range(0, len(deltas), 128):
        block = deltas[start : start + 128]
        least = min(block)
        parts = [[delta - least for delta in block[at : at + 32]] for at in range(0, 128, 32)]
        widths = [max((delta.bit_length() for delta in part), default=0) for part in parts]
        out += zigzag(least) + bytes(widths)
        for part, width in zip(parts, widths):
            if part:
                number = sum(delta << index * width for index, delta in enumerate(part))
                out += number.to_bytes(4 * width, "little")
    return out


def with_prefixes(count, size):
    """`count` equal texts of `size` bytes, each but the first the prefix of the one before."""
    return packed([0] + [size] * (count - 1)) + packed([size] + [0] * (count - 1)) + b"a" * size


def pages():
    write("texts_200m", [page(plain(b"a" * (200 * MIB)), 1)] * 6, 6)
    write("texts_40m", [page(plain(b"a" * (40 * MIB)), 1)] * 20, 20)
    # Large ones come when rows were small for long; the last one is an ordinary row again.
    small = page(plain(b"abc"), 1)
    write("late", [small] * 2000 + [page(plain(b"a" * (100 * MIB)), 1)] * 4 + [small], 2005)
    write("controls", [page(plain(b"\x01" * (60 * MIB)), 1)] * 2, 2)
    write("prefixes", [page(with_prefixes(1000, MIB), 1000, DELTA_PREFIXES)], 1000, encoding=DELTA_PREFIXES)
    shared = [page(with_prefixes(100, MIB), 100, DELTA_PREFIXES)] * 4
    write("prefixes_in_pages", shared, 400, encoding=DELTA_PREFIXES)
    many = varint(1 << 33) + varint(1) + varint(1 << 33) + zigzag(0) + zigzag(0) + b"\0"
    write("lengths", [page(many, 2, DELTA_LENGTHS)], 2, encoding=DELTA_LENGTHS)
    first = page(b"\x01\x02\0", 1, DICTIONARY)
    write("dictionary", [first], 1, dictionary(plain(b"a"), (1 << 31) - 1), DICTIONARY)
    empty = dictionary(bytes(4 * 60 * MIB), 60 * MIB)
    write("dictionary_of_empties", [first], 1, empty, DICTIONARY)


def groups():
    """Row groups without rows, at every place."""
    schema = pa.schema([("prompt", pa.string()), ("k", pa.int64())])
    rows = pa.table({"prompt": ["a", "b"], "k": [1, 2]}, schema)
    none = schema.empty_table()
    for name, tables in [
        ("empty_groups", [none, rows, none, none, rows, none]),
        ("no_rows", [none, none]),
    ]:
        with pq.ParquetWriter(OUT / f"{name}.parquet", schema) as writer:
            for table in tables:
                writer.write_table(table)


class Keys(pe.KmsClient):
    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


def encrypted():
    table = pa.table({"prompt": ["a"], "secret": ["b"]})
    factory = pe.CryptoFactory(Keys)
    config = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=True
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(OUT / "encrypted_column.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def main():
    OUT.mkdir(exist_ok=True)
    pages()
    groups()
    encrypted()


if __name__ == "__main__":
    main()
