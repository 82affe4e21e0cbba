#!/usr/bin/env python3
"""Reads what `sconce embed` writes with the libraries that people read it with: every format with every type of numbers.

    pip install -r scripts/requirements-readers.txt
    python3 scripts/read_back.py [--sconce target/release/sconce] [--model tests/fixtures/bert-tiny] [--files DIR]

Vectors are compared with those of the f32 jsonl output: equal for f32, to numpy's float16 of them for f16, to the formulas
for int8 and for binary (that of sentence-transformers). Ids and kept columns, with their nulls, have to be those of the
input. Columns of every Arrow type that are kept have their type and their values. With --files, outputs that lie ready in DIR are read and nothing is run; without, they go to a folder of their own.
Exits with 1 if anything differs or cannot be read.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
TYPED = ROOT / "tests" / "fixtures" / "input" / "typed"
DIMENSIONS = 32
ROWS = [
    {"id": "a-1", "text": "the candle burns", "year": 1911, "title": "candle, \"lit\""},
    {"id": "a-2", "text": "a lamp and a wick", "year": None, "title": None},
    {"text": "Attention! 灯", "year": -3, "title": "灯"},
    {"id": "a-4", "text": "", "year": 9007199254740993, "title": "two\nlines"},
    {"id": "a-5", "text": "the lamp is on", "title": "last"},
]
KEPT = ["year", "title"]
DTYPES = ["f32", "f16", "int8", "binary"]
COLUMNS = ["jsonl", "csv", "parquet", "arrow"]
ARRAYS = ["npy", "safetensors"]
TOKENS = ["jsonl", "parquet", "arrow"]
NUMPY = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "binary": np.int8}


def outputs():
    """(name of the file, format, type, whether it has a vector a token)."""
    for dtype in DTYPES:
        for form in COLUMNS + ARRAYS:
            yield f"{dtype}.{form}", form, dtype, False
        for form in TOKENS if dtype != "int8" else []:
            yield f"tokens-{dtype}.{form}", form, dtype, True


def write(sconce, model, folder):
    """Runs the command for every output."""
    source = folder / "input.jsonl"
    source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    for name, form, dtype, per_token in outputs():
        command = [sconce, "embed", "--model", model, "--input", source, "--output", folder / name, "--normalize"]
        command += ["--output-dtype", dtype, "--dimensions", str(DIMENSIONS), "--quiet"]
        command += ["--keep", *KEPT] if form in COLUMNS else []
        command += ["--pooling", "none"] if per_token else []
        if subprocess.run([str(part) for part in command]).returncode != 0:
            sys.exit(f"failed: {' '.join(str(part) for part in command)}")


def reference(folder, name, key):
    """The vectors of an f32 jsonl output: an array a row."""
    lines = (folder / name).read_text().splitlines()
    return [np.array(json.loads(line)[key], dtype=np.float32) for line in lines]


def stored(vectors, dtype):
    """What `dtype` makes of an array of vectors, and their scales."""
    if dtype == "int8":
        scale = np.abs(vectors).max(axis=1, keepdims=True) / np.float32(127)
        return np.round(vectors / scale).astype(np.int8), scale[:, 0]
    if dtype == "binary":
        return (np.packbits(vectors > 0).reshape(len(vectors), -1) - 128).astype(np.int8), None
    return vectors.astype(NUMPY[dtype]), None


# A reader gives the columns as lists by name, and the type that it has the numbers in, if it says.


def number_type(kind):
    """The name of the numbers in an Arrow type of lists."""
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return np.dtype(kind.to_pandas_dtype()).name


def pyarrow_table(table):
    return table.to_pydict(), number_type(table.schema.types[-1])


def pandas_frame(frame):
    columns = {name: list(frame[name]) for name in frame.columns}
    return columns, number_type(frame.dtypes.iloc[-1].pyarrow_dtype)


def polars_frame(frame):
    kind = frame.dtypes[-1]
    while hasattr(kind, "inner"):
        kind = kind.inner
    return frame.to_dict(as_series=False), str(kind).lower()


def duckdb_relation(relation):
    kind = str(relation.types[-1]).split("[")[0]
    kind = {"FLOAT": "float32", "TINYINT": "int8", "DOUBLE": "double"}.get(kind, kind)
    rows = relation.fetchall()
    return {name: [row[i] for row in rows] for i, name in enumerate(relation.columns)}, kind


def table_of_numbers(columns):
    """The columns e0, e1, … of a table as one column of lists."""
    numbers = [columns.pop(f"e{i}") for i in range(sum(name[1:].isdigit() for name in columns))]
    columns["embedding"] = [list(row) for row in zip(*numbers)]
    return columns, None


def csv_frame(frame):
    return table_of_numbers({name: list(frame[name]) for name in frame.columns})


def as_lines(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}, None


def untyped(result):
    return result[0], None


def ipc(path):
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


BY_ARROW = {"engine": "pyarrow", "dtype_backend": "pyarrow"}
READERS = {
    "npy": {"numpy": lambda path: ({"embedding": (array := np.load(path))}, str(array.dtype))},
    "safetensors": {
        "safetensors": lambda path: ({"embedding": (array := load_file(path)["embeddings"])}, str(array.dtype))
    },
    "jsonl": {
        "json": as_lines,
        "pandas": lambda path: untyped(pandas_frame(pd.read_json(path, lines=True, **BY_ARROW))),
        "polars": lambda path: untyped(polars_frame(pl.read_ndjson(path, infer_schema_length=None))),
        "duckdb": lambda path: untyped(duckdb_relation(duckdb.sql(f"from read_json('{path}')"))),
    },
    "csv": {
        "pandas": lambda path: csv_frame(pd.read_csv(path, dtype={"year": "Int64"})),
        "polars": lambda path: csv_frame(pl.read_csv(path)),
        "duckdb": lambda path: csv_frame(duckdb.sql(f"from read_csv('{path}')").pl()),
    },
    "parquet": {
        "pyarrow": lambda path: pyarrow_table(pq.read_table(path)),
        "pandas": lambda path: pandas_frame(pd.read_parquet(path, **BY_ARROW)),
        "polars": lambda path: polars_frame(pl.read_parquet(path)),
        "duckdb": lambda path: duckdb_relation(duckdb.sql(f"from '{path}'")),
    },
    "arrow": {
        "pyarrow": lambda path: pyarrow_table(ipc(path)),
        "pandas": lambda path: pandas_frame(ipc(path).to_pandas(types_mapper=pd.ArrowDtype)),
        "polars": lambda path: polars_frame(pl.read_ipc(path)),
        "duckdb": lambda path: duckdb_relation(duckdb.from_arrow(ipc(path))),
    },
}
# What a reader has no type for, and the type that it takes instead.
WIDENED = {("duckdb", "float16"): "float32"}
# What a reader has no type for, and says so.
UNREADABLE = {("duckdb", "arrow", "f16")}


def plain(value):
    """A value without the reader's own way to say null."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def check(columns, kind, reader, form, dtype, per_token, vectors):
    """What is wrong with what was read; None if nothing is."""
    key = "embeddings" if per_token else "embedding"
    wanted = NUMPY[dtype]
    name = np.dtype(wanted).name
    if kind is not None and kind not in (name, WIDENED.get((reader, name))):
        return f"numbers are {kind}, not {name}"
    if form in COLUMNS:
        expected = {
            "index": list(range(len(ROWS))),
            "id": [row.get("id") for row in ROWS],
            **{name: [row.get(name) for row in ROWS] for name in KEPT},
        }
        names = ["index", "id", "tokens", "truncated", *KEPT, *(["scale"] if dtype == "int8" else []), key]
        if list(columns) != names and form != "jsonl":
            return f"columns are {list(columns)}, not {names}"
        for name, values in expected.items():
            found = [plain(value) for value in columns[name]]
            if found != values:
                return f"{name} is {found}, not {values}"
        if [bool(value) for value in columns["truncated"]] != [False] * len(ROWS):
            return f"truncated is {columns['truncated']}"
    if len(columns[key]) != len(ROWS):
        return f"{len(columns[key])} rows, not {len(ROWS)}"
    for i, (found, row) in enumerate(zip(columns[key], vectors)):
        values, scale = stored(row if per_token else row[None], dtype)
        # Text holds the shortest digits of an f32.
        found = np.array([list(vector) for vector in found] if per_token else [list(found)], dtype=np.float32)
        if found.shape != values.shape:
            return f"row {i} has shape {found.shape}, not {values.shape}"
        if not np.array_equal(found, values.astype(np.float32)):
            return f"row {i} differs by up to {np.abs(found - values).max()}"
        if scale is not None and "scale" in columns and np.float32(columns["scale"][i]) != scale[0]:
            return f"scale of row {i} is {columns['scale'][i]}, not {scale[0]}"
        if dtype == "int8" and np.abs(found / np.linalg.norm(found) - row).max() > 0.005:
            return f"row {i} is not the unit vector that it was"
    return None


# Dictionaries and views are written as their values, and Parquet has dates as days only and no seconds.
# pyarrow itself reads day64 of a Parquet file as days, whatever the Arrow schema in the file says.
WRITTEN = {"category": pa.string(), "view": pa.string(), "day64": pa.date64()}
IN_PARQUET = {"seconds": pa.timestamp("ms"), "day64": pa.date32()}


def typed(sconce, model, folder, kind):
    """What is wrong with the columns of a file with all types that were kept; None if nothing is."""
    source = pq.read_table(TYPED.with_suffix(".parquet")) if kind == "parquet" else ipc(TYPED.with_suffix(".arrow"))
    names = [name for name in source.column_names if name != "text"]
    # Other readers have no decimals of 70 digits.
    for form, kept in [("parquet", names), ("arrow", names), ("parquet", [name for name in names if name != "huge"])]:
        output = folder / f"typed.{form}"
        command = [sconce, "embed", "--model", model, "--input", TYPED.with_suffix(f".{kind}"), "--output", output, "--restart"]
        command += ["--quiet", "--keep", ",".join(kept)]
        if subprocess.run([str(part) for part in command]).returncode != 0:
            return "failed"
        table = pq.read_table(output) if form == "parquet" else ipc(output)
        for name in kept:
            before, after = source[name], table[name]
            wanted = WRITTEN.get(name, before.type)
            wanted = IN_PARQUET.get(name, wanted) if form == "parquet" else wanted
            if "dictionary" not in str(wanted) and after.type != wanted:
                return f"{name} in {form} is {after.type}, not {wanted}"
            # As text, since a NaN is not equal to itself.
            if str(after.to_pylist()) != str(before.to_pylist()):
                return f"{name} in {form} is {after.to_pylist()}, not {before.to_pylist()}"
        if kept != names:
            rows = [len(pl.read_parquet(output)), duckdb.sql(f"select count(*) from '{output}'").fetchall()[0][0]]
            if rows != [len(source)] * 2:
                return f"other readers find {rows} rows"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--model", type=Path, default=ROOT / "tests" / "fixtures" / "bert-tiny")
    parser.add_argument("--files", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.files or Path(scratch)
        if args.files is None:
            write(args.sconce, args.model, folder)
        vectors = reference(folder, "f32.jsonl", "embedding")
        tokens = reference(folder, "tokens-f32.jsonl", "embeddings")
        passed, failed = 0, 0
        for kind in ["parquet", "arrow"] if args.files is None else []:
            wrong = typed(args.sconce, args.model, folder, kind)
            passed, failed = passed + (wrong is None), failed + (wrong is not None)
            print(f"{'typed.' + kind:22} {'kept columns':12} {wrong or 'ok'}")
        for name, form, dtype, per_token in outputs():
            for reader, read in READERS[form].items():
                if (reader, form, dtype) in UNREADABLE:
                    print(f"{name:22} {reader:12} has no such type")
                    continue
                try:
                    columns, kind = read(folder / name)
                    wrong = check(columns, kind, reader, form, dtype, per_token, tokens if per_token else vectors)
                except Exception as error:  # a reader may fail in its own way
                    wrong = f"{type(error).__name__}: {error}"
                passed, failed = passed + (wrong is None), failed + (wrong is not None)
                print(f"{name:22} {reader:12} {wrong or 'ok'}")
    print(f"{passed} checks passed" + (f", {failed} failed" if failed else ""))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
