"""Vectors for LangChain: `SconceEmbeddings("BAAI/bge-small-en-v1.5")` in place of HuggingFaceEmbeddings."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings
from sconce_embed import Embedder


class SconceEmbeddings(Embeddings):
    def __init__(self, model: str | None = None, *, threads: int | None = None) -> None:
        self.embedder = Embedder(model, normalize=True, threads=threads)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.embedder.embed(texts, role="document").tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self.embedder.embed([text], role="query")[0].tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = (await self.embedder.aembed(texts, role="document")).tolist()
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        vector: list[float] = (await self.embedder.aembed([text], role="query"))[0].tolist()
        return vector
