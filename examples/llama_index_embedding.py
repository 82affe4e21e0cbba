"""Vectors for LlamaIndex: `SconceEmbedding("BAAI/bge-small-en-v1.5")` in place of HuggingFaceEmbedding."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from sconce_embed import Embedder


class SconceEmbedding(BaseEmbedding):
    _embedder: Embedder = PrivateAttr()

    def __init__(self, model: str | None = None, *, threads: int | None = None, **options: Any) -> None:
        embedder = Embedder(model, normalize=True, threads=threads)
        # One call for many texts: batches are made by their tokens.
        super().__init__(model_name=embedder.model, embed_batch_size=2048, **options)
        self._embedder = embedder

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._embedder.embed(texts, role="document").tolist()
        return vectors

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._embedder.embed([query], role="query")[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = (await self._embedder.aembed([query], role="query"))[0].tolist()
        return vector
