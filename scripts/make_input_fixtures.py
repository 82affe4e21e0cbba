"""Writes tests/fixtures/input: the same few rows as Parquet, Arrow and packed files, by other writers than Sconce's.

    pip install pyarrow pandas polars
    python scripts/make_input_fixtures.py
"""

import datetime
import decimal
import gzip
from pathlib import Path

import pandas
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

OUT = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "input"

TEXTS = ["a lamp", 'the "wick", burning\nlight', "", None, "the candle ünïcode 火", "a lamp"]
PAIRS = ["a", "b", "c", "d", None, "f"]


def table() -> pa.Table:
    """Rows with a null text, a null pair, a null id, and a column of every kind to keep."""
    return pa.table(
        {
            "before": pa.array([[1, 2], [], None, [3], [4], [5]], pa.list_(pa.int32())),
            "id": pa.array(["a", "b", None, "d", "e", "f"]),
            "text": pa.array(TEXTS),
            "pair": pa.array(PAIRS),
            "number": pa.array([7, -1, None, 2**62, 0, 5], pa.int64()),
            "byte": pa.array([255, 0, 1, 2, 3, 4], pa.uint8()),
            "double": pa.array([0.5, float("nan"), None, 1e300, -0.25, 5.0]),
            "float": pa.array([0.1, float("inf"), None, 1.0, 2.5, 3.0], pa.float32()),
            "flag": pa.array([True, False, None, True, False, True]),
            "day": pa.array([datetime.date(2026, 11, 21)] * 5 + [None]),
            "time": pa.array([datetime.datetime(2026, 11, 21, 6, 2, 17, 250000)] * 5 + [None], pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("12.50")] * 5 + [None], pa.decimal128(10, 2)),
            "kind": pa.array(["x", "y", "x", None, "x", "y"]).dictionary_encode(),
            "nested": pa.array([{"a": 1, "b": "z"}] * 5 + [None]),
        }
    )


def typed() -> pa.Table:
    """Two rows and a row of nulls with a column of every type to keep."""
    moment = datetime.datetime(2026, 11, 21, 6, 2, 17, 250001)
    day, clock = moment.date(), moment.time()
    category = pa.dictionary(pa.int8(), pa.string())
    inner = pa.struct([("a", pa.int16()), ("b", pa.list_(category)), ("at", pa.timestamp("ms", "America/New_York"))])
    return pa.table(
        {
            "text": ["a lamp", "a wick", "light"],
            "naive": pa.array([moment, moment.replace(year=1911), None], pa.timestamp("us")),
            "seconds": pa.array([0, -1, None], pa.timestamp("s")),
            "zoned": pa.array([1, 2**60 + 1, None], pa.timestamp("ns", "Europe/Berlin")),
            "day": pa.array([day, day, None], pa.date32()),
            "day64": pa.array([day, day, None], pa.date64()),
            "clock": pa.array([clock, datetime.time(), None], pa.time64("us")),
            "span": pa.array([datetime.timedelta(seconds=1.5), datetime.timedelta(), None], pa.duration("ms")),
            "price": pa.array([decimal.Decimal("12.50"), decimal.Decimal("-0.01"), None], pa.decimal128(20, 2)),
            "huge": pa.array([decimal.Decimal(10**60), decimal.Decimal(-1), None], pa.decimal256(70, 0)),
            "words": pa.array([["x", None], [], None], pa.list_(pa.string())),
            "more": pa.array([[[1], []], [None], None], pa.large_list(pa.list_(pa.int32()))),
            "three": pa.array([[1, 2, 3], [4, None, 6], None], pa.list_(pa.float32(), 3)),
            "inner": pa.array([{"a": 1, "b": ["x", "y"], "at": moment.replace(microsecond=250000)}, {"a": None, "b": None}, None], inner),
            "map": pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64())),
            "pairs": pa.array([[(1, "x")], [], None], pa.map_(pa.int32(), pa.string())),
            "category": pa.array(["x", "y", None]).cast(category),
            "bytes": pa.array([b"\x00\xff", b"", None], pa.binary()),
            "four": pa.array([b"abcd", b"\x00\x01\x02\x03", None], pa.binary(4)),
            "small": pa.array([-128, 127, None], pa.int8()),
            "large": pa.array([2**64 - 1, 0, None], pa.uint64()),
            "half": pa.array([0.5, -2.0, None], pa.float16()),
            "single": pa.array([0.1, float("nan"), None], pa.float32()),
            "flag": pa.array([True, False, None]),
            "long": pa.array(["x", "", None], pa.large_string()),
            "view": pa.array(["x", "a string that is longer than a view", None], pa.string_view()),
        }
    )


def texts_as(kind: pa.DataType) -> pa.Table:
    return table().select(["id", "text"]).set_column(1, "text", pa.array(TEXTS, pa.string()).cast(kind))


def stream(rows: pa.Table, name: str, **options) -> None:
    with pa.ipc.new_stream(OUT / name, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows, max_chunksize=4)


def file(rows: pa.Table, name: str, **options) -> None:
    with pa.ipc.new_file(OUT / name, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows, max_chunksize=4)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    rows = table()
    for codec in ["none", "snappy", "gzip", "lz4", "zstd"]:
        pq.write_table(rows, OUT / f"{codec}.parquet", compression=codec, row_group_size=4)
    pq.write_table(rows, OUT / "pages-2.parquet", data_page_version="2.0", use_dictionary=False, compression="zstd")
    delta = {"text": "DELTA_BYTE_ARRAY", "id": "DELTA_LENGTH_BYTE_ARRAY", "number": "DELTA_BINARY_PACKED"}
    plain = rows.select(["id", "text", "number"])
    pq.write_table(plain, OUT / "delta.parquet", use_dictionary=False, column_encoding=delta)
    for name, kind in [("large", pa.large_string()), ("view", pa.string_view())]:
        pq.write_table(texts_as(kind), OUT / f"{name}.parquet")
        file(texts_as(kind), f"{name}.arrow")
    dictionary = texts_as(pa.dictionary(pa.int16(), pa.string()))
    pq.write_table(dictionary, OUT / "dictionary.parquet")
    file(dictionary, "dictionary.arrow")
    stream(dictionary, "dictionary.arrows", emit_dictionary_deltas=True)
    numbered = texts_as(pa.string()).set_column(0, "id", pa.array([1, 2, None, 2**40, 5, 6], pa.int64()))
    pq.write_table(numbered, OUT / "numbered.parquet")
    file(numbered, "numbered.feather")
    pq.write_table(rows.slice(0, 0), OUT / "empty.parquet")
    file(rows.slice(0, 0), "empty.arrow")

    pq.write_table(typed(), OUT / "typed.parquet", compression="zstd")
    file(typed(), "typed.arrow", compression="zstd")
    whole = pa.table({"id": ["a", "7", None], "text": TEXTS[:3]})
    pq.write_table(whole, OUT / "whole.parquet")
    file(whole, "whole.arrow")

    file(rows, "file.arrow")
    file(rows, "lz4.arrow", compression="lz4")
    file(rows, "zstd.arrow", compression="zstd")
    file(rows, "old.arrow", use_legacy_format=True, metadata_version=pa.ipc.MetadataVersion.V4)
    stream(rows, "stream.arrows")
    stream(rows, "zstd.arrows", compression="zstd")
    pyarrow.feather.write_feather(pandas.DataFrame({"text": ["a lamp"]}), OUT / "first.feather", version=1)
    frame = polars.DataFrame({"id": ["a", "b", None, "d", "e", "f"], "text": TEXTS})
    frame.write_parquet(OUT / "polars.parquet")
    frame.write_ipc(OUT / "polars.arrow", compression="zstd")
    pandas.DataFrame({"id": ["a", "b", None, "d", "e", "f"], "text": TEXTS}).to_parquet(OUT / "pandas.parquet")

    lines = "a lamp\nthe candle\nlight\n".encode()
    first, second = lines[:9], lines[9:]
    (OUT / "lines.txt").write_bytes(lines)
    (OUT / "members.txt.gz").write_bytes(gzip.compress(first, mtime=0) + gzip.compress(second, mtime=0))
    zstd = pa.Codec("zstd")
    (OUT / "frames.txt.zst").write_bytes(
        zstd.compress(first, asbytes=True) + zstd.compress(second, asbytes=True)
    )


if __name__ == "__main__":
    main()
