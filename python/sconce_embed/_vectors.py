"""Vectors in numpy: from Arrow, compared, and searched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ._command import SconceError

if TYPE_CHECKING:
    import scipy.sparse

Array = npt.NDArray[Any]
# Elements of the scores that are computed at once.
_BLOCK = 1 << 22


def as_array(of: object) -> Array | None:
    """An array of numbers; None for anything else."""
    return of if isinstance(of, np.ndarray) and of.dtype.kind in "fiu" else None


def finite(vectors: Array, name: str) -> Array:
    """The vectors, as `name` of the call.

    Raises ValueError for values that are not finite, whose scores would say nothing.
    """
    if vectors.ndim == 2 and vectors.dtype.kind == "f" and not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ValueError(f"{name}[{row}] has a value that is not finite; leave out such vectors")
    return vectors


def values(column: pa.Array) -> Array:
    """The elements of a column of numbers without nulls. The method to_numpy() would import pandas."""
    array: Array = np.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
    return array[column.offset : column.offset + len(column)]


def dense(rows: pa.Table) -> Array:
    """The vectors of rows as an array (N, D)."""
    if "embedding" not in rows.schema.names:
        kind, method = ("sparse vectors", "embed_sparse") if "indices" in rows.schema.names else ("a vector per token", "embed_tokens")
        raise SconceError(f"the model gives {kind}, which are no array (N, D); call {method}()")
    column = rows["embedding"].combine_chunks()
    return values(column.flatten()).reshape(len(column), column.type.list_size)


def per_token(rows: pa.Table) -> list[Array]:
    """The vectors of the tokens of each row, as arrays (T, D)."""
    column = rows["embeddings"].combine_chunks()
    vectors = column.flatten()
    array = values(vectors.flatten()).reshape(len(vectors), vectors.type.list_size).copy()
    ends = np.cumsum(values(column.value_lengths()))
    return np.split(array, ends[:-1])


def scores(queries: Array, others: Array, similarity: str) -> Array:
    """The similarity of each of the queries (Q, D) with each of the others (N, D): (Q, N), greater is more similar."""
    for vectors in (queries, others):
        if vectors.dtype.kind != "f":
            raise ValueError(f"vectors of {vectors.dtype} cannot be compared; pass arrays of floats")
    a, b = (np.asarray(vectors, np.float32) for vectors in (queries, others))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"vectors of the shapes {a.shape} and {b.shape} cannot be compared; pass arrays (N, D) with one D")
    if similarity == "cosine":
        a, b = _unit(a), _unit(b)
    if similarity in ("cosine", "dot"):
        found: Array = a @ b.T
        return found
    if similarity not in ("euclidean", "manhattan"):
        raise SconceError(f"{similarity} compares a vector per token; call rerank() with texts")
    order = 2 if similarity == "euclidean" else 1
    found = np.empty((len(a), len(b)), np.float32)
    rows = max(1, _BLOCK // max(1, a.size))
    for start in range(0, len(b), rows):
        found[:, start : start + rows] = -np.linalg.norm(a[:, None] - b[None, start : start + rows], order, axis=2)
    return found


def sparse_scores(a: scipy.sparse.csr_matrix, b: scipy.sparse.csr_matrix, similarity: str) -> Array:
    """The same of sparse vectors."""
    if similarity == "dot":
        found: Array = (a @ b.T).toarray()
        return found
    return scores(a.toarray(), b.toarray(), similarity)


def _unit(vectors: Array) -> Array:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: Array = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return units


def unpacked(packed: Array) -> Array:
    """The signs of vectors of `binary` (int8) or `ubinary` (uint8), as -1 and 1."""
    bits: npt.NDArray[np.uint8] = packed.view(np.uint8)
    return signs(np.unpackbits(bits if packed.dtype == np.uint8 else bits ^ np.uint8(0x80), axis=-1))


def signs(vectors: Array) -> Array:
    """-1 and 1 in place of numbers."""
    return np.where(vectors > 0, np.float32(1), np.float32(-1))


def nearest(queries: Array, corpus: Array, k: int, similarity: str, is_packed: bool = False) -> list[list[dict[str, Any]]]:
    """The `k` rows of the corpus that are most similar to each query, best first, and of equal scores the first.

    `is_packed`: the rows of the corpus are signs, with which the signs of the queries are compared.
    """
    if is_packed:
        queries = signs(queries)
    found: list[list[dict[str, Any]]] = [[] for _ in queries]
    rows = max(k, _BLOCK // max(1, len(queries)))
    for start in range(0, len(corpus), rows):
        block = corpus[start : start + rows]
        block = scores(queries, unpacked(block) if is_packed else block, similarity)
        for hits, row in zip(found, block):
            # Those that are no worse than the last of the best.
            bound = np.partition(row, -k)[-k] if len(row) > k else -np.inf
            places = np.flatnonzero(row >= bound)
            hits += [{"index": start + int(place), "score": float(row[place])} for place in places]
            hits.sort(key=lambda hit: -hit["score"])
            del hits[k:]
    return found
