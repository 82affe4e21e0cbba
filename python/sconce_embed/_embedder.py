"""Models that turn texts into vectors."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from . import _vectors
from ._attention import Attention, attend
from ._command import SconceError, find_command
from ._model import Dtype, Model, Path, Side
from ._reports import Truncations, progress_bar
from ._search import search_files
from ._server import CANCELLED
from ._texts import Texts, as_text, as_texts
from ._vectors import Array

if TYPE_CHECKING:
    import scipy.sparse

Role = Literal["query", "document"]
OnLong = Literal["truncate", "error", "mean"]
OutputDtype = Literal["f32", "f16", "binary", "ubinary"]
Pooling = Literal[
    "auto", "cls", "mean", "max", "mean-sqrt-len", "weighted-mean", "last", "pooler", "multi-vector", "splade", "lexical", "none"
]
_NUMPY = {"f32": np.float32, "f16": np.float16, "binary": np.int8, "ubinary": np.uint8}
# Characters of a request whose answer has a vector per token.
_TOKEN_CHARACTERS = 1 << 16


class Ranked(TypedDict):
    """A text that was ranked: its index, and its score."""

    index: int
    score: float


@dataclass
class TokenVectors:
    """The vectors of the tokens of a text (T, D), the tokens, and the characters of the text that they are: `text[start:end]`.

    Special tokens have no characters: (0, 0). A model like ColBERT leaves tokens out and adds some, so that its vectors have no tokens:
    both lists are None.
    """

    vectors: Array
    tokens: list[str] | None
    offsets: list[tuple[int, int]] | None


class Embedder(Model):
    """Turns texts into vectors."""

    _KIND = "embedding"

    def __init__(
        self, model: Path | None = None, *, pooling: Pooling | None = None, normalize: bool | None = None, dimensions: int | None = None,
        prompt: str | None = None, prompt_name: str | None = None, role: Role | None = None, max_length: int | None = None,
        truncation_side: Side | None = None, on_long: OnLong | None = None, output_dtype: OutputDtype = "f32",
        revision: str | None = None, offline: bool = False, device: str | None = None, dtype: Dtype | None = None,
        threads: int | None = None, max_memory: str | float | None = None, command: str | None = None,
    ) -> None:
        """`model` is a directory or a model id of the Hugging Face hub; by default, the one of sconce.

        The options are those of `sconce embed`; those of `embed()` have precedence. `command` is the path of sconce, by default that of
        `find_command()`.

        Raises SconceError if the model or an option cannot be used.
        """
        if output_dtype not in _NUMPY:
            raise SconceError(f"output_dtype is {output_dtype!r}; pass one of {', '.join(_NUMPY)}")
        self._output_dtype = output_dtype
        super().__init__(
            command, model=model, pooling=pooling, normalize=normalize, dimensions=dimensions, prompt=prompt, prompt_name=prompt_name,
            role=role, revision=revision, offline=offline, max_length=max_length, truncation_side=truncation_side, on_long=on_long,
            device=device, dtype=dtype, threads=threads, max_memory=max_memory,
        )

    def __repr__(self) -> str:
        return (
            f"Embedder({self.model!r}, dimensions={self.dimensions}, max_length={self.max_length}, "
            f"similarity_fn_name={self.similarity_fn_name!r})"
        )

    @property
    def dimensions(self) -> int:
        """The dimensions of a vector, unless `embed()` is asked for fewer."""
        return int(self._info["dimensions"])

    @property
    def similarity_fn_name(self) -> str:
        """How the model's vectors are compared: cosine, dot, euclidean or manhattan; maxsim or meanmaxsim for a vector per token."""
        return str(self._info["similarity"])

    def embed(
        self, texts: Texts, *, prompt_name: str | None = None, prompt: str | None = None, role: Role | None = None,
        dimensions: int | None = None, normalize: bool | None = None, progress: bool | None = None,
    ) -> Array:
        """The vectors of texts, in their order, as an array (N, D), which is the caller's.

        `texts` is a list of strings, a numpy array, a pyarrow Array or ChunkedArray, or a pandas or polars Series. An option that is None
        is that of the embedder. `progress` shows a bar of tqdm, if that is installed; by default in a terminal or a notebook.

        Raises SconceError with the sentence of sconce, and TypeError for texts that are no texts. Warns with TruncationWarning of
        texts over the limit, unless `on_long` of the embedder is something else.
        """
        options = {"prompt_name": prompt_name, "prompt": prompt, "role": role, "dimensions": dimensions, "normalize": normalize}
        vectors, truncations = self._embed(as_texts(texts), options, progress)
        truncations.warn()
        return vectors

    async def aembed(
        self, texts: Texts, *, prompt_name: str | None = None, prompt: str | None = None, role: Role | None = None,
        dimensions: int | None = None, normalize: bool | None = None,
    ) -> Array:
        """The same as `embed()`, without keeping the event loop from other work: in a thread, of which several share the model."""
        options = {"prompt_name": prompt_name, "prompt": prompt, "role": role, "dimensions": dimensions, "normalize": normalize}
        cancelled = threading.Event()
        before = CANCELLED.set(cancelled)
        try:
            vectors, truncations = await asyncio.to_thread(self._embed, as_texts(texts), options, False)
        finally:
            # A task that is cancelled leaves its thread, which the event loop waits for at its end.
            cancelled.set()
            CANCELLED.reset(before)
        truncations.warn()
        return vectors

    def _embed(
        self, texts: list[str], options: dict[str, Any], progress: bool | None, name: str = "texts"
    ) -> tuple[Array, Truncations]:
        dtype = options.get("output_dtype", self._output_dtype)
        # A sparse model has no such option.
        options = {**options, "output_dtype": None if dtype == "f32" else dtype}
        truncations, found, done = Truncations(name), None, 0
        with progress_bar(len(texts), progress) as bar:
            for rows in self._rows("embed", texts, options, truncations):
                part = _vectors.dense(rows)
                if found is None:
                    found = np.empty((len(texts), part.shape[1]), part.dtype)
                found[done : done + len(part)] = part
                done += len(part)
                bar.update(len(part))
        if found is None:
            width = options.get("dimensions") or self.dimensions
            found = np.empty((0, width // 8 if dtype in ("binary", "ubinary") else width), _NUMPY[dtype])
        return found, truncations

    def embed_tokens(self, texts: Texts, *, role: Role | None = None) -> list[TokenVectors]:
        """The vectors of the tokens of each text: those of the encoder without a prompt, or those that a model like ColBERT compares.

        Only the latter have roles. Texts over the limit are truncated with a TruncationWarning, or with `on_long="error"` of the embedder a SconceError.
        """
        texts, truncations = as_texts(texts), Truncations()
        has_own = self._info["model_type"]["embedding"]["pooling"] == "multi-vector"
        # There is no mean of tokens.
        options = {"on_long": "truncate" if self._options["on_long"] == "mean" else None, "role": role}
        if not has_own and role is not None:
            raise SconceError(f"role is {role!r}, but the tokens of {self.model} are embedded without a prompt; leave it out")
        if not has_own:
            options.update({"prompt": "", "pooling": "none"})
        rows = self._rows("embed", texts, options, truncations, characters=_TOKEN_CHARACTERS)
        vectors = [part for table in rows for part in _vectors.per_token(table)]
        truncations.warn()
        if has_own:
            return [TokenVectors(part, None, None) for part in vectors]
        is_left = (self._options["truncation_side"] or self._info.get("truncation_side")) == "left"
        found = zip(texts, vectors, self._tokens(texts))
        return [TokenVectors(part, *_tokens(text, _truncated(tokens, len(part), is_left))) for text, part, tokens in found]

    def embed_sparse(self, texts: Texts, *, role: Role | None = None) -> scipy.sparse.csr_matrix:
        """The sparse vectors of texts over the vocabulary, as a CSR matrix (N, V), of a model like SPLADE or with `pooling="lexical"`.

        Needs SciPy.
        """
        from scipy.sparse import csr_matrix

        texts, truncations = as_texts(texts), Truncations()
        ends, indices, values = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], [np.empty(0, np.float32)]
        for rows in self._rows("embed", texts, {"role": role}, truncations):
            if "indices" not in rows.schema.names:
                raise SconceError(f"{self.model} gives dense vectors; call embed()")
            columns = [rows[name].combine_chunks() for name in ("indices", "values")]
            ends.append(ends[-1][-1] + np.cumsum(_vectors.values(columns[0].value_lengths()), dtype=np.int64))
            indices.append(_vectors.values(columns[0].flatten()))
            values.append(_vectors.values(columns[1].flatten()))
        truncations.warn()
        arrays = np.concatenate(values), np.concatenate(indices), np.concatenate(ends)
        return csr_matrix(arrays, shape=(len(texts), self.dimensions))

    def similarity(
        self, a: Texts | Array | scipy.sparse.csr_matrix, b: Texts | Array | scipy.sparse.csr_matrix | None = None
    ) -> Array:
        """The similarity of each of `a` with each of `b` (by default `a`), which are texts or vectors, as an array (A, B).

        Vectors are arrays, or of a model like SPLADE matrices of `embed_sparse()`.
        """
        if self._is_sparse:
            rows = self._matrix(a)
            return _vectors.sparse_scores(rows, rows if b is None else self._matrix(b), self.similarity_fn_name)
        first = _vectors.finite(self._array(a, "a"), "a")
        return _vectors.scores(first, first if b is None else _vectors.finite(self._array(b, "b"), "b"), self.similarity_fn_name)

    @property
    def _is_sparse(self) -> bool:
        return self._info["model_type"]["embedding"]["pooling"] in ("splade", "lexical")

    def _matrix(self, of: Any) -> scipy.sparse.csr_matrix:
        """Sparse vectors: those of texts, or of `embed_sparse()`."""
        return of.tocsr() if hasattr(of, "tocsr") else self.embed_sparse(of)

    def _is_packed(self, vectors: Array) -> bool:
        """Whether vectors are signs: of an int8 array only this embedder's own `output_dtype` says so."""
        return vectors.dtype == np.uint8 or vectors.dtype == np.int8 and self._output_dtype == "binary"

    def _array(self, of: Texts | Array, name: str, role: Role | None = None) -> Array:
        """Vectors of floats: those of texts, whatever the embedder's `output_dtype`."""
        array = _vectors.as_array(of)
        if array is None:
            # A prompt or a role that the embedder was made with is for all of its texts.
            own = any(self._options[option] is not None for option in ("prompt", "prompt_name", "role"))
            options = {"role": None if own else role, "output_dtype": "f32"}
            array, truncations = self._embed(as_texts(of, name), options, None, name)
            truncations.warn()
        return array

    def search(
        self, queries: Texts | Array, corpus: Array | Path | Sequence[Path], *, k: int = 10
    ) -> list[list[dict[str, Any]]]:
        """The `k` nearest neighbours of each query, best first: dictionaries with `index` and `score`.

        `queries` are texts or an array of vectors. `corpus` is an array of vectors, or one or several files of `sconce embed`, whose other
        columns are in the dictionaries, too; files that another model made are refused. Every row is scored. The signs of queries are
        compared with those of a corpus of signs: an array of uint8, files, or of an embedder with `output_dtype="binary"` an array of int8.
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
            raise TypeError(f"k is {k!r}; pass a number from 1 on")
        if k < 1:
            raise ValueError(f"k is {k}; pass a number from 1 on")
        for name, given in (("queries", queries), ("corpus", corpus)):
            if hasattr(given, "tocsr"):
                instead = "call similarity(), which compares" if self._is_sparse else f"pass {name}.toarray(): search() takes no"
                raise TypeError(f"{name} is a {type(given).__name__}; {instead} sparse vectors")
        array = _vectors.as_array(queries)
        if array is not None and self._is_packed(array):
            queries = array = _vectors.unpacked(array)
        if isinstance(corpus, np.ndarray):
            vectors, known = _vectors.finite(self._array(queries, "queries", "query"), "queries"), _vectors.finite(corpus, "corpus")
            return _vectors.nearest(vectors, known, k, self.similarity_fn_name, self._is_packed(corpus))
        options = {name: value for name, value in self._options.items() if name != "max_memory"}
        return search_files(self._command or find_command(), options, as_texts(queries, "queries") if array is None else array, corpus, k)

    def rerank(self, query: str, texts: Texts, *, top_k: int | None = None) -> list[Ranked]:
        """The texts by their similarity with the query, best first: of vectors, of sparse vectors, or of those of tokens.

        Query and texts have the model's own prompts for these roles.
        """
        chosen = next((name for name in ("prompt", "prompt_name") if self._options[name] is not None), None)
        if chosen is not None:
            raise SconceError(f"{chosen} of the embedder is for all texts, but rerank() has prompts by role; use similarity() of embed()")
        truncations, found = Truncations(), list[Ranked]()
        for answer, start, end in self._ask("/rerank", as_texts(texts), {"query": as_text(query, "query")}):
            truncations.add(answer, start, end)
            found += [Ranked(index=start + hit["index"], score=hit["score"]) for hit in json.loads(answer.body)]
        truncations.warn()
        return ranked(found, top_k)

    def attend(
        self, text: str, pair: str | None = None, *, layer: int | None = None, head: int | None = None, mean: bool = False,
        rollout: bool = False,
    ) -> Attention:
        """The attention weights of a text or a pair of texts: of all layers and heads, or of those that are chosen.

        Runs `sconce attend`, which loads the model again.
        """
        texts = [as_text(text, "text"), *([] if pair is None else [as_text(pair, "pair")])]
        chosen = {"layer": layer, "head": head, "mean": mean, "rollout": rollout}
        names = ("model", "revision", "offline", "max_length", "threads", "prompt", "prompt_name")
        options = {name: self._options[name] for name in names}
        return attend(self._command or find_command(), {**options, **chosen}, texts)


def ranked(found: list[Ranked], top_k: int | None) -> list[Ranked]:
    """Texts by their scores, best first, and of equal scores the first; 0 is all."""
    if top_k is not None and top_k < 0:
        raise ValueError(f"top_k is {top_k}; pass a number from 1 on, or 0 for all")
    return sorted(found, key=lambda hit: (-hit["score"], hit["index"]))[: top_k or None]


def _truncated(tokens: list[dict[str, Any]], kept: int, is_left: bool) -> list[dict[str, Any]]:
    """The tokens that truncation at a side leaves: all special ones."""
    places = [i for i, token in enumerate(tokens) if not token["special"]]
    dropped = max(0, len(tokens) - kept)
    gone = set(places[:dropped] if is_left else places[len(places) - dropped :])
    return [token for i, token in enumerate(tokens) if i not in gone]


def _tokens(text: str, found: list[dict[str, Any]]) -> tuple[list[str], list[tuple[int, int]]]:
    """The tokens of a text, and their characters in place of bytes."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    is_first = np.append((encoded & 0xC0) != 0x80, True)
    before = np.concatenate([[0], np.cumsum(is_first)])
    offsets = []
    for token in found:
        start, stop = token["start"] or 0, token["stop"] or 0
        # A token of bytes may begin inside of a character.
        offsets.append((int(before[start] - (not is_first[start])), int(before[stop])))
    return [token["text"] for token in found], offsets
