"""What a call tells beside its result: texts that were truncated, and how far it is."""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ._server import Answer


# Texts for which a bar is worth its time.
_MANY = 1000


class TruncationWarning(UserWarning):
    """Texts had more tokens than the limit of the model, and the others do not count."""


class Truncations:
    """The texts of a call that were truncated."""

    def __init__(self, name: str = "texts") -> None:
        self.name = name
        self._count = 0
        self._first: tuple[str, int, int] | None = None

    def add(self, answer: Answer, start: int, end: int) -> None:
        """Counts those of a request, whose texts are those from `start` to `end` of the call; a query comes after them."""
        self._count += answer.truncated_count
        if self._first is None and answer.truncated:
            index, tokens, kept = answer.truncated[0]
            self._first = (f"{self.name}[{start + index}]" if start + index < end else "query", tokens, kept)

    def warn(self) -> None:
        """Warns where the package was called, if texts were truncated."""
        if self._first is None:
            return
        name, tokens, kept = self._first
        others = f", the first of {self._count} truncated texts" if self._count > 1 else ""
        message = f"{name} has {tokens} tokens, of which the model reads {kept}{others}; shorten or split such texts"
        warnings.warn(message, TruncationWarning, stacklevel=_caller())


def _caller() -> int:
    """The stack level of the first frame outside of this package, from that of the function which asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    return level


class _Silent:
    def update(self, _: int) -> None:
        pass


def progress_bar(total: int, progress: bool | None) -> AbstractContextManager[Any]:
    """A bar of tqdm, if it is installed: for None if many texts take over a second in a terminal or a notebook."""
    is_watched = sys.stderr is not None and sys.stderr.isatty() or "ipykernel" in sys.modules
    if progress is False or (progress is None and (total < _MANY or not is_watched)):
        return nullcontext(_Silent())
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return nullcontext(_Silent())
    bar: AbstractContextManager[Any] = tqdm(total=total, unit=" texts", delay=0 if progress else 1)
    return bar
