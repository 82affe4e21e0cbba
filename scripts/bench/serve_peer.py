"""The baseline of serve.py: sentence-transformers behind FastAPI as people write it, started by `uvicorn serve_peer:app`."""

import os

from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(os.environ["SERVE_PEER_MODEL"], device="cpu")


class EmbedRequest(BaseModel):
    inputs: str | list[str]


@app.get("/health")
def health():
    return {}


@app.post("/embed")
def embed(request: EmbedRequest):
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    return model.encode(texts, show_progress_bar=False).tolist()
