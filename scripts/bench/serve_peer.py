"""A baseline of serve.py: sentence-transformers behind FastAPI as people write it, started by `uvicorn serve_peer:app`."""

import os

from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import CrossEncoder, SentenceTransformer

app = FastAPI()
model = SentenceTransformer(os.environ["SERVE_PEER_MODEL"], device="cpu")
reranker = CrossEncoder(os.path.join(os.environ["SERVE_PEER_MODELS"], "reranker"), device="cpu")


class EmbedRequest(BaseModel):
    inputs: str | list[str]


class RerankRequest(BaseModel):
    query: str
    texts: list[str]


@app.get("/health")
def health():
    return {}


@app.post("/embed")
def embed(request: EmbedRequest):
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    return model.encode(texts, show_progress_bar=False).tolist()


@app.post("/rerank")
def rerank(request: RerankRequest):
    scores = reranker.predict([(request.query, text) for text in request.texts], show_progress_bar=False).tolist()
    best = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [{"index": index, "score": scores[index]} for index in best]
