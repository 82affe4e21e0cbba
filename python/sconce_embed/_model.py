"""What all models have in common: options, the server that runs them, and calls over many texts."""

from __future__ import annotations

import json
import os
import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

import numpy as np
import pyarrow as pa

from ._command import SconceError, find_command
from ._reports import Truncations
from ._server import Answer, Refused, Server
from ._texts import Texts, as_texts

Dtype = Literal["f32", "f16", "bf16", "bf16x3", "int8"]
Side = Literal["left", "right"]
Path = Union[str, "os.PathLike[str]"]

# Texts of a request, and about as many characters: enough to fill batches, and few enough that the server has several requests.
_MAX_TEXTS = 1024
_MAX_CHARACTERS = 1 << 20
# Characters of a text, whose JSON may have six times as many bytes, in a body that the server accepts.
_MAX_LENGTH = 32 << 20
_CLASSES = {
    "embedding": "Embedder", "reranker": "Reranker", "classifier": "Classifier", "tagger": "Tagger", "mask_filler": "MaskFiller",
    "answerer": "Answerer",
}
# Options that are True or False, and those that count from 0.
_FLAGS = ("normalize", "offline", "raw", "mean", "rollout")
_INDICES = ("layer", "head")
_M = TypeVar("_M", bound="Model")
_models: weakref.WeakSet[Model] = weakref.WeakSet()


class Model:
    """A model in a process of its own, which lives until the model is closed or nothing refers to it any more.

    A model can be used by several threads, in a process that was forked, and it can be pickled: each process starts a server of its own
    with its first texts.
    """

    # The kind of model, as the server calls it.
    _KIND = ""

    def __init__(self, command: str | None, **options: object) -> None:
        """Starts the server with options of the command line.

        Raises SconceError if the model or an option cannot be used.
        """
        self._command, self._options = command, options
        self._info: dict[str, Any] = {}
        self._after_fork()
        _models.add(self)
        self._running()

    def _after_fork(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            server.forget()
        # Another thread may have held the lock at the fork.
        self._server: Server | None = None
        self._finalizer: weakref.finalize[Any, Model] | None = None
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        # The server of a copy is its own.
        own = ("_server", "_finalizer", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._after_fork()
        _models.add(self)

    def __enter__(self: _M) -> _M:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, max_length={self.max_length})"

    @property
    def model(self) -> str:
        """The model's id on the hub, or its directory."""
        return str(self._info["model_id"])

    @property
    def max_length(self) -> int:
        """The maximum tokens of a text."""
        return int(self._info["max_input_length"])

    @property
    def pid(self) -> int | None:
        """The process id of the server; None if none is running."""
        return self._server.pid if self._server else None

    def count_tokens(self, texts: Texts) -> list[int]:
        """The number of tokens of each text, with special tokens, without a prompt, and before any truncation."""
        return [len(tokens) for tokens in self._tokens(as_texts(texts))]

    def close(self) -> None:
        """Ends the process. The next texts start another one."""
        self._drop(self._server)

    def _drop(self, server: Server | None) -> None:
        """Ends a server unless another one has taken its place."""
        with self._lock:
            if server is None or server is not self._server:
                return
            self._server = None
            if self._finalizer is not None:
                self._finalizer.detach()
        server.close()

    def _running(self) -> Server:
        """The server, which is started unless it runs."""
        with self._lock:
            if self._server is None:
                server = Server(self._command or find_command(), command_arguments(self._options))
                self._server = server
                # At the end of the process, or when nothing refers to the model any more.
                self._finalizer = weakref.finalize(self, _close_in, os.getpid(), server)
                self._check(server)
            return self._server

    def _check(self, server: Server) -> None:
        """Keeps what the server says of its model, which has to be of the kind of this class."""
        self._info = server.get("/info")
        (kind,) = self._info["model_type"]
        if kind != self._KIND:
            self.close()
            instead = _CLASSES.get(kind, "the command sconce")
            raise SconceError(f"{self.model} is no model for {type(self).__name__}; use {instead}")

    def _tokens(self, texts: list[str]) -> Iterator[list[dict[str, Any]]]:
        """The tokens of each text as `/tokenize` gives them."""
        for answer, *_ in self._ask("/tokenize", texts, {"add_special_tokens": True}, field="inputs"):
            yield from json.loads(answer.body)

    def _rows(
        self, task: str, texts: Sequence[Any], options: dict[str, Any], truncations: Truncations, **how: Any
    ) -> Iterator[pa.Table]:
        """The rows of a task for the texts of each request."""
        check(options)
        given = {name: value for name, value in options.items() if value is not None}
        for answer, start, end in self._ask(f"/tasks/{task}", texts, {"options": given}, name=truncations.name, arrow=True, **how):
            truncations.add(answer, start, end)
            yield pa.ipc.open_stream(answer.body).read_all()

    def _columns(
        self, task: str, columns: list[str], texts: Sequence[Any], options: dict[str, Any], name: str = "texts", **how: Any
    ) -> list[dict[str, Any]]:
        """What the rows of a task have in these columns."""
        truncations, found = Truncations(name), list[dict[str, Any]]()
        for rows in self._rows(task, texts, options, truncations, **how):
            found += rows.select(columns).to_pylist()
        truncations.warn()
        return found

    def _column(self, task: str, column: str, texts: Texts, options: dict[str, Any]) -> list[Any]:
        """What the rows of a task have in a column."""
        return [row[column] for row in self._columns(task, [column], as_texts(texts), options)]

    def _ask(
        self, path: str, texts: Sequence[Any], fields: dict[str, Any], field: str = "texts", name: str = "texts",
        characters: int = _MAX_CHARACTERS, arrow: bool = False,
    ) -> Iterator[tuple[Answer, int, int]]:
        """The answers to requests for parts of the texts, each with the range of its texts.

        `field` is what requests call them, and `name` what the caller calls them.
        """
        server, parts = self._running(), list(_parts(texts, characters, name))
        bodies = (json.dumps({field: texts[start:end], **fields}, ensure_ascii=False, default=_of_numpy).encode() for start, end in parts)
        try:
            for answer, (start, end) in zip(server.post(path, bodies, arrow), parts):
                yield answer, start, end
        except SconceError:
            self._drop(server)
            raise
        except Refused as refused:
            start = parts[refused.request][0]
            named = re.sub(rf"\b{field}\[(\d+)\]", lambda match: f"{name}[{int(match[1]) + start}]", str(refused))
            raise SconceError(named) from None


def check(options: Mapping[str, object]) -> None:
    """Raises SconceError for a value that the command would refuse without naming those of Python."""
    for name, value in options.items():
        is_index = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 0
        if value is not None and name in _FLAGS and not isinstance(value, bool):
            raise SconceError(f"{name} is {value!r}; pass True or False")
        if value is not None and name in _INDICES and not is_index:
            raise SconceError(f"{name} is {value!r}; pass a number from 0 on")
        if name == "max_memory" and isinstance(value, (float, np.floating)) and not np.isfinite(value):
            raise SconceError(f'max_memory is {value!r}; pass a number of bytes, or a string such as "4GB"')


def _of_numpy(value: object) -> object:
    """A number of numpy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}; pass a string, a number, True or False")


def command_arguments(options: Mapping[str, object]) -> list[str]:
    """Options as arguments of the command line."""
    check(options)
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is False and name == "normalize":
            arguments.append("--no-normalize")
        elif value is not None and value is not False:
            if name == "max_memory" and isinstance(value, (float, np.floating)):
                value = int(value)
            # In one argument, so that a value may start with a hyphen.
            arguments.append(f"{flag}={value}")
    return arguments


def _parts(texts: Sequence[Any], characters: int, name: str) -> Iterator[tuple[int, int]]:
    """Ranges of texts with at most so many characters, unless a text alone has more."""
    start = size = 0
    for i, text in enumerate(texts):
        length = len(text) if isinstance(text, str) else sum(map(len, text))
        if length > _MAX_LENGTH:
            raise SconceError(f"{name}[{i}] has {length} characters, more than {_MAX_LENGTH}; split it")
        if i > start and (size + length > characters or i - start == _MAX_TEXTS):
            yield start, i
            start, size = i, 0
        size += length
    if start < len(texts):
        yield start, len(texts)


def _close_in(pid: int, server: Server) -> None:
    if os.getpid() == pid:
        server.close()


def _after_fork_in_child() -> None:
    for model in list(_models):
        model._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
