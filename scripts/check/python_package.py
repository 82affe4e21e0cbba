#!/usr/bin/env python3
"""Checks of the Python package that take minutes: types, the classes of examples/ for frameworks, leaks, and throughput.

    scripts/check/python_package.py [--sconce target/release/sconce] [--only NAME…]

- types: mypy --strict and pyright find nothing in the package and in the classes.
- frameworks: the classes for LangChain, LlamaIndex and Haystack give the vectors of `sconce embed` in every bit.
- leaks: after 10,000 calls, this process has the descriptors, threads and children that it had after the first, and none of them after
  the end; neither process has grown by more than 8 MiB.
- throughput: 100,000 texts take at most 1.05 times the time of `sconce embed` from file to file, in the best of three runs of each.

The packages of requirements-python.txt are installed below target/python; pyright needs Node.js. The model is all-MiniLM-L6-v2
(scripts/fetch_model.sh). Prints a line for each check, and exits with 1 if one fails.
"""

import argparse
import asyncio
import gc
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts" / "check"
FOLDER = ROOT / "target" / "python"
CLASSES = ["langchain_embeddings.py", "llama_index_embedding.py", "haystack_embedders.py"]
TEXTS = ["A lamp burns in the window", "the sea by night, é 漢字 🙂", "A candle", "the wick"]
TINY = ROOT / "tests" / "fixtures" / "bert-tiny"
CALLS = 10_000
MAX_GROWTH_KIB = 8 << 10
ROWS, RUNS, MAX_RATIO = 100_000, 3, 1.05


def installed():
    """Installs the packages, and runs this script again in their environment."""
    if not shutil.which("node"):
        subprocess.run("apt-get update -qq && apt-get install -y -qq nodejs npm", shell=True, check=True)
    requirements, stamp, python = HERE / "requirements-python.txt", FOLDER / "installed", FOLDER / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", requirements], check=True)
        stamp.write_text(requirements.read_text())
    quiet = {"HAYSTACK_TELEMETRY_ENABLED": "False", "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'examples'}"}
    os.execve(python, [python, __file__, *sys.argv[1:]], {**os.environ, **quiet})


def types(sconce):
    """mypy and pyright over the package and the classes."""
    files = [ROOT / "python" / "sconce_embed", *(ROOT / "examples" / name for name in CLASSES)]
    for command in (["mypy", "--config-file", ROOT / "pyproject.toml"], ["pyright", "--pythonpath", sys.executable]):
        found = subprocess.run([FOLDER / "bin" / command[0], *command[1:], *files], cwd=ROOT, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
    return "nothing found"


def frameworks(sconce):
    """The classes give the vectors of the command line."""
    import numpy as np
    from haystack import Document
    from haystack_embedders import SconceDocumentEmbedder, SconceTextEmbedder
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_embeddings import SconceEmbeddings
    from llama_index_embedding import SconceEmbedding

    output = subprocess.run([sconce, "embed", "--quiet", "--normalize", *TEXTS], check=True, capture_output=True, text=True).stdout
    expected = np.array([json.loads(line)["embedding"] for line in output.splitlines()], np.float32)

    def same(found, rows=slice(None)):
        assert np.array_equal(np.array(found, np.float32), expected[rows])

    langchain = SconceEmbeddings()
    same(langchain.embed_documents(TEXTS))
    same(langchain.embed_query(TEXTS[1]), 1)
    same(asyncio.run(langchain.aembed_documents(TEXTS)))
    same(asyncio.run(langchain.aembed_query(TEXTS[1])), 1)
    store = InMemoryVectorStore.from_texts(TEXTS, langchain)
    assert store.similarity_search(TEXTS[2], k=1)[0].page_content == TEXTS[2]
    llama_index = SconceEmbedding()
    same(llama_index.get_text_embedding_batch(TEXTS))
    same(llama_index.get_query_embedding(TEXTS[1]), 1)
    same(asyncio.run(llama_index.aget_query_embedding(TEXTS[1])), 1)
    same(SconceTextEmbedder().run(text=TEXTS[1])["embedding"], 1)
    documents = SconceDocumentEmbedder().run(documents=[Document(content=text) for text in TEXTS])["documents"]
    same([document.embedding for document in documents])
    return "vectors of the command line"


def resources(pid):
    """Descriptors and threads of this process, its children, and the resident memory of it and of the server, in KiB."""
    own = pathlib.Path("/proc/self")
    children = [child for task in own.glob("task/*/children") for child in task.read_text().split()]
    memory = [
        int(line.split()[1])
        for process in (own, pathlib.Path("/proc") / str(pid))
        for line in (process / "status").read_text().splitlines()
        if line.startswith("VmRSS:")
    ]
    return (len(list((own / "fd").iterdir())), len(list((own / "task").iterdir())), len(children)), memory


def leaks(sconce):
    """Many calls leave nothing behind."""
    from sconce_embed import Embedder, SconceError

    # What other checks have left in cycles.
    gc.collect()
    before, _ = resources(os.getpid())
    embedder = Embedder(TINY, on_long="error")
    pid = embedder.pid
    for i in range(CALLS):
        if i == CALLS // 10:
            first, memory = resources(pid)
        embedder.embed([f"the lamp {i}", "a wick"], normalize=i % 2 == 0, dimensions=1 + i % 30)
        if i % 100 == 0:
            embedder.embed_tokens(["the lamp"])
            embedder.count_tokens(["the lamp"])
            try:
                embedder.embed(["the lamp " * 100])
            except SconceError:
                pass
    last, grown = resources(pid)
    assert last == first, f"descriptors, threads and children: {first}, later {last}"
    growth = [after - start for start, after in zip(memory, grown)]
    assert max(growth) <= MAX_GROWTH_KIB, f"the processes have grown by {growth} KiB"
    embedder.close()
    del embedder
    after, _ = resources(os.getpid())
    assert after == before, f"descriptors, threads and children: {before}, at the end {after}"
    assert not pathlib.Path(f"/proc/{pid}").exists()
    return f"{CALLS} calls; the processes have grown by {growth[0]} and {growth[1]} KiB"


def throughput(sconce):
    """A large call takes the time of the command."""
    from sconce_embed import Embedder

    texts = [f"lamp {i} in the {'window door house'.split()[i % 3]}" for i in range(ROWS)]
    of_package, of_command = [], []
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "texts.txt"
        source.write_text("".join(text + "\n" for text in texts))
        for _ in range(RUNS):
            start = time.monotonic()
            subprocess.run([sconce, "embed", "--quiet", "--restart", "-i", source, "-o", source.with_suffix(".npy")], check=True)
            of_command.append(time.monotonic() - start)
            start = time.monotonic()
            with Embedder() as embedder:
                assert embedder.embed(texts, progress=False).shape == (ROWS, 384)
            of_package.append(time.monotonic() - start)
    ratio = min(of_package) / min(of_command)
    summary = f"{ROWS} texts take {min(of_package):.1f} s, the command {min(of_command):.1f} s: {ratio:.3f}"
    assert ratio <= MAX_RATIO, summary
    return summary


CHECKS = [types, frameworks, leaks, throughput]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target/release/sconce", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[check.__name__ for check in CHECKS])
    args = parser.parse_args()
    if pathlib.Path(sys.prefix) != FOLDER:
        installed()
    os.environ["SCONCE_COMMAND"] = sconce = str(args.sconce.resolve())
    failed = 0
    for check in CHECKS:
        if args.only and check.__name__ not in args.only:
            continue
        try:
            print(f"ok      {check.__name__}: {check(sconce)}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED  {check.__name__}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
