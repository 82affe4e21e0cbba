"""Vectors for Haystack: components in place of SentenceTransformersTextEmbedder and SentenceTransformersDocumentEmbedder."""

from __future__ import annotations

from dataclasses import replace

from haystack import Document, component
from sconce_embed import Embedder


@component
class SconceTextEmbedder:
    def __init__(self, model: str | None = None, threads: int | None = None) -> None:
        self.embedder = Embedder(model, normalize=True, threads=threads)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        return {"embedding": self.embedder.embed([text], role="query")[0].tolist()}


@component
class SconceDocumentEmbedder:
    def __init__(self, model: str | None = None, threads: int | None = None) -> None:
        self.embedder = Embedder(model, normalize=True, threads=threads)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        vectors = self.embedder.embed([document.content or "" for document in documents], role="document")
        return {"documents": [replace(document, embedding=vector.tolist()) for document, vector in zip(documents, vectors)]}
