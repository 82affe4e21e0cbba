#!/usr/bin/env python3
"""Reads the files that `sconce embed` writes with the libraries that people use: every format with every dtype, with one vector per row,
per token and per chunk, and sparse vectors.

    pip install -r scripts/check/requirements-readers.txt
    python3 scripts/check/read_back.py [--sconce target/release/sconce] [--model tests/fixtures/bert-tiny] [--files DIR]

Vectors are compared with those of the f32 jsonl file: equal for f32, equal after numpy's conversion for f16, equal to the documented
formulas for int8 and binary. Ids, kept columns with their nulls, and the spans of chunks must be those of the input; a chunk must
have the vector of its text. Sparse vectors of every format, npz by scipy, must be those of the jsonl file. Kept columns of every Arrow type must keep their types and values. With --files, existing outputs in DIR
are read and nothing is run. Exits with 1 if anything differs or cannot be read.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
SPARSE_MODEL = ROOT / "tests" / "fixtures" / "sparse" / "bert-max"
TYPED = ROOT / "tests" / "fixtures" / "input" / "typed"
DIMENSIONS = 32
CHUNK_TOKENS = 8
ROWS = [
    {"id": "a-1", "text": "the candle burns", "year": 1911, "title": "candle, \"lit\""},
    {"id": "a-2", "text": "a lamp and a wick", "year": None, "title": None},
    {"text": "Attention! 灯", "year": -3, "title": "灯"},
    {"id": "a-4", "text": "", "year": 9007199254740993, "title": "two\nlines"},
    {"id": "a-5", "text": "the lamp is on", "title": "last"},
]
# Texts of several chunks, of one chunk, and an empty one, with characters of several bytes.
LONG_ROWS = [
    {**ROWS[0], "text": "The candle burns. The lamp is on, and the wick is lit. 灯 is a lamp.\n\nAttention! It burns."},
    ROWS[1],
    {**ROWS[2], "text": "light " * 30},
    ROWS[3],
    {**ROWS[4], "text": "a lamp 灯 and a wick. " * 5},
]
KEPT = ["year", "title"]
SPAN = ["chunk", "start", "end", "line", "end_line"]
DTYPES = ["f32", "f16", "int8", "binary"]
# Formats with columns besides the vector, formats without such columns, and formats with several vectors per row.
COLUMNS = ["jsonl", "csv", "parquet", "arrow"]
ARRAYS = ["npy", "safetensors"]
LISTS = ["jsonl", "parquet", "arrow"]
NUMPY = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "binary": np.int8}

# A file to read back; `unit` is the unit that has one vector: a row, a token or a chunk.
Output = namedtuple("Output", "name form dtype unit")


def outputs():
    """All files to write and read back."""
    for dtype in DTYPES:
        for form in COLUMNS + ARRAYS:
            yield Output(f"{dtype}.{form}", form, dtype, "row")
            yield Output(f"chunks-{dtype}.{form}", form, dtype, "chunk")
        for form in LISTS if dtype != "int8" else []:
            yield Output(f"tokens-{dtype}.{form}", form, dtype, "token")


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def embed(sconce, model, source, output, *options):
    """Runs `sconce embed`."""
    command = [sconce, "embed", "--model", model, "--input", source, "--output", output, "--normalize"]
    command += ["--dimensions", DIMENSIONS, "--quiet", *options]
    if subprocess.run([str(part) for part in command]).returncode != 0:
        sys.exit(f"failed: {' '.join(str(part) for part in command)}")


def write(sconce, model, folder):
    """Writes all outputs, and the vectors of the texts of the chunks."""
    write_jsonl(folder / "input.jsonl", ROWS)
    write_jsonl(folder / "long.jsonl", LONG_ROWS)
    for name, form, dtype, unit in outputs():
        options = ["--output-dtype", dtype]
        options += ["--keep", *KEPT] if form in COLUMNS else []
        options += {"row": [], "token": ["--pooling", "none"], "chunk": ["--chunk", CHUNK_TOKENS]}[unit]
        embed(sconce, model, folder / ("long.jsonl" if unit == "chunk" else "input.jsonl"), folder / name, *options)
    chunks = read_jsonl(folder / "chunks-f32.jsonl")
    texts = [{"text": LONG_ROWS[row["index"]]["text"][row["start"] : row["end"]]} for row in chunks]
    write_jsonl(folder / "chunk-texts.jsonl", texts)
    embed(sconce, model, folder / "chunk-texts.jsonl", folder / "of-chunk-texts.jsonl")


def vectors(rows, key="embedding"):
    """The vectors of the rows of an f32 jsonl file: an array per row."""
    return [np.array(row[key], dtype=np.float32) for row in rows]


def stored(vectors, dtype):
    """An array of vectors converted to `dtype`, and the scales of int8."""
    if dtype == "int8":
        scale = np.abs(vectors).max(axis=1, keepdims=True) / np.float32(127)
        return np.round(vectors / scale).astype(np.int8), scale[:, 0]
    if dtype == "binary":
        return (np.packbits(vectors > 0).reshape(len(vectors), -1) - 128).astype(np.int8), None
    return vectors.astype(NUMPY[dtype]), None


# A reader returns the columns as lists by name, and the name of the element type of the vectors if the format has one.


def element_type(kind):
    """The name of the innermost element type of an Arrow list type."""
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return np.dtype(kind.to_pandas_dtype()).name


def pyarrow_table(table):
    return table.to_pydict(), element_type(table.schema.types[-1])


def pandas_frame(frame):
    columns = {name: list(frame[name]) for name in frame.columns}
    return columns, element_type(frame.dtypes.iloc[-1].pyarrow_dtype)


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


def with_embedding(columns):
    """The columns of a CSV file with e0, e1, … replaced by one column of lists."""
    elements = [columns.pop(f"e{i}") for i in range(sum(name[1:].isdigit() for name in columns))]
    columns["embedding"] = [list(row) for row in zip(*elements)]
    return columns, None


def csv_frame(frame):
    return with_embedding({name: list(frame[name]) for name in frame.columns})


def json_lines(path):
    lines = read_jsonl(path)
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}, None


def untyped(result):
    return result[0], None


def ipc(path):
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def numpy_array(path):
    """The array of an npy file; for chunks, the record and the number of each from the counts in the metadata file."""
    array = np.load(path)
    counts = json.loads(Path(f"{path}.meta.json").read_text()).get("chunks")
    columns = {"embedding": array}
    if counts is not None:
        columns["index"] = [index for index, count in enumerate(counts) for _ in range(count)]
        columns["chunk"] = [chunk for count in counts for chunk in range(count)]
    return columns, str(array.dtype)


def safetensors_file(path):
    """The tensors of a safetensors file."""
    tensors = load_file(path)
    array = tensors.pop("embeddings")
    return {"embedding": array, **{name: tensor.tolist() for name, tensor in tensors.items()}}, str(array.dtype)


BY_ARROW = {"engine": "pyarrow", "dtype_backend": "pyarrow"}
READERS = {
    "npy": {"numpy": numpy_array},
    "safetensors": {"safetensors": safetensors_file},
    "jsonl": {
        "json": json_lines,
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
# Element types that a reader lacks, and the type that it uses instead.
WIDENED = {("duckdb", "float16"): "float32"}
# Files that a reader cannot read, since it lacks the element type.
UNREADABLE = {("duckdb", "arrow", "f16")}


def plain(value):
    """A value, with the reader's representation of null as None."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def expected_columns(output, chunks):
    """The expected columns of a file, without those of the vector; `chunks` are the rows of the f32 jsonl file of chunks."""
    rows = ROWS
    columns = {"index": list(range(len(ROWS)))}
    if output.unit == "chunk":
        rows = [LONG_ROWS[chunk["index"]] for chunk in chunks]
        columns = {name: [chunk[name] for chunk in chunks] for name in ["index", *SPAN]}
    columns |= {name: [row.get(name) for row in rows] for name in ["id", *KEPT]}
    # The texts of ROWS fit into the model, and a chunk is never truncated.
    return columns | {"truncated": [False] * len(rows)}


def check_columns(columns, output, expected):
    """A message about the first column that is wrong; None if all are right."""
    if output.form in COLUMNS:
        key = "embeddings" if output.unit == "token" else "embedding"
        span = SPAN if output.unit == "chunk" else []
        scale = ["scale"] if output.dtype == "int8" else []
        names = ["index", "id", *span, "tokens", "truncated", *KEPT, *scale, key]
        # In jsonl the order depends on the first row that has a field.
        if list(columns) != names and (output.form != "jsonl" or sorted(columns) != sorted(names)):
            return f"columns are {list(columns)}, not {names}"
    elif output.unit == "chunk":
        names = {"embedding", "index", "chunk"} | (set(SPAN) if output.form == "safetensors" else set())
        if set(columns) != names:
            return f"columns are {sorted(columns)}, not {sorted(names)}"
    for name, values in expected.items():
        found = [plain(value) for value in columns[name]] if name in columns else values
        if found != values:
            return f"{name} is {found}, not {values}"
    if output.unit == "chunk" and "tokens" in columns and max(columns["tokens"]) > CHUNK_TOKENS:
        return f"a chunk has {max(columns['tokens'])} tokens, not at most {CHUNK_TOKENS}"
    return None


def check_vectors(columns, output, expected):
    """A message about the first vector that is wrong; None if all are right."""
    per_token, dtype = output.unit == "token", output.dtype
    embeddings = columns["embeddings" if per_token else "embedding"]
    if len(embeddings) != len(expected):
        return f"{len(embeddings)} rows, not {len(expected)}"
    for i, (found, row) in enumerate(zip(embeddings, expected)):
        values, scale = stored(row if per_token else row[None], dtype)
        # jsonl and CSV hold the shortest digits of an f32.
        found = np.array([list(vector) for vector in found] if per_token else [list(found)], dtype=np.float32)
        if found.shape != values.shape:
            return f"row {i} has shape {found.shape}, not {values.shape}"
        if not np.array_equal(found, values.astype(np.float32)):
            return f"row {i} differs by up to {np.abs(found - values).max()}"
        if scale is not None and "scale" in columns and np.float32(columns["scale"][i]) != scale[0]:
            return f"scale of row {i} is {columns['scale'][i]}, not {scale[0]}"
        if dtype == "int8" and np.abs(found / np.linalg.norm(found) - row).max() > 0.005:
            return f"row {i} is not the unit vector that was stored"
    return None


def check(columns, kind, reader, output, expected, vectors):
    """A message about what is wrong with the columns that a reader returned; None if nothing is."""
    name = np.dtype(NUMPY[output.dtype]).name
    if kind is not None and kind not in (name, WIDENED.get((reader, name))):
        return f"elements are {kind}, not {name}"
    return check_columns(columns, output, expected) or check_vectors(columns, output, vectors)


def check_chunks(chunks, vectors, of_texts):
    """A message about what is wrong with the chunks of the f32 jsonl file; None if nothing is."""
    for index, record in enumerate(LONG_ROWS):
        spans = [[row[name] for name in SPAN] for row in chunks if row["index"] == index]
        if [chunk for chunk, *_ in spans] != list(range(len(spans))):
            return f"chunks of record {index} are {spans}"
        text, end = record["text"], 0
        for _, start, stop, line, end_line in spans:
            if text[end:start].strip() or not end <= start <= stop <= len(text):
                return f"characters of record {index} before {start} are in no chunk"
            if (line, end_line) != (1 + text[:start].count("\n"), 1 + text[:max(start, stop - 1)].count("\n")):
                return f"characters {start} to {stop} of record {index} are not in the lines {line} to {end_line}"
            end = stop
        if text[end:].strip():
            return f"characters of record {index} after {end} are in no chunk"
    if sum(row["chunk"] > 0 for row in chunks) < 5:
        return "the texts have too few chunks for a test"
    for i, (vector, of_text) in enumerate(zip(vectors, of_texts, strict=True)):
        if not np.allclose(vector, of_text, rtol=0, atol=1e-6):
            return f"the vector of chunk {i} differs from that of its text by {np.abs(vector - of_text).max()}"
    return None


# Dictionaries and views are written as plain values; Parquet has neither dates in milliseconds nor timestamps in seconds.
# pyarrow reads day64 of a Parquet file as days, despite the Arrow schema in the file.
WRITTEN = {"category": pa.string(), "view": pa.string(), "day64": pa.date64()}
IN_PARQUET = {"seconds": pa.timestamp("ms"), "day64": pa.date32()}


def check_typed(sconce, model, folder, kind):
    """A message about what is wrong with kept columns of every Arrow type; None if nothing is."""
    source = pq.read_table(TYPED.with_suffix(".parquet")) if kind == "parquet" else ipc(TYPED.with_suffix(".arrow"))
    names = [name for name in source.column_names if name != "text"]
    # polars and DuckDB have no decimals of 70 digits.
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
            # Compared as text, since NaN is not equal to itself.
            if str(after.to_pylist()) != str(before.to_pylist()):
                return f"{name} in {form} is {after.to_pylist()}, not {before.to_pylist()}"
        if kept != names:
            rows = [len(pl.read_parquet(output)), duckdb.sql(f"select count(*) from '{output}'").fetchall()[0][0]]
            if rows != [len(source)] * 2:
                return f"other readers find {rows} rows"
    return None


def check_sparse(sconce, folder, form):
    """A message about what is wrong with a file of sparse vectors; None if nothing is."""
    texts = [row["text"] for row in ROWS]
    for output in (folder / "sparse.jsonl", folder / f"sparse.{form}"):
        command = [sconce, "embed", "--model", SPARSE_MODEL, "--output", output, "--restart", "--quiet", "--", *texts]
        if subprocess.run([str(part) for part in command]).returncode != 0:
            return "failed"
    tokens = json.loads((SPARSE_MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    expected = [{tokens[token]: np.float32(weight) for token, weight in row["weights"].items()} for row in read_jsonl(folder / "sparse.jsonl")]
    if form == "npz":
        matrix = scipy.sparse.load_npz(output)
        if matrix.format != "csr" or matrix.dtype != np.float32 or matrix.shape != (len(ROWS), len(tokens)):
            return f"the matrix is {matrix.format} {matrix.dtype} {matrix.shape}"
        found = [dict(zip(row.indices.tolist(), row.data)) for row in (matrix[i] for i in range(len(ROWS)))]
    else:
        table = pq.read_table(output) if form == "parquet" else ipc(output)
        found = [dict(zip(row["indices"], map(np.float32, row["values"]))) for row in table.to_pylist()]
    if found != expected:
        return f"weights are {found}, not {expected}"
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
        chunks = read_jsonl(folder / "chunks-f32.jsonl")
        expected = {
            "row": vectors(read_jsonl(folder / "f32.jsonl")),
            "token": vectors(read_jsonl(folder / "tokens-f32.jsonl"), "embeddings"),
            "chunk": vectors(chunks),
        }
        passed, failed = 0, 0

        def report(name, reader, wrong):
            nonlocal passed, failed
            passed, failed = passed + (wrong is None), failed + (wrong is not None)
            print(f"{name:22} {reader:12} {wrong or 'ok'}")

        for kind in ["parquet", "arrow"] if args.files is None else []:
            report(f"typed.{kind}", "kept columns", check_typed(args.sconce, args.model, folder, kind))
        for form, reader in [("npz", "scipy"), ("parquet", "pyarrow"), ("arrow", "pyarrow")] if args.files is None else []:
            report(f"sparse.{form}", reader, check_sparse(args.sconce, folder, form))
        of_texts = vectors(read_jsonl(folder / "of-chunk-texts.jsonl"))
        report("chunks-f32.jsonl", "spans", check_chunks(chunks, expected["chunk"], of_texts))
        for output in outputs():
            for reader, read in READERS[output.form].items():
                if (reader, output.form, output.dtype) in UNREADABLE:
                    print(f"{output.name:22} {reader:12} has no such type")
                    continue
                try:
                    columns, kind = read(folder / output.name)
                    columns_of_input = expected_columns(output, chunks)
                    wrong = check(columns, kind, reader, output, columns_of_input, expected[output.unit])
                except Exception as error:  # readers raise errors of many types
                    wrong = f"{type(error).__name__}: {error}"
                report(output.name, reader, wrong)
    print(f"{passed} checks passed" + (f", {failed} failed" if failed else ""))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
