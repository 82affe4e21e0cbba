"""What callers pass for texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

# A list, tuple, numpy array, pyarrow Array or ChunkedArray, or a pandas or polars Series of strings. Their
# stubs are no dependency of this package.
Texts = Union[Sequence[str], npt.NDArray[np.str_], npt.NDArray[np.object_], Any]

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
# Types of missing values.
_MISSING = {"NoneType", "NAType", "NaTType"}


def as_texts(texts: Texts, name: str = "texts") -> list[str]:
    """Texts as a list of strings, which UTF-8 can represent.

    Raises TypeError, which names the text, for anything else.
    """
    found = _as_list(texts, name)
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise _not_a_text(f"{name}[{i}]", text)
        # The only strings that are no text.
        if not text.isascii():
            _check_surrogates(f"{name}[{i}]", text)
    return found


def as_pairs(pairs: Any) -> list[list[str]]:
    """Pairs of a query and a text as a list.

    Raises TypeError, which names the pair, for anything else.
    """
    if not isinstance(pairs, (list, tuple, Iterator)) and getattr(pairs, "ndim", 0) != 2 or hasattr(pairs, "columns"):
        kind = type(pairs).__name__
        raise TypeError(f"pairs is a {kind}, not a list of pairs; pass (query, text) of each, such as list(zip(queries, texts))")
    found = []
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (list, tuple, np.ndarray)) or len(pair) != 2:
            raise TypeError(f"pairs[{i}] is {pair!r}, not a pair; pass (query, text)")
        found.append(as_texts(pair, f"pairs[{i}]"))
    return found


def as_text(text: object, name: str) -> str:
    """A single text.

    Raises TypeError, which names it, for anything else.
    """
    if not isinstance(text, str):
        raise _not_a_text(name, text, "pass a string")
    _check_surrogates(name, text)
    return text


def _as_list(texts: Any, name: str) -> list[Any]:
    if isinstance(texts, (list, tuple)):
        return list(texts)
    for kind in type(texts).__mro__:
        if kind.__name__ in _INSTEAD:
            raise TypeError(f"{name} is a {kind.__name__}, not a list of texts; {_INSTEAD[kind.__name__]}")
    if getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"{name} is an array of {texts.ndim} dimensions, not a list of texts; pass one of its columns")
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(texts, method):
            found = getattr(texts, method)()
            if isinstance(found, list):
                return found
    raise TypeError(f"{name} is a {type(texts).__name__}, not a list of texts; pass list({name})")


def _not_a_text(name: str, text: object, instead: str = "leave it out, or pass an empty string") -> TypeError:
    kind = type(text).__name__
    if kind in _MISSING or text != text:
        return TypeError(f"{name} is {text}, not a text; {instead}")
    return TypeError(f"{name} is of type {kind}, not str; convert it to a string")


def _check_surrogates(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as broken:
        unit = ord(text[broken.start])
        raise TypeError(
            f"{name} has a lone surrogate, U+{unit:04X}, which is half of a character; "
            'remove it, such as with text.encode(errors="ignore").decode()'
        ) from None
