"""Nearest neighbours in vector files, by `sconce search`."""

from __future__ import annotations

import json
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ._command import SconceError, output_of
from ._model import Path, command_arguments
from ._vectors import Array


def search_files(
    command: str, options: Mapping[str, object], queries: list[str] | Array, files: Path | Sequence[Path], k: int
) -> list[list[dict[str, Any]]]:
    """The nearest rows of the files for each query: texts, which the model embeds if it is the one of the files, or vectors."""
    if not len(queries):
        return []
    remedy = "pass an array of vectors, such as np.array(corpus), or vector files"
    if not isinstance(files, (str, os.PathLike, Iterable)) or hasattr(files, "columns"):
        raise TypeError(f"corpus is a {type(files).__name__}, not vectors; {remedy}")
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    for i, path in enumerate(paths):
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"corpus[{i}] is a {type(path).__name__}, not the path of a vector file; {remedy}")
    # A path is no query, and no option.
    names = [os.path.abspath(os.fspath(path)) for path in paths]
    missing = next((path for path, name in zip(paths, names) if not os.path.exists(name) and not re.search(r"[*?\[]", name)), None)
    if missing is not None:
        raise SconceError(f"corpus has no file {os.fspath(missing)!r}; pass an array of vectors, for texts embed() first, or vector files")
    with tempfile.TemporaryDirectory(prefix="sconce-") as folder:
        if isinstance(queries, np.ndarray):
            path = pathlib.Path(folder, "queries.npy")
            np.save(path, queries)
            of_queries = [f"--query-vectors={path}"]
        else:
            path = pathlib.Path(folder, "queries.jsonl")
            path.write_text("".join(json.dumps({"text": query}) + "\n" for query in queries))
            of_queries = [f"--queries={path}", *command_arguments(options)]
        output = output_of([command, "search", "--quiet", f"--top-k={k}", "--output-format=jsonl", *of_queries, *names])
    found: list[list[dict[str, Any]]] = [[] for _ in queries]
    for line in output.splitlines():
        row = json.loads(line)
        found[row.pop("query")].append({name: value for name, value in row.items() if name != "rank"})
    return found
