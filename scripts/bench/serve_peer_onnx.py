"""A baseline of serve.py: ONNX Runtime behind FastAPI with dynamic batching, started by `uvicorn serve_peer_onnx:app`.

A batch starts when it has 32 texts, or 5 ms after its first text. Texts are padded to the longest one of their batch.
"""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
from fastapi import FastAPI, Response
from pydantic import BaseModel
from tokenizers import Tokenizer

MAX_BATCH = 32
WINDOW_SECONDS = 0.005
MODEL, MODELS = Path(os.environ["SERVE_PEER_MODEL"]), Path(os.environ["SERVE_PEER_MODELS"])


class Model:
    """A graph and its tokenizer: token ids of a list of texts or pairs, and the graph's output for them."""

    def __init__(self, graph, tokenizer, max_length):
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.session.get_inputs()]
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.tokenizer.enable_truncation(max_length)
        self.tokenizer.enable_padding()

    def __call__(self, inputs):
        encodings = self.tokenizer.encode_batch(inputs)
        mask = np.array([encoding.attention_mask for encoding in encodings])
        values = {
            "input_ids": np.array([encoding.ids for encoding in encodings]),
            "attention_mask": mask,
            "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
        }
        return self.session.run(None, {name: values[name] for name in self.names})[0], mask


class Batcher:
    """Collects inputs of several requests, and runs them together in a thread."""

    def __init__(self, run):
        self.run, self.queue = run, asyncio.Queue()
        self.thread = ThreadPoolExecutor(1)

    async def __call__(self, inputs):
        waiting = [asyncio.get_running_loop().create_future() for _ in inputs]
        for pair in zip(inputs, waiting):
            self.queue.put_nowait(pair)
        return await asyncio.gather(*waiting)

    async def collect(self):
        loop = asyncio.get_running_loop()
        batch = [await self.queue.get()]
        until = loop.time() + WINDOW_SECONDS
        while len(batch) < MAX_BATCH:
            if not self.queue.empty():
                batch.append(self.queue.get_nowait())
                continue
            try:
                batch.append(await asyncio.wait_for(self.queue.get(), until - loop.time()))
            except TimeoutError:
                break
        return batch

    async def work(self):
        while True:
            batch = await self.collect()
            inputs = [text for text, _ in batch]
            rows = await asyncio.get_running_loop().run_in_executor(self.thread, self.run, inputs)
            for (_, future), row in zip(batch, rows):
                if not future.done():
                    future.set_result(row)


max_length = json.loads((MODEL / "sentence_bert_config.json").read_text())["max_seq_length"]
embedder = Model(MODELS / "embedder.onnx", MODEL / "tokenizer.json", max_length)
reranker = Model(MODELS / "reranker.onnx", MODELS / "reranker/tokenizer.json", 512)


def vectors(texts):
    hidden, mask = embedder(texts)
    # Sum in place of the mean: normalisation gives the same vector.
    sums = np.matmul(mask[:, None].astype(np.float32), hidden)[:, 0]
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def scores(pairs):
    logits, _ = reranker(pairs)
    return 1 / (1 + np.exp(-logits[:, 0]))


class EmbedRequest(BaseModel):
    inputs: str | list[str]


class RerankRequest(BaseModel):
    query: str
    texts: list[str]


@asynccontextmanager
async def lifespan(app):
    app.state.embed, app.state.rerank = Batcher(vectors), Batcher(scores)
    workers = [asyncio.create_task(batcher.work()) for batcher in (app.state.embed, app.state.rerank)]
    yield
    for worker in workers:
        worker.cancel()


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health():
    return {}


@app.post("/embed")
async def embed(request: EmbedRequest):
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    rows = np.stack(await app.state.embed(texts))
    return Response(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


@app.post("/rerank")
async def rerank(request: RerankRequest):
    found = list(map(float, await app.state.rerank([(request.query, text) for text in request.texts])))
    best = sorted(range(len(found)), key=lambda index: -found[index])
    return [{"index": index, "score": found[index]} for index in best]
