"""Vectors of texts from a child process."""

import os
import threading
import weakref

import pyarrow as pa

from ._command import Child, find_command

# Texts of a record batch. The rows of a batch come back at once.
_BATCH_ROWS = 4096
# Options that decide what goes through the pipes, or have an argument of their own.
_RESERVED = {
    "model", "input", "input_format", "text_field", "text_separator", "pair_field", "id_field", "keep", "include", "exclude",
    "limit", "output", "output_format", "restart", "resume", "append", "shard", "cache", "chunk", "chunk_overlap", "chunk_late",
    "max_memory", "verbose", "quiet", "no_progress",
}
_embedders = weakref.WeakSet()


class Embedder:
    """Turns texts into vectors with a model, in a child process that lives until the embedder is closed.

    An embedder can be used by several threads, one after another, in a process that was forked, and it can be pickled: each
    process starts a child of its own with its first texts.
    """

    def __init__(self, model=None, *, command=None, **options):
        """`model` is a directory or a model id of the Hugging Face hub; by default, the one of sconce.

        `options` are those of `sconce embed`, with underscores: `prompt_name="query"`, `dimensions=256`, `threads=4`. Flags are
        true: `normalize=True`, `no_normalize=True`. `command` is the path of sconce, by default that of `find_command()`.
        """
        refused = sorted(_RESERVED.intersection(options))
        if refused:
            raise TypeError(f"Embedder() has no option {refused[0]!r}: use the command sconce embed for it")
        if options.get("output_dtype") == "int8":
            raise TypeError("Embedder() has no vectors of int8, which need a scale each: use the command sconce embed for them")
        self._model, self._command, self._options = model, command, options
        self._arrow_type = None
        self._after_fork()
        _embedders.add(self)

    def _after_fork(self):
        child = getattr(self, "_child", None)
        if child is not None:
            child.forget()
        # Another thread may have held the lock at the fork.
        self._child, self._finalizer, self._lock = None, None, threading.RLock()

    def __reduce__(self):
        return _restore, (self._model, self._command, self._options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def pid(self):
        """The process id of the child; None if none is running."""
        return self._child.pid if self._child else None

    def embed(self, texts, *, as_numpy=False):
        """The vectors of texts, in their order: a pyarrow.FixedSizeListArray, or a numpy array (N, D).

        `texts` is a list of strings, a pyarrow.Array or ChunkedArray, or a pandas or polars Series. A text that an option such as
        `on_long="skip"` leaves out has a null in place of its vector. With `pooling="none"`, each text has a list of vectors.

        Raises SconceError with the sentence of sconce, and TypeError for texts that are no texts.
        """
        batches = _batches(texts)
        with self._lock:
            parts = self._exchange(batches) or [pa.array([], type=self._vector_type())]
        return _to_numpy(parts) if as_numpy else pa.concat_arrays(parts)

    def close(self):
        """Ends the child. The next texts start another one."""
        with self._lock:
            self._drop(Child.close)

    def _vector_type(self):
        """The type of the vectors, which a text tells if there was none yet."""
        if self._arrow_type is None:
            self._exchange(_batches(["a"]))
        return self._arrow_type

    def _exchange(self, batches):
        """The vectors of each batch."""
        if not batches:
            return []
        if self._child is None:
            child = self._child = Child(self._arguments())
            # At the end of the process, or when nothing refers to the embedder any more.
            self._finalizer = weakref.finalize(self, _close_in, os.getpid(), child)
        try:
            start, parts = self._child.rows_sent, []
            for batch, rows in zip(batches, self._child.exchange(batches)):
                parts.append(_vectors(rows, start, batch.num_rows))
                start += batch.num_rows
        except BaseException:
            # The rest of the answers would be taken for those of the next texts.
            self._drop(Child.kill)
            raise
        self._arrow_type = parts[0].type
        return parts

    def _drop(self, end):
        child, self._child = self._child, None
        if child is not None:
            self._finalizer.detach()
            end(child)

    def _arguments(self):
        arguments = [self._command or find_command(), "embed", "--quiet"]
        arguments += ["--input", "-", "--input-format", "arrow", "--output-format", "arrow"]
        if self._model is not None:
            arguments += ["--model", os.fspath(self._model)]
        for name, value in self._options.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                arguments.append(flag)
            elif value is not None and value is not False:
                # In one argument, so that a value may start with a hyphen.
                arguments.append(f"{flag}={value}")
        return arguments


def _restore(model, command, options):
    return Embedder(model, command=command, **options)


def _close_in(pid, child):
    if os.getpid() == pid:
        child.close()


def _after_fork_in_child():
    for embedder in list(_embedders):
        embedder._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# What to pass in place of what holds texts, but is no column of them.
_INSTEAD = {
    "str": "put a single text into a list",
    "bytes": "decode it, and put a single text into a list",
    "dict": "pass list(texts.values())",
    "set": "it has no order; pass sorted(texts)",
    "frozenset": "it has no order; pass sorted(texts)",
    "DataFrame": 'pass one of its columns, such as frame["text"]',
    "LazyFrame": 'pass a column of its rows, such as frame.collect()["text"]',
    "Table": 'pass one of its columns, such as table["text"]',
    "RecordBatch": 'pass one of its columns, such as batch["text"]',
}


def _batches(texts):
    """Texts as record batches of at most `_BATCH_ROWS` rows."""
    texts = _column(texts)
    if pa.types.is_null(texts.type) or pa.types.is_dictionary(texts.type):
        texts = texts.cast(pa.large_string())
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type) or str(texts.type) == "string_view"):
        raise TypeError(f"embed() takes texts, not values of type {texts.type}; convert them to strings")
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    batches = []
    for chunk in chunks:
        for start in range(0, len(chunk), _BATCH_ROWS):
            column = chunk.slice(start, _BATCH_ROWS).cast(pa.large_string())
            batches.append(pa.RecordBatch.from_arrays([column], schema=Child.SCHEMA))
    return batches


def _column(texts):
    """Texts as a pyarrow Array or ChunkedArray: a column, or a list or tuple of strings and None."""
    if isinstance(texts, (pa.Array, pa.ChunkedArray)):
        return texts
    for kind in type(texts).__mro__:
        if kind.__name__ in _INSTEAD:
            raise TypeError(f"embed() takes a list of texts, not a {kind.__name__}; {_INSTEAD[kind.__name__]}")
    is_list = isinstance(texts, (list, tuple))
    if not (is_list or hasattr(texts, "dtype")):
        raise TypeError(f"embed() takes a list of texts, not a {type(texts).__name__}; pass list(texts)")
    if getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"embed() takes a list of texts, not an array of {texts.ndim} dimensions; pass one of its columns")
    if is_list and not all(text is None or isinstance(text, str) for text in texts):
        raise _not_a_text(texts)
    try:
        if hasattr(texts, "to_arrow"):
            return texts.to_arrow()
        # Inferring the type of a list takes longer than converting one text. In a series, NaN is a missing value.
        return pa.array(texts, type=pa.large_string()) if is_list else pa.array(texts, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _not_a_text(texts, error) from error


def _not_a_text(texts, error=None):
    """The TypeError for the first element that is no text."""
    for i, text in enumerate(texts):
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError as broken:
                unit = ord(text[broken.start])
                return TypeError(
                    f"texts[{i}] has a lone surrogate, U+{unit:04X}, which is half of a character; "
                    'remove it, such as with text.encode(errors="ignore").decode()'
                )
        elif text is not None and text == text:
            return TypeError(f"texts[{i}] is of type {type(text).__name__}, not str; convert it to a string")
        elif text is not None:
            return TypeError(f"texts[{i}] is {text!r}, not a text; pass None or an empty string for a missing text")
    return TypeError(f"embed() takes a list of texts, not a {type(texts).__name__} ({error}); pass list(texts)")


def _vectors(rows, start, count):
    """The vectors of a batch of `count` texts, the first of which was text `start` of the child."""
    vectors = rows.column("embedding" if "embedding" in rows.schema.names else "embeddings")
    if len(vectors) == count:
        return vectors
    places = [None] * count
    for row, index in enumerate(rows.column("index").to_pylist()):
        places[index - start] = row
    return vectors.take(pa.array(places, type=pa.int64()))


def _to_numpy(parts):
    """The vectors of all parts in one array, which can be written to."""
    import numpy as np

    if not pa.types.is_fixed_size_list(parts[0].type):
        raise TypeError("vectors per token have no common shape; leave as_numpy out")
    missing = sum(part.null_count for part in parts)
    if missing:
        raise ValueError(f"{missing} texts have no vector, which numpy cannot represent; leave as_numpy out")
    return np.concatenate([part.flatten().to_numpy().reshape(len(part), part.type.list_size) for part in parts])
