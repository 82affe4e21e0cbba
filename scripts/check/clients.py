#!/usr/bin/env python3
"""The clients of embedding servers ask `sconce serve`, with their defaults, and receive what the command line computes.

    scripts/check/clients.py [--sconce target/release/sconce] [--only NAME...]

Starts two servers on free ports: one with all-MiniLM-L6-v2 (scripts/fetch_model.sh), a cross-encoder, a classifier and a sparse encoder,
and one with the classifier alone, whose default task it is. Vectors have to be those of `sconce embed` in every bit, scores those of
`sconce rerank`, labels those of `sconce classify`; errors have to tell what to do. Prints a line for each client, and exits with 1 if one
fails.

The clients are those of requirements-clients.txt and clients-package.json. They are installed below target/clients, with Node.js from apt
if there is none. Not asked: langchain-huggingface, which takes no address of a server; langchain-cohere, which needs an older cohere; the
route /openai of text-embeddings-inference-client, which later versions of text-embeddings-inference do not have.
"""

import argparse
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts/check"
FOLDER = ROOT / "target/clients"
PYTHON = FOLDER / "venv/bin/python"
WITHOUT_DEPENDENCIES = "text-embeddings-inference-client==0.1.0"

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
CROSS_ENCODER = ROOT / "tests/fixtures/heads/cross-encoder-bert"
CLASSIFIER = ROOT / "tests/fixtures/heads/bert"
SPARSE = ROOT / "tests/fixtures/sparse/bert-max"
NAMES = [MODEL, "reranker", "classifier", "sparse"]
TEXTS = ["A lamp burns in the window", "the sea by night, é 漢字 🙂", "A candle", "Rows\nof a \"table\""]
QUERY = "what burns"
DIMENSIONS = 128
EMPTY = "is an empty list; send at least one element"
# The clients' own requests over the network: news, prices, updates.
QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "127.0.0.1",
}


def installed():
    """Installs the clients, and runs this script again in their environment."""
    if not shutil.which("npm"):
        subprocess.run("apt-get update -qq && apt-get install -y -qq nodejs npm", shell=True, check=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = [(HERE / "requirements-clients.txt").read_bytes(), (HERE / "clients-package.json").read_bytes()]
    digest = hashlib.sha256(b"".join([*wanted, WITHOUT_DEPENDENCIES.encode()])).hexdigest()
    stamp = FOLDER / "installed"
    if not stamp.exists() or stamp.read_text() != digest:
        if not PYTHON.exists():
            subprocess.run([sys.executable, "-m", "venv", FOLDER / "venv"], check=True)
        pip = [PYTHON, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", HERE / "requirements-clients.txt"], check=True)
        subprocess.run([*pip, "--no-deps", WITHOUT_DEPENDENCIES], check=True)
        shutil.copy(HERE / "clients-package.json", FOLDER / "package.json")
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=FOLDER, check=True)
        stamp.write_text(digest)
    os.execve(PYTHON, [PYTHON, __file__, *sys.argv[1:]], {**os.environ, **QUIET})


class Server:
    """A server, which is stopped at the end of a `with` block."""

    def __init__(self, sconce, *models):
        self.command = [sconce, "serve", "--port", "0"]
        for model in models:
            self.command += ["--model", str(model)]

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        with open(self.log.name, "w") as log:
            self.process = subprocess.Popen(self.command, stderr=log)
        until = time.monotonic() + 120
        while "listening on" not in (text := Path(self.log.name).read_text()):
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{' '.join(map(str, self.command))} does not start: {text}")
            time.sleep(0.05)
        self.url = text.split("listening on ")[1].split()[0]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Expected:
    """What the command line computes."""

    def __init__(self, sconce):
        self.sconce = sconce

    def rows(self, command, model, *options):
        command = [self.sconce, command, "--quiet", "--model", model, "--input", "-", "--input-format", "jsonl", *options]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
        found = subprocess.run(list(map(str, command)), input=lines, check=True, capture_output=True, text=True)
        return [json.loads(line) for line in found.stdout.splitlines()]

    @functools.cached_property
    def vectors(self):
        return [row["embedding"] for row in self.rows("embed", MODEL)]

    @functools.cached_property
    def short_vectors(self):
        return [row["embedding"] for row in self.rows("embed", MODEL, "--dimensions", DIMENSIONS, "--normalize")]

    @functools.cached_property
    def raw_vectors(self):
        return [row["embedding"] for row in self.rows("embed", MODEL, "--no-normalize")]

    @functools.cached_property
    def sparse(self):
        """The weights of the first text by token id."""
        ids = json.loads((SPARSE / "tokenizer.json").read_text())["model"]["vocab"]
        return {ids[token]: weight for token, weight in self.rows("embed", SPARSE)[0]["weights"].items()}

    @functools.cached_property
    def scores(self):
        return [row["score"] for row in self.rows("rerank", CROSS_ENCODER, "--query", QUERY)]

    @functools.cached_property
    def labels(self):
        rows = self.rows("classify", CLASSIFIER, "--top-k", 0)
        return [[(entry["label"], entry["score"]) for entry in row["labels"]] for row in rows]


def same(what, found, expected):
    """Fails unless the values are the same as f32."""
    found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
    assert found.shape == expected.shape, f"{what}: the shape is {found.shape} instead of {expected.shape}"
    differ = found.view(np.uint32) != expected.view(np.uint32)
    most = np.abs(found - expected).max()
    assert not differ.any(), f"{what}: {differ.sum()} of {differ.size} values differ, by {most:.1e} at most"


def near(what, found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: the shape is {found.shape} instead of {expected.shape}"
    assert np.allclose(found, expected, atol=1e-6), f"{what}: {found} instead of {expected}"


def equal(what, found, expected):
    assert found == expected, f"{what}: {found!r} instead of {expected!r}"


def refused(what, part, call):
    """Fails unless the call raises an error whose text has this part."""
    try:
        found = call()
    except Exception as error:
        assert part in str(error), f"{what}: the error has no {part!r}: {error}"
    else:
        raise AssertionError(f"{what}: no error, but {found!r:.200}")


class Check:
    """What a client has received is compared with what is expected."""

    def __init__(self, expected, server, labels_server):
        self.expected, self.url, self.labels_url = expected, server.url, labels_server.url

    def vectors(self, found, what="vectors"):
        same(what, found, self.expected.vectors)

    def vector(self, found, index=0, what="a vector"):
        same(what, found, self.expected.vectors[index])

    def short(self, found, what="dimensions"):
        same(what, found, self.expected.short_vectors)

    def raw(self, found, what):
        """The vector of the first text, not of unit length."""
        same(what, found, self.expected.raw_vectors[0])

    def ranks(self, found, count=len(TEXTS), what="rerank"):
        """`found`: indices and scores, best first."""
        order = sorted(range(len(TEXTS)), key=lambda index: (-self.expected.scores[index], index))[:count]
        equal(f"{what}: indices", [index for index, _ in found], order)
        same(f"{what}: scores", [score for _, score in found], [self.expected.scores[index] for index in order])

    def labels(self, found, index=0, what="labels"):
        """`found`: labels and scores of a text, best first."""
        expected = self.expected.labels[index]
        equal(what, [label for label, _ in found], [label for label, _ in expected])
        same(what, [score for _, score in found], [score for _, score in expected])

    def sparse(self, found):
        """The weights of the first text by token id."""
        expected = self.expected.sparse
        equal("token ids", sorted(found), sorted(expected))
        same("weights", [found[token] for token in sorted(found)], [expected[token] for token in sorted(found)])

    def similarities(self, found, what="similarities"):
        first, *others = np.asarray(self.expected.vectors)
        near(what, found, others @ first)


CLIENTS = []


def client(*packages):
    """A check of clients: a function that raises an error if something is wrong. `packages` are on the line that is printed."""

    def add(function):
        CLIENTS.append((packages, function))
        return function

    return add


@client("openai")
def openai(check):
    from openai import NotFoundError, OpenAI

    client = OpenAI(base_url=f"{check.url}/v1", api_key="none")

    def vectors(texts=TEXTS, **options):
        return [row.embedding for row in client.embeddings.create(model=MODEL, input=texts, **options).data]

    check.vectors(vectors(), "base64")
    check.vectors(vectors(encoding_format="float"), "float")
    check.vectors([vectors(text)[0] for text in TEXTS], "one by one")
    check.short(vectors(dimensions=DIMENSIONS))
    equal("an empty text", len(vectors("")), 1)
    equal("models", [model.id for model in client.models.list()], NAMES)
    equal("a model", client.models.retrieve(MODEL).id, MODEL)
    answer = client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS)
    assert answer.headers["x-request-id"], "no x-request-id"
    usage = answer.parse().usage
    assert usage.prompt_tokens == usage.total_tokens > len(TEXTS), usage
    refused("an empty list", f"input {EMPTY}", lambda: vectors([]))
    refused("token ids", "check_embedding_ctx_length=False", lambda: vectors([[9906, 1917]]))
    refused("too many dimensions", "dimensions", lambda: vectors(dimensions=1536))
    try:
        client.models.retrieve("other")
    except NotFoundError as error:
        assert "reranker" in str(error), error
    else:
        raise AssertionError("a model that is not served: no error")


@functools.cache
def npm_answers(check):
    """What the clients of clients.mjs have received, by their names."""
    ask = {"url": check.url, "labels_url": check.labels_url, "model": MODEL, "texts": TEXTS, "dimensions": DIMENSIONS}
    command = ["node", HERE / "clients.mjs", json.dumps(ask)]
    found = subprocess.run(command, cwd=FOLDER, check=True, capture_output=True, text=True).stdout
    return {answer["client"]: answer for answer in map(json.loads, found.splitlines())}


def npm(check, client):
    answer = npm_answers(check)[client]
    assert "error" not in answer, answer["error"]
    check.vectors(answer["embed"])
    one = answer["embed_one"]
    check.vector(one[0] if isinstance(one[0], list) else one)
    assert EMPTY in answer["message"], f"{answer['message']!r} has no {EMPTY!r}"
    return answer


@client("openai (npm)")
def npm_openai(check):
    answer = npm(check, "openai")
    check.vectors(answer["embed_float"], "float")
    check.short(answer["dimensions"])
    equal("models", answer["models"], NAMES)
    equal("a model", answer["model"], MODEL)


@client("@huggingface/inference (npm)")
def npm_huggingface(check):
    answer = npm(check, "@huggingface/inference")
    check.similarities(answer["similarity"])
    check.labels([(entry["label"], entry["score"]) for entry in answer["labels"]])


@client("ollama (npm)")
def npm_ollama(check):
    answer = npm(check, "ollama")
    check.raw(answer["embed_prompt"], "/api/embeddings")
    check.short(answer["dimensions"])
    equal("models", answer["models"], [f"{name}:latest" for name in NAMES])
    equal("the family", answer["family"], "bert")


@client("huggingface_hub")
def huggingface_hub(check):
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=check.url)
    check.vectors(client.feature_extraction(TEXTS))
    check.vector(client.feature_extraction(TEXTS[0])[0])
    check.vector(client.feature_extraction(TEXTS[0], normalize=True, truncate=True, truncation_direction="left")[0])
    check.similarities(client.sentence_similarity(TEXTS[0], TEXTS[1:]))
    labels = InferenceClient(base_url=check.labels_url).text_classification(TEXTS[0])
    check.labels([(entry.label, entry.score) for entry in labels])
    refused("a prompt that there is not", "prompt_name", lambda: client.feature_extraction(TEXTS[0], prompt_name="none"))


@client("langchain-openai")
def langchain_openai(check):
    import tiktoken
    from langchain_openai import OpenAIEmbeddings

    options = {"model": MODEL, "base_url": f"{check.url}/v1", "api_key": "none"}
    texts = OpenAIEmbeddings(check_embedding_ctx_length=False, **options)
    check.vectors(texts.embed_documents(TEXTS))
    check.vector(texts.embed_query(TEXTS[0]))
    # The vocabulary that the default downloads: here one of bytes.
    ranks = {bytes([byte]): byte for byte in range(256)}
    vocabulary = tiktoken.Encoding("bytes", pat_str=r"(?s:.)", mergeable_ranks=ranks, special_tokens={})
    tiktoken.get_encoding = tiktoken.encoding_for_model = lambda _: vocabulary
    refused("token ids", "check_embedding_ctx_length=False", lambda: OpenAIEmbeddings(**options).embed_documents(TEXTS))


@client("llama-index-embeddings-text-embeddings-inference")
def llama_index_tei(check):
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    model = TextEmbeddingsInference(model_name=MODEL, base_url=check.url)
    check.vectors(model.get_text_embedding_batch(TEXTS))
    check.vector(model.get_query_embedding(TEXTS[0]))


@client("llama-index-embeddings-openai-like")
def llama_index_openai(check):
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    model = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{check.url}/v1", api_key="none")
    check.vector(model.get_query_embedding(TEXTS[0]))
    check.vector(model.get_text_embedding_batch(TEXTS)[0])


@client("haystack-ai", "huggingface-api-haystack")
def haystack(check):
    from haystack import Document
    from haystack.components.embedders import OpenAITextEmbedder
    from haystack.utils import Secret
    from haystack_integrations.components.embedders import huggingface_api as embedders
    from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

    documents = [Document(content=text, meta={"index": index}) for index, text in enumerate(TEXTS)]
    ranked = HuggingFaceTEIRanker(url=check.url).run(query=QUERY, documents=documents)["documents"]
    check.ranks([(document.meta["index"], document.score) for document in ranked])
    options = {"api_type": "text_embeddings_inference", "api_params": {"url": check.url}}
    # Their default is normalize=False.
    check.raw(embedders.HuggingFaceAPITextEmbedder(**options).run(text=TEXTS[0])["embedding"], "a vector")
    embedder = embedders.HuggingFaceAPIDocumentEmbedder(**options, normalize=True, progress_bar=False)
    check.vectors([document.embedding for document in embedder.run(documents=documents)["documents"]])
    embedder = embedders.HuggingFaceTEISparseTextEmbedder(api_base_url=check.url)
    sparse = embedder.run(text=TEXTS[0])["sparse_embedding"]
    check.sparse(dict(zip(sparse.indices, sparse.values)))
    key = Secret.from_token("none")
    embedder = OpenAITextEmbedder(model=MODEL, api_base_url=f"{check.url}/v1", api_key=key)
    check.vector(embedder.run(text=TEXTS[0])["embedding"], what="OpenAITextEmbedder")


@client("cohere")
def cohere(check):
    import cohere

    client = cohere.ClientV2(api_key="none", base_url=check.url)
    answer = client.rerank(model="reranker", query=QUERY, documents=TEXTS)
    check.ranks([(row.index, row.relevance_score) for row in answer.results])
    assert answer.id and answer.meta.billed_units.search_units, answer
    answer = client.rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS, top_n=2)
    check.ranks([(row.index, row.relevance_score) for row in answer.results], 2, "another model's name")
    first = cohere.Client(api_key="none", base_url=check.url)
    answer = first.rerank(model="reranker", query=QUERY, documents=TEXTS, return_documents=True)
    check.ranks([(row.index, row.relevance_score) for row in answer.results], what="/v1/rerank")
    equal("documents", [row.document.text for row in answer.results], [TEXTS[row.index] for row in answer.results])
    refused("no documents", "documents", lambda: client.rerank(model="reranker", query=QUERY, documents=[]))


@client("litellm")
def litellm(check):
    import litellm

    litellm.suppress_debug_info = True

    def embed(model, base, **options):
        answer = litellm.embedding(model=model, input=TEXTS, api_base=base, api_key="none", **options)
        check.vectors([row["embedding"] for row in answer.data], model)

    def rerank(model, base, count):
        answer = litellm.rerank(
            model=model, query=QUERY, documents=TEXTS, top_n=count, api_base=base, api_key="none", return_documents=True
        )
        check.ranks([(row["index"], row["relevance_score"]) for row in answer.results], count, model)

    # Without input_type it asks the hub what the model is for.
    embed("huggingface/served", check.url, input_type="embed")
    embed(f"openai/{MODEL}", f"{check.url}/v1")
    embed(f"hosted_vllm/{MODEL}", f"{check.url}/v1")
    embed(f"ollama/{MODEL}", check.url)
    rerank("huggingface/served", check.url, len(TEXTS))
    rerank("hosted_vllm/reranker", check.url, 2)
    rerank("cohere/reranker", f"{check.url}/v1/rerank", 2)


@client("ollama", "langchain-ollama")
def ollama(check):
    from langchain_ollama import OllamaEmbeddings
    from ollama import Client, ResponseError

    client = Client(host=check.url)
    check.vectors(client.embed(model=MODEL, input=TEXTS).embeddings)
    check.vector(client.embed(model=f"{MODEL}:latest", input=TEXTS[0]).embeddings[0])
    check.short(client.embed(model=MODEL, input=TEXTS, dimensions=DIMENSIONS).embeddings)
    check.raw(client.embeddings(model=MODEL, prompt=TEXTS[0]).embedding, "/api/embeddings")
    equal("models", [model.model for model in client.list().models], [f"{name}:latest" for name in NAMES])
    assert client.show(MODEL).details.family == "bert", client.show(MODEL)
    refused("an empty list", EMPTY, lambda: client.embed(model=MODEL, input=[]))
    try:
        client.show("other")
    except ResponseError as error:
        equal("the status of a model that is not served", error.status_code, 404)
    else:
        raise AssertionError("a model that is not served: no error")
    langchain = OllamaEmbeddings(model=MODEL, base_url=check.url)
    check.vectors(langchain.embed_documents(TEXTS), "langchain-ollama")
    check.vector(langchain.embed_query(TEXTS[0]), what="langchain-ollama")
    OllamaEmbeddings(model=MODEL, base_url=check.url, validate_model_on_init=True)


@client("chromadb")
def chromadb(check):
    from chromadb.utils import embedding_functions as functions

    os.environ["CHROMA_OPENAI_API_KEY"] = "none"
    options = {"model_name": MODEL, "api_base": f"{check.url}/v1"}
    check.vectors(functions.OpenAIEmbeddingFunction(**options)(TEXTS))
    # It sends the dimensions of a model with this name only, which one that is alone in its task accepts.
    options["model_name"] = "text-embedding-3-small"
    check.short(functions.OpenAIEmbeddingFunction(**options, dimensions=DIMENSIONS)(TEXTS))
    check.vectors(functions.HuggingFaceEmbeddingServer(url=f"{check.url}/embed")(TEXTS), "HuggingFaceEmbeddingServer")
    check.vectors(functions.OllamaEmbeddingFunction(url=check.url, model_name=MODEL)(TEXTS), "OllamaEmbeddingFunction")


@client("text-embeddings-inference-client")
def tei_client(check):
    from text_embeddings_inference_client import Client
    from text_embeddings_inference_client.api.text_embeddings_inference import embed, get_model_info, health, metrics
    from text_embeddings_inference_client.models import EmbedRequest, ErrorResponse

    client = Client(base_url=check.url)
    check.vectors(embed.sync(client=client, json_body=EmbedRequest(inputs=TEXTS)))
    check.vector(embed.sync(client=client, json_body=EmbedRequest(inputs=TEXTS[0]))[0])
    equal("model_id", json.loads(get_model_info.sync_detailed(client=client).content)["model_id"], MODEL)
    equal("health", health.sync_detailed(client=client).status_code, 200)
    equal("metrics", metrics.sync_detailed(client=client).status_code, 200)
    error = embed.sync(client=client, json_body=EmbedRequest(inputs="lamp " * 300, truncate=False))
    assert isinstance(error, ErrorResponse) and "over the limit of 256" in error.error, error


def versions(packages):
    npm = json.loads((HERE / "clients-package.json").read_text())["dependencies"]

    def version(package):
        return npm[package.split()[0]] if package.endswith("(npm)") else importlib.metadata.version(package)

    return ", ".join(f"{package} {version(package)}" for package in packages)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=str(ROOT / "target/release/sconce"))
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="clients whose name contains one of these")
    args = parser.parse_args()
    if Path(sys.prefix) != PYTHON.parents[1]:
        installed()
    global np
    import numpy as np

    chosen = [entry for entry in CLIENTS if not args.only or any(only in " ".join(entry[0]) for only in args.only)]
    failed = 0
    models = (MODEL, f"reranker={CROSS_ENCODER}", f"classifier={CLASSIFIER}", f"sparse={SPARSE}")
    with Server(args.sconce, *models) as server, Server(args.sconce, CLASSIFIER) as labels_server:
        check = Check(Expected(args.sconce), server, labels_server)
        for packages, function in chosen:
            try:
                function(check)
                print(f"ok      {versions(packages)}", flush=True)
            except Exception as error:
                failed += 1
                at = traceback.extract_tb(error.__traceback__)
                line = next((frame.lineno for frame in reversed(at) if frame.name == function.__name__), "?")
                print(f"FAILED  {versions(packages)}, line {line}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failed or not chosen else 0)


if __name__ == "__main__":
    main()
