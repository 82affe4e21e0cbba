"""Models that score pairs, label texts or parts of texts, answer questions, or fill masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt

from ._embedder import Ranked, ranked
from ._model import Dtype, Model, Path, Side
from ._reports import Truncations
from ._texts import Texts, as_pairs, as_text, as_texts
from ._vectors import values

Aggregation = Literal["none", "simple", "first", "average", "max"]


class Answers(TypedDict):
    """The answers in a text, best first: `text`, `start`, `end` and `score`; and the score of there being none."""

    answers: list[dict[str, Any]]
    no_answer: float


class _TaskModel(Model):
    def __init__(
        self, model: Path | None = None, *, max_length: int | None = None, truncation_side: Side | None = None,
        revision: str | None = None, offline: bool = False, device: str | None = None, dtype: Dtype | None = None,
        threads: int | None = None, max_memory: str | float | None = None, command: str | None = None,
    ) -> None:
        """`model` is a directory or a model id of the Hugging Face hub. The options are those of the command line.

        Raises SconceError if the model or an option cannot be used.
        """
        super().__init__(
            command, model=model, revision=revision, offline=offline, max_length=max_length, truncation_side=truncation_side,
            device=device, dtype=dtype, threads=threads, max_memory=max_memory,
        )


class Reranker(_TaskModel):
    """A cross-encoder, which scores a text for a query."""

    _KIND = "reranker"

    def rerank(
        self, query: str, texts: Texts, *, top_k: int | None = None, raw: bool | None = None, prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> list[Ranked]:
        """The texts by their scores for the query, best first. `raw` scores are logits, without the model's activation."""
        query, options = as_text(query, "query"), {"raw": raw, "prompt": prompt, "prompt_name": prompt_name}
        scores = self._scores([(query, text) for text in as_texts(texts)], options, "texts")
        return ranked([{"index": index, "score": float(score)} for index, score in enumerate(scores)], top_k)

    def score(
        self, pairs: Iterable[tuple[str, str]] | npt.NDArray[Any], *, raw: bool | None = None, prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """The score of each pair of a query and a text, in their order.

        `pairs` is a list, an iterator such as a zip, or an array (N, 2).
        """
        return self._scores(as_pairs(pairs), {"raw": raw, "prompt": prompt, "prompt_name": prompt_name}, "pairs")

    def _scores(self, pairs: Sequence[Sequence[str]], options: dict[str, Any], name: str) -> npt.NDArray[np.float32]:
        truncations = Truncations(name)
        parts = [values(rows["score"].combine_chunks()) for rows in self._rows("rerank", pairs, options, truncations, field="pairs")]
        truncations.warn()
        return np.concatenate([np.empty(0, np.float32), *parts])


class Classifier(_TaskModel):
    """A text classifier."""

    _KIND = "classifier"

    def classify(
        self, texts: Texts | Iterable[tuple[str, str]], *, top_k: int | None = None, raw: bool | None = None
    ) -> list[list[dict[str, Any]]]:
        """The `top_k` best labels of each text, best first, by default one; 0: all. `raw` scores are logits.

        Pairs of texts, such as a premise and a hypothesis, are a list of tuples, an iterator such as a zip, or an array (N, 2).
        """
        options = {"top_k": top_k, "raw": raw}
        if isinstance(texts, (list, tuple)) and texts and isinstance(texts[0], (list, tuple)) or isinstance(texts, Iterator) or (
            getattr(texts, "ndim", 1) == 2 and not hasattr(texts, "columns")
        ):
            return [row["labels"] for row in self._columns("classify", ["labels"], as_pairs(texts), options, field="pairs", name="pairs")]
        return self._column("classify", "labels", texts, options)


class Tagger(_TaskModel):
    """A token classifier, such as one that finds names."""

    _KIND = "tagger"

    def tag(
        self, texts: Texts, *, aggregation: Aggregation | None = None, stride: int | None = None, raw: bool | None = None
    ) -> list[list[dict[str, Any]]]:
        """The entities of each text. With `stride`, long texts are read in windows, which share so many tokens."""
        return self._column("tag", "entities", texts, {"aggregation": aggregation, "stride": stride, "raw": raw})


class MaskFiller(_TaskModel):
    """A masked language model, which fills the masks of texts."""

    _KIND = "mask_filler"

    def fill(self, texts: Texts, *, top_k: int | None = None, raw: bool | None = None) -> list[list[list[dict[str, Any]]]]:
        """For each text and each of its masks the `top_k` best tokens, best first, by default five; 0: all. `raw` scores are logits.

        Raises SconceError for a text without a mask.
        """
        return self._column("fill", "masks", texts, {"top_k": top_k, "raw": raw})


class Answerer(_TaskModel):
    """A question-answering model, which finds answers in texts."""

    _KIND = "answerer"

    def answer(
        self, question: str, texts: Texts, *, top_k: int | None = None, stride: int | None = None, max_answer_length: int | None = None,
        raw: bool | None = None,
    ) -> list[Answers]:
        """The `top_k` best answers to the question in each text, by default one.

        Long texts are read in windows, which share `stride` tokens.
        """
        pairs = [(as_text(question, "question"), text) for text in as_texts(texts)]
        options = {"top_k": top_k, "stride": stride, "max_answer_length": max_answer_length, "raw": raw}
        return cast("list[Answers]", self._columns("answer", ["answers", "no_answer"], pairs, options, field="pairs"))
